"""Custom targets: keys of the file, the command line that they make, and the responses of the server."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import canned_http, canned_server, free_port
from servers import WORKLOAD

from ingest_bench import targets
from ingest_bench.analysis.run import delivery
from ingest_bench.errors import IngestBenchError, RunFailed, SpecError
from ingest_bench.experiment import catalog, spec
from ingest_bench.inputs import files, records, urls
from ingest_bench.jvm import artifacts
from ingest_bench.jvm.java import Java
from ingest_bench.lab import campaign, planning
from ingest_bench.lab.server import borrowed, running_server
from ingest_bench.model.experiment import Plan
from ingest_bench.model.target import DocumentCount, Endpoint, ServerAddress, TargetOptions
from ingest_bench.results import layout
from ingest_bench.targets import counting, detect
from ingest_bench.targets.base import NodeStart
from ingest_bench.targets.custom import Custom
from ingest_bench.targets.http import Http, open_http

EXAMPLE = Path(__file__).parent.parent / "docs" / "custom-targets" / "jetty.toml"
# The same file, where an installed package has it.
SHIPPED = files.data_files(catalog.CUSTOM_TARGETS)["jetty"]
PROTOCOL = '[protocol]\nname = "json-array"\npath = "/events"\n'
JAR = '[start]\njar = "server.jar"\n'
COUNT = '[count]\npath = "/count"\njson = "n"\n'
LISTEN = Endpoint("10.0.0.1", 8080)
JAVA = Java(home=Path("/java"), version=17, source="")


def write(folder: Path, text: str = PROTOCOL + JAR) -> str:
    (folder / "server.jar").touch()
    (folder / "Main.java").touch()
    if not (folder / "pipe").exists():
        os.mkfifo(folder / "pipe")
    (folder / "mine.toml").write_text(text)
    return str(folder / "mine.toml")


def plan(file: str, *sets: str, **fixed: Any) -> Plan:
    running = {"url": fixed.pop("url")} if "url" in fixed else None
    experiment = "custom-target" if running is None else "running"
    return spec.build_plan(spec.load_experiment(experiment, sets, fixed={"file": file, **fixed}, running=running))


def target_options(file: str, *sets: str) -> TargetOptions:
    return plan(file, *sets).runs[0].cell.target


def launch(folder: Path, text: str, *sets: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the command line and the environment of the second of two nodes."""
    options = target_options(write(folder, text), *sets)
    nodes = (Endpoint("10.0.0.9", 8080), LISTEN)
    start = NodeStart(options, JAVA, folder / "home", 1, nodes, ("-XX:StartFlightRecording",))
    launch_plan = targets.resolve(options).launch_plan(start)
    return launch_plan.argv, launch_plan.env


