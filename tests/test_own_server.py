"""A server of the user's own in a TOML file: what the file may say, what becomes of it, and what the server answers."""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import free_port
from servers import WORKLOAD

from ingest_bench import targets
from ingest_bench.analysis.run import delivery
from ingest_bench.errors import IngestBenchError, RunFailed, SpecError
from ingest_bench.experiment import order, spec
from ingest_bench.inputs import records, urls
from ingest_bench.jvm import artifacts
from ingest_bench.jvm.java import Java
from ingest_bench.lab import campaign, steps
from ingest_bench.lab.server import running_server
from ingest_bench.model.experiment import Plan
from ingest_bench.model.server import Count
from ingest_bench.model.target import Endpoint, TargetOptions
from ingest_bench.results import layout
from ingest_bench.targets import counting, running
from ingest_bench.targets.http import Http, ask

EXAMPLE = Path(__file__).parent.parent / "docs" / "own-server" / "jetty.toml"
PROTOCOL = '[protocol]\nname = "json-array"\npath = "/events"\n'
JAR = '[start]\njar = "server.jar"\n'
LISTEN = Endpoint("10.0.0.1", 8080)


def written(folder: Path, text: str = PROTOCOL + JAR) -> str:
    (folder / "server.jar").touch()
    (folder / "Main.java").touch()
    if not (folder / "pipe").exists():
        os.mkfifo(folder / "pipe")
    (folder / "mine.toml").write_text(text)
    return str(folder / "mine.toml")


def planned(file: str, *sets: str, **fixed: Any) -> Plan:
    at = {"url": fixed.pop("url")} if "url" in fixed else None
    experiment = "own-server" if at is None else "running"
    return order.order(spec.load(experiment, sets, fixed={"file": file, **fixed}, running=at))


def asked(file: str, *sets: str) -> TargetOptions:
    return planned(file, *sets).runs[0].cell.target


