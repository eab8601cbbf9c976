"""`ingest-bench run --target FILE` as a process: a Jetty, and servers that are not what they say."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import commands
import pytest
from commands import USERS, Place, nothing_left
from running import running

from ingest_bench import targets
from ingest_bench.experiment import spec
from ingest_bench.model.target import Endpoint
from ingest_bench.probes import recording

pytestmark = [pytest.mark.jvm, pytest.mark.netns, pytest.mark.processes]

EXAMPLE = Path(__file__).parent.parent / "docs" / "own-server"
SHORT = (
    *("--set", "network=ethernet", "--set", "arrivals=50/s"),
    *("--warm-up", "500ms", "--measure", "2s", "--set", "bulk_documents=100"),
)
OUT = ("--out", "out")
NOWHERE = Endpoint("127.0.0.1", 1)


@pytest.fixture(scope="module", autouse=True)
def _cache() -> None:
    """What only root can fetch is there for everybody."""
    commands.fill_cache()
    asked = spec.target_options({"file": str(EXAMPLE / "jetty.toml")}, "target")
    recording.reader(targets.fetch(targets.of(asked).requirements(asked)))


@pytest.fixture
def here() -> Iterator[Place]:
    with commands.place() as place:
        yield place


def ran(place: Place, *arguments: str) -> tuple[int, str]:
    with nothing_left(), place.command("run", *arguments, *OUT) as command:
        code = command.end()
        return code, " ".join(command.text.split())


def rows(place: Place) -> list[dict[str, str]]:
    # An experiment's folder has its name, and these are not in the order of time.
    newest = max(place.results, key=lambda path: path.name)
    with (newest / "summary.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def changed(place: Place, *changes: tuple[str, str]) -> str:
    """The example's file with other words in it, where its user may have it."""
    text = (EXAMPLE / "jetty.toml").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    source = (EXAMPLE / "JettyEvents.java").read_text()
    (place.folder / "JettyEvents.java").write_text(source)
    (place.folder / "mine.toml").write_text(text)
    return "mine.toml"


def changed_absolute(place: Place) -> str:
    return str(place.folder / changed(place))


COUNT = ('[count]\npath = "/count"\njson = "documents.stored"\n', "")


@pytest.mark.nightly
@pytest.mark.parametrize("user", USERS)
def test_a_jetty_behind_a_shaped_link_is_measured_as_one_of_ours(user: int | None) -> None:
    with commands.place(user) as place:
        code, said = ran(place, "--target", changed(place), *SHORT[2:], "--set", "network=ethernet-100m")
        assert code == 0, said
        (found,) = rows(place)
        (record,) = (json.loads(path.read_text()) for path in place.results[-1].glob("*/1/run.json"))
    assert (found["state"], found["target"], found["documents_check"]) == ("measured", "mine", "counted")
    assert found["documents_counted"] == found["documents_acked"] != "0"
    assert found["bytes_read"] == found["bytes_sent"] != "0"
    assert int(found["reads"]) > 0
    assert float(found["docs_per_s_mean"]) > 0
    assert int(found["heap_bytes"]) == 256 << 20
    assert found["gc_collector"] == "g1"
    assert all(promise["kept"] for promise in record["promises"])


@pytest.mark.nightly
@pytest.mark.parametrize("wanted", ["single", "lines"])
def test_another_form_of_the_requests_is_one_setting(here: Place, wanted: str) -> None:
    # The example reads arrays alone: of lines it takes the first, and of single documents none.
    source = (EXAMPLE / "JettyEvents.java").read_text()
    reads = "Object read = new JSON().fromJSON(new InputStreamReader(Content.Source.asInputStream(request)));"
    file = changed(here)
    java = source.replace(reads, "String read = text(request);")
    java = java.replace("((Object[]) read).length", "read.lines().count()")
    java = java.replace(
        "    public static void main",
        "    private static String text(Request request) {\n"
        "        try { return Content.Source.asString(request); }\n"
        "        catch (java.io.IOException error) { throw new java.io.UncheckedIOException(error); }\n    }\n\n"
        "    public static void main",
    )
    (here.folder / "JettyEvents.java").write_text(java)
    code, said = ran(here, "--target", file, *SHORT, "--set", f"server.protocol.format={wanted}")
    assert code == 0, said
    (found,) = rows(here)
    assert found["documents_counted"] == found["documents_acked"] != "0"
    assert found["bytes_read"] == found["bytes_sent"]
    if wanted == "single":
        assert int(found["documents_acked"]) >= int(found["requests"])