@pytest.mark.parametrize("file", sorted(EXAMPLE.parent.glob("*.toml")), ids=lambda file: file.stem)
def test_each_example_is_short_and_planned_like_any_target(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= 25
    url = {} if "[start]" in file.read_text() else {"url": "http://127.0.0.1:9200"}
    example = plan(str(file), **url)
    assert {run.cell.target.name for run in example.runs} == {file.stem}
    campaign.check_plan(example)
    (part,) = planning.check_procedure(example.runs[0].cell).steps
    assert part.name == "load"


def test_a_plan_keeps_the_whole_file_for_resume(tmp_path: Path) -> None:
    original = plan(write(tmp_path))
    folder = layout.create_results(tmp_path / "out", original, {}).path
    (tmp_path / "mine.toml").unlink()
    assert layout.open_results(folder).plan == original


def test_keys_of_the_file_and_files_are_factors(tmp_path: Path) -> None:
    sets = ("custom.protocol.format=array,lines", "network=loopback", "custom.start.java=17,25")
    cells = {run.cell.name: run.cell for run in plan(write(tmp_path), *sets).runs}
    assert len(cells) == 4
    formats = {planning.check_procedure(cell).plans[0].build_protocol().keys.format for cell in cells.values()}  # type: ignore[attr-defined]
    assert formats == {"array", "lines"}
    (tmp_path / "other.toml").write_text((tmp_path / "mine.toml").read_text().replace("/events", "/other"))
    files = [str(tmp_path / name) for name in ("mine.toml", "other.toml")]
    (tmp_path / "x.toml").write_text(f'[target]\nheap = "2g"\n[factors]\n"target.file" = {files}\n')
    options = [run.cell.target for run in spec.build_plan(spec.load_experiment(str(tmp_path / "x.toml"))).runs]
    assert {target.name: target.heap_bytes for target in options} == {"mine": 2 << 30, "other": 2 << 30}
    paths = {targets.resolve(target).wire(target, WORKLOAD).keys["path"] for target in options}
    assert paths == {"/events", "/other"}


def test_an_example_is_a_target_by_its_name_and_servers_are_a_factor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mixed = spec.build_plan(spec.load_experiment("custom-target", ["target=jetty,opensearch", "network=loopback"]))
    cells = {run.cell.name: run.cell.target for run in mixed.runs}
    assert sorted(cells) == ["network=loopback+target=jetty", "network=loopback+target=opensearch"]
    jetty, opensearch = (cells[name] for name in sorted(cells))
    assert (jetty.name, jetty.file, jetty.heap_bytes) == ("jetty", str(SHIPPED), 256 << 20)
    assert (opensearch.file, opensearch.custom) == (None, None)
    assert jetty == target_options("jetty") == target_options(str(SHIPPED))
    (attached,) = plan("jetty", url="http://127.0.0.1:1").runs
    assert (attached.cell.target.name, attached.cell.target.url is None) == ("jetty", False)
    campaign.check_plan(mixed)
    for keys, problem in ((["target=jety"], 'there is no "jety"'), (["target.file=jety"], 'did you mean "jetty"')):
        with pytest.raises(SpecError, match=problem):
            campaign.check_plan(spec.build_plan(spec.load_experiment("custom-target", keys)))


def test_heap_and_collector_of_the_file_are_defaults(tmp_path: Path) -> None:
    file = write(tmp_path, PROTOCOL + JAR + 'heap = "256m"\ngc = "serial"\n')
    options, changed = target_options(file), target_options(file, "heap=512m", "gc=g1")
    assert (options.heap_bytes, options.gc) == (256 << 20, "serial")
    assert (changed.heap_bytes, changed.gc) == (512 << 20, "g1")


def test_a_jar_is_started_with_options_and_arguments(tmp_path: Path) -> None:
    arguments = 'arguments = ["{node}", "{nodes}", "{home}", "{folder}/x", "{}", "{port}{port}", "{{host}}"]\n'
    text = PROTOCOL + JAR + 'jvm = ["-Dat={host}:{port}"]\n' + arguments
    argv, env = launch(tmp_path, text, "heap=64m", "jvm=-XX:+AlwaysPreTouch")
    jar = argv.index("-jar")
    assert argv[jar : jar + 2] == ("-jar", f"{tmp_path}/server.jar")
    nodes = "10.0.0.9:8080,10.0.0.1:8080"
    assert argv[jar + 2 :] == ("2", nodes, f"{tmp_path}/home", f"{tmp_path}/x", "{}", "80808080", "{10.0.0.1}")
    options = {"-Xmx67108864", "-Dat=10.0.0.1:8080", "-XX:+AlwaysPreTouch", "-XX:StartFlightRecording"}
    assert (argv[0], env) == ("/java/bin/java", {})
    assert options <= set(argv[1:jar])
    # Placeholders in a folder's name stay.
    folder = tmp_path / "{folder}"
    folder.mkdir()
    assert launch(folder, text)[0][-5:-3] == (f"{folder}/home", f"{folder}/x")


def test_a_class_is_started_with_its_classpath(tmp_path: Path) -> None:
    text = PROTOCOL + '[start]\nmain = "com.example.Main"\nclasspath = ["server.jar", "/classes"]\n'
    argv, _ = launch(tmp_path, text)
    assert argv[-3:] == ("-cp", f"{tmp_path}/server.jar:/classes", "com.example.Main")


def test_a_classpath_has_patterns_and_the_jars_of_folders(tmp_path: Path) -> None:
    # The folder itself is not a pattern.
    tmp_path /= "[v1]"
    tmp_path.mkdir()
    for name in ("lib/b.jar", "lib/a.jar", "lib/notes.txt", "main/c.jar"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    text = PROTOCOL + '[start]\nmain = "Main"\nclasspath = ["lib/*.jar", "main"]\n'
    argv, _ = launch(tmp_path, text)
    names = ("lib/a.jar", "lib/b.jar", "main", "main/c.jar")
    assert argv[-2] == ":".join(f"{tmp_path}/{name}" for name in names)
    # A changed jar is another server.
    fingerprints = catalog.compute_fingerprints(plan(str(tmp_path / "mine.toml")))
    assert {f"{tmp_path}/{name}" for name in ("lib/a.jar", "lib/b.jar", "main/c.jar")} <= fingerprints.keys()


def test_a_command_gets_jvm_options_in_its_environment(tmp_path: Path) -> None:
    start = '[start]\ncommand = ["bin/run", "{port}"]\njvm = ["-Da=b c", \'-Dq="x"\']\nenv = {MODE = "{host}"}\n'
    argv, env = launch(tmp_path, PROTOCOL + start)
    assert argv == (f"{tmp_path}/bin/run", "8080")
    assert (env["MODE"], env["JAVA_HOME"]) == ("10.0.0.1", "/java")
    assert env["PATH"].startswith("/java/bin:")
    for option in (f'"-Xmx{TargetOptions().heap_bytes}"', '"-Da=b c"', "'-Dq=\"x\"'", '"-XX:StartFlightRecording"'):
        assert option in env["JDK_JAVA_OPTIONS"]


def test_a_maven_coordinate_is_parsed() -> None:
    pinned = artifacts.parse_jar("org.slf4j:slf4j-api:2.0.16@" + "a" * 64)
    assert (pinned.group, pinned.name, pinned.version, pinned.sha256) == ("org.slf4j", "slf4j-api", "2.0.16", "a" * 64)
    native = artifacts.parse_jar("io.netty:netty-transport-native-epoll:4.1.115.Final:linux-x86_64")
    assert (native.classifier, native.sha256) == ("linux-x86_64", "")


METRIC = PROTOCOL + JAR + '[count]\npath = "/"\nmetric = '
COMMAND = PROTOCOL + '[start]\ncommand = ["x"]\n'
LONG_PATH = "/".join(["x" * 200] * 20 + ["y" * 70])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PROTOCOL + '[start]\njarr = "x"\n', r'mine\.toml: start: unknown key "jarr"; did you mean "jar"'),
        (PROTOCOL + JAR + 'heap = "1k"\n', r"mine\.toml: start: heap: '1k' is not between"),
        (PROTOCOL + JAR + 'maven = ["org.slf4j"]\n', r"mine\.toml: start: maven: 'org.slf4j' is not a jar in Maven"),
        (PROTOCOL + JAR + 'maven = ["a:../../b:1"]\n', r"is not a jar in Maven"),
        ('network = ["org xnio"]\n' + PROTOCOL + JAR, r"mine\.toml: network: 'org xnio' is not a Java package"),
        (METRIC + '"a b"\n', r"count: metric: 'a b' is not a metric of Prometheus"),
        (METRIC + """'a{x="1"y="2"}'\n""", r"count: metric: 'a\{x=.* is not a metric of Prometheus"),
        (METRIC + '"""a{x="1",\\u000ay="2"}"""\n', r"count: metric: 'a\{x=.* is not a metric of Prometheus"),
        (PROTOCOL + JAR + '[count]\npath = "http://x/"\njson = "a"\n', r"count: path: .* is not a path of a URL"),
        (JAR, r'mine\.toml: the key "protocol" is missing'),
        ("[protocol\n", r"mine\.toml: "),
        # Each key is valid, but not their combination.
        ('[protocol]\npath = "/"\n' + JAR, r'mine: protocol: the key "name" is missing'),
        ('[protocol]\nname = "jsn-array"\n' + JAR, r'mine: protocol: unknown protocol "jsn-array"; did you'),
        (PROTOCOL + 'formt = "lines"\n' + JAR, r'mine: protocol: unknown key "formt"; did you mean "format"'),
        (PROTOCOL + "[start]\n", r"mine: start: give one of jar, main, source and command \(found none of them\)"),
        (PROTOCOL + JAR + 'source = "Main.java"\n', r"mine: start: give one of .*\(found jar and source\)"),
        (PROTOCOL + '[start]\nmain = "Main"\n', r"mine: start: main requires classpath or maven"),
        (
            PROTOCOL + '[start]\nmain = "Main"\nclasspath = ["lib/*.jar"]\n',
            r"mine: start: .*/lib/\*\.jar: no such file",
        ),
        (
            PROTOCOL + JAR + 'tls = {ca_file = "gone.pem"}\n',
            r"mine: start: tls\.ca_file: .*/gone\.pem: no certificates",
        ),
        (COMMAND + 'arguments = ["y"]\n', r"mine: start: command cannot be combined with"),
        (COMMAND + """jvm = ["-Da=\\"b'c"]\n""", r"start\.jvm: -Da=\"b'c: an option with both kinds of quotes"),
        (PROTOCOL + JAR + '[ready]\npath = "/"\nlog = "up"\n', r"mine: ready: path cannot be combined with log"),
        (PROTOCOL + JAR + '[count]\npath = "/"\n', r"mine: count: give one of json and metric"),
        (PROTOCOL + JAR + COUNT + 'metric = "b"\n', r"mine: count: give one of json and metric"),
        (PROTOCOL + JAR + '[delivered]\npath = "/"\n', r"mine: delivered requires numbered documents; add sequence"),
        (PROTOCOL + JAR + '[delivered]\npath = "/"\ntimeout = "2h"\n', r"delivered: timeout: '2h' is not between"),
        (PROTOCOL + JAR + 'env = {JAVA_TOOL_OPTIONS = "-Xmx1g"}\n', r"env\.JAVA_TOOL_OPTIONS: .* start\.jvm"),
        *(
            (PROTOCOL + JAR + f'env = {{{name} = "/x"}}\n', rf"mine: start: env\.{name}: .* perhaps as root")
            for name in ("LD_PRELOAD", "GCONV_PATH", "PATH")
        ),
        (PROTOCOL + '[start]\njar = "pipe"\n', r"mine: start: .*/pipe: it is a named pipe, not a file"),
        (PROTOCOL + '[start]\njar = "."\n', r"mine: start: .*: it is a folder, not a file"),
        (PROTOCOL + '[start]\ncommand = ["./"]\n', r"mine: start: .*: it is a folder, not a file"),
        (
            PROTOCOL + '[start]\nmain = "M"\nclasspath = ["/a:/bin"]\n',
            r"mine: start: /a:/bin: java separates .* by colons",
        ),
        (PROTOCOL + '[start]\njar = "server.jar/x"\n', r"mine: start: .*/x: no such file"),
        (PROTOCOL + f'[start]\njar = "{LONG_PATH}"\n', r"it cannot be read \(File name too long\)"),
        (PROTOCOL + JAR + 'gc = "cms"\n', r'target\.gc: Java 17 has no "cms"'),
        (PROTOCOL + '[start]\ncommand = ["bin/run"]\n', r"mine: start: .*/bin/run: no such file"),
        (PROTOCOL, r"mine: without \[start\] it must already run; give --url URL"),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence_before_the_start(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as refused:
        campaign.check_plan(plan(write(tmp_path, text)))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("version=2", "target.version: not available for the custom target mine"),
        ("receive_predictor=64KiB", "target.receive_predictor: not available for the custom target mine"),
        ("setting.a=b", "target.setting: not available for the custom target mine"),
        ("query_users=1", "load.query_users: "),
        ("load.action.conflicts=random", "load.action: json-array has no ids"),
        ("custom.start.jar=/nowhere.jar", "mine: start: /nowhere.jar: no such file"),
        ("custom.count.jsn=a", 'unknown key "jsn"'),
    ],
)
def test_keys_that_a_custom_target_lacks_are_refused(tmp_path: Path, key: str, message: str) -> None:
    with pytest.raises(SpecError) as refused:
        campaign.check_plan(plan(write(tmp_path), key))
    assert message in str(refused.value)


