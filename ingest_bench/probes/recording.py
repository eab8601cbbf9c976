"""The one flight recording of a run: its options, its settings, and what `jvm/JfrReader.java` read from it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr

from ingest_bench import jvm, system
from ingest_bench.errors import MissingCapability, SpecError
from ingest_bench.inputs import records
from ingest_bench.inputs.files import sha256, text
from ingest_bench.jvm.compile import classes
from ingest_bench.model.results import Remark

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from ingest_bench.jvm.java import Java
    from ingest_bench.probes.context import Events, ReadContext

# Of two recordings the higher rate counts, and "off" as the lowest. Since Java 25 the default of reads is 100/s.
_NO_THROTTLE = {"enabled": "true", "throttle": "1000000/ms"}
# Says that the recorder itself dropped events: its buffers were full.
_DATA_LOSS: Events = {"jdk.DataLoss": {"enabled": "true"}}
# The environment and properties of the JVM and the command lines of all processes: passwords stand there.
_SECRET: Events = {
    name: {"enabled": "false"}
    for name in ("jdk.InitialEnvironmentVariable", "jdk.InitialSystemProperty", "jdk.SystemProcess")
}
READER = tuple(
    Path(jvm.__file__).with_name(name) for name in ("JfrReader.java", "StallSpans.java", "AllocationStacks.java")
)
READER_VERSION = 10
STACK_DEPTH = 128


def merge(into: Events, events: Mapping[str, dict[str, str]]) -> None:
    """Adds the events of one more probe. Of two thresholds the lower one; else two must want an event in one way."""
    for name, wanted in events.items():
        first = into.setdefault(name, wanted)
        thresholds = [each["threshold"] for each in (first, wanted) if "threshold" in each]
        lower = {"threshold": min(thresholds, key=_nanoseconds)} if len(thresholds) > 1 else {}
        if first | lower != wanted | lower:
            raise ValueError(f"two probes want {name} with different settings: {first} and {wanted}")
        into[name] = first | lower


def _nanoseconds(threshold: str) -> int:
    number, unit = threshold.split()
    return int(number) * {"ns": 1, "us": 10**3, "ms": 10**6}[unit]


def profile(java_home: Path) -> Path:
    """The settings for profiling that a JDK brings along: samples of threads, allocations, locks and exceptions."""
    return java_home / "lib" / "jfr" / "profile.jfc"


def settings_file(raw: Path) -> Path:
    """Where the recording's settings are."""
    return raw / "recording.jfc"


def settings(events: Events, beside: Path | None = None) -> str:
    """A settings file (.jfc) that enables these events and nothing else, or `beside` those of another such file.

    A file, because Java 11 has no settings on the command line. A setting that an event or a Java version does not know
    is ignored. Each event has the highest `throttle`: another recording of the JVM would set a lower one for ours too.
    """
    if beside is not None:
        return _added(events | _DATA_LOSS, beside)
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', '<configuration version="2.0" label="ingest-bench">']
    for name, wanted in (events | _DATA_LOSS).items():
        lines.append(f"  <event name={quoteattr(name)}>")
        lines += [
            f"    <setting name={quoteattr(key)}>{value}</setting>" for key, value in (_NO_THROTTLE | wanted).items()
        ]
        lines.append("  </event>")
    return "\n".join([*lines, "</configuration>", ""])


