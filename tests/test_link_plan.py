from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ingest_bench import system
from ingest_bench.cli import net
from ingest_bench.errors import MissingCapability, RunFailed
from ingest_bench.experiment import catalog
from ingest_bench.inputs import files
from ingest_bench.ledger.steps import Action, Step
from ingest_bench.model.network import Impairment, Profile
from ingest_bench.network.act import interface, uml
from ingest_bench.network.act import link as link_module
from ingest_bench.network.act.link import _default_buffers, choose_backend
from ingest_bench.network.act.sandbox import Namespace, has_ipv6
from ingest_bench.network.plan import link_plan
from ingest_bench.network.plan.interface_rules import Qdisc
from ingest_bench.network.plan.link_plan import SERVER_MAC, UNUSED_MAC, Layout

SLOW, ECN = Impairment(rate_bps=10**7), Impairment(loss_ppm=10_000, ecn=True)
EXAMPLE = Profile(
    name="example",
    mtu_bytes=1400,
    mss_bytes=1000,
    gso_max_segs=1,
    gso_max_size_bytes=20_000,
    offloads={"tso": False, "gso": False},
    tcp_rmem_bytes=(4096, 65536, 262144),
    to_server=SLOW,
)
PROFILES = [EXAMPLE, *map(catalog.load_profile, files.data_files("netem"))]
DELAYED = Profile(
    name="delayed", to_server=Impairment(delay_ns=10**7), to_client=Impairment(delay_ns=10**7, rate_bps=10**7)
)


def record_commands(
    profile: Profile, backend: str, monkeypatch: pytest.MonkeyPatch, then: Profile | None = None
) -> list[str]:
    """Return the commands that create a link, and then change it, formatted like a dry run."""
    recorded: list[tuple[str, tuple[str, ...], str]] = []
    run, run_in_uml = system.run, uml.Console.run

    def spy(argv: Sequence[str], **options: Any) -> str:
        if "--target" in argv:
            place = argv[list(argv).index("--target") + 1]
            recorded.append((place, tuple(argv[list(argv).index("--") + 1 :]), options.get("stdin") or ""))
        return run(argv, **options)

    def spy_in_uml(console: uml.Console, argv: Sequence[str], **options: Any) -> str:
        recorded.append(("router", tuple(argv), options.get("stdin") or ""))
        return run_in_uml(console, argv, **options)

    if backend != "plain":
        choose_backend(backend, (profile,))  # Its trials are cached and not recorded.
    monkeypatch.setattr(system, "run", spy)
    monkeypatch.setattr(uml.Console, "run", spy_in_uml)
    with link_module.open_link(profile, netem="auto" if backend == "plain" else backend) as link:
        if then is not None:
            link.set_profile(then)
        names = {str(link.server.pid): "server", str(link.client.pid): "client", "router": "router"}
    lines = []
    for place, argv, stdin in recorded:
        is_batch = argv[1:] == ("-batch", "-")
        commands = [f"{argv[0]} {line}" for line in stdin.splitlines()] if is_batch else [shlex.join(argv)]
        lines += [f"{names.get(place, 'router host')}: {command}" for command in commands]
    return [re.sub(r" netns (\d+)", lambda match: f" netns {names[match[1]]}", line) for line in lines]