def test_a_track_is_refused(tmp_path: Path) -> None:
    track = str(Path(__file__).parent / "data" / "track")
    fixed: dict[str, Any] = {"file": write(tmp_path), "track": {"path": track}}
    (run,) = spec.build_plan(spec.load_experiment("track", ["network=loopback"], fixed=fixed)).runs
    with pytest.raises(SpecError, match="mine has no indices; send the track's documents by --documents"):
        planning.check_procedure(run.cell)


@pytest.mark.parametrize("text", [PROTOCOL, PROTOCOL + '[start]\njar = "gone.jar"\nheap = "64m"\n'])
def test_a_running_server_needs_no_start(tmp_path: Path, text: str) -> None:
    (run,) = plan(write(tmp_path, text), url="http://127.0.0.1:8080").runs
    assert run.cell.target.is_already_running
    campaign.check_plan(Plan(experiment="x", description="", seed=1, factors=(), runs=(run,)))


NO_NUMBER = "not a number of documents"
NO_METRICS = "it is not in the text format of Prometheus (could not convert string to float: "


@pytest.mark.parametrize(
    ("count", "body", "result"),
    [
        ({"json": "documents.stored"}, b'{"documents": {"stored": 12}}', 12),
        ({"json": "nodes.1.n"}, b'{"nodes": [{"n": 1}, {"n": 2.0}]}', 2),
        ({"json": "n"}, b'{"n": "12"}', 12),
        ({"json": "/a.b/1/c~1d"}, b'{"a.b": [1, {"c/d": 3}]}', 3),
        ({"json": "/~01"}, b'{"~1": 4}', 4),
        ({"json": "/"}, b'{"": 5}', 5),
        ({"json": "/a.b/2/c"}, b'{"a.b": [1, 2]}', "it has no /a.b/2"),
        *(
            ({"json": "n"}, b'{"n": %s}' % value, f"n is '{quoted}', {NO_NUMBER}")
            for value, quoted in (
                (b'"12.0"', "12.0"),
                (b'"-1"', "-1"),
                (b'"%s"' % (b"9" * 5000), "9" * 80),
                (b"-1", "-1"),
                (b"1.5", "1.5"),
                (b"true", "True"),
                (b"9" * 400, "9" * 80),
                (b"1e999", "inf"),
            )
        ),
        ({"json": "a.b.c"}, b'{"a": {"b": 1}}', "it has no a.b.c"),
        ({"json": "a.b.c"}, b'{"a": []}', "it has no a.b"),
        ({"json": "n"}, b"<html>", "it is not JSON"),
        ({"json": "n"}, b"[" * 100_000, "it is not JSON"),
        ({"metric": "stored_total"}, b"# TYPE stored_total counter\nstored_total 12\nstored_total_created 1.7e9\n", 12),
        ({"metric": "stored"}, b"# TYPE stored counter\nstored 12\n", 12),
        ({"metric": "a"}, b"a " + b"z" * 10**6, f"{NO_METRICS}'{'z' * 44})"),
        ({"metric": "a:b"}, b'a:b{x="1",y="2"} 3\na:b{x="2"} 4e0 1700000000\n', 7),
        ({"metric": 'a{x="1"}'}, b'a{x="1",y="}"} 3\na{y="1"} 4\n', 3),
        ({"metric": 'a{x="1"}'}, b"a 1\n", 'it has no metric a{x="1"}'),
        ({"metric": "a"}, b"a NaN\n", f"the metric a is 'nan', {NO_NUMBER}"),
        ({"metric": "a"}, b'a{x="1"} 1e308\na{x="2"} 1e308\n', f"the metric a is 'nan', {NO_NUMBER}"),
        ({"metric": "a"}, b'a{x="1"} +Inf\na{x="2"} -Inf\n', f"the metric a is 'nan', {NO_NUMBER}"),
        ({"metric": "a"}, 'a{x="\u2028"} 3\na{x="\x85"} 4\n'.encode(), 7),
    ],
)
def test_a_count_is_read_from_a_response(count: dict[str, str], body: bytes, result: int | str) -> None:
    place = records.from_toml(DocumentCount, {"path": "/", **count}, "count")
    if isinstance(result, int):
        assert counting.read_count(place, body) == result
        return
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - its text is compared
        counting.read_count(place, body)
    assert str(refused.value) == result


