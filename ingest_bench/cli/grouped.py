"""Options that several commands share: a dataclass whose fields are the options, and that is what was typed."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any, TypeVar, get_type_hints

_Result = TypeVar("_Result")


def grouped(command: Callable[..., _Result]) -> Callable[..., _Result]:
    """The command as typer wants it: in place of a parameter that is a dataclass stand its fields."""
    groups: dict[str, Any] = {}
    options: list[Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if dataclasses.is_dataclass(parameter.annotation):
            groups[parameter.name] = parameter.annotation
            options += _options(parameter.annotation)
        else:
            options.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def typed(**values: Any) -> _Result:
        made = {name: _gathered(group, values) for name, group in groups.items()}
        return command(**made, **{option.name: values[option.name] for option in options if option.name in values})

    typed.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return typed


def _options(group: Any) -> list[Parameter]:
    found: list[Parameter] = []
    hints = get_type_hints(group, include_extras=True)
    for field in dataclasses.fields(group):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            found += _options(hint)
            continue
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        empty = Parameter.empty if default is dataclasses.MISSING else default
        found.append(Parameter(field.name, Parameter.KEYWORD_ONLY, default=empty, annotation=hint))
    return found


def _gathered(group: Any, values: dict[str, Any]) -> Any:
    """The group, made of those of the values that are its own; they are taken out."""
    hints: Mapping[str, Any] = get_type_hints(group)
    return group(
        **{
            field.name: _gathered(hints[field.name], values)
            if dataclasses.is_dataclass(hints[field.name])
            else values.pop(field.name)
            for field in dataclasses.fields(group)
        }
    )
