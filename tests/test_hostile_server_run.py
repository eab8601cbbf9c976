"""`ingest-bench run` as root with a server that plants links and named pipes wherever its user can write."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import commands
import pytest
from commands import Place, nothing_left

from ingest_bench import system

pytestmark = [pytest.mark.jvm, pytest.mark.netns, pytest.mark.processes, pytest.mark.nightly]

SOURCE = Path(__file__).parent / "hostile" / "PlantsLinks.java"
TARGET = """\
[protocol]
name = "json-array"
path = "/events"
sequence = "number"

[start]
source = "PlantsLinks.java"
java = 17
arguments = ["{{host}}", "{{port}}", "{kind}", "{victim}"]
heap = "64m"

[ready]
path = "/"

[delivered]
path = "/delivered"
"""
EXPERIMENT = """\
probes = ["gc", "host", "kernel-reads", "reads"]

[target]
file = "hostile.toml"

[load]
workload = "nyc_taxis"
arrivals = "50/s"
bulk_documents = 100
warm_up = "500ms"
measure = "2s"

[factors]
network = ["ethernet"]
"""


@pytest.fixture
def here() -> Iterator[Place]:
    with commands.place() as place:
        place.folder.chmod(0o755)
        shutil.copy(SOURCE, place.folder)
        (place.folder / "root-only").mkdir(mode=0o700)
        yield place


@pytest.mark.skipif(not system.is_root(), reason="only root's server runs as another user")
@pytest.mark.parametrize("kind", ["links", "pipes"])
def test_root_does_not_follow_links_or_pipes_of_a_hostile_server(here: Place, kind: str) -> None:
    victim = here.folder / "root-only"
    (here.folder / "hostile.toml").write_text(TARGET.format(kind=kind, victim=victim))
    (here.folder / "hostile-run.toml").write_text(EXPERIMENT)
    with nothing_left(), here.command("run", "hostile-run.toml", "--out", "out") as command:
        code = command.end()
    (run,) = (path.parent for path in here.folder.rglob("run.json"))
    assert "planted" in (run / "server.log").read_text()
    assert [path.name for path in victim.iterdir()] == []
    assert "Traceback" not in command.text
    assert (code, "not a regular file" in command.text) == (0, True), command.text
    kinds = {stat.S_IFMT(path.lstat().st_mode) for path in run.rglob("*") if not path.is_relative_to(run / "load")}
    assert kinds == {stat.S_IFREG, stat.S_IFDIR}
    assert {path.lstat().st_uid for path in run.rglob("*")} == {0}
