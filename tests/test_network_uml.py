"""The User-Mode Linux router: its commands, then real packets."""

from __future__ import annotations

import errno
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from processes import is_alive, wait_until_gone

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.model.network import Impairment, Profile
from ingest_bench.network.act import uml, uml_process
from ingest_bench.network.act.link import open_link
from ingest_bench.network.measure.check import check_link
from ingest_bench.network.plan import link_plan

MS = 10**6


def make_profile(impairment: Impairment, **values: Any) -> Profile:
    return Profile(name="x", to_server=impairment, to_client=impairment, **values)


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        (Profile(name="x", mtu_bytes=65534, gso_max_segs=1), ""),
        (Profile(name="x", mtu_bytes=9000), ""),
        (Profile(name="x", mtu_bytes=65535), "mtu 65535: the User-Mode Linux router passes at most 65534."),
        (Profile(name="x", offloads={"tx": False, "gro": True}), ""),
        (
            Profile(name="x", offloads={"tx-checksum": True}),
            "offloads: tx-checksum is off on the User-Mode Linux router, which requires complete checksums.",
        ),
        (
            Profile(name="x", gso_max_segs=2),
            "gso_max_segs 2: the User-Mode Linux router takes single segments only. Leave the key out, or set it to 1.",
        ),
    ],
)
def test_conflicting_profile_is_refused(profile: Profile, message: str) -> None:
    assert link_plan.find_uml_conflict(profile) == message


def test_router_takes_single_segments_with_complete_checksums() -> None:
    layout = link_plan.Layout(medium="veth", backend="uml", max_mtu_bytes=1500, has_ipv6=False)
    adapted = layout.adapt(Profile(name="x", offloads={"gro": True}))
    assert (adapted.gso_max_segs, adapted.offloads) == (1, {"gro": True, "tx": False})


def test_socket_numbers_are_inserted() -> None:
    argv = ["linux.uml", "vec0:transport=fd,fd=@0", "vec1:transport=fd,fd=@1"]
    assert uml_process.insert_socket_numbers(argv, [7, 12]) == [
        "linux.uml",
        "vec0:transport=fd,fd=7",
        "vec1:transport=fd,fd=12",
    ]
    # A path may contain a number, too.
    argv = ["/opt/python@3.11/bin/python3.11", "/srv/ingest-bench@0/tests/in_uml.sh", "linux.uml", "vec0:fd=@0"]
    assert uml_process.insert_socket_numbers(argv, [7]) == [*argv[:3], "vec0:fd=7"]


@pytest.mark.parametrize(
    ("version", "flags", "is_needed"),
    [
        ("6.1.176", "fpu amx_bf16 amx_tile", True),
        ("6.13.2", "fpu amx_tile", False),
        ("6.1.176", "fpu avx512f", False),
        ("6.13-rc1", "fpu amx_tile", False),
        ("6.12", "fpu amx_tile", True),
        ("5.10+bpo\n", "fpu amx_tile", True),
    ],
)
def test_old_uml_needs_a_workaround_on_processors_with_amx(version: str, flags: str, is_needed: bool) -> None:
    assert link_plan.needs_xstate_workaround(version, f"processor\t: 0\nflags\t\t: {flags}\n") is is_needed


def test_malformed_version_is_an_error_only_with_amx() -> None:
    with pytest.raises(RunFailed, match=r"linux\.uml --version: 'User Mode' is not a Linux version"):
        link_plan.needs_xstate_workaround("User Mode\n", "flags\t\t: fpu amx_tile\n")
    assert not link_plan.needs_xstate_workaround("User Mode\n", "processor\t: 0\n")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the system call number is that of x86_64")
def test_getregset_is_blocked_and_getfpregs_is_not() -> None:
    # No process has this pid: without the filter both calls fail with ESRCH.
    code = (
        "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"
        "for request in (0x4204, 16): libc.ptrace(request, 2**22 + 1, 0, 0); print(ctypes.get_errno())"
    )
    argv = system.build_script_argv(uml_process.__file__, "--without-xstate", "--", sys.executable, "-I", "-c", code)
    assert system.run(argv).split() == [str(errno.EIO), str(errno.ESRCH)]


@pytest.fixture
def _uml() -> None:
    if uml.find_uml_problem():
        pytest.skip(uml.find_uml_problem())


@pytest.mark.netem
@pytest.mark.usefixtures("_uml")
class TestWithPackets:
    def test_mtu_of_a_link_can_be_raised_to_the_largest_and_lowered(self) -> None:
        small = make_profile(Impairment(delay_ns=MS))
        large = make_profile(Impairment(delay_ns=MS), mtu_bytes=link_plan.UML_MAX_MTU_BYTES)
        with open_link(small, netem="uml", later_profiles=(large,)) as link:
            for state in (small, large, small):
                link.set_profile(state)
                passed = {check.name: check.passed for check in check_link(link)}
                assert (passed["mtu to-server"], passed["mtu to-client"]) == (True, True)

    def test_failing_command_is_reported_with_its_error(self) -> None:
        with open_link(make_profile(Impairment(delay_ns=MS)), netem="uml") as link:
            assert link.router is not None
            with pytest.raises(RunFailed, match=r'tc qdisc add dev nowhere.*Cannot find device "nowhere"'):
                link.router.run(("tc", "qdisc", "add", "dev", "nowhere", "root", "netem"))

    @pytest.mark.measures  # it lists a folder of the whole machine
    def test_no_process_and_no_file_is_left(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        monkeypatch.setenv("HOME", str(tmp_path))
        before = sorted(os.listdir("/dev/shm"))  # noqa: PTH208, S108 - names are what is compared
        with open_link(make_profile(Impairment(delay_ns=MS)), netem="uml"):
            namespaces = pid_namespaces_below(os.getpid())
            assert len(namespaces) == 1
        assert list_processes(namespaces) == []
        assert not list(tmp_path.iterdir())
        assert sorted(os.listdir("/dev/shm")) == before  # noqa: PTH208, S108

    @pytest.mark.parametrize("after_s", [None, 0.3, 0.7, 1.4])
    def test_uml_and_its_helpers_die_with_a_killed_program(self, tmp_path: Path, after_s: float | None) -> None:
        program = """
import time
from ingest_bench.model.network import Impairment, Profile
from ingest_bench.network.act.link import open_link
print("started", flush=True)
with open_link(Profile(name="x", to_server=Impairment(delay_ns=10**6)), netem="uml"):
    print("ready", flush=True)
    time.sleep(100)
"""
        env = {**os.environ, "TMPDIR": str(tmp_path), "HOME": str(tmp_path)}
        with subprocess.Popen((sys.executable, "-c", program), stdout=subprocess.PIPE, env=env) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"started\n"
            if after_s is None:
                assert process.stdout.readline() == b"ready\n"
                assert pid_namespaces_below(process.pid)
            else:
                time.sleep(after_s)
            family, namespaces = psutil.Process(process.pid).children(recursive=True), pid_namespaces_below(process.pid)
            process.kill()
        wait_until_gone(family, seconds=30)
        wait_until_gone(list_processes(namespaces), seconds=30)
        assert not list(tmp_path.iterdir())


def pid_namespaces_below(pid: int) -> set[str]:
    """Return the pid namespaces of its descendants other than ours."""
    family = psutil.Process(pid).children(recursive=True)
    return {space for child in family if (space := pid_namespace(child.pid))} - {pid_namespace(os.getpid())}


def pid_namespace(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""


def list_processes(spaces: set[str]) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if pid_namespace(process.pid) in spaces and is_alive(process)]
