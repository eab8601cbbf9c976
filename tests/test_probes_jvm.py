"""Probes on real JVMs: a server of our own counts its reads, and the probes must find the same."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fault_lab import wait_until
from probe_lab import EVER_NS, histogram, make_context, notes, read, readings

from ingest_bench import system
from ingest_bench.jvm.java import compile_classes as compiled
from ingest_bench.jvm.java import find_java
from ingest_bench.model.results import READ_FIELDS, Series, Stacks
from ingest_bench.probes import jfr, jvm_options, recording
from ingest_bench.probes.context import ATTACHMENT_FILE, ReadContext
from ingest_bench.probes.oom import find_oom

pytestmark = pytest.mark.jvm

DATA = Path(__file__).parent / "data" / "jfr"
PROGRAMS = Path(__file__).parent / "java"


@pytest.fixture(scope="module")
def java() -> Path:
    return find_java(17).java


@pytest.fixture(scope="module")
def classes() -> Path:
    return compiled(find_java(17), (*recording.READER, *sorted(PROGRAMS.rglob("*.java"))))


def context(raw: Path, java: Path, classes: Path, *ports: int) -> ReadContext:
    command = (str(java), "-Xmx512m", "-XX:+UseSerialGC", "-cp", str(classes), "JfrReader")
    return make_context(raw, ports=ports, reader=lambda: command)


def counted(output: str) -> dict[str, int]:
    """Return the counts that the program prints, such as "reads=3126 bytes=200000"."""
    return {key: int(value) for key, value in re.findall(r"(\w+)=([0-9]+)", output)}


def serve(java: Path, classes: Path, raw: Path, *arguments: object) -> list[str]:
    options = jvm_options(["reads", "gc"], raw, 17)
    return [str(java), "-Xmx128m", *options, "-cp", str(classes), "Readers", *map(str, arguments)]


def run(raw: Path, java: Path, *arguments: str) -> str:
    """Run a JVM where its crash may leave a recording (hs_err_pidN.jfr), outside of the project; return its output."""
    return system.run(["env", "-C", str(raw.parent), str(java), *arguments], timeout_s=120, check=False)


@pytest.mark.nightly
def test_million_reads_equal_the_counts_of_the_server(java: Path, classes: Path, raw: Path) -> None:
    counts = counted(system.run(serve(java, classes, raw, 700_000, "exit"), timeout_s=300))
    assert counts["reads"] > 1_000_000
    measured = read("reads", context(raw, java, classes, counts["port"]))
    sizes = histogram(measured)
    assert sum(sizes.values()) == counts["reads"]
    assert sum(size * count for size, count in sizes.items()) == counts["bytes"] == readings(measured)["bytes_read"]
    assert notes(measured) == []
    sequence = np.fromfile(raw / "reads.bin", dtype=np.dtype(list(READ_FIELDS)))
    data = sequence[sequence["bytes"] > 0]
    assert len(data) == counts["reads"]
    assert int(data["bytes"].sum()) == counts["bytes"]
    assert set(sequence["port"]) == {counts["port"]}
    in_order = np.sort(sequence, order="end_ns", kind="stable")
    assert in_order["bytes"][-1] == -1, "the end of the stream is the last read"


def test_reads_of_other_connections_and_times_are_excluded(java: Path, classes: Path, raw: Path) -> None:
    counts = counted(system.run(serve(java, classes, raw, 2000, "exit"), timeout_s=120))
    measured = read("reads", context(raw, java, classes, counts["port"] + 1))
    assert readings(measured)["bytes_read"] is None
    full_context = context(raw, java, classes, counts["port"])
    late = dataclasses.replace(full_context, start_ns=EVER_NS - 1)
    measured = read("reads", late)
    assert histogram(measured) == {}
    assert readings(measured)["bytes_read"] == counts["bytes"]


@pytest.mark.nightly
def test_recording_of_a_killed_server_is_read_and_the_loss_noted(java: Path, classes: Path, raw: Path) -> None:
    output = raw / "output"
    process = system.start(serve(java, classes, raw, 300_000, "wait"), stdout=output)
    try:
        wait_until_ready(process, output)
    finally:
        process.kill()
        process.wait()
    counts = counted(output.read_text())
    outputs = [read(name, context(raw, java, classes, counts["port"])) for name in ("reads", "gc")]
    measured = [*itertools.chain(*outputs)]
    total = sum(histogram(measured).values())
    assert 0 < total <= counts["reads"]
    values = readings(measured)
    assert values["bytes_read"] is None
    assert values["gc_pauses"] == values["gc_pauses_log"] > 0
    assert "was killed" in " ".join(notes(measured))


def test_allocations_of_a_known_pattern_by_layer_and_kind(java: Path, classes: Path, raw: Path) -> None:
    names = ["allocations", "large-allocations"]
    run(raw, java, "-Xmx128m", *jvm_options(names, raw, 17), "-cp", str(classes), "Allocations", "pattern")
    measured = [item for name in names for item in read(name, context(raw, java, classes))]
    assert notes(measured) == []
    values = readings(measured)
    assert values["outside_tlab_network_count"] == 2000
    assert values["outside_tlab_network_bytes"] == 2000 * ((1 << 20) + 16)
    assert values["outside_tlab_other_bytes"] == pytest.approx(1000 * ((512 << 10) + 16), rel=0.01)
    assert values["outside_tlab_max_bytes"] == (1 << 20) + 16
    assert values["outside_tlab_sites"].startswith("io.netty.pretend.Buffers.take: 2097184000")
    # A region has 1 MiB, so that all of them are humongous.
    assert values["allocations_1mib"] == values["allocations_humongous"] == 2000
    assert values["allocations_1mib_bytes"] == 2000 * ((1 << 20) + 16)
    assert (values["largest_allocation_bytes"], values["allocations_100mib"]) == ((1 << 20) + 16, 0)
    assert values["largest_allocation_stack"].startswith("[B: io.netty.pretend.Buffers.take:")
    assert values["large_allocation_sites"] == f"io.netty.pretend.Buffers.take: 2000 of {2000 * ((1 << 20) + 16)}"
    (line,) = [item for item in measured if isinstance(item, Series)]
    assert set(line.values) == {(1 << 20) + 16}
    # Both probes have all stacks, which end in the class, and nothing of the totals is missing in them.
    first, second = [item.folded for item in measured if isinstance(item, Stacks)]
    assert first == second
    for kind, total in (("outside TLABs", "outside_tlab_total_bytes"), ("new TLABs", "tlab_total_bytes")):
        assert sum(size for frames, size in first.items() if frames.startswith(f"{kind};")) == values[total]
    taken = "outside TLABs;Allocations.main;Allocations.pattern;io.netty.pretend.Buffers.take;byte[]"
    assert first[taken] == 2000 * ((1 << 20) + 16)
    # The last TLAB is not full, and a TLAB's end is thrown away.
    assert values["tlab_total_bytes"] == pytest.approx(200_000 * 1024, rel=0.03)
    # A custom target names the packages of its network layer.
    renamed = readings(read("allocations", dataclasses.replace(context(raw, java, classes), network=("Allocations",))))
    # The JVM may have allocated an array of its own, which is in neither layer.
    assert renamed["outside_tlab_network_bytes"] == pytest.approx(values["outside_tlab_other_bytes"], rel=0.01)
    assert renamed["outside_tlab_other_bytes"] == pytest.approx(values["outside_tlab_network_bytes"], rel=0.01)


def folded(stacks: Any) -> dict[str, int]:
    (total,) = [item for item in jfr.allocation_stacks({"stacks": stacks}, "allocations") if isinstance(item, Stacks)]
    return total.folded


def test_stacks_beyond_a_full_tree_are_counted_at_their_last_frame(java: Path, classes: Path) -> None:
    names = {
        "a.Main$$Lambda$14/0x0000000800c03000.run": "a.Main$$Lambda.run",
        "a.Main$$Lambda+0x00007f1c8c003a48.run": "a.Main$$Lambda.run",
        "jdk.internal.reflect.GeneratedMethodAccessor7.invoke": "jdk.internal.reflect.GeneratedMethodAccessor.invoke",
        "jdk.proxy2.$Proxy11.get": "jdk.proxy.$Proxy.get",
        "com.sun.proxy.$Proxy12.get": "com.sun.proxy.$Proxy.get",
        # Classes from source files have the same name in each run.
        "a.HttpProxy1.run": "a.HttpProxy1.run",
        "a.HttpProxy2.run": "a.HttpProxy2.run",
        "a.FieldAccessor32.get": "a.FieldAccessor32.get",
        "a.Lambda$1.run": "a.Lambda$1.run",
    }
    full, named = json.loads(system.run([str(java), "-cp", str(classes), "StackTrees", *names], timeout_s=60))
    assert full["is_full"]
    assert folded(full) == {
        "new TLABs;a.Main.run;a.List.add;byte[]": 1,
        "new TLABs;a.Main.run;byte[]": 10,
        "new TLABs;a.Main.run": 100,
        "outside TLABs": 1000,
    }
    assert set(folded(named)) == {f"new TLABs;{name}" for name in names.values()}


@pytest.mark.parametrize("depth", [1, 128])
def test_allocation_with_a_truncated_stack_has_no_layer(depth: int, java: Path, classes: Path, raw: Path) -> None:
    (raw / ATTACHMENT_FILE).write_text(json.dumps({"stack_depth": depth}))
    options = [
        option.replace("stackdepth=128", f"stackdepth={depth}") for option in jvm_options(["allocations"], raw, 17)
    ]
    run(raw, java, "-Xmx128m", *options, "-cp", str(classes), "Allocations", "behind")
    measured = read("allocations", context(raw, java, classes))
    size = 100 * ((1 << 20) + 16)
    values, texts = readings(measured), notes(measured)
    assert values["outside_tlab_total_bytes"] >= size
    if depth == 1:
        assert values["outside_tlab_other_bytes"] < size
        assert any("have only frames of the JDK among the 1 that this JVM keeps" in text for text in texts)
    else:
        assert values["outside_tlab_other_bytes"] >= size
        assert texts == []


def test_memory_of_netty_is_that_of_allocators_with_chunks(java: Path, classes: Path, raw: Path) -> None:
    run(raw, java, *jvm_options([], raw, 17), "-cp", str(classes), "NettyEvents")
    changes = recording.load_recording(context(raw, java, classes)).content["netty"]
    assert [sum(column) for column in list(zip(*changes, strict=True))[1:]] == [4000, 800]


@pytest.mark.parametrize(("how", "kind"), [("heap", "heap"), ("direct", "direct"), ("caught", "direct")])
def test_kind_of_an_out_of_memory_error_is_found(how: str, kind: str, java: Path, classes: Path, raw: Path) -> None:
    options = [*jvm_options(["gc"], raw, 17), "-Xmx64m", "-XX:MaxDirectMemorySize=32m"]
    output = run(raw, java, *options, "-cp", str(classes), "Allocations", how)
    assert "java.lang.OutOfMemoryError" in output or "OutOfMemory encountered" in output or "caught after" in output
    error = find_oom(raw)
    assert error is not None
    assert error.kind == kind
    if how == "heap":
        # Its recording is complete enough.
        values = readings(read("gc", context(raw, java, classes)))
        assert values["gc_pauses"] > 0
        assert values["full_gcs"] > 0
        assert values["heap_after_gc_max_bytes"] > 32 << 20


def wait_until_ready(process: subprocess.Popen[bytes], output: Path) -> None:
    def is_ready() -> bool:
        assert process.poll() is None, output.read_text()
        return "ready" in output.read_text()

    wait_until(is_ready)


@pytest.fixture(params=["11", "17", "25"])
def recorded(request: pytest.FixtureRequest, raw: Path) -> str:
    version: str = request.param
    (raw / "recording.jfr").write_bytes(gzip.decompress((DATA / f"{version}.jfr.gz").read_bytes()))
    return version


# What the recorded programs counted themselves: the peer's port and the reads of 10,000 bytes.
TRUTH = {"11": (60756, 157), "17": (45646, 158), "25": (48482, 157)}


def test_recordings_of_each_java_are_read_by_the_newest(recorded: str, classes: Path, raw: Path) -> None:
    newest = find_java(25).java
    port, reads = TRUTH[recorded]
    measured = read("reads", context(raw, newest, classes, port))
    assert sum(histogram(measured).values()) == reads
    assert readings(measured)["bytes_read"] == 10_000
    kept = json.loads((raw / "recording.json").read_text())["content"]
    assert kept["types"]["jdk.SocketRead"] == reads + 1  # and the end of the stream
    assert recording.load_recording(context(raw, newest, classes, port)).is_complete


def test_profiling_recording_contains_no_secrets(tmp_path: Path) -> None:
    jdk = find_java(17)
    settings, recorded = tmp_path / "recording.jfc", tmp_path / "recording.jfr"
    settings.write_text(recording.format_settings({}, recording.profile_path(jdk.home)))
    option = f"-XX:StartFlightRecording=settings={settings},filename={recorded}"
    environment = {"PATH": system.PATH, "PASSWORD": "of-the-environment"}
    with subprocess.Popen(["sh", "-c", "read _ # of-another"], stdin=subprocess.PIPE) as another:
        subprocess.run((jdk.java, option, "-version"), env=environment, check=True, capture_output=True, timeout=60)
        another.communicate()
    written = recorded.read_bytes()
    assert b"jdk.ExecutionSample" in written
    assert [secret for secret in (b"of-the-environment", b"of-another") if secret in written] == []