def launched(folder: Path, text: str, *sets: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """The command line and the environment that such a file makes."""
    options = asked(written(folder, text), *sets)
    target = targets.of(options)
    java = Java(home=Path("/java"), version=17, source="")
    launch = target.launch_plan(options, java, folder / "home", 0, (LISTEN,), ("-XX:StartFlightRecording",))
    return launch.argv, launch.env


def test_the_example_is_planned_like_any_server() -> None:
    found = planned(str(EXAMPLE))
    assert {run.cell.target.name for run in found.runs} == {"jetty"}
    campaign.check(found)
    (part,) = steps.check(found.runs[0].cell).parts
    assert part.name == "load"


def test_a_plan_keeps_the_whole_server_so_that_nothing_else_is_measured_when_it_goes_on(tmp_path: Path) -> None:
    found = planned(written(tmp_path))
    folder = layout.create(tmp_path / "out", found, {}).path
    (tmp_path / "mine.toml").unlink()
    assert layout.open_results(folder).plan == found


def test_a_key_of_the_file_is_a_factor(tmp_path: Path) -> None:
    found = planned(
        written(tmp_path), "server.protocol.format=array,lines", "network=loopback", "server.start.java=17,25"
    )
    cells = {run.cell.name: run.cell for run in found.runs}
    assert len(cells) == 4
    formats = {steps.check(cell).parts[0].plan.speaks().keys.format for cell in cells.values()}  # type: ignore[union-attr]
    assert formats == {"array", "lines"}


def test_servers_of_ones_own_are_levels_of_a_factor(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "other.toml").write_text((tmp_path / "mine.toml").read_text().replace("/events", "/other"))
    files = [str(tmp_path / name) for name in ("mine.toml", "other.toml")]
    (tmp_path / "x.toml").write_text(f'[target]\nheap = "2g"\n[factors]\n"target.file" = {files}\n')
    found = order.order(spec.load(str(tmp_path / "x.toml"))).runs
    assert {run.cell.target.name: run.cell.target.heap_bytes for run in found} == {"mine": 2 << 30, "other": 2 << 30}
    paths = {targets.of(run.cell.target).wire(run.cell.target, WORKLOAD).keys["path"] for run in found}
    assert paths == {"/events", "/other"}


def test_heap_and_collector_are_the_experiments_and_the_files_where_that_says_none(tmp_path: Path) -> None:
    file = written(tmp_path, PROTOCOL + JAR + 'heap = "256m"\ngc = "serial"\n')
    assert (asked(file).heap_bytes, asked(file).gc) == (256 << 20, "serial")
    changed = asked(file, "heap=512m", "gc=g1")
    assert (changed.heap_bytes, changed.gc) == (512 << 20, "g1")


def test_each_of_several_nodes_is_told_its_number_and_where_all_are(tmp_path: Path) -> None:
    options = asked(written(tmp_path, PROTOCOL + JAR + 'arguments = ["{node}", "{nodes}", "{host}"]\n'))
    nodes = (Endpoint("127.18.2.1", 8080), Endpoint("127.18.2.2", 8080))
    java = Java(home=Path("/java"), version=17, source="")
    argv = targets.of(options).launch_plan(options, java, tmp_path / "home", 1, nodes, ()).argv
    assert argv[-3:] == ("2", "127.18.2.1:8080,127.18.2.2:8080", "127.18.2.2")


def test_a_jar_is_started_with_what_heap_and_probes_need(tmp_path: Path) -> None:
    text = PROTOCOL + JAR + 'jvm = ["-Dat={host}:{port}"]\narguments = ["--data", "{home}", "{folder}/x", "{}"]\n'
    argv, env = launched(tmp_path, text, "heap=64m", "jvm=-XX:+AlwaysPreTouch")
    assert argv[0] == "/java/bin/java"
    assert argv[argv.index("-jar") :] == (
        "-jar",
        f"{tmp_path}/server.jar",
        "--data",
        f"{tmp_path}/home",
        f"{tmp_path}/x",
        "{}",
    )
    options = argv[1 : argv.index("-jar")]
    assert {"-Xmx67108864", "-Dat=10.0.0.1:8080", "-XX:+AlwaysPreTouch", "-XX:StartFlightRecording"} <= set(options)
    assert env == {}


def test_a_class_is_started_with_its_classpath(tmp_path: Path) -> None:
    text = PROTOCOL + '[start]\nmain = "com.example.Main"\nclasspath = ["server.jar", "/classes"]\n'
    argv, _ = launched(tmp_path, text)
    assert argv[-3:] == ("-cp", f"{tmp_path}/server.jar:/classes", "com.example.Main")


def test_a_command_has_the_options_in_its_environment(tmp_path: Path) -> None:
    text = (
        PROTOCOL + '[start]\ncommand = ["bin/run", "{port}"]\njvm = ["-Da=b c", \'-Dq="x"\']\nenv = {MODE = "{host}"}\n'
    )
    options = TargetOptions()
    argv, env = launched(tmp_path, text)
    assert argv == (f"{tmp_path}/bin/run", "8080")
    assert (env["MODE"], env["JAVA_HOME"]) == ("10.0.0.1", "/java")
    assert env["PATH"].startswith("/java/bin:")
    given = env["JDK_JAVA_OPTIONS"]
    assert f'"-Xmx{options.heap_bytes}"' in given
    assert '"-Da=b c"' in given
    assert "'-Dq=\"x\"'" in given
    assert '"-XX:StartFlightRecording"' in given


def test_what_stands_for_something_is_replaced_once(tmp_path: Path) -> None:
    folder = tmp_path / "{folder}"
    folder.mkdir()
    argv, _ = launched(folder, PROTOCOL + JAR + 'arguments = ["{folder}", "{home}", "{port}{port}", "{{host}}"]\n')
    assert argv[-4:] == (str(folder), f"{folder}/home", "80808080", "{10.0.0.1}")


def test_a_coordinate_of_maven_is_a_jar_that_is_checked_when_it_says_how() -> None:
    pinned = artifacts.jar("org.slf4j:slf4j-api:2.0.16@" + "a" * 64)
    assert (pinned.group, pinned.name, pinned.version, pinned.sha256) == ("org.slf4j", "slf4j-api", "2.0.16", "a" * 64)
    native = artifacts.jar("io.netty:netty-transport-native-epoll:4.1.115.Final:linux-x86_64")
    assert (native.classifier, native.sha256) == ("linux-x86_64", "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (PROTOCOL + JAR + '[couunt]\npath = "/"\n', r'mine\.toml: unknown key "couunt"; did you mean "count"'),
        (PROTOCOL + '[start]\njarr = "x"\n', r'mine\.toml: start: unknown key "jarr"; did you mean "jar"'),
        (PROTOCOL + JAR + "java = 8\n", r"mine\.toml: start: java: 8 is not between 11 and 99"),
        (PROTOCOL + JAR + 'heap = "1k"\n', r"mine\.toml: start: heap: '1k' is not between"),
        (PROTOCOL + JAR + 'maven = ["org.slf4j"]\n', r"mine\.toml: start: maven: 'org.slf4j' is not a jar in Maven"),
        (PROTOCOL + JAR + 'maven = ["a:../../b:1"]\n', r"is not a jar in Maven"),
        (
            PROTOCOL + JAR + '[count]\npath = "/"\nmetric = "a b"\n',
            r"count: metric: 'a b' is not a metric of Prometheus",
        ),
        (
            PROTOCOL + JAR + """[count]\npath = "/"\nmetric = 'a{x="1"y="2"}'\n""",
            r"count: metric: 'a\{x=.* is not a metric of Prometheus",
        ),
        (
            PROTOCOL + JAR + """[count]\npath = "/"\nmetric = 'a{x="1",\\u000ay="2"}'\n""".replace("'", '"""'),
            r"count: metric: 'a\{x=.* is not a metric of Prometheus",
        ),
        (PROTOCOL + JAR + '[count]\npath = "http://x/"\njson = "a"\n', r"count: path: .* is not a path of a URL"),
        (JAR, r'mine\.toml: the key "protocol" is missing'),
        ("[protocol\n", r"mine\.toml: this is not TOML"),
        # Each key is right, and together they are not.
        ('[protocol]\npath = "/"\n' + JAR, r'mine: protocol: the key "name" is missing'),
        (
            '[protocol]\nname = "jsn-array"\npath = "/"\n' + JAR,
            r'mine: protocol: there is no protocol "jsn-array"; did you',
        ),
        (PROTOCOL + 'formt = "lines"\n' + JAR, r'mine: protocol: unknown key "formt"; did you mean "format"'),
        (PROTOCOL + "[start]\n", r"mine: start: one of jar, main, source and command .* found none"),
        (PROTOCOL + JAR + 'source = "Main.java"\n', r"mine: start: one of .* found jar and source"),
        (PROTOCOL + '[start]\nmain = "Main"\n', r"mine: start: main: where is that class"),
        (PROTOCOL + '[start]\ncommand = ["x"]\narguments = ["y"]\n', r"mine: start: a command brings its own"),
        (PROTOCOL + JAR + '[ready]\npath = "/"\nlog = "up"\n', r"mine: ready: path and log"),
        (PROTOCOL + JAR + '[count]\npath = "/"\n', r"mine: count: one of json and metric"),
        (PROTOCOL + JAR + '[delivered]\npath = "/"\n', r"mine: delivered: its documents have no numbers; add sequence"),
        (PROTOCOL + JAR + '[delivered]\npath = "/"\nafter = "2h"\n', r"delivered: after: '2h' is not between"),
        (PROTOCOL + JAR + '[count]\npath = "/"\njson = "a"\nmetric = "b"\n', r"mine: count: one of json and metric"),
        (
            PROTOCOL + JAR + 'env = {JAVA_TOOL_OPTIONS = "-Xmx1g"}\n',
            r"mine: start: env\.JAVA_TOOL_OPTIONS: .* start\.jvm",
        ),
        (PROTOCOL + JAR + 'env = {LD_PRELOAD = "/x.so"}\n', r"mine: start: env\.LD_PRELOAD: .* which may be root"),
        (PROTOCOL + JAR + 'env = {GCONV_PATH = "/x"}\n', r"mine: start: env\.GCONV_PATH: .* which may be root"),
        (PROTOCOL + JAR + 'env = {PATH = "/x"}\n', r"mine: start: env\.PATH: .* which may be root"),
        (
            PROTOCOL + """[start]\ncommand = ["x"]\njvm = ["-Da=\\"b'c"]\n""",
            r"start\.jvm: -Da=\"b'c: an option with quotes of both kinds",
        ),
        (PROTOCOL + '[start]\njar = "pipe"\n', r"mine: start: .*/pipe: it is a named pipe, and no file"),
        (PROTOCOL + '[start]\nsource = "pipe"\n', r"mine: start: .*/pipe: it is a named pipe, and no file"),
        (PROTOCOL + '[start]\njar = "."\n', r"mine: start: .*: it is a folder, and no file"),
        (PROTOCOL + '[start]\ncommand = ["./"]\n', r"mine: start: .*: it is a folder, and no file"),
        (PROTOCOL + '[start]\njar = "server.jar/x"\n', r"mine: start: .*/x: there is no such file"),
        (
            PROTOCOL + f'[start]\njar = "{"/".join(["x" * 200] * 20 + ["y" * 70])}"\n',
            r"it cannot be read \(File name too long\)",
        ),
        (PROTOCOL + JAR + 'gc = "cms"\n', r'target\.gc: Java 17 has no "cms"'),
        (PROTOCOL + '[start]\njar = "other.jar"\n', r"mine: start: .*/other\.jar: there is no such file"),
        (PROTOCOL + '[start]\nsource = "Other.java"\n', r"mine: start: .*/Other\.java: there is no such file"),
        (PROTOCOL + '[start]\ncommand = ["bin/run"]\n', r"mine: start: .*/bin/run: there is no such file"),
        (PROTOCOL, r"mine: it has no \[start\], so it must run already: --url URL"),
    ],
)
def test_a_file_that_cannot_be_is_refused_in_one_sentence_before_anything_starts(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(SpecError, match=said) as refused:
        campaign.check(planned(written(tmp_path, text)))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("version=2", "target.version: mine is a server of your own"),
        ("receive_predictor=64KiB", "target.receive_predictor: mine is a server of your own"),
        ("setting.a=b", "target.setting: mine is a server of your own"),
        ("query_users=1", "load.query_users: mine answers no queries"),
        ("load.action.conflicts=random", "load.action: json-array has no ids"),
        ("server.start.jar=/nowhere.jar", "mine: start: /nowhere.jar: there is no such file"),
        ("server.count.jsn=a", 'unknown key "jsn"'),
    ],
)
def test_what_only_a_server_with_an_index_has_is_refused(tmp_path: Path, key: str, said: str) -> None:
    with pytest.raises(SpecError) as refused:
        campaign.check(planned(written(tmp_path), key))
    assert said in str(refused.value)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(SpecError, match=r"nowhere\.toml: there is no such file"):
        planned("/nowhere.toml")


