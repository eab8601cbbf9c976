"""What all pages share: the document, its look, tables and lists. A page needs nothing from elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
# So many columns of numbers fit a window of 1280 pixels in the usual size.
_MOST_WIDE = 12
# The space between a number and its unit, where no line may end.
_UNIT = re.compile(r"(?<=[0-9]) (?=(?:[KMGT]i?)?B\b|ms\b|s\b)")


def document(title: str, parts: Sequence[str], data: Mapping[str, Any] | None = None) -> str:
    """A whole page of these parts (HTML). With `data`, the script draws its charts from that."""
    script = ""
    if data is not None:
        script = (
            f'<script type="application/json" id="data">{_json(data)}</script>\n'
            f"<script>\n{(_HERE / 'page.js').read_text(encoding='utf-8')}</script>\n"
        )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{(_HERE / 'page.css').read_text(encoding='utf-8')}</style>\n"
        "</head>\n<body>\n<main>\n"
        + "\n".join(part for part in parts if part)
        + f"\n</main>\n{script}</body>\n</html>\n"
    )


def section(title: str, content: str, name: str = "") -> str:
    """A section with its title; nothing where it has no content. `name` is what links lead to."""
    mark = f' id="{escape(name)}"' if name else ""
    return f"<section{mark}>\n<h2>{breakable(title)}</h2>\n{content}\n</section>" if content else ""


def table(
    rows: Sequence[Sequence[str]], links: Mapping[int, Sequence[str]] | None = None, *, stacked: bool = False
) -> str:
    """Rows as an HTML table, the first as its head; cells that begin with a digit are aligned to the right.

    `links` has for the place of a column an address for each row. In a narrow window the cells of a row of a `stacked`
    table stand below each other, each with its head: that is for sentences.
    """
    head, *body = rows
    numeric = [any(row[place][:1].isdigit() for row in body) for place in range(len(head))]
    marks = [' class="number"' if number else "" for number in numeric]

    def line(texts: Sequence[str], tag: str) -> str:
        return "".join(f"<{tag}{mark}>{text}</{tag}>" for text, mark in zip(texts, marks, strict=True))

    def linked(number: int, row: Sequence[str]) -> list[str]:
        texts = [_UNIT.sub("&nbsp;", breakable(cell)) for cell in row]
        for place, addresses in (links or {}).items():
            texts[place] = f'<a href="{escape(addresses[number])}">{texts[place] or "(no name)"}</a>'
        return texts

    heads = line([escape(cell) for cell in head], "th")
    if stacked:
        marks = [f'{mark} data-head="{escape(cell)}"' for mark, cell in zip(marks, head, strict=True)]
    content = "".join(f"<tr>{line(linked(number, row), 'td')}</tr>\n" for number, row in enumerate(body))
    # What is cut off can be scrolled by keys, too.
    look = ' class="dense"' if len(head) > _MOST_WIDE else ' class="stacked"' if stacked else ""
    begin = f'<div class="wide" tabindex="0"><table{look}>\n<thead><tr>{heads}</tr></thead>'
    return f"{begin}\n<tbody>{content}</tbody></table></div>"


def items(texts: Sequence[str]) -> str:
    """A list; nothing without any."""
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>" if texts else ""


def breakable(name: str) -> str:
    """A text, escaped, in which a line may end between levels of a cell or ends of a range, and in no number."""
    return re.sub(r",(?=[^0-9 ])|\+(?=[a-z])|\.\.(?=[0-9])", r"\g<0><wbr>", escape(name))


def _json(data: Mapping[str, Any]) -> str:
    """The data as JSON that ends no script, whatever somebody's name is."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