def test_a_count_is_awaited_until_all_documents_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    counts = iter([3, 5, 8, 9])
    assert counting.wait_for_count(lambda: next(counts), 7, limit_s=60) == 8
    assert counting.wait_for_count(lambda: next(counts), 10, limit_s=0) == 9
    assert counting.wait_for_count(lambda: None, 10, limit_s=60) is None
    replies = iter(["busy", "5", "busy", "10"])

    def count() -> int:
        if (reply := next(replies)) == "busy":
            raise RunFailed("status 503")
        return int(reply)

    assert counting.wait_for_count(count, 10, limit_s=60) == 10
    replies = iter(["busy"])
    with pytest.raises(RunFailed, match="status 503"):
        counting.wait_for_count(count, 10, limit_s=0)


def test_a_count_is_preceded_by_its_refresh(tmp_path: Path) -> None:
    text = PROTOCOL + COUNT + 'refresh = "/refresh?wait=true"\nsettle = "30s"\n'
    target = targets.resolve(target_options(write(tmp_path, text)))
    http = canned_http({"/refresh?wait=true": (202, b""), "/count": (200, b'{"n": 7}')})
    assert (target.settle_s, target.count((http,), ())) == (30, 7)
    assert sent(http) == ["POST /refresh?wait=true", "GET /count"]
    with pytest.raises(RunFailed, match=r"mine: count: refresh: POST .* got status 404: no such page"):
        target.count((canned_http({}),), ())


