"""OpenSearch 2.19.6 (Java 17) and 3.8.0 (Java 25), from the archives of its integration tests."""

from __future__ import annotations

from ingest_bench.jvm.artifacts import Artifact
from ingest_bench.targets.elastic.modules import for_clients
from ingest_bench.targets.elastic.node import Node
from ingest_bench.targets.elastic.node_options import Version

# What OpenSearch's start script gives a JVM beside heap and collector (SystemJvmOptions), and config/jvm.options
# without its GC log and heap dumps. tests/test_nodes.py compares this with the script's own words.
_COMMON = (
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
    "-Djava.io.tmpdir={home}/tmp",
    "-XX:ErrorFile={home}/logs/hs_err_pid%p.log",
)
_G1 = ("-XX:G1ReservePercent=25", "-XX:InitiatingHeapOccupancyPercent=30")
_THREADS = "org.opensearch.secure_sm.SecuredForkJoinWorkerThreadFactory"
_GROUP = "org.opensearch.distribution.integ-test-zip"

OPENSEARCH = Node(
    name="opensearch",
    default_version="2.19.6",
    table={
        "2.19.6": Version(
            archive=Artifact(
                group=_GROUP,
                name="opensearch",
                version="2.19.6",
                packaging="zip",
                sha256="71d6d8b1c637f3faecda0752b184b1cc526fc6eaad59ec1408c6327bb00b9293",
            ),
            modules=(
                for_clients(
                    "opensearch",
                    "mapper-extras",
                    "2.19.6",
                    plugin="org.opensearch.index.mapper.MapperExtrasPlugin",
                    sha256="4a486870432b71a190dca3aaba91f1fba58837e4a4146b2982e8a938164a9a34",
                ),
                for_clients(
                    "opensearch",
                    "percolator",
                    "2.19.6",
                    plugin="org.opensearch.percolator.PercolatorPlugin",
                    sha256="3a931b2089e8d6140f8b811ea8a5cbfb0cd1d2202a070c25568a7249875cd787",
                ),
            ),
            java_version=17,
            family="opensearch",
            main="org.opensearch.bootstrap.OpenSearch",
            jvm=(
                *_COMMON,
                "-Djava.locale.providers=SPI,COMPAT",
                f"-Djava.util.concurrent.ForkJoinPool.common.threadFactory={_THREADS}",
            ),
            gc_options=_G1,
        ),
        "3.8.0": Version(
            archive=Artifact(
                group=_GROUP,
                name="opensearch",
                version="3.8.0",
                packaging="zip",
                sha256="196c3cf4602c394f2e40e6174ccbf2a924eae37246f08fa6bbb6b75f9fd5ff1f",
                # What the workloads need. Others fail on pip's runtime: analysis-common wants the Thai locale.
                leave_out=("modules/",),
                keep=("modules/transport-netty4/", "modules/mapper-extras/", "modules/percolator/"),
            ),
            java_version=25,
            family="opensearch",
            main="org.opensearch.bootstrap.OpenSearch",
            jvm=(
                *_COMMON,
                "-Djava.locale.providers=SPI,CLDR",
                "--add-modules=jdk.incubator.vector",
                "-javaagent:{dist}/agent/opensearch-agent.jar",
                "--add-opens=java.base/java.nio=ALL-UNNAMED",
                "-Dorg.apache.lucene.store.MMapDirectory.sharedArenaMaxPermits=1",
                "-XX:+UseCompactObjectHeaders",
            ),
            gc_options=_G1,
        ),
    },
)
