"""Elasticsearch 5.6.16 (Java 11, the code before issue 23185 was answered), 7.17.29 and 8.19.21 (Java 17)."""

from __future__ import annotations

from ingest_bench.jvm.artifacts import Artifact
from ingest_bench.targets.elastic.modules import for_clients
from ingest_bench.targets.elastic.node import Node
from ingest_bench.targets.elastic.node_options import NO_ANALYZERS, Version

_GROUP = "org.elasticsearch.distribution.integ-test-zip"
_MAIN = "org.elasticsearch.bootstrap.Elasticsearch"
# In config/jvm.options or the start script of all three.
_COMMON = (
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


def _archive(version: str, sha256: str) -> Artifact:
    return Artifact(group=_GROUP, name="elasticsearch", version=version, packaging="zip", sha256=sha256)


ELASTICSEARCH = Node(
    name="elasticsearch",
    default_version="7.17.29",
    table={
        "5.6.16": Version(
            archive=_archive("5.6.16", "983eada4466d18259a69ebf7cf6a219431b5acc8dc8c1e8258ee8fcf466653c4"),
            java_version=11,
            family="es",
            main=_MAIN,
            jvm=(*_COMMON, "-Djdk.io.permissionsUseCanonicalPath=true", "-Dlog4j.skipJansi=true"),
            gc="cms",
            before_7=True,
            modules=(
                for_clients(
                    "elasticsearch",
                    "percolator",
                    "5.6.16",
                    plugin="org.elasticsearch.percolator.PercolatorPlugin",
                    sha256="5e07ea8188dfdaf5913cd32fa3c2c3e0a48b4aa3c9eccb0315522a2f31ed542b",
                ),
            ),
            replaced={},
        ),
        "7.17.29": Version(
            archive=_archive("7.17.29", "841ee00be1a72ba8e707b5a2fb55f23fe7a4184369b4585393238b1c903eedaf"),
            java_version=17,
            family="es",
            main=_MAIN,
            jvm=(
                "-Xshare:auto",
                *_COMMON,
                "-XX:+ShowCodeDetailsInExceptionMessages",
                "-Des.networkaddress.cache.ttl=60",
                "-Des.networkaddress.cache.negative.ttl=10",
                "-Dio.netty.allocator.numDirectArenas=0",
                "-Dlog4j2.formatMsgNoLookups=true",
                "-Djava.locale.providers=SPI,COMPAT",
                "--add-opens=java.base/java.io=ALL-UNNAMED",
            ),
            modules=(
                for_clients(
                    "elasticsearch",
                    "mapper-extras",
                    "7.17.29",
                    plugin="org.elasticsearch.index.mapper.MapperExtrasPlugin",
                    sha256="3fc4139860139a524b0e56309261c943c90863da0c1bb2d1b0fc86d78f1525cd",
                ),
                for_clients(
                    "elasticsearch",
                    "percolator",
                    "7.17.29",
                    plugin="org.elasticsearch.percolator.PercolatorPlugin",
                    sha256="8279f5f47323d06c265424bbae5de83d8d94dd32457f15fcde87146942829c32",
                ),
            ),
            gc_options=("-XX:G1ReservePercent=25", "-XX:InitiatingHeapOccupancyPercent=30"),
            small_heap_gc_options=(
                "-XX:G1HeapRegionSize=4m",
                "-XX:InitiatingHeapOccupancyPercent=30",
                "-XX:G1ReservePercent=15",
            ),
            settings=(("xpack.security.enabled", "false"),),
        ),
        "8.19.21": Version(
            archive=_archive("8.19.21", "215d5f3dbf0609a149f6218a9e47b6ae2df34ebbff3c5754e35f15a5e5393c8a"),
            java_version=17,
            family="es",
            main=_MAIN,
            # Its launcher adds the rest, and its own tuning of G1.
            jvm=(
                "-Djava.io.tmpdir={home}/tmp",
                "-XX:ErrorFile={home}/logs/hs_err_pid%p.log",
                "-Dorg.apache.lucene.store.MMapDirectory.sharedArenaMaxPermits=1",
            ),
            settings=(("xpack.security.enabled", "false"),),
            # The jars of these modules are not published any more.
            replaced={**NO_ANALYZERS, "scaled_float": "double", "percolator": None},
            full_jdk=True,
            launcher="bin/elasticsearch",
        ),
    },
)