def test_a_port_that_counts_for_several_addresses_of_a_host_is_asked_once(tmp_path: Path) -> None:
    with canned_server({"/count": (200, b'{"n": 7}')}) as counter, open_http(ServerAddress(endpoint=counter)) as http:
        other = dataclasses.replace(http, address=ServerAddress(endpoint=Endpoint(counter.host, 1)))
        for port, documents in (("", 14), (f"port = {counter.port}\n", 7)):
            target = targets.resolve(target_options(write(tmp_path, PROTOCOL + COUNT + port)))
            assert target.count((http, other), ()) == documents


PREPARE = """
[[prepare]]
method = "PUT"
path = "/topics/rides"
body = '{"at": "{host}:{port}", "{x}": 1}'
status = [201, 409]
[[prepare]]
path = "/flush"
[[clean_up]]
method = "DELETE"
path = "/topics/rides"
"""


def sent(http: Http) -> list[str]:
    return [f"{request['method']} {request['path']}" for request in http.child.requests]  # type: ignore[attr-defined]


def test_requests_before_the_load_go_to_each_node_in_order(tmp_path: Path) -> None:
    text = PREPARE + '[[clean_up]]\npath = "/flush"\n'
    target = targets.resolve(target_options(write(tmp_path, PROTOCOL + text)))
    assert isinstance(target, Custom)
    nodes = [canned_http({"/topics/rides": (409, b"exists"), "/flush": (204, b"")}) for _ in range(2)]
    target.prepare_nodes(nodes)
    for http in nodes:
        assert sent(http) == ["PUT /topics/rides", "POST /flush"]
        (body, nothing) = (request["body"] for request in http.child.requests)  # type: ignore[attr-defined]
        assert (base64.b64decode(body), nothing) == (b'{"at": "h:80", "{x}": 1}', None)
    with pytest.raises(RunFailed, match=r"^mine: clean_up: DELETE http://h/topics/rides got status 409: exists$"):
        target.clean_up_nodes(nodes)
    assert [sent(http)[2:] for http in nodes] == [["DELETE /topics/rides", "POST /flush"]] * 2


