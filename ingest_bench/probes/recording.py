"""The flight recording of a run: JVM options, settings file, and its content as read by `jvm/JfrReader.java`."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from ingest_bench import jvm, system
from ingest_bench.errors import MissingCapability, SpecError
from ingest_bench.inputs import records
from ingest_bench.inputs.files import read_text, sha256
from ingest_bench.jvm.java import Java, compile_classes
from ingest_bench.model.results import Note
from ingest_bench.probes.context import Events, ReadContext

# With two recordings the higher rate applies, and "off" is the lowest. Since Java 25 the default for reads is 100/s.
_NO_THROTTLE = {"enabled": "true", "throttle": "1000000/ms"}
# Written if the recorder dropped events because its buffers were full; all recordings of the JVM and the settings in
# force, which they share.
_OF_THE_RECORDER: Events = {
    name: {"enabled": "true"} for name in ("jdk.DataLoss", "jdk.ActiveRecording", "jdk.ActiveSetting")
}
# Environment and properties of the JVM and command lines of all processes: they may contain passwords.
_SECRET: Events = {
    name: {"enabled": "false"}
    for name in ("jdk.InitialEnvironmentVariable", "jdk.InitialSystemProperty", "jdk.SystemProcess")
}
READER = tuple(
    Path(jvm.__file__).with_name(name) for name in ("JfrReader.java", "StallSpans.java", "AllocationStacks.java")
)
READER_VERSION = 18
STACK_DEPTH = 128
# Of a threshold, a period and a throttle (jdk.jfr.internal.util.ValueParser and TimespanUnit).
_UNITS_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9}
# Recordings of a run have this name, or begin with it.
_OWN_NAME = "ingest-bench"


def merge_events(probe_events: Iterable[Events]) -> Events:
    """Return the events of all probes. The lowest threshold applies; all other settings must be equal."""
    merged: Events = {}
    for name, settings in itertools.chain.from_iterable(events.items() for events in probe_events):
        existing = merged.setdefault(name, settings)
        thresholds = [either["threshold"] for either in (existing, settings) if "threshold" in either]
        lower = {"threshold": min(thresholds, key=_parse_threshold_ns)} if len(thresholds) > 1 else {}
        if existing | lower != settings | lower:
            raise ValueError(f"two probes require {name} with different settings: {existing} and {settings}")
        merged[name] = existing | lower
    return merged


def _parse_threshold_ns(threshold: str) -> int:
    number, unit = threshold.split()
    return int(number) * _UNITS_NS[unit]


def find_weaker_settings(content: Mapping[str, Any], events: Events) -> list[str]:
    """Return the settings in force that lose some of these events, because another recording of the JVM wants them."""
    weaker = []
    for event, name, value in content.get("settings", ()):
        expected = (_NO_THROTTLE | events[event]).get(name) if event in events else None
        if expected is not None and _strength(name, value) < _strength(name, expected):
            weaker.append(f"{event} with {name} {value} instead of {expected}")
    return weaker


def _strength(name: str, value: str) -> float:
    """Return a number that is higher, the more events a setting lets through."""
    if name not in ("throttle", "threshold", "period"):
        return value == "true"
    if name == "throttle" and value == "off":
        return math.inf
    parts = re.fullmatch(f"([0-9]{{1,18}}) ?/?({'|'.join(_UNITS_NS)})", value)
    if parts is None:
        return -math.inf
    number, unit_ns = int(parts[1]), _UNITS_NS[parts[2]]
    return number / unit_ns if name == "throttle" else -number * unit_ns


def profile_path(java_home: Path) -> Path:
    """Return the JDK's own profiling settings: samples of threads, allocations, locks and exceptions."""
    return java_home / "lib" / "jfr" / "profile.jfc"


def settings_path(raw: Path) -> Path:
    """Return the path of the recording's settings file."""
    return raw / "recording.jfc"


