"""Versions of OpenSearch and Elasticsearch, from the archives of their integration tests.

OpenSearch 2.19.6 (Java 17) and 3.8.0 (Java 25). Elasticsearch 5.6.16 (Java 11, before the change of issue 23185),
7.17.29 and 8.19.21 (Java 17).
"""

from __future__ import annotations

from ingest_bench.targets.base import pinned_jars
from ingest_bench.targets.elastic.node import ElasticTarget
from ingest_bench.targets.elastic.node_options import NO_ANALYZERS, Module, Version

_CLIENT_JARS = {(jar.group, jar.name, jar.version): jar for jar in pinned_jars("modules")}


def _modules(server: str, version: str, *names: str) -> tuple[Module, ...]:
    """Return modules from the jars that a project publishes for Java clients."""
    plugins = {"mapper-extras": "index.mapper.MapperExtrasPlugin", "percolator": "percolator.PercolatorPlugin"}
    return tuple(
        Module(
            name=name,
            jar=_CLIENT_JARS[f"org.{server}.plugin", f"{name}-client", version],
            plugin=f"org.{server}.{plugins[name]}",
        )
        for name in names
    )


def _by_number(*versions: Version) -> dict[str, Version]:
    return {version.number: version for version in versions}


# What the start scripts of all but Elasticsearch 8 give a JVM besides heap and collector (SystemJvmOptions), and
# config/jvm.options without its GC log and heap dumps. tests/test_nodes.py compares this with their output.
_COMMON_JVM = (
    "-XX:+AlwaysPreTouch",
    "-Xss1m",
    "-Djava.awt.headless=true",
    "-Dfile.encoding=UTF-8",
    "-Djna.nosys=true",
    "-XX:-OmitStackTraceInFastThrow",
    "-Dio.netty.noUnsafe=true",
    "-Dio.netty.noKeySetOptimization=true",
    "-Dio.netty.recycler.maxCapacityPerThread=0",
    "-Dlog4j.shutdownHookEnabled=false",
    "-Dlog4j2.disable.jmx=true",
    "-Djava.io.tmpdir={home}/tmp",
    "-XX:ErrorFile={home}/logs/hs_err_pid%p.log",
)
_OPENSEARCH_JVM = (
    "-Xshare:auto",
    *_COMMON_JVM,
    "-XX:+ShowCodeDetailsInExceptionMessages",
    "-Dio.netty.allocator.numDirectArenas=0",
    "-Dopensearch.networkaddress.cache.ttl=60",
    "-Dopensearch.networkaddress.cache.negative.ttl=10",
)
_G1 = ("-XX:G1ReservePercent=25", "-XX:InitiatingHeapOccupancyPercent=30")
_OPENSEARCH_THREADS = "org.opensearch.secure_sm.SecuredForkJoinWorkerThreadFactory"

OPENSEARCH = ElasticTarget(
    name="opensearch",
    default_version="2.19.6",
    table=_by_number(
        Version(
            name="opensearch",
            number="2.19.6",
            sha256="71d6d8b1c637f3faecda0752b184b1cc526fc6eaad59ec1408c6327bb00b9293",
            modules=_modules("opensearch", "2.19.6", "mapper-extras", "percolator"),
            java_version=17,
            jvm=(
                *_OPENSEARCH_JVM,
                "-Djava.locale.providers=SPI,COMPAT",
                f"-Djava.util.concurrent.ForkJoinPool.common.threadFactory={_OPENSEARCH_THREADS}",
            ),
            gc_options=_G1,
        ),
        Version(
            name="opensearch",
            number="3.8.0",
            sha256="196c3cf4602c394f2e40e6174ccbf2a924eae37246f08fa6bbb6b75f9fd5ff1f",
            # What the workloads need. Others fail on pip's runtime: analysis-common requires the Thai locale.
            leave_out=("modules/",),
            keep=(
                "modules/transport-netty4/",
                "modules/transport-grpc/",
                "modules/mapper-extras/",
                "modules/percolator/",
            ),
            has_grpc=True,
            java_version=25,
            jvm=(
                *_OPENSEARCH_JVM,
                "-Djava.locale.providers=SPI,CLDR",
                "--add-modules=jdk.incubator.vector",
                "-javaagent:{dist}/agent/opensearch-agent.jar",
                "--add-opens=java.base/java.nio=ALL-UNNAMED",
                "-Dorg.apache.lucene.store.MMapDirectory.sharedArenaMaxPermits=1",
                "-XX:+UseCompactObjectHeaders",
            ),
            gc_options=_G1,
        ),
    ),
)

ELASTICSEARCH = ElasticTarget(
    name="elasticsearch",
    default_version="7.17.29",
    table=_by_number(
        Version(
            name="elasticsearch",
            number="5.6.16",
            sha256="983eada4466d18259a69ebf7cf6a219431b5acc8dc8c1e8258ee8fcf466653c4",
            java_version=11,
            jvm=(*_COMMON_JVM, "-Djdk.io.permissionsUseCanonicalPath=true", "-Dlog4j.skipJansi=true"),
            gc="cms",
            before_7=True,
            modules=_modules("elasticsearch", "5.6.16", "percolator"),
            replaced={},
        ),
        Version(
            name="elasticsearch",
            number="7.17.29",
            sha256="841ee00be1a72ba8e707b5a2fb55f23fe7a4184369b4585393238b1c903eedaf",
            java_version=17,
            jvm=(
                "-Xshare:auto",
                *_COMMON_JVM,
                "-XX:+ShowCodeDetailsInExceptionMessages",
                "-Des.networkaddress.cache.ttl=60",
                "-Des.networkaddress.cache.negative.ttl=10",
                "-Dio.netty.allocator.numDirectArenas=0",
                "-Dlog4j2.formatMsgNoLookups=true",
                "-Djava.locale.providers=SPI,COMPAT",
                "--add-opens=java.base/java.io=ALL-UNNAMED",
            ),
            modules=_modules("elasticsearch", "7.17.29", "mapper-extras", "percolator"),
            gc_options=_G1,
            small_heap_gc_options=(
                "-XX:G1HeapRegionSize=4m",
                "-XX:InitiatingHeapOccupancyPercent=30",
                "-XX:G1ReservePercent=15",
            ),
            settings={"xpack.security.enabled": "false"},
        ),
        Version(
            name="elasticsearch",
            number="8.19.21",
            sha256="215d5f3dbf0609a149f6218a9e47b6ae2df34ebbff3c5754e35f15a5e5393c8a",
            java_version=17,
            # Its launcher adds the rest, with its own tuning of G1.
            jvm=(
                "-Djava.io.tmpdir={home}/tmp",
                "-XX:ErrorFile={home}/logs/hs_err_pid%p.log",
                "-Dorg.apache.lucene.store.MMapDirectory.sharedArenaMaxPermits=1",
            ),
            settings={"xpack.security.enabled": "false"},
            # The jars of these modules are no longer published.
            replaced={**NO_ANALYZERS, "scaled_float": "double", "percolator": None},
            full_jdk=True,
            launcher="bin/elasticsearch",
        ),
    ),
)