@pytest.mark.processes
@pytest.mark.parametrize(
    ("responses", "failure", "expected"),
    [
        ({}, None, ["GET /count", "DELETE /topics/rides"]),
        ({}, RunFailed("the load failed"), ["GET /count", "DELETE /topics/rides"]),
        # The topic exists and is not ours: it is not deleted.
        ({"/topics/rides": (400, b"exists")}, None, []),
    ],
)
def test_what_was_prepared_is_cleaned_up_in_any_case(
    tmp_path: Path, responses: dict[str, tuple[int, bytes]], failure: RunFailed | None, expected: list[str]
) -> None:
    requests: list[str] = []
    # Its count responds with 404 until the topic exists, as that of many servers.
    ready = {"/topics/rides": (201, b""), "/flush": (200, b""), "/count": (200, b'{"n": 7}')}
    with canned_server(ready | responses, requests=requests) as address:
        (run,) = plan(write(tmp_path, PROTOCOL + COUNT + PREPARE), url=f"http://{address}").runs
        expects = contextlib.nullcontext() if expected and failure is None else pytest.raises(RunFailed)
        with running_server.reach_server(run.cell.target) as server, expects as refused:
            procedure = planning.build_procedure(
                run.cell, server.address, tmp_path, may_delete=False, target=server.target
            )
            assert requests == []
            with borrowed.clean_up_after(server, procedure, "mark") as documents:
                assert documents == 7
                if failure is not None:
                    raise failure
    assert requests[0] == "PUT /topics/rides"
    assert [request for request in requests[1:] if request != "POST /flush"] == expected
    if refused is not None:
        assert str(failure or "got status 400: exists") in str(refused.value)