def _added(events: Events, beside: Path) -> str:
    """What that file says, but for our own events, which are as the probes want them, and without what may be secret.

    One file of both, because Java 11 takes one only.
    """
    try:
        root = ElementTree.parse(beside).getroot()  # noqa: S314 - it is the JDK's, which we start
    except (OSError, ElementTree.ParseError) as error:
        raise MissingCapability(
            f"--jfr profile: the settings of this Java cannot be read ({beside}: {error}). Name a JDK by --java-home"
        ) from None
    known = {event.get("name"): event for event in root.iter("event")}
    for name, wanted in (events | _SECRET).items():
        event = known[name] if name in known else ElementTree.SubElement(root, "event", name=name)
        # Without those of the file: its threshold or throttle would drop what a probe counts.
        event.clear()
        event.set("name", name)
        for key, value in (_NO_THROTTLE | wanted).items():
            ElementTree.SubElement(event, "setting", name=key).text = value
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def options(raw: Path) -> tuple[str, ...]:
    """Options that record from the start of the JVM to its end.

    maxsize=0: the default drops the oldest chunks beyond 250 MB. The repository is below `raw`, so that the chunks
    of a killed JVM stay: its recording.jfr is empty.
    """
    if any(letter in str(raw) for letter in ' ,:"\t'):
        raise SpecError(f"{raw}: the JVM's options take no path with a comma, colon, quote or space; rename it")
    recording = (
        "name=ingest-bench",
        f"settings={settings_file(raw)}",
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
    """What the reader found. `problem`: why nothing or not everything is there, as a sentence."""

    content: Mapping[str, Any]
    is_whole: bool
    has_holes: bool = False
    """Events are missing in the middle, not only after the end of a killed JVM."""
    problem: str = ""

    @property
    def is_readable(self) -> bool:
        """Whether everything up to some moment is there."""
        return bool(self.content.get("events")) and not self.has_holes

    def seconds(self, context: ReadContext) -> float:
        """How much of the measurement it covers."""
        end_ns = context.end_ns if self.is_whole else min(context.end_ns, self.content["last_ns"])
        return max(end_ns - context.start_ns, 0) / 1e9


# Before what was read, the last part of what is kept.
_CONTENT = ', "content": '


def files(raw: Path) -> tuple[list[Path], bool]:
    """The recording's files in order, and whether the JVM ended the recording itself.

    Chunks that are left in the repository mean that it did not: they hold everything since the start.
    """
    chunks = [path for path in sorted((raw / "jfr").glob("*/*.*")) if path.suffix in (".jfr", ".part")]
    left = [path for path in chunks if path.stat().st_size]
    if left:
        return left, False
    whole = raw / "recording.jfr"
    return ([whole], True) if whole.exists() and whole.stat().st_size else ([], False)


def load(context: ReadContext) -> Recording:
    """The recording of a run, read once: the answer is kept beside it as `recording.json`."""
    found, ended_well = files(context.raw)
    if not found:
        return Recording(content={}, is_whole=False, problem=f"there is no flight recording in {context.raw}")
    key = [READER_VERSION, context.start_ns, context.end_ns, sorted(context.ports), [path.name for path in found]]
    kept = context.raw / "recording.json"
    content = _kept(kept, key, _reads(context))
    if content is None:
        content = _read(context, found)
        reads = _reads(context)
        told = json.dumps(content)
        made = {"key": key, "reads_sha256": sha256(reads) if reads.exists() else None, "content_sha256": _sha256(told)}
        kept.write_text(f"{json.dumps(made)[:-1]}{_CONTENT}{told}}}", encoding="utf-8")
    return _judge(content, ended_well=ended_well)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    key: tuple[Any, ...]
    reads_sha256: str | None = None
    content_sha256: str | None = None
    """Of the text of `content`."""
    content: dict[str, Any]


def _reads(context: ReadContext) -> Path:
    return context.raw / "reads.bin"


def _kept(path: Path, key: list[Any], reads: Path) -> Mapping[str, Any] | None:
    """What was read before, with that key; None: nothing, or it or its reads are damaged, and all is read anew."""
    try:
        written = text(path)
        kept = records.from_json(_Kept, json.loads(written))
    except (OSError, ValueError, RecursionError):
        return None
    if kept.content_sha256 not in (None, _sha256(written.partition(_CONTENT)[2][:-1])):
        return None
    found = sha256(reads) if reads.exists() else None
    return kept.content if list(kept.key) == key and kept.reads_sha256 == found else None


def _sha256(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def opened(context: ReadContext, probe: str) -> Generator[Remark, None, Recording]:
    """The recording of a run, after a remark of that probe where something is wrong with it."""
    found = load(context)
    if found.problem:
        yield Remark(probe=probe, text=found.problem)
    return found


def reader(java: Java) -> tuple[str, ...]:
    """The command that reads recordings with that Java, but for its arguments; its classes are compiled once."""
    return (str(java.java), "-Xmx512m", "-XX:+UseSerialGC", "-cp", str(classes(java, READER)), "JfrReader")


def reader_argv(context: ReadContext, found: list[Path]) -> tuple[str, ...]:
    """The command that reads recordings into JSON, and their reads into `raw/reads.bin`."""
    return (
        *context.reader(),
        str(context.attachment.since_ns),
        str(context.start_ns),
        str(context.end_ns),
        ",".join(map(str, sorted(context.ports))),
        str(_reads(context)),
        *map(str, found),
    )


def _read(context: ReadContext, found: list[Path]) -> Mapping[str, Any]:
    content: Mapping[str, Any] = json.loads(system.run(reader_argv(context, found), timeout_s=600))
    return content


def _judge(content: Mapping[str, Any], *, ended_well: bool) -> Recording:
    problems = []
    if not ended_well:
        last = datetime.fromtimestamp(content["last_ns"] / 1e9, UTC).isoformat(timespec="milliseconds")
        problems.append(
            f"the JVM was killed before it could end its recording: {content['events']} events up to {last} were read,"
            " later ones are lost"
        )
    problems += [_lost(file) for file in content["files"] if file["error"]]
    if content["lost_bytes"]:
        problems.append(f"the flight recorder itself dropped {content['lost_bytes']} bytes of events")
    cut = [file for file in content["files"][:-1] if file["error"]]
    holes = bool(content["lost_bytes"] or cut)
    whole = ended_well and not problems
    return Recording(content=content, is_whole=whole, has_holes=holes, problem="; ".join(problems))


def _lost(file: Mapping[str, Any]) -> str:
    read = f"{file['events']} events were read" if file["events"] else "nothing could be read"
    return f"{Path(file['file']).name} ({file['bytes']} bytes): {read} ({file['error']})"
