"""netem on one flow of a real interface: in this kernel, or if it has no netem, in User-Mode Linux."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import inside_uml
import pytest
from interface_lab import PORT, SERVER, Lab, lab
from readied import ready

from ingest_bench.network.act.link import find_kernel_netem_problem

pytestmark = pytest.mark.netem

HERE = Path(__file__)
# Another test that requires a part that this kernel may lack (VLANs), and then also runs there.
UPPERS = f"{HERE.with_name('test_interface_uppers.py')}::test_mtu_of_upper_devices_is_restored"
RTT = HERE.with_name("flow_rtt.py")
OTHER_PORT = 9300
# Round trip of the driver's profile "far": 40 ms in each direction, 15% loss to the server.
RTT_S = 0.080
# Queues of a multi-queue interface.
QUEUES = """
tc qdisc replace dev eth0 root handle 78: mq
tc qdisc replace dev eth0 parent 78:1 handle 79: fq limit 5000
tc qdisc replace dev eth0 parent 78:2 handle 80: fq_codel limit 4000
"""


def measure_rtts_s(machine: Lab, port: int, count: int) -> tuple[list[float], bool]:
    """Return the seconds of each round trip, and whether the connection negotiated ECN."""
    answer = json.loads(machine.run(sys.executable, str(RTT), "ask", SERVER, str(port), str(count)))
    return [float(second) for second in answer["seconds"]], answer["ecn"]


def check_delay_and_loss(state: Path) -> None:
    with lab(state) as machine:
        machine.run("sh", "-ec", QUEUES)
        before = machine.snapshot()
        argv = (*machine.server, sys.executable, str(RTT), "serve", SERVER, str(PORT), str(OTHER_PORT))
        with ready(argv), machine.shaped("far"):
            queues = machine.run("tc", "qdisc", "show", "dev", "eth0")
            delayed, _ = measure_rtts_s(machine, PORT, 100)
            others, _ = measure_rtts_s(machine, OTHER_PORT, 30)
            counters = json.loads(machine.run("tc", "-s", "-j", "qdisc", "show", "dev", machine.ifbs()[1]))
        after = machine.snapshot()
    for kind in ("mq 78: root", "fq 79: parent 78:1 limit 5000p", "fq_codel 80: parent 78:2 limit 4000p"):
        assert f"qdisc {kind}" in queues
    # A slow machine only adds to the delay.
    assert min(delayed) >= RTT_S
    assert sorted(delayed)[len(delayed) // 2] < 2 * RTT_S
    assert min(others) < RTT_S / 2
    netem = next(qdisc for qdisc in counters if qdisc["kind"] == "netem")
    # At least 100 packets at 15%: no loss has a probability of 1 in 10 million.
    assert netem["drops"] > 0
    # A lost packet is resent after at least two round trips (RFC 8985, 7.2): TCP did not learn of the loss directly.
    assert max(delayed) > RTT_S + 0.1
    assert after == before


def count_marked(machine: Lab) -> int:
    """Return how many packets with a congestion mark the server received."""
    names, numbers = (
        line.split()
        for line in machine.swap_ends().run("cat", "/proc/net/netstat").splitlines()
        if line.startswith("IpExt:")
    )
    return int(dict(zip(names, numbers, strict=True))["InCEPkts"])


def check_marks(state: Path) -> None:
    with lab(state) as machine:
        before = machine.snapshot()
        argv = (*machine.server, sys.executable, str(RTT), "serve", SERVER, str(PORT), str(OTHER_PORT))
        with ready(argv):
            with machine.shaped("marked"):
                assert count_marked(machine) == 0
                # A client whose SYN is lost (15%) repeats it without ECN (sysctl tcp_ecn_fallback).
                for _ in range(5):
                    _, ecn = measure_rtts_s(machine, PORT, 100)
                    if ecn:
                        break
                    assert count_marked(machine) == 0
                assert ecn
                flow_marks = count_marked(machine)
                # The route makes every connection to the server request ECN; those to another port are not marked.
                measure_rtts_s(machine, OTHER_PORT, 30)
                assert count_marked(machine) == flow_marks
            _, ecn = measure_rtts_s(machine, PORT, 30)
            assert not ecn
            assert count_marked(machine) == flow_marks
        after = machine.snapshot()
    # 100 requests at 15%: outside this range in 1 of 100,000 runs.
    assert 3 <= flow_marks <= 35
    assert after == before


@pytest.mark.nightly
def test_netem_delays_drops_and_marks_only_the_named_flow(tmp_path: Path) -> None:
    if inside_uml.INSIDE or not find_kernel_netem_problem():
        check_delay_and_loss(tmp_path / "far")
        check_marks(tmp_path / "marked")
        return
    inside_uml.assert_passes("2 passed", tmp_path, str(HERE), UPPERS)
