from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ingest_bench import system
from ingest_bench.cli import net
from ingest_bench.errors import MissingCapability
from ingest_bench.experiment import catalog
from ingest_bench.inputs import data
from ingest_bench.ledger.steps import Action, Step
from ingest_bench.model.network import Impairment, Profile
from ingest_bench.network.act import executor, uml
from ingest_bench.network.act import link as link_module
from ingest_bench.network.act.box import choose
from ingest_bench.network.act.link import _buffers
from ingest_bench.network.act.sandbox import Namespace, has_ipv6
from ingest_bench.network.plan import guest, link_plan
from ingest_bench.network.plan.link_plan import Layout
from ingest_bench.network.plan.places import NOBODY_MAC, SERVER_MAC

SLOW = Impairment(rate_bps=10**7)
MADE_UP = Profile(
    name="made-up",
    mtu_bytes=1400,
    mss_bytes=1000,
    gso_max_segs=1,
    gso_max_size_bytes=20_000,
    offloads={"tso": False, "gso": False},
    tcp_rmem_bytes=(4096, 65536, 262144),
    to_server=SLOW,
)
PROFILES = [MADE_UP, *map(catalog.profile, data.files("netem"))]


FAR = Profile(name="far", to_server=Impairment(delay_ns=10**7), to_client=Impairment(delay_ns=10**7, rate_bps=10**7))


def commands_of_making(
    profile: Profile, backend: str, monkeypatch: pytest.MonkeyPatch, then: Profile | None = None
) -> list[str]:
    """The commands that a link is really made with, and changed then, in the words of the dry run."""
    ran: list[tuple[str, tuple[str, ...], str]] = []
    run, run_in_guest = system.run, uml.Guest.run

    def spy(argv: Sequence[str], **options: Any) -> str:
        if "--target" in argv:
            place = argv[list(argv).index("--target") + 1]
            ran.append((place, tuple(argv[list(argv).index("--") + 1 :]), options.get("stdin") or ""))
        return run(argv, **options)

    def spy_in_guest(guest: uml.Guest, argv: Sequence[str], **options: Any) -> str:
        ran.append(("box", tuple(argv), options.get("stdin") or ""))
        return run_in_guest(guest, argv, **options)

    if backend != "plain":
        choose(backend, (profile,))  # What it tries in order to choose is no part of the making.
    monkeypatch.setattr(system, "run", spy)
    monkeypatch.setattr(uml.Guest, "run", spy_in_guest)
    with link_module.link(profile, netem="auto" if backend == "plain" else backend) as link:
        if then is not None:
            link.change(then)
        names = {str(link.server.pid): "server", str(link.client.pid): "client", "box": "box"}
    lines = []
    for place, argv, stdin in ran:
        batch = argv[1:] == ("-batch", "-")
        said = [f"{argv[0]} {line}" for line in stdin.splitlines()] if batch else [shlex.join(argv)]
        lines += [f"{names.get(place, 'around the box')}: {line}" for line in said]
    return [re.sub(r" netns (\d+)", lambda match: f" netns {names[match[1]]}", line) for line in lines]


