"""Cassandra 0.7.4 and 0.7.5 as they were published, with everything that they need to run."""

from __future__ import annotations

from ingest_bench.jvm import artifacts
from ingest_bench.jvm.compile import ECJ
from ingest_bench.targets.version import Requirements

_RELEASES = {
    "0.7.4": "f40551efe43abb42ca160c62db2d084cd3fc5616151323063ca55a572eb812d4",
    "0.7.5": "8e018c1e08b5eb00bf85ea643fb1ef8ef9b95773d94925364e35d815f22ae83f",
}
# What the poms of both name at compile scope, and the binding of slf4j that they call provided.
_NEEDED = {
    "antlr:antlr:2.7.7": "88fbda4b912596b9f56e8e12e580cc954bacfb51776ecfddd3e18fc1cf56dc4c",
    "com.github.stephenc.high-scale-lib:high-scale-lib:1.1.1": (
        "fc690934abf4153bb3e4141a99c63d4b4fe7fb42f69d0588f484595e5767265a"
    ),
    "com.google.guava:guava:r05": "d2ad39b98d67260e457ea945035d74d42eee70ab06cd556b504f380e5eb38519",
    "com.googlecode.concurrentlinkedhashmap:concurrentlinkedhashmap-lru:1.1": (
        "f09a7af75c0aa51f0a8ea97d0e53d873d786eed14c55d575c37c7bcf03334799"
    ),
    "com.googlecode.json-simple:json-simple:1.1": "2d9484f4c649f708f47f9a479465fc729770ee65617dca3011836602264f6439",
    "commons-cli:commons-cli:1.1": "7c0c4dc03175c3a64c5b112592b70302d88be9738888b8c04029ab29ea3a3641",
    "commons-codec:commons-codec:1.2": "9898a3b3857676128987b975d0b0f035becf3da5cf677266a34d6636f2b80542",
    "commons-collections:commons-collections:3.2.1": "87363a4c94eaabeefd8b930cb059f66b64c9f7d632862f23de3012da7660047b",
    "commons-lang:commons-lang:2.4": "2c73b940c91250bc98346926270f13a6a10bb6e29d2c9316a70d134e382c873e",
    "jline:jline:0.9.94": "d8df0ffb12d87ca876271cda4d59b3feb94123882c1be1763b7faf2e0a0b0cbb",
    "log4j:log4j:1.2.16": "7ae3fdde7ab0cae4735a2aec04381ad9b6e25c93d24205f3ed315d9866f12fe1",
    "org.antlr:antlr-runtime:3.1.3": "4beb8f7fc1396ec7ebfd10ab785b80c38d0f5098cc484177b0552a99048e7549",
    "org.antlr:antlr:3.1.3": "b7e22e20c4cb9733269d69089881a35be407d648e824412c13275e5ec6938a49",
    "org.antlr:stringtemplate:3.2": "013bddbade90e8311d55b3655d410ebfcbdaf3a49a995023edeb0840fb6e85f6",
    "org.apache.cassandra.deps:avro:1.4.0-cassandra-1": (
        "1be5e1133cb113abd2f0dd13acd2edf12b32f642713810eca26c3b47045d9317"
    ),
    "org.apache.cassandra.deps:libthrift:0.5.0": "f04b1ef9fd4ff9803316a89fd2fc9d8e391bee7d4a7b3f1d0005353b9bd30b77",
    "org.codehaus.jackson:jackson-core-asl:1.4.0": "4f83ead0a5c5948dcb3e3cbc1cf8afbfdcd30dd9c67fb43ead2170cf7cc2c181",
    "org.codehaus.jackson:jackson-mapper-asl:1.4.0": "841275d818f5f3a77d968c621cb5661c25c4df3b9a04130b3fe72ec44a0cdbe7",
    "org.mortbay.jetty:jetty-util:6.1.21": "cfe9df17a12fcfcf8c8bc7c9ff225a14cb99070bd0b427370167a60a1330facd",
    "org.mortbay.jetty:jetty:6.1.21": "35217aa2fc5cf99b44f7cedf59a9cda541b246d399cdbdedbb816b8687cc8707",
    "org.mortbay.jetty:servlet-api:2.5-20081211": "068756096996fe00f604ac3b6672d6f663dc777ea4a83056e240d0456e77e472",
    "org.safehaus.jug:jug:2.0.0:asl": "455d4bb841134a72a5ab481b590aef0541b375fb3e9424e326735a4e3ec00e60",
    "org.slf4j:slf4j-api:1.6.1": "d849d117fc3798838c6cd42db6a7ecf6d9ae050c3997417b8e4e251e592b1d3e",
    "org.slf4j:slf4j-log4j12:1.6.1": "cbae818e0d2e020f0c850c4b9c7c169b1ed99311da23e9a3efe66ce60e8795ba",
    "org.yaml:snakeyaml:1.6": "5a7bb35371ac33c35ccc7f04ca0488cb15d573dc8df16dca9090287d74d3594b",
}
# The last that has CMS, which its start scripts choose, and that pip has.
_JAVA_VERSION = 11


def versions() -> dict[str, Requirements]:
    """What each version needs: its own jar first."""
    return {
        version: Requirements(
            artifacts=(*artifacts.jars({f"org.apache.cassandra:cassandra-all:{version}": sha256} | _NEEDED), ECJ),
            java_version=_JAVA_VERSION,
        )
        for version, sha256 in _RELEASES.items()
    }