def format_settings(events: Events, profile: Path | None = None) -> str:
    """Return a settings file (.jfc) that enables only these events, or adds them to those of the file *profile*.

    One file, because Java 11 has no settings on the command line and takes only one. A setting that an event or a Java
    version does not know is ignored. Each event has the highest `throttle`: another recording of the JVM would set a
    lower one for ours too. Events that leak secrets are off.
    """
    root = ElementTree.Element("configuration", version="2.0", label="ingest-bench")
    if profile is not None:
        try:
            root = ElementTree.parse(profile).getroot()  # noqa: S314 - from the JDK that we run
        except (OSError, ElementTree.ParseError) as error:
            raise MissingCapability(
                f"--jfr profile: cannot read the profiling settings of this Java ({profile}: {error}). Give another "
                "JDK by --java-home."
            ) from None
    in_profile = {event.get("name"): event for event in root.iter("event")}
    for name, settings in (events | _OF_THE_RECORDER | _SECRET).items():
        event = in_profile[name] if name in in_profile else ElementTree.SubElement(root, "event", name=name)
        # Remove the profile's settings: its threshold or throttle would drop events that a probe counts.
        event.clear()
        event.set("name", name)
        for key, value in (_NO_THROTTLE | settings).items():
            ElementTree.SubElement(event, "setting", name=key).text = value
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def start_options(raw: Path) -> tuple[str, ...]:
    """Return options that record from the start of the JVM to its end.

    maxsize=0: the default drops the oldest chunks beyond 250 MB. The repository is below *raw*, so that the chunks
    of a killed JVM remain: its recording.jfr is empty.
    """
    if any(character in str(raw) for character in ' ,:"\t'):
        raise SpecError(f"{raw}: JVM options cannot contain a path with a comma, colon, quote or space. Rename it.")
    recording = (
        f"name={_OWN_NAME}",
        f"settings={settings_path(raw)}",
        f"filename={raw / 'recording.jfr'}",
        "dumponexit=true",
        "disk=true",
        "maxsize=0",
    )
    return (
        f"-XX:StartFlightRecording={','.join(recording)}",
        f"-XX:FlightRecorderOptions=repository={raw / 'jfr'},stackdepth={STACK_DEPTH}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The content of a recording. `problem`: a sentence if it is missing or incomplete."""

    content: Mapping[str, Any]
    is_complete: bool
    has_gaps: bool = False
    """Events are missing in the middle, not only after the end of a killed JVM."""
    problem: str = ""

    @property
    def others(self) -> tuple[str, ...]:
        """Return the names of the JVM's other recordings."""
        return tuple(name for name in self.content.get("recordings", ()) if not name.startswith(_OWN_NAME))

    @property
    def is_readable(self) -> bool:
        """Return True if all events up to some moment are present."""
        return bool(self.content.get("events")) and not self.has_gaps

    def covered_ns(self, context: ReadContext) -> int:
        """Return the length of the part of the measurement that it covers."""
        end_ns = context.end_ns if self.is_complete else min(context.end_ns, self.content["last_ns"])
        return max(end_ns - context.start_ns, 0)

    def covers(self, context: ReadContext) -> bool:
        """Return True if all events of the measurement are present."""
        return self.is_readable and self.covered_ns(context) == context.end_ns - context.start_ns


# Separates the keys of `recording.json` from its content, which is last.
_CONTENT = ', "content": '
CACHES = ("recording.json", "reads.bin")
"""Files that are made from the recording when it is read for the first time: its content, and the socket reads."""


def recording_files(raw: Path) -> tuple[list[Path], bool]:
    """Return the recording's files in order, and False if the JVM was killed: then all its chunks remain."""
    chunks = [path for path in sorted((raw / "jfr").glob("*/*.*")) if path.suffix in (".jfr", ".part")]
    remaining = [path for path in chunks if path.stat().st_size]
    if remaining:
        return remaining, False
    path = raw / "recording.jfr"
    return ([path], True) if path.exists() and path.stat().st_size else ([], False)


def load_recording(context: ReadContext) -> Recording:
    """Return the recording of a run. It is read once: the content is cached as `recording.json` next to it."""
    paths, ended_by_jvm = recording_files(context.raw)
    if not paths:
        return Recording(content={}, is_complete=False, problem=f"there is no flight recording in {context.raw}")
    names, network = [path.name for path in paths], list(context.network)
    key = [READER_VERSION, context.start_ns, context.end_ns, sorted(context.ports), network, names]
    cache, reads = (context.raw / name for name in CACHES)
    content = _load_cached(cache, key, reads)
    if content is None:
        times = (context.attachment.since_ns, context.start_ns, context.end_ns)
        ports = ",".join(map(str, sorted(context.ports)))
        argv = (*context.reader(), *map(str, times), ports, ",".join(network), str(reads), *map(str, paths))
        content = json.loads(system.run(argv, timeout_s=600))
        text = json.dumps(content)
        head = {"key": key, "reads_sha256": sha256(reads) if reads.exists() else None, "content_sha256": _sha256(text)}
        cache.write_text(f"{json.dumps(head)[:-1]}{_CONTENT}{text}}}", encoding="utf-8")
    return _judge(content, ended_by_jvm=ended_by_jvm)


def open_recording(context: ReadContext, probe: str, events: Events) -> Generator[Note, None, Recording]:
    """Return the recording of a run, after yielding a note of that probe if it has a problem.

    A note makes the run invalid if another recording of the JVM had its way about one of the probe's events.
    """
    recording = load_recording(context)
    if recording.problem:
        yield Note(source=probe, text=recording.problem)
    if weaker := find_weaker_settings(recording.content, events):
        others = f" ({', '.join(recording.others)})" if recording.others else ""
        text = (
            f"the JVM recorded {', '.join(weaker)}, as another flight recording{others} demands: events are missing. "
            "Stop the other recording (jcmd PID JFR.stop)."
        )
        yield Note(source=probe, text=text, invalidates=True)
    return recording


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cached:
    key: tuple[Any, ...]
    reads_sha256: str | None = None
    content_sha256: str | None = None
    """Of the text of `content`."""
    content: dict[str, Any]


def _load_cached(path: Path, key: list[Any], reads: Path) -> Mapping[str, Any] | None:
    """Return the cached content for *key*; None if there is none, or if it or *reads* is damaged."""
    try:
        text = read_text(path)
        cached = records.from_json(_Cached, json.loads(text))
    except (OSError, ValueError, RecursionError):
        return None
    if cached.content_sha256 not in (None, _sha256(text.partition(_CONTENT)[2][:-1])):
        return None
    reads_sha256 = sha256(reads) if reads.exists() else None
    return cached.content if list(cached.key) == key and cached.reads_sha256 == reads_sha256 else None


def _sha256(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def reader_command(java: Java) -> tuple[str, ...]:
    """Return the command, without arguments, that reads recordings with that Java; its classes are compiled once."""
    return (str(java.java), "-Xmx512m", "-XX:+UseSerialGC", "-cp", str(compile_classes(java, READER)), "JfrReader")


def _judge(content: Mapping[str, Any], *, ended_by_jvm: bool) -> Recording:
    problems = []
    if not ended_by_jvm:
        last = datetime.fromtimestamp(content["last_ns"] / 1e9, UTC).isoformat(timespec="milliseconds")
        problems.append(
            f"the JVM was killed before it could end its recording: {content['events']} events up to {last} were read,"
            " later ones are lost"
        )
    for file in content["files"]:
        if file["error"]:
            read = f"{file['events']} events were read" if file["events"] else "nothing could be read"
            problems.append(f"{Path(file['file']).name} ({file['bytes']} bytes): {read} ({file['error']})")
    if content["lost_bytes"]:
        problems.append(f"the flight recorder itself dropped {content['lost_bytes']} bytes of events")
    has_gaps = bool(content["lost_bytes"] or any(file["error"] for file in content["files"][:-1]))
    is_complete = ended_by_jvm and not problems
    return Recording(content=content, is_complete=is_complete, has_gaps=has_gaps, problem="; ".join(problems))