def test_a_track_is_for_servers_with_indices(tmp_path: Path) -> None:
    track = str(Path(__file__).parent / "data" / "track")
    fixed: dict[str, Any] = {"file": written(tmp_path), "track": {"path": track}}
    (run,) = order.order(spec.load("track", ["network=loopback"], fixed=fixed)).runs
    with pytest.raises(SpecError, match="mine has no indices; send the track's documents by --documents"):
        steps.check(run.cell)


def test_a_server_that_runs_already_needs_no_start(tmp_path: Path) -> None:
    for each in (PROTOCOL, PROTOCOL + '[start]\njar = "gone.jar"\nheap = "64m"\n'):
        (run,) = planned(written(tmp_path, each), url="http://127.0.0.1:8080").runs
        assert run.cell.target.runs_already
        campaign.check(Plan(experiment="x", description="", seed=1, factors=(), runs=(run,)))


@pytest.mark.parametrize(
    ("count", "body", "found"),
    [
        ({"json": "documents.stored"}, b'{"documents": {"stored": 12}}', 12),
        ({"json": "nodes.1.n"}, b'{"nodes": [{"n": 1}, {"n": 2.0}]}', 2),
        ({"json": "n"}, b'{"n": "12"}', "n is '12', no number of documents"),
        ({"json": "n"}, b'{"n": -1}', "n is '-1', no number of documents"),
        ({"json": "n"}, b'{"n": 1.5}', "n is '1.5', no number of documents"),
        ({"json": "n"}, b'{"n": true}', "n is 'True', no number of documents"),
        ({"json": "n"}, b'{"n": 1180591620717411303424}', "n is '1180591620717411303424', no number of documents"),
        ({"json": "n"}, b'{"n": ' + b"9" * 400 + b"}", f"n is '{'9' * 80}', no number of documents"),
        ({"json": "n"}, b'{"n": 1e999}', "n is 'inf', no number of documents"),
        ({"json": "a.b.c"}, b'{"a": {"b": 1}}', "there is no a.b.c in it"),
        ({"json": "a.b.c"}, b'{"a": []}', "there is no a.b in it"),
        ({"json": "n"}, b"<html>", "it is not JSON"),
        ({"json": "n"}, b"[" * 100_000, "it is not JSON"),
        ({"metric": "stored_total"}, b"# TYPE stored_total counter\nstored_total 12\nstored_total_created 1.7e9\n", 12),
        ({"metric": "stored"}, b"# TYPE stored counter\nstored 12\n", 12),
        (
            {"metric": "a"},
            b"a " + b"z" * 10**6,
            f"it is not in the text format of Prometheus (could not convert string to float: '{'z' * 44})",
        ),
        ({"metric": "a:b"}, b'a:b{x="1",y="2"} 3\na:b{x="2"} 4e0 1700000000\n', 7),
        ({"metric": 'a{x="1"}'}, b'a{x="1",y="}"} 3\na{y="1"} 4\n', 3),
        ({"metric": "a"}, b"b 1\n", "there is no metric a in it"),
        ({"metric": 'a{x="1"}'}, b"a 1\n", 'there is no metric a{x="1"} in it'),
        ({"metric": "a"}, b"a NaN\n", "the metric a is 'nan', no number of documents"),
        ({"metric": "a"}, b'a{x="1"} 1e308\na{x="2"} 1e308\n', "the metric a is 'nan', no number of documents"),
        ({"metric": "a"}, b'a{x="1"} +Inf\na{x="2"} -Inf\n', "the metric a is 'nan', no number of documents"),
        ({"metric": "a"}, 'a{x="\u2028"} 3\na{x="\x85"} 4\n'.encode(), 7),
        (
            {"metric": "a"},
            b"a lots\n",
            "it is not in the text format of Prometheus (could not convert string to float: 'lots')",
        ),
    ],
)
def test_the_number_of_documents_is_read_from_an_answer(count: dict[str, str], body: bytes, found: int | str) -> None:
    asked_for = records.from_toml(Count, {"path": "/", **count}, "count")
    if isinstance(found, int):
        assert counting.number(asked_for, body) == found
        return
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - its text is compared
        counting.number(asked_for, body)
    assert str(refused.value) == found