@pytest.mark.netns
@pytest.mark.parametrize("profile", [p for p in PROFILES if not p.needs_netem], ids=lambda profile: profile.name)
def test_a_link_is_made_with_exactly_the_commands_of_its_dry_run(
    profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert commands_of_making(profile, "plain", monkeypatch) == list(map(str, link_plan.steps(profile, "plain")))


@pytest.mark.netns
def test_a_link_is_changed_with_exactly_the_steps_between_its_states(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(medium="veth", backend="plain", largest_mtu_bytes=1500, has_ipv6=has_ipv6())
    other = Profile(name="other", to_client=SLOW)
    # What a kernel has of the features behind a name is its own.
    first = replace(MADE_UP, offloads={})
    made = link_plan.steps(first, "plain", has_ipv6=has_ipv6())
    changed = link_plan.changed(layout, first, other, link_plan.Kernels(tcp_rmem_bytes=_buffers("rmem")))
    assert commands_of_making(first, "plain", monkeypatch, then=other) == [*map(str, (*made, *changed))]


def test_a_change_names_what_the_state_before_had_said_and_the_new_one_leaves_open() -> None:
    layout = Layout(medium="veth", backend="plain", largest_mtu_bytes=1500, has_ipv6=True)
    kernels = link_plan.Kernels(tcp_rmem_bytes=(4096, 131072, 6291456), offloads={"client": {"tx-gso": True}})
    steps = link_plan.changed(layout, MADE_UP, Profile(name="other"), kernels)
    client = [str(step) for step in steps if step.place == "client"]
    assert client[0] == "client: ip link set dev client0 mtu 1500 gso_max_segs 65535 gso_max_size 65536"
    assert client[2].endswith(" 'net.ipv4.tcp_rmem=4096 131072 6291456'")
    assert client[3].endswith(" client0 tx-gso=on")
    assert client[4:] == ["client: tc qdisc del dev client0 root"]


def test_an_end_sends_to_nobody_while_its_direction_is_cut() -> None:
    layout = Layout(medium="veth", backend="plain", largest_mtu_bytes=1500, has_ipv6=False)
    for is_cut in (True, False):
        steps = link_plan.neighbour(layout, "client", is_cut=is_cut)
        macs = {mac for step in steps for mac in re.findall(r"lladdr (\S+)", str(step))}
        assert macs == {NOBODY_MAC if is_cut else SERVER_MAC}


@pytest.mark.parametrize("backend", ["plain", "kernel", "uml"])
def test_what_is_done_in_namespaces_needs_no_undo_and_is_done_nowhere_else(backend: str) -> None:
    steps = link_plan.steps(FAR if backend != "plain" else MADE_UP, backend)
    assert {step.undo for step in steps} == {()}
    assert {step.place for step in steps} <= {"client", "server", "box", "around the box"}


class Told:
    """A place that writes down what it is told."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, ...]] = []

    def run(self, argv: Sequence[str], *, stdin: str | None = None, check: bool = True) -> str:
        del check
        self.ran.append((*argv, stdin or ""))
        return f"answer {len(self.ran)}"


def test_commands_of_a_batch_go_together_and_none_before_the_one_in_front_of_it() -> None:
    here, there = Told(), Told()
    words = ("ip a", "ip b netns there", "sysctl c", "tc d", "ip e")
    steps = [Step(name=text, place="here", do=Action(argv=tuple(text.split()))) for text in words]
    steps.insert(1, Step(name="boot", place="there", do=Action(argv=("boot", "it"))))
    steps.insert(2, Step(name="ip", place="there", do=Action(argv=("ip", "f"))))
    booted: list[Sequence[str]] = []

    def boot(argv: Sequence[str]) -> Told:
        assert here.ran == [("ip", "-batch", "-", "a\n")]
        booted.append(argv)
        return there

    at: dict[str, executor.Place] = {"here": here, "namespace": Namespace(77)}
    steps[3] = replace(steps[3], do=Action(argv=("ip", "b", "netns", "namespace")))
    answers = executor.carry_out(steps, at, {"there": boot})
    assert booted == [("boot", "it")]
    assert there.ran == [("ip", "-batch", "-", "f\n")]
    batches = [("ip", "-batch", "-", "b netns 77\n"), ("sysctl", "c", ""), ("tc", "-batch", "-", "d\n")]
    assert here.ran[1:] == [*batches, ("ip", "-batch", "-", "e\n")]
    assert [(step.name, said) for step, said in answers] == [("sysctl c", "answer 3")]


@pytest.mark.netem
def test_a_box_is_made_with_exactly_the_commands_of_its_dry_run(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        backend = choose("auto", (FAR,))
    except MissingCapability as error:
        pytest.skip(str(error))
    made = commands_of_making(FAR, backend, monkeypatch)
    assert made == [line for line in map(str, link_plan.steps(FAR, backend)) if "linux.uml" not in line]


@pytest.mark.netem
def test_a_guest_is_started_with_exactly_the_words_of_its_dry_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if uml.complaint():
        pytest.skip(uml.complaint())
    net._print_link(FAR, "uml", ())
    (said,) = (line for line in capsys.readouterr().out.splitlines() if "linux.uml" in line)
    started: list[Sequence[str]] = []
    child = system.Child

    def spy(argv: Sequence[str], **options: Any) -> system.Child:
        started.append(argv)
        return child(argv, **options)

    monkeypatch.setattr(system, "Child", spy)
    with link_module.link(FAR, netem="uml"):
        pass
    (argv,) = (argv for argv in started if "linux.uml" in argv)
    assert shlex.join(argv).endswith(f" pid-1 {said.removeprefix('box: ')}")


def test_what_a_processor_needs_stands_at_the_end_of_the_guests_words() -> None:
    with_it, plain = (
        next(step.do.argv for step in link_plan.steps(FAR, "uml", kernel_words=words) if "linux.uml" in step.do.argv)
        for words in ((guest.NO_AVX,), ())
    )
    assert with_it == (*plain, guest.NO_AVX)


@pytest.mark.parametrize("backend", ["kernel", "uml"])
def test_with_netem_the_queues_are_in_the_box(backend: str) -> None:
    lines = list(map(str, link_plan.steps(FAR, backend)))
    assert [line.split(" handle ")[0] for line in lines if " netem " in line] == [
        "box: tc qdisc replace dev to-server root",
        "box: tc qdisc replace dev to-client root",
        "box: tc qdisc replace dev to-client parent 1:1",
    ]
    assert any(line.startswith("box: linux.uml ") for line in lines) == (backend == "uml")
