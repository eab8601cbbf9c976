"""Detect which server runs at a URL, and whether its API responds as a run needs.

Its requests are those of the nearest version of our tables, and its API decides where versions differ.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.model.results import ColumnValue
from ingest_bench.model.target import TargetOptions
from ingest_bench.targets import TARGETS, counting
from ingest_bench.targets.base import OTHER_SERVERS, Target
from ingest_bench.targets.cassandra.node import KEYSPACE, Cassandra
from ingest_bench.targets.cassandra.versions import CQL
from ingest_bench.targets.custom import Custom
from ingest_bench.targets.elastic.node import ElasticTarget
from ingest_bench.targets.http import Http, NoResponse, Response

T = TypeVar("T")
_CREDENTIALS = "Credentials come from INGEST_BENCH_USER and INGEST_BENCH_PASSWORD, or from INGEST_BENCH_API_KEY"
# Requests of a run, for an index that does not exist: method, path, body and the status of a server that has the API.
_CHECKED_INDEX = "ingest-bench-check"
_API_CHECKS = (
    ("POST", "_refresh?ignore_unavailable=true", None, 200),
    ("GET", "_count?ignore_unavailable=true", None, 200),
    # Without an id.
    ("POST", "_bulk", b'{"delete":{}}\n', 400),
)
_SNAPSHOTS = (
    "Cassandra keeps a snapshot of the tables that the run drops at its end, unless its auto_snapshot is off; "
    "`nodetool clearsnapshot` removes it"
)
_OPENSEARCH_TAGLINE = "The OpenSearch Project"
# Versions and names have a hundredth of it.
_MAX_TEXT_CHARACTERS = 10_000
# OpenSSL's names of the alerts that refuse a client certificate.
_REFUSED_CERTIFICATE = (
    "ALERT_CERTIFICATE_EXPIRED",
    "ALERT_UNKNOWN_CA",
    "ALERT_BAD_CERTIFICATE",
    "ALERT_CERTIFICATE_UNKNOWN",
)


class NotHttpError(SpecError):
    """A server responded, but not over plain HTTP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Detected:
    """A server that responded to GET /."""

    name: str
    """A key of TARGETS."""
    number: str
    """The version that it reports."""
    version: str
    """The version of our table that is used for it."""
    root: Mapping[str, Any]
    """Its response to GET /."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes for the user."""
        if self.name == "sink" or self.number == self.version:
            return ()
        return (f"{self.name} {self.number} was not tried; it is treated as {self.version}",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identified:
    """A server that responded, and the target that speaks with it."""

    target: Target
    options: TargetOptions
    """With the name and version of the target."""
    description: dict[str, ColumnValue]
    """What the server reports about itself."""
    notes: tuple[str, ...] = ()
    cluster_id: str | None = None
    """Equal for all nodes of a cluster; None: unknown."""

    @property
    def counts_for_all(self) -> bool:
        """Return True if each address counts the documents of the whole cluster."""
        return not isinstance(self.target, Custom)


def identify(http: Http, options: TargetOptions) -> Identified:
    """Identify the server behind the URL by its responses, or by the file of a custom target.

    SpecError for a server that cannot be measured, RunFailed if nothing responds as it should.
    """
    if options.custom is not None:
        custom = Custom(name=options.name, definition=options.custom)
        custom.check()
        _require_ready(http, custom)
        return Identified(target=custom, options=options, description=custom.describe(http, options))
    if is_cassandra(options):
        return _identify_cassandra(http, options)
    server = detect(http)
    target = adapt_target(http, server)
    options = replace(options, name=server.name, version=server.version)
    description = shorten_texts(describe(http, server))
    if isinstance(target, ElasticTarget):
        description["replaced"] = target.describe_replacements(options)
    return Identified(
        target=target,
        options=options,
        description=description,
        notes=server.notes,
        cluster_id=server.root.get("cluster_uuid"),
    )


def is_cassandra(options: TargetOptions) -> bool:
    """Return True if the URL is that of a Cassandra node."""
    return options.url is not None and options.url.scheme == "cassandra"


def _describe_cassandra(http: Http) -> dict[str, Any]:
    return http.ask_rpc(CQL.protocol, "describe", limit_s=20)


def _identify_cassandra(http: Http, options: TargetOptions) -> Identified:
    """Identify a node by its answer in CQL. Rows go into a keyspace of this run alone."""
    answer = _describe_cassandra(http)
    number = answer["version"]
    server = Detected(name="cassandra", number=number, version=nearest_version(number, CQL.versions), root={})
    return Identified(
        target=Cassandra(f"{KEYSPACE}_{secrets.token_hex(4)}"),
        options=replace(options, name=server.name, version=server.version),
        description=shorten_texts({"name": server.name, "version": number, "interface": answer["interface"]}),
        notes=(*server.notes, _SNAPSHOTS),
        cluster_id=answer["cluster"],
    )


def shorten_texts(description: Mapping[str, Any]) -> dict[str, Any]:
    """Shorten the texts that a server reports: they go into the record of each run."""
    return {
        key: f"{value[:_MAX_TEXT_CHARACTERS]}…"
        if isinstance(value, str) and len(value) > _MAX_TEXT_CHARACTERS
        else value
        for key, value in description.items()
    }


def identify_name(http: Http, options: TargetOptions) -> str:
    """Return name and version of the server behind the URL; SpecError or RunFailed if it is not the expected one."""
    if options.custom is not None:
        _require_ready(http, Custom(name=options.name, definition=options.custom))
        return options.name
    if is_cassandra(options):
        return f"cassandra {_describe_cassandra(http)['version']}"
    server = detect(http)
    return f"{server.name} {server.number}"


def read_cluster_id(http: Http, target: Target) -> str | None:
    """Return the id that all nodes of a cluster report; None if such servers report none. RunFailed for no response."""
    if isinstance(target, Custom):
        _require_ready(http, target)
        return None
    if isinstance(target, Cassandra):
        return str(_describe_cassandra(http)["cluster"])
    try:
        root = http.request("GET", "/").json()
    except ValueError as error:
        raise RunFailed(f"server: the response to GET {http.origin}/ is not JSON: {error}") from None
    return root.get("cluster_uuid") if isinstance(root, dict) else None


def _require_ready(http: Http, target: Custom) -> None:
    try:
        target.is_ready(0, (http.with_deadline(20),))
    except NoResponse as error:
        raise _explain_failure(http.origin, str(error)) from None
    except RunFailed as error:
        raise RunFailed(f"{http.origin}: it does not respond as {target.name} should: {error}") from None


def detect(http: Http) -> Detected:
    """Detect the server behind the URL; SpecError if it cannot be measured, RunFailed if nothing responds."""
    try:
        response = http.request("GET", "/", timeout_s=20)
    except NoResponse as error:
        raise _explain_failure(http.origin, str(error)) from None
    return recognize(response, http.origin, lambda: _read_hidden_version(http))


def _read_hidden_version(http: Http) -> str:
    """Return the version that the node itself reports; SpecError if it reports none."""
    path = "/_nodes/_local"
    response = http.request("GET", path)
    try:
        (node,) = response.json()["nodes"].values()
        return str(node["version"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise SpecError(
            f"{http.origin}: OpenSearch in compatibility mode hides its version, and GET {path} does not report it "
            f"either (status {response.status}). Set compatibility.override_main_response_version to false"
        ) from None


def recognize(response: Response, origin: str, read_hidden_version: Callable[[], str]) -> Detected:
    """Return the server that sent this response to GET /; SpecError if it is not one of the targets.

    `read_hidden_version` returns the real version of OpenSearch in compatibility mode, which reports 7.10.2.
    """
    if response.status == 401:
        raise SpecError(f"{origin}: authentication failed (401). {_CREDENTIALS}")
    if response.status == 403:
        raise SpecError(f"{origin}: permission denied (403): this user may not even read GET /. {_CREDENTIALS}")
    excerpt = response.excerpt()
    if response.status != 200:
        raise SpecError(f"{origin}: unknown server: GET / got status {response.status}: {excerpt}")
    try:
        root = response.json()
        # compatibility.override_main_response_version
        is_hidden = str(root.get("tagline")).startswith(_OPENSEARCH_TAGLINE) and "distribution" not in root["version"]
        number = read_hidden_version() if is_hidden else root["version"]["number"]
        is_version = re.fullmatch(r"[0-9A-Za-z._+-]{1,64}", number) is not None
    except (ValueError, KeyError, TypeError, AttributeError):
        is_version = False
    if not is_version:
        raise SpecError(
            f"{origin}: neither Elasticsearch nor OpenSearch (a proxy?); it responded: {excerpt} ({OTHER_SERVERS})"
        )
    name = "opensearch" if is_hidden else _recognize_name(root)
    if name == "direct-memory":
        raise SpecError(f"{origin}: {name} is measured only if ingest-bench starts it: [target] name")
    if name == "sink":
        return Detected(name=name, number=number, version=TARGETS[name].default_version, root=root)
    version = nearest_version(number, TARGETS[name].versions)
    return Detected(name=name, number=number, version=version, root=root)


def _recognize_name(root: Mapping[str, Any]) -> str:
    if root.get("name") == "sink" and "receive" in root:
        return "sink"
    if root.get("name") == "direct-memory" and "collectors" in root:
        return "direct-memory"
    return "opensearch" if root["version"].get("distribution") == "opensearch" else "elasticsearch"


def nearest_version(number: str, versions: Iterable[str]) -> str:
    """Return the version that is nearest to *number*, compared number by number. Pure."""
    wanted = _split_version(number)

    def distance(version: str) -> tuple[int, ...]:
        return tuple(abs(ours - theirs) for ours, theirs in zip(_split_version(version), wanted, strict=False))

    return min(versions, key=distance)


def _split_version(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.partition("-")[0].split(".") if number.isdigit())


def adapt_target(http: Http, server: Detected) -> Target:
    """Return the target for the server, adapted to its modules and to its form of a bulk request.

    SpecError if its API does not respond as a run needs.
    """
    target = TARGETS[server.name]
    if not isinstance(target, ElasticTarget):
        return target

    def read_modules(nodes: list[Any]) -> list[set[str]]:
        return [{module["name"] for module in (*node.get("modules", ()), *node.get("plugins", ()))} for node in nodes]

    has_types = _check_api(http, server)
    modules = _read_nodes(http, server, "/_nodes/plugins", read_modules)
    available = set.intersection(*modules) if modules else set[str]()
    return target.adapt(server.version, available, has_types=has_types)


def _check_api(http: Http, server: Detected) -> bool | None:
    """Return True if a bulk request must name the type of its documents; None if the user may not send one there.

    No index needs to exist and nothing is written: the one action of the bulk request is invalid in every version.
    SpecError if a response is not that of the API.
    """
    status = 0
    for method, api, body, expected in _API_CHECKS:
        path = f"/{_CHECKED_INDEX}/{api}"
        response = http.request(method, path, body)
        status = response.status
        # A user may have permission for other indices only.
        if status not in (expected, 403):
            raise SpecError(
                f"{http.origin}: {server.name} {server.number} does not have the API that a run needs: {method} {path} "
                f"got status {status} instead of {expected}: {response.excerpt()} ({OTHER_SERVERS})"
            )
    return None if status == 403 else b"type is missing" in response.body


def describe(http: Http, server: Detected) -> dict[str, ColumnValue]:
    """Return version, Java, collectors and heap as far as the server reports them."""
    description: dict[str, ColumnValue] = {"name": server.name, "version": server.number}
    if server.name == "sink":
        keys = {"java": "java", "heap_bytes": "heap_bytes", "allocator": "allocator", "receive": "receive_predictor"}
        return description | {column: server.root[key] for key, column in keys.items() if key in server.root}

    def read_columns(nodes: list[Any]) -> dict[str, ColumnValue]:
        columns: dict[str, list[Any]] = {
            "java": [str(node["jvm"]["version"]) for node in nodes],
            "collectors": [", ".join(node["jvm"]["gc_collectors"]) for node in nodes],
            "heap_bytes": [counting.parse_count(node["jvm"]["mem"]["heap_max_in_bytes"], "the heap") for node in nodes],
        }
        equal = {column: values[0] for column, values in columns.items() if len(set(values)) == 1}
        return {"nodes": len(nodes), **equal}

    return description | (_read_nodes(http, server, "/_nodes/jvm", read_columns) or {})


def _read_nodes(http: Http, server: Detected, path: str, read: Callable[[list[Any]], T]) -> T | None:
    """Return what `read` finds in the nodes of a response; None for a refusal, SpecError for another format."""
    response = http.request("GET", path)
    if response.status != 200:
        return None
    try:
        return read([*response.json()["nodes"].values()])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        raise SpecError(
            f"{http.origin}: it reports to be {server.name} {server.number}, but its response to GET {path} has "
            f"another format: {response.excerpt()}"
        ) from None


def _explain_failure(origin: str, text: str) -> Exception:
    """Return the error that explains a failed connection to the user."""
    if "CERTIFICATE_VERIFY_FAILED" in text:
        detail = text.partition("certificate verify failed: ")[2].partition(" (_ssl")[0] or text
        return SpecError(f"{origin}: its certificate cannot be verified ({detail}). Give the CA's by --ca-file")
    if "CERTIFICATE_REQUIRED" in text or "HANDSHAKE_FAILURE" in text:
        return SpecError(f"{origin}: it requires a client certificate: --client-cert and --client-key ({text})")
    if any(alert in text for alert in _REFUSED_CERTIFICATE):
        return SpecError(f"{origin}: it refuses our client certificate (--client-cert): {text}")
    if "SSLEOFError" in text:
        # The alert is lost if the connection is reset after it.
        return SpecError(
            f"{origin}: it ended TLS without a response, as servers do if a client certificate is missing or refused: "
            f"--client-cert and --client-key ({text})"
        )
    if "WRONG_VERSION_NUMBER" in text or "RECORD_LAYER_FAILURE" in text or "HTTP_REQUEST" in text:
        return SpecError(f"{origin}: it does not speak TLS. Is it http://?")
    if origin.startswith("http:") and any(word in text for word in ("RemoteDisconnected", "BadStatusLine", "Reset")):
        return NotHttpError(
            f"{origin}: it does not speak plain HTTP ({text.rpartition('(')[2].rstrip(')')}). Is it https://?"
        )
    return RunFailed(text)