def test_document_numbers_are_packed() -> None:
    packed = delivery.parse_delivered([counting.pack_numbers(b"3\n0000000001\n3\n"), counting.pack_numbers(b"")])
    sets = [np.flatnonzero(getattr(packed, field.name)).tolist() for field in dataclasses.fields(packed)]
    assert sets == [[1, 3], [3], []]
    for wrong in (b"<html>", b"1.5", b"-1", b"100000000", b"9" * 30):
        with pytest.raises(ValueError, match="number"):
            counting.pack_numbers(wrong)


def identify(http: Http, text: str, folder: Path) -> detect.Identified:
    (run,) = plan(write(folder, text), url=http.origin).runs
    return detect.identify(http, run.cell.target)


@pytest.mark.processes
def test_a_server_at_a_url_is_described_and_counted_by_its_file(tmp_path: Path) -> None:
    metrics = '[count]\npath = "/metrics"\nmetric = "a"\nport = '
    responses = {"/up": (204, b""), "/count": (200, b'{"n": 7}')}
    with canned_server(responses) as address, open_http(ServerAddress(endpoint=address)) as http:
        server = identify(http, PROTOCOL + '[ready]\npath = "/up"\nstatus = 204\n' + COUNT, tmp_path)
        assert server.description == {"name": "mine", "description": ""}
        assert server.target.count((http,), ()) == 7
        uncounted = identify(http, PROTOCOL, tmp_path)
        assert uncounted.target.count((http,), ()) is None
        assert uncounted.target.jvm_stats is None
        with canned_server({"/metrics": (200, b"a 3\n")}) as other:
            by_metric = identify(http, PROTOCOL + metrics + f"{other.port}\n", tmp_path)
            assert by_metric.target.count((http,), ()) == 3


