"""netem on one flow of a real interface: on this kernel's own, else this file runs once more in User-Mode Linux."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import inside_uml
import pytest
from interface_lab import PORT, SERVER, Lab, lab
from readied import ready

from ingest_bench.network.act.box import kernel_complaint

pytestmark = pytest.mark.netem

HERE = Path(__file__)
# The other test that needs a part which this kernel may not have, VLANs, and which runs there too then.
UPPERS = f"{HERE.with_name('test_interface_uppers.py')}::test_what_stands_on_the_interface_gets_its_own_mtu_back"
RTT = HERE.with_name("flow_rtt.py")
OTHER_PORT = 9300
# The driver's profile "far": 40 ms each way, 15% lost on the way to the server.
FAR_S = 0.080
# What a host's interface may have: a queue for each of the device's, of two kinds.
QUEUES = """
tc qdisc replace dev eth0 root handle 78: mq
tc qdisc replace dev eth0 parent 78:1 handle 79: fq limit 5000
tc qdisc replace dev eth0 parent 78:2 handle 80: fq_codel limit 4000
"""


def rtt_s(place: Lab, port: int, count: int) -> list[float]:
    said = place.run(sys.executable, str(RTT), "ask", SERVER, str(port), str(count))
    return [float(second) for second in json.loads(said)["seconds"]]


def only_the_named_flow_is_far(state: Path) -> None:
    with lab(state) as place:
        place.run("sh", "-ec", QUEUES)
        before = place.snapshot()
        argv = (*place.server, sys.executable, str(RTT), "serve", SERVER, str(PORT), str(OTHER_PORT))
        with ready(argv), place.shaped("far"):
            queues = place.run("tc", "qdisc", "show", "dev", "eth0")
            far, near = rtt_s(place, PORT, 100), rtt_s(place, OTHER_PORT, 30)
            counters = json.loads(place.run("tc", "-s", "-j", "qdisc", "show", "dev", place.ifbs()[1]))
        place.wait_until_free()
        after = place.snapshot()
    for kind in ("mq 78: root", "fq 79: parent 78:1 limit 5000p", "fq_codel 80: parent 78:2 limit 4000p"):
        assert f"qdisc {kind}" in queues
    # No packet is early; the slow machine that this may be only ever adds to it.
    assert min(far) >= FAR_S
    assert sorted(far)[len(far) // 2] < 2 * FAR_S
    assert min(near) < FAR_S / 2
    netem = next(qdisc for qdisc in counters if qdisc["kind"] == "netem")
    # At least 100 packets at 15%: that none is lost has a chance of 1 in 10 million.
    assert netem["drops"] > 0
    # A lost packet is sent again after two round trips at least (RFC 8985, 7.2): TCP was not told of the loss.
    assert max(far) > FAR_S + 0.1
    assert after == before


def marked(place: Lab) -> int:
    """Packets that came to the server with the mark of congestion."""
    names, numbers = (
        line.split()
        for line in place.from_the_server().run("cat", "/proc/net/netstat").splitlines()
        if line.startswith("IpExt:")
    )
    return int(dict(zip(names, numbers, strict=True))["InCEPkts"])


def packets_come_marked(state: Path) -> None:
    with lab(state) as place:
        before = place.snapshot()
        argv = (*place.server, sys.executable, str(RTT), "serve", SERVER, str(PORT), str(OTHER_PORT))
        with ready(argv):
            with place.shaped("marked"):
                assert marked(place) == 0
                rtt_s(place, PORT, 100)
                of_the_flow = marked(place)
                # What goes beside it asks for nothing, and meets nothing.
                rtt_s(place, OTHER_PORT, 30)
                assert marked(place) == of_the_flow
            place.wait_until_free()
            rtt_s(place, PORT, 30)
            assert marked(place) == of_the_flow
        after = place.snapshot()
    # 100 requests at 15%: fewer or more than that in one of 100,000 runs.
    assert 3 <= of_the_flow <= 35
    assert after == before


@pytest.mark.nightly
def test_netem_delays_loses_and_marks_packets_of_the_named_flow_only(tmp_path: Path) -> None:
    if inside_uml.INSIDE or not kernel_complaint():
        only_the_named_flow_is_far(tmp_path / "far")
        packets_come_marked(tmp_path / "marked")
        return
    inside_uml.passes("2 passed", tmp_path, str(HERE), UPPERS)
