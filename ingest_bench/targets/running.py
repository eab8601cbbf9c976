"""A server that runs already: which one it is, and the line of our tables that it is spoken with."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.targets import counting
from ingest_bench.targets.elastic.node import Node
from ingest_bench.targets.http import Answer, NoAnswer
from ingest_bench.targets.own import Own

if TYPE_CHECKING:
    from ingest_bench.model.results import Value
    from ingest_bench.model.target import TargetOptions
    from ingest_bench.targets import Target
    from ingest_bench.targets.http import Http

_WHO = "Credentials come from INGEST_BENCH_USER and INGEST_BENCH_PASSWORD, or from INGEST_BENCH_API_KEY"
_OPENSEARCH_TAGLINE = "The OpenSearch Project"
# Of a text that a server says about itself: versions and names have a hundredth of it.
_LONGEST_TEXT = 10_000
# What OpenSSL calls the alerts by which a server refuses a client's certificate.
_REFUSED = ("ALERT_CERTIFICATE_EXPIRED", "ALERT_UNKNOWN_CA", "ALERT_BAD_CERTIFICATE", "ALERT_CERTIFICATE_UNKNOWN")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What answered."""

    name: str
    """A key of TARGETS."""
    number: str
    """Its version, as it says it."""
    version: str
    """The version of our table that it is spoken with."""
    root: Mapping[str, Any]
    """Its answer to GET /."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know."""
        if self.name == "sink" or self.number == self.version:
            return ()
        return (f"{self.name} {self.number} is not in the table; it is spoken with as {self.version}",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identified:
    """A server that answered, and how it is spoken with."""

    target: Target
    asked: TargetOptions
    """What it is: the name and the version that it is spoken with."""
    told: dict[str, Value]
    """What it says about itself."""
    notes: tuple[str, ...] = ()
    cluster: str | None = None
    """What all nodes of one cluster say alike; None: it is not known."""

    @property
    def counts_for_all(self) -> bool:
        """Return True if each address counts the documents of the whole cluster."""
        return not isinstance(self.target, Own)


def identified(http: Http, options: TargetOptions, targets: Mapping[str, Target]) -> Identified:
    """What is behind the URL: what it says itself, or what the user's own file says.

    SpecError for what cannot be measured, RunFailed when nothing answers as it should.
    """
    if options.server is not None:
        target = Own(name=options.name, server=options.server)
        target.check()
        _ready(http, target)
        return Identified(target=target, asked=options, told=target.describe(http, options))
    it = found(http, targets)
    spoken_with = spoken(http, it, targets)
    asked = replace(options, name=it.name, version=it.version)
    description = bounded(described(http, it)) | replaced(spoken_with, asked)
    return Identified(
        target=spoken_with, asked=asked, told=description, notes=it.notes, cluster=it.root.get("cluster_uuid")
    )


def bounded(description: Mapping[str, Any]) -> dict[str, Any]:
    """Shorten the texts that a server says about itself: they go into the record of each run."""
    return {
        key: f"{value[:_LONGEST_TEXT]}…" if isinstance(value, str) and len(value) > _LONGEST_TEXT else value
        for key, value in description.items()
    }


def name_of(http: Http, options: TargetOptions, targets: Mapping[str, Target]) -> str:
    """What is behind the URL, in a word; SpecError or RunFailed when that is nothing that was asked for."""
    if options.server is not None:
        _ready(http, Own(name=options.name, server=options.server))
        return options.name
    it = found(http, targets)
    return f"{it.name} {it.number}"


def cluster(http: Http, target: Target) -> str | None:
    """What all nodes of one cluster say alike; None: such servers do not say it. RunFailed when it does not answer."""
    if isinstance(target, Own):
        _ready(http, target)
        return None
    try:
        root = http.request("GET", "/").json()
    except ValueError as error:
        raise RunFailed(f"server: GET {http.origin}/ was answered with what is not JSON: {error}") from None
    return root.get("cluster_uuid") if isinstance(root, dict) else None


def _ready(http: Http, target: Own) -> None:
    try:
        target.is_ready(0, (http.within(20),))
    except NoAnswer as error:
        raise _unreachable(http.origin, str(error)) from None
    except RunFailed as error:
        raise RunFailed(f"{http.origin}: it does not answer as {target.name}: {error}") from None


def found(http: Http, targets: Mapping[str, Target]) -> Found:
    """What is behind the URL; SpecError for what cannot be measured, RunFailed when nothing answers."""
    try:
        answer = http.request("GET", "/", timeout_s=20)
    except NoAnswer as error:
        raise _unreachable(http.origin, str(error)) from None
    number = _real_number(http) if _is_disguised(answer) else None
    return recognised(answer, http.origin, targets, number)


def _is_disguised(answer: Answer) -> bool:
    """Return True for OpenSearch with compatibility.override_main_response_version: it says that it is 7.10.2."""
    try:
        root = answer.json()
        return str(root["tagline"]).startswith(_OPENSEARCH_TAGLINE) and "distribution" not in root["version"]
    except (ValueError, KeyError, TypeError):
        return False


def _real_number(http: Http) -> str:
    """Return the version that the node itself reports; SpecError if it reports none."""
    path = "/_nodes/_local"
    answer = http.request("GET", path)
    try:
        (node,) = answer.json()["nodes"].values()
        return str(node["version"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise SpecError(
            f"{http.origin}: it is OpenSearch in compatibility mode, which hides its version, and GET {path} does not "
            f"tell it either ({answer.status}): set compatibility.override_main_response_version to false"
        ) from None


def recognised(answer: Answer, origin: str, targets: Mapping[str, Target], hidden_number: str | None = None) -> Found:
    """Return the target that sent this answer; SpecError if it is none of the targets. Pure.

    `hidden_number` is the version of OpenSearch in compatibility mode, which says another one in this answer.
    """
    if answer.status == 401:
        raise SpecError(f"{origin}: it does not know who we are (401). {_WHO}")
    if answer.status == 403:
        raise SpecError(
            f"{origin}: it knows who we are, and refuses (403): this user may not even ask what it is. {_WHO}"
        )
    said = answer.beginning()
    if answer.status != 200:
        raise SpecError(f"{origin}: GET / was answered {answer.status}, no server that we know does that: {said}")
    try:
        root = answer.json()
        number = hidden_number or root["version"]["number"]
        is_number = re.fullmatch(r"[0-9A-Za-z._+-]{1,64}", number) is not None
    except (ValueError, KeyError, TypeError):
        is_number = False
    if not is_number:
        raise SpecError(f"{origin}: this is neither Elasticsearch nor OpenSearch (a proxy?); it said: {said}")
    name = "opensearch" if hidden_number else _name(root)
    if name == "direct-memory":
        raise SpecError(f"{origin}: it is {name}, which is measured only where ingest-bench starts it: [target] name")
    if name == "sink":
        return Found(name=name, number=number, version=targets[name].default_version, root=root)
    version = nearest(number, targets[name].versions)
    if version is None:
        known = ", ".join(
            f"{one.name} {each}" for one in targets.values() if isinstance(one, Node) for each in one.versions
        )
        raise SpecError(f"{origin}: it is {name} {number}; known are {known}, and others with the same first number")
    return Found(name=name, number=number, version=version, root=root)


def nearest(number: str, known: Iterable[str]) -> str | None:
    """The known version nearest to this one, with the same first number; None without any. Pure."""
    asked = _parts(number)
    same = [version for version in known if _parts(version)[:1] == asked[:1]]
    return min(same, key=lambda version: _distance(_parts(version), asked), default=None)


def spoken(http: Http, it: Found, targets: Mapping[str, Target]) -> Target:
    """The target that it is spoken with, knowing what modules it has."""
    target = targets[it.name]
    if not isinstance(target, Node):
        return target
    path = "/_nodes/plugins"
    answer = http.request("GET", path)
    if answer.status != 200:
        return target
    with _understood(http, it, path, answer):
        nodes = answer.json()["nodes"].values()
        of_each = [{one["name"] for one in (*node.get("modules", ()), *node.get("plugins", ()))} for node in nodes]
    return target.with_modules(it.version, set.intersection(*of_each) if of_each else ())


def replaced(target: Target, asked: TargetOptions) -> dict[str, Value]:
    """What mappings get in the place of what it has not."""
    return {"replaced": target.replacements(asked)} if isinstance(target, Node) else {}


def described(http: Http, it: Found) -> dict[str, Value]:
    """What it says about itself: version, Java, collectors, heap. What it does not tell us is not there."""
    told: dict[str, Value] = {"name": it.name, "version": it.number}
    if it.name == "sink":
        keys = {"java": "java", "heap_bytes": "heap_bytes", "allocator": "allocator", "receive": "receive_predictor"}
        return told | {ours: it.root[theirs] for theirs, ours in keys.items() if theirs in it.root}
    path = "/_nodes/jvm"
    answer = http.request("GET", path)
    if answer.status != 200:
        return told
    with _understood(http, it, path, answer):
        nodes = list(answer.json()["nodes"].values())
        alike: dict[str, list[Any]] = {
            "java": [str(node["jvm"]["version"]) for node in nodes],
            "collectors": [", ".join(node["jvm"]["gc_collectors"]) for node in nodes],
            "heap_bytes": [counting.whole(node["jvm"]["mem"]["heap_max_in_bytes"], "the heap") for node in nodes],
        }
    told["nodes"] = len(nodes)
    return told | {key: values[0] for key, values in alike.items() if len(set(values)) == 1}


@contextmanager
def _understood(http: Http, it: Found, path: str, answer: Answer) -> Iterator[None]:
    """SpecError where an answer is not as that server gives it."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        raise SpecError(
            f"{http.origin}: it says that it is {it.name} {it.number}, and answers GET {path} as none does: "
            f"{answer.beginning()}"
        ) from None


def _name(root: Mapping[str, Any]) -> str:
    if root.get("name") == "sink" and "receive" in root:
        return "sink"
    if root.get("name") == "direct-memory" and "collectors" in root:
        return "direct-memory"
    return "opensearch" if root["version"].get("distribution") == "opensearch" else "elasticsearch"


def _parts(version: str) -> tuple[int, ...]:
    numbers = version.partition("-")[0].split(".")
    return tuple(int(number) for number in numbers if number.isdigit())


def _distance(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(abs(mine - theirs) for mine, theirs in zip(one, other, strict=False))


def _unreachable(origin: str, said: str) -> Exception:
    """What a failure to connect means to the user."""
    if "CERTIFICATE_VERIFY_FAILED" in said:
        detail = said.partition("certificate verify failed: ")[2].partition(" (_ssl")[0] or said
        return SpecError(
            f"{origin}: its certificate cannot be verified ({detail}). A private CA's own goes into --ca-file"
        )
    if "CERTIFICATE_REQUIRED" in said or "HANDSHAKE_FAILURE" in said:
        return SpecError(f"{origin}: it demands a certificate of ours: --client-cert and --client-key ({said})")
    if any(alert in said for alert in _REFUSED):
        return SpecError(f"{origin}: it refuses our certificate (--client-cert): {said}")
    if "SSLEOFError" in said:
        # Its alert is lost where the connection is reset behind it.
        return SpecError(
            f"{origin}: it ended TLS before it answered, as servers do that miss a certificate of ours or do not take "
            f"it: --client-cert and --client-key ({said})"
        )
    if "WRONG_VERSION_NUMBER" in said or "RECORD_LAYER_FAILURE" in said or "HTTP_REQUEST" in said:
        return SpecError(f"{origin}: it does not speak TLS. Is it http://?")
    if origin.startswith("http:") and any(word in said for word in ("RemoteDisconnected", "BadStatusLine", "Reset")):
        return SpecError(f"{origin}: it answers no plain HTTP ({said.rpartition('(')[2].rstrip(')')}). Is it https://?")
    return RunFailed(said)