@pytest.mark.processes
def test_counts_of_all_addresses_that_respond_are_added(tmp_path: Path) -> None:
    with (
        canned_server({"/count": (200, b'{"n": 7}')}) as first,
        canned_server({"/count": (200, b'{"n": 5}')}) as second,
    ):
        closed = free_port()
        more = [f"http://{second}", f"http://127.0.0.1:{closed}"]
        (run,) = plan(write(tmp_path, PROTOCOL + COUNT), url=f"http://{first}").runs
        options = dataclasses.replace(run.cell.target, more_urls=tuple(map(urls.parse_url, more)))
        with running_server.reach_server(options) as server:
            assert server.count(()) == 12
            assert [note for note in server.notes if str(closed) in note]


def test_delivered_documents_are_read_back(tmp_path: Path) -> None:
    text = PROTOCOL + 'sequence = "n"\n' + '[delivered]\npath = "/have"\n'
    http, invalid = (canned_http({"/have": (200, body)}) for body in (b"7\n7\n", b"seven"))
    assert targets.resolve(target_options(write(tmp_path, PROTOCOL))).read_delivered((http,)) is None
    target = targets.resolve(target_options(write(tmp_path, text)))
    assert target.read_delivered((http, http)) == (counting.pack_numbers(b"7 7"),) * 2
    message = r"mine: delivered: GET .*/have: it is not one number per line; the response was: seven"
    with pytest.raises(RunFailed, match=message):
        target.read_delivered((invalid,))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (COUNT, "GET http://h/count got status 404: no such page"),
        ('[count]\npath = "/up"\njson = "n"\n', "GET http://h/up: it is not JSON; the response was: yes"),
        ('[ready]\npath = "/down"\n', "it does not respond as mine should: GET /down got status 404; 200 would mean"),
        ('[ready]\npath = "/up"\nstatus = 204\n', "GET /up got status 200; 204 would mean ready"),
    ],
)
def test_an_unexpected_response_is_quoted_before_the_load(tmp_path: Path, text: str, message: str) -> None:
    options = target_options(write(tmp_path, PROTOCOL + text))
    with pytest.raises(IngestBenchError) as refused:
        detect.identify(canned_http({"/up": (200, b"yes")}), options)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.processes
@pytest.mark.parametrize("text", ["", '[ready]\npath = "/up"\n', '[ready]\nlog = "up"\n'])
def test_a_closed_port_is_reported(tmp_path: Path, text: str) -> None:
    address = ServerAddress(endpoint=Endpoint("127.0.0.1", free_port()))
    with open_http(address) as http, pytest.raises(RunFailed, match="ConnectionRefusedError"):
        identify(http, PROTOCOL + text, tmp_path)


@pytest.mark.processes
def test_a_text_in_the_log_means_ready(tmp_path: Path) -> None:
    options = target_options(write(tmp_path, PROTOCOL + JAR + '[ready]\nlog = "is up"\n'))
    target, log = targets.resolve(options), tmp_path / "log"
    log.write_text("starting\n")
    with open_http(ServerAddress(endpoint=Endpoint("127.0.0.1", free_port())), log=log) as http:
        assert not target.is_ready(0, (http,))
        log.write_text("starting\nServer is up\n")
        # A server that logs without an end: 2 TiB, which are never read.
        with log.open("r+b") as file:
            file.truncate(2 << 40)
        assert target.is_ready(0, (http,))


def test_credentials_that_a_server_quotes_are_not_in_its_response() -> None:
    http = canned_http({"/": (403, b"no access for Basic bWU6c2VjcmV0 (me:secret)")})
    http = dataclasses.replace(http, headers={"authorization": "Basic bWU6c2VjcmV0"})
    assert http.request("GET", "/").body == b"no access for Basic *** (***)"