def test_a_server_is_read_back_by_a_number_a_line() -> None:
    back = delivery.read([counting.numbered(b"3\n0000000001\n3\n"), counting.numbered(b"")])
    assert [np.flatnonzero(bits).tolist() for bits in (back.delivered, back.again, back.inside)] == [[1, 3], [3], []]
    for wrong in (b"<html>", b"1.5", b"-1", b"100000000", b"9" * 30):
        with pytest.raises(ValueError, match="number"):
            counting.numbered(wrong)


class Speaks(http.server.BaseHTTPRequestHandler):
    """Answers each path as the test says, and counts what it was asked."""

    def do_GET(self) -> None:
        status, body = self.server.answers.get(self.path, (404, b"no such page"))  # type: ignore[attr-defined]
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@contextlib.contextmanager
def speaking(answers: dict[str, tuple[int, bytes]]) -> Iterator[Endpoint]:
    """A server in this process that answers so."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Speaks) as server:
        server.answers = answers  # type: ignore[attr-defined]
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield Endpoint("127.0.0.1", server.server_address[1])
        finally:
            server.shutdown()
            thread.join()


def identified(http_: Http, text: str, folder: Path) -> running.Identified:
    (run,) = planned(written(folder, text), url=http_.origin).runs
    return running.identified(http_, run.cell.target, targets.TARGETS)


COUNTED = '[count]\npath = "/count"\njson = "n"\n'


@pytest.mark.processes
def test_a_server_at_a_url_is_what_its_file_says(tmp_path: Path) -> None:
    with speaking({"/up": (204, b""), "/count": (200, b'{"n": 7}')}) as at, ask(tuple, at) as http_:
        found = identified(http_, PROTOCOL + '[ready]\npath = "/up"\nstatus = 204\n' + COUNTED, tmp_path)
        assert found.told == {"name": "mine", "description": ""}
        assert found.target.count((http_,), ()) == 7
        uncounted = identified(http_, PROTOCOL, tmp_path)
        assert uncounted.target.count((http_,), ()) is None
        assert uncounted.target.jvm_stats is None


@pytest.mark.processes
def test_counts_of_several_addresses_are_added_as_far_as_they_answer(tmp_path: Path) -> None:
    with speaking({"/count": (200, b'{"n": 7}')}) as first, speaking({"/count": (200, b'{"n": 5}')}) as second:
        closed = free_port()
        more = [f"http://{second}", f"http://127.0.0.1:{closed}"]
        (run,) = planned(written(tmp_path, PROTOCOL + COUNTED), url=f"http://{first}").runs
        options = dataclasses.replace(run.cell.target, more_urls=tuple(map(urls.parse, more)))
        with running_server.reached(options) as server:
            assert server.count(()) == 12
            assert [note for note in server.notes if str(closed) in note and "does not answer" in note]


@pytest.mark.processes
def test_metrics_may_have_a_port_of_their_own(tmp_path: Path) -> None:
    with speaking({}) as at, speaking({"/metrics": (200, b"a 3\n")}) as metrics, ask(tuple, at) as http_:
        text = f'[count]\npath = "/metrics"\nmetric = "a"\nport = {metrics.port}\n'
        assert identified(http_, PROTOCOL + text, tmp_path).target.count((http_,), ()) == 3


@pytest.mark.processes
def test_a_server_that_says_which_documents_it_has_is_read_back(tmp_path: Path) -> None:
    text = PROTOCOL + 'sequence = "n"\n' + '[delivered]\npath = "/have"\n'
    with speaking({"/have": (200, b"7\n7\n")}) as at, ask(tuple, at) as http_:
        assert identified(http_, PROTOCOL, tmp_path).target.read_back((http_,)) is None
        told = identified(http_, text, tmp_path).target.read_back((http_, http_))
        assert told == (counting.numbered(b"7 7"),) * 2
    with speaking({"/have": (200, b"seven")}) as at, ask(tuple, at) as http_:
        target = identified(http_, text, tmp_path).target
        with pytest.raises(RunFailed, match=r"mine: delivered: GET .*/have: it is not a number a line; it said: seven"):
            target.read_back((http_,))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (COUNTED, "GET http://{at}/count was answered 404: no such page"),
        ('[count]\npath = "/up"\njson = "n"\n', "GET http://{at}/up: it is not JSON; it said: yes"),
        ('[count]\npath = "/j"\njson = "m"\n', 'GET http://{at}/j: there is no m in it; it said: {{"n": 1}}'),
        ('[ready]\npath = "/down"\n', "it does not answer as mine: GET /down was answered 404, and 200 says"),
        ('[ready]\npath = "/up"\nstatus = 204\n', "GET /up was answered 200, and 204 says that it is ready"),
    ],
)
def test_a_server_that_lies_is_named_before_the_load(tmp_path: Path, text: str, said: str) -> None:
    with speaking({"/up": (200, b"yes"), "/j": (200, b'{"n": 1}')}) as at, ask(tuple, at) as http_:
        with pytest.raises(IngestBenchError) as refused:
            identified(http_, PROTOCOL + text, tmp_path)
        assert said.format(at=at) in str(refused.value)
        assert "\n" not in str(refused.value)


@pytest.mark.processes
@pytest.mark.parametrize("text", ["", '[ready]\npath = "/up"\n', '[ready]\nlog = "up"\n'])
def test_nobody_who_listens_is_named(tmp_path: Path, text: str) -> None:
    at = Endpoint("127.0.0.1", free_port())
    with ask(tuple, at) as http_, pytest.raises(RunFailed, match="ConnectionRefusedError"):
        identified(http_, PROTOCOL + text, tmp_path)


@pytest.mark.processes
def test_a_line_of_its_output_says_that_it_is_ready(tmp_path: Path) -> None:
    options = asked(written(tmp_path, PROTOCOL + JAR + '[ready]\nlog = "is up"\n'))
    target, log = targets.of(options), tmp_path / "log"
    log.write_text("starting\n")
    with ask(tuple, Endpoint("127.0.0.1", free_port()), log=log) as http_:
        assert not target.is_ready(0, (http_,))
        log.write_text("starting\nServer is up\n")
        assert target.is_ready(0, (http_,))
        # As a server that logs without an end would have it: 2 TiB, which are never read.
        with log.open("r+b") as file:
            file.truncate(2 << 40)
        assert target.is_ready(0, (http_,))