@pytest.mark.netns
@pytest.mark.parametrize("profile", [p for p in PROFILES if not p.needs_netem], ids=lambda profile: profile.name)
def test_link_is_created_with_the_commands_of_its_dry_run(profile: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    assert record_commands(profile, "plain", monkeypatch) == list(map(str, link_plan.link_steps(profile, "plain")))


@pytest.mark.netns
def test_link_is_changed_with_the_planned_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(medium="veth", backend="plain", max_mtu_bytes=1500, has_ipv6=has_ipv6())
    other = Profile(name="other", to_client=SLOW)
    # The features behind an offload name depend on the kernel.
    first = replace(EXAMPLE, offloads={})
    creation = link_plan.link_steps(first, "plain", has_ipv6=has_ipv6())
    defaults = link_plan.KernelDefaults(tcp_rmem_bytes=_default_buffers("rmem"))
    changes = link_plan.change_steps(layout, first, other, defaults)
    assert record_commands(first, "plain", monkeypatch, then=other) == [*map(str, (*creation, *changes))]


def test_change_restores_kernel_defaults_that_the_new_profile_leaves_open() -> None:
    layout = Layout(medium="veth", backend="plain", max_mtu_bytes=1500, has_ipv6=True)
    defaults = link_plan.KernelDefaults(tcp_rmem_bytes=(4096, 131072, 6291456), offloads={"client": {"tx-gso": True}})
    steps = link_plan.change_steps(layout, EXAMPLE, Profile(name="other"), defaults)
    client = [str(step) for step in steps if step.namespace == "client"]
    assert client[0] == "client: ip link set dev client0 mtu 1500 gso_max_segs 65535 gso_max_size 65536"
    assert client[2].endswith(" 'net.ipv4.tcp_rmem=4096 131072 6291456'")
    assert client[3].endswith(" client0 tx-gso=on")
    assert client[4:] == ["client: tc qdisc del dev client0 root"]


def test_cut_direction_has_an_unused_mac_address() -> None:
    layout = Layout(medium="veth", backend="plain", max_mtu_bytes=1500, has_ipv6=False)
    for is_cut in (True, False):
        steps = link_plan.neighbour_steps(layout, "client", is_cut=is_cut)
        macs = {mac for step in steps for mac in re.findall(r"lladdr (\S+)", str(step))}
        assert macs == {UNUSED_MAC if is_cut else SERVER_MAC}


class RecordingPlace:
    """A place that records its commands."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, ...]] = []

    def run(self, argv: Sequence[str], *, stdin: str | None = None, check: bool = True) -> str:
        del check
        self.commands.append((*argv, stdin or ""))
        return f"output {len(self.commands)}"


def test_batched_commands_keep_their_order() -> None:
    first, second = RecordingPlace(), RecordingPlace()
    commands = ("ip a", "ip b", "sysctl c", "tc d", "ip e")
    steps = [Step(name=text, namespace="first", action=Action(argv=tuple(text.split()))) for text in commands]
    steps.insert(1, Step(name="boot", namespace="second", action=Action(argv=("boot", "uml"))))
    steps.insert(2, Step(name="ip", namespace="second", action=Action(argv=("ip", "f"))))
    booted: list[Sequence[str]] = []

    def boot(argv: Sequence[str]) -> RecordingPlace:
        assert first.commands == [("ip", "-batch", "-", "a\n")]
        booted.append(argv)
        return second

    places: dict[str, link_module.Place] = {"first": first, "namespace": Namespace(77)}
    steps[3] = replace(steps[3], action=Action(argv=("ip", "b", "netns", "namespace")))
    outputs = link_module.run_steps(steps, places, boot)
    assert booted == [("boot", "uml")]
    assert second.commands == [("ip", "-batch", "-", "f\n")]
    batches = [("ip", "-batch", "-", "b netns 77\n"), ("sysctl", "c", ""), ("tc", "-batch", "-", "d\n")]
    assert first.commands[1:] == [*batches, ("ip", "-batch", "-", "e\n")]
    assert [(step.name, output) for step, output in outputs] == [("sysctl c", "output 3")]


@pytest.mark.netem
def test_router_is_created_with_the_commands_of_its_dry_run(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        backend = choose_backend("auto", (DELAYED,))
    except MissingCapability as error:
        pytest.skip(str(error))
    recorded = record_commands(DELAYED, backend, monkeypatch)
    assert recorded == [line for line in map(str, link_plan.link_steps(DELAYED, backend)) if "linux.uml" not in line]


@pytest.mark.netem
def test_uml_is_started_with_the_command_of_its_dry_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if uml.find_uml_problem():
        pytest.skip(uml.find_uml_problem())
    net._print_link(DELAYED, "uml", ())
    (printed,) = (line for line in capsys.readouterr().out.splitlines() if "linux.uml" in line)
    started: list[Sequence[str]] = []
    child = system.Child

    def spy(argv: Sequence[str], **options: Any) -> system.Child:
        started.append(argv)
        return child(argv, **options)

    monkeypatch.setattr(system, "Child", spy)
    with link_module.open_link(DELAYED, netem="uml"):
        pass
    (argv,) = (argv for argv in started if "linux.uml" in argv)
    assert shlex.join(argv).endswith(f" pid-1 {printed.removeprefix('router: ')}")


@pytest.mark.parametrize("backend", ["kernel", "uml"])
def test_netem_is_in_the_router(backend: str) -> None:
    steps = link_plan.link_steps(DELAYED, backend)
    assert {step.undo for step in steps} == {()}
    lines = list(map(str, steps))
    assert [line.split(" handle ")[0] for line in lines if " netem " in line] == [
        "router: tc qdisc replace dev to-server root",
        "router: tc qdisc replace dev to-client root",
        "router: tc qdisc replace dev to-client parent 1:1",
    ]
    assert any(line.startswith("router: linux.uml ") for line in lines) == (backend == "uml")


def test_device_gets_only_what_the_profile_sets() -> None:
    assert link_plan.set_device("d", Profile(name="x")) == "link set dev d mtu 1500"
    full = Profile(name="x", mtu_bytes=9000, gso_max_segs=1, gso_max_size_bytes=19000, gro_max_size_bytes=32768)
    line = "link set dev d mtu 9000 gso_max_segs 1 gso_max_size 19000 gro_max_size 32768"
    assert link_plan.set_device("d", full) == line


def test_route_has_the_profiles_tcp_options() -> None:
    ends = ("d", "198.18.1.1", "198.18.2.1")
    assert link_plan.set_route(*ends, None, Profile(name="x", mss_bytes=536)) == (
        "route replace 198.18.2.1/32 dev d src 198.18.1.1 advmss 536 congctl cubic"
    )
    for profile in (Profile(name="x", to_server=ECN), Profile(name="x", to_client=ECN)):
        line = link_plan.set_route(*ends, None, profile)
        assert line.endswith(" congctl cubic features ecn")
    reno = Profile(name="x", congestion_control="reno")
    assert link_plan.set_route(*ends, link_plan.CLIENT_GATEWAY, reno) == (
        "route replace 198.18.2.1/32 via 198.18.1.254 dev d onlink src 198.18.1.1 congctl reno"
    )


def test_socket_buffers_are_set_with_one_command() -> None:
    profile = Profile(name="x", tcp_rmem_bytes=(4096, 16384, 65536), tcp_wmem_bytes=(4096, 65536, 4194304))
    assert link_plan.sysctl_argv(profile) == (
        *("sysctl", "-q", "-e", "-w"),
        "net.ipv4.tcp_no_metrics_save=1",
        "net.ipv6.conf.default.addr_gen_mode=1",
        "net.ipv4.tcp_rmem=4096 16384 65536",
        "net.ipv4.tcp_wmem=4096 65536 4194304",
    )


# As iproute2 6.1 prints them: these options by fprintf, inside JSON.
@pytest.mark.parametrize(
    ("kind", "options"),
    [("hfsc", "default 1 "), ("hfsc", ""), ("multiq", "bands 4/4 "), ("choke", "limit 1000p min 83p max 250p ")],
)
def test_qdiscs_with_plain_text_options_are_parsed(monkeypatch: pytest.MonkeyPatch, kind: str, options: str) -> None:
    output = (
        f'[{{"kind":"{kind}","handle":"2:","root":true,"refcnt":2,"options":{{{options}}}}},'
        '{"kind":"fq_codel","handle":"3:","parent":"2:1","options":{"limit":10240,"ecn":true}}]'
    )

    def run(argv: Sequence[str]) -> str:
        assert argv[:4] == ("tc", "-j", "qdisc", "show")
        return output

    monkeypatch.setattr(system, "run", run)
    assert interface.read_qdiscs("eth0") == (
        Qdisc(kind=kind, handle="2:", parent=""),
        Qdisc(kind="fq_codel", handle="3:", parent="2:1"),
    )
    assert link_plan.parse_json("tc", output)[1]["options"] == {"limit": 10240, "ecn": True}


def test_empty_output_is_an_empty_list() -> None:
    assert link_plan.parse_json("ip", " \n") == []


@pytest.mark.parametrize("output", ['[{"kind":"new" bands 4}]', "qdisc noqueue 0: root", "[" * 100_000])
def test_output_that_is_not_json_is_reported(output: str) -> None:
    message = r"^tc -j qdisc show: its output is not JSON \(.*\)\. Install a newer iproute2\.$"
    with pytest.raises(RunFailed, match=message):
        link_plan.parse_json("tc -j qdisc show", output)