@pytest.mark.nightly
def test_a_server_that_cannot_be_counted_says_so_in_every_summary(here: Place) -> None:
    code, said = ran(here, "--target", changed(here, COUNT), *SHORT)
    assert code == 0, said
    (found,) = rows(here)
    assert (found["state"], found["documents_counted"]) == ("measured", "")
    assert found["documents_check"] == "cannot be counted"
    assert "mine cannot be counted: nobody checked that it has what it acknowledged" in said
    for name in ("summary.json", "report/index.html"):
        assert "cannot be counted" in (here.results[-1] / name).read_text()


@pytest.mark.nightly
@pytest.mark.parametrize("started", ["java", "exec java"])
def test_a_command_that_starts_the_jvm_or_becomes_it_is_watched_like_any(here: Place, started: str) -> None:
    # The server's classes, as a start script of its own would have them.
    options = spec.target_options({"file": changed_absolute(here)}, "target")
    target = targets.of(options)
    java = targets.fetch(target.requirements(options))
    argv = target.launch_plan(options, java, here.folder / "home", 0, (NOWHERE,), ()).argv
    classpath = argv[argv.index("-cp") + 1]
    script = here.folder / "run.sh"
    script.write_text(f'#!/bin/sh\n{started} -cp "{classpath}" JettyEvents "$1" "$2"\n')
    script.chmod(0o755)
    here.folder.chmod(0o755)
    text = (EXAMPLE / "jetty.toml").read_text()
    before, _, after = text.partition("[start]")
    after = after[after.index("[ready]") :]
    start = '[start]\ncommand = ["./run.sh", "{host}", "{port}"]\n'
    (here.folder / "script.toml").write_text(before + start + after)
    code, said = ran(here, "--target", "script.toml", *SHORT, "--set", "heap=128m")
    assert code == 0, said
    (found,) = rows(here)
    assert found["documents_counted"] == found["documents_acked"] != "0"
    assert found["bytes_read"] == found["bytes_sent"] != "0"
    assert int(found["heap_after_gc_max_bytes"]) <= 128 << 20
    # One that starts its JVM without its options is not what was asked for.
    script.write_text(script.read_text().replace(started, "env -u JDK_JAVA_OPTIONS java"))
    code, said = ran(here, "--target", "script.toml", *SHORT)
    assert (code, 'its output has no "NOTE: Picked up JDK_JAVA_OPTIONS"' in said) == (3, True), said


@pytest.mark.nightly
def test_a_server_that_runs_already_is_one_of_your_own_too(here: Place, tmp_path: Path) -> None:
    options = spec.target_options({"file": changed_absolute(here)}, "target")
    with running(tmp_path, options) as (http, process):
        for way in (("--url", http.origin), ("--attach", str(process.jvm_pid), "--url", http.origin)):
            code, said = ran(here, "--target", "mine.toml", *way, *SHORT[2:])
            assert code == 0, said
            (found,) = rows(here)
            # The first one's documents are no part of the second's.
            assert found["documents_counted"] == found["documents_acked"] != "0"
            assert (found["network"], found["target"]) == ("as-is", "mine")
        assert found["bytes_read"] == found["bytes_sent"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ([("[count]", "[cuont]")], 2, 'mine.toml: unknown key "cuont"; did you mean "count"'),
        ([('source = "JettyEvents.java"', 'jar = "gone.jar"')], 2, "gone.jar: there is no such file"),
        ([("source", "jar")], 3, "it ended before it was ready (exit 1)"),
        ([('path = "/count"\n\n', 'log = "never"\nwithin = "3s"\n\n')], 3, "server: not ready after 3 s"),
        (
            [('path = "/count"\n\n', 'path = "/count"\nstatus = 404\nwithin = "20s"\n\n')],
            3,
            "200, and 404 says",
        ),
        ([("documents.stored", "documents.lost")], 3, "there is no documents.lost in it"),
        ([('[count]\npath = "/count"', '[count]\npath = "/events"')], 0, "docs/s"),
        # It takes everything everywhere with a 200, and stores nothing.
        ([('path = "/events"', 'path = "/elsewhere"')], 3, "acknowledged, 0 counted"),
        ([('"{port}"]', '"{port}"]\njvm = ["-Xyz"]')], 3, "it ended before it was ready (exit 1)"),
    ],
)
def test_a_server_that_is_not_what_its_file_says_is_one_clear_error(
    here: Place, changes: list[tuple[str, str]], code: int, said: str
) -> None:
    found, text = ran(here, "--target", changed(here, *changes), *SHORT)
    assert (found, said in text) == (code, True), text
