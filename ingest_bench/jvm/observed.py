"""A flight recording and log files of part of a running JVM's life, and afterwards nothing of ours in it.

Both are steps of a ledger session. Whatever happens to us, its watchdog switches them off: when we end, are killed, or
are late. Should the watchdog be killed too, `ingest-bench net restore` and the next session with this JVM do it, and
the recording ends by itself.
"""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.inputs import untrusted
from ingest_bench.ledger import watchdog
from ingest_bench.ledger.steps import Action, Step, Undo

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ingest_bench.jvm.attach import Attached
    from ingest_bench.jvm.logs import Log

# Writing a recording of some hundred megabytes.
_STOP_LIMIT_S = 600
# The recording's own end, after the watchdog's.
_LATER_S = 60
_DONE = "Command executed successfully"
RECORDING = "recording.jfr"
_SETTINGS = "settings.jfc"


@contextmanager
def observed(jvm: Attached, into: Path, *, settings: Path | None, logs: Sequence[Log], limit_s: int) -> Iterator[None]:
    """The block's time in the life of a JVM: afterwards `into` has `recording.jfr`, by these settings (.jfc), and logs.

    The recording may begin before the block: a JVM gives whole chunks. The JVM writes with its own rights, so it gets a
    folder of its own below one that only this process can write: its user cannot rename it. The recording of a killed
    JVM is lost. InvalidRun when the block took longer than `limit_s`: everything was switched off then. RunFailed when
    another run of this program observes this JVM.
    """
    # Not TMPDIR: the JVM's user must get there too. Nobody can guess the name.
    ours = Path("/var/tmp") / f"ingest-bench-{secrets.token_hex(8)}"  # noqa: S108
    name, folder = ours.name, ours / "jvm"
    what = f"probes in the JVM with pid {jvm.pid}"
    with watchdog.session(f"jvm-{jvm.pid}", what, time_limit_s=limit_s, within=("mnt", "pid")) as session:
        session.change((_folder(ours),))
        own = ours / _SETTINGS
        if settings is not None:
            shutil.copyfile(settings, own)
            own.chmod(0o644)
        folder.mkdir(mode=0o700)
        # From here on the JVM's user may put links there: nothing is written there by us.
        _give(folder, jvm.uid)
        if settings is not None:
            session.change((_recording(jvm, name, own, folder / RECORDING, limit_s + _LATER_S),))
        session.change([_log(jvm, log, folder) for log in logs])
        try:
            yield
        finally:
            # When it is over the watchdog has switched all off and thrown it away: the session says so.
            if not session.is_over():
                if settings is not None:
                    _stop(jvm, name, folder / RECORDING)
                for log in logs:
                    _off(jvm, log, folder)
                _keep(folder, into)


def _folder(folder: Path) -> Step:
    """It is made by mkdir and by no other means: a name that somebody else has taken is an error."""
    away = Action(argv=("rm", "-r", "--", str(folder)))
    undo = Undo(action=away, exists=str(folder))
    return Step(name=str(folder), do=Action(argv=("mkdir", "-m", "711", str(folder))), undo=(undo,))


def _give(folder: Path, uid: int) -> None:
    """Only that user may put anything there; we give nothing away unless we are root."""
    if system.is_root():
        os.chown(folder, uid, -1)


def _recording(jvm: Attached, name: str, settings: Path, file: Path, duration_s: int) -> Step:
    # maxsize=0: the default drops the oldest chunks beyond 250 MB.
    options = (f"name={name}", f"settings={settings}", f"filename={file}", "maxsize=0", f"duration={duration_s}s")
    undo = Undo(
        action=Action(argv=jvm.command("JFR.stop", f"name={name}"), says="Stopped recording"),
        look=jvm.command("JFR.check"),
        shows=f"name={name}",
        pid=jvm.pid,
    )
    start = Action(argv=jvm.command("JFR.start", *options), says="Started recording")
    return Step(name=f"recording of pid {jvm.pid}", do=start, undo=(undo,))


def _log(jvm: Attached, log: Log, folder: Path) -> Step:
    undo = Undo(
        action=Action(argv=jvm.command(*log.switch_off(folder)), says=_DONE),
        look=jvm.command("VM.log", "list"),
        shows=str(folder / log.name),
        pid=jvm.pid,
    )
    on = Action(argv=jvm.command(*log.switch_on(folder)), says=_DONE)
    return Step(name=f"{log.name} of pid {jvm.pid}", do=on, undo=(undo,))


def _stop(jvm: Attached, name: str, file: Path) -> None:
    """The recording is whole in its file. A JVM that has ended in good order has written it itself."""
    if not jvm.is_alive():
        return
    try:
        said = jvm.ask("JFR.stop", f"name={name}", timeout_s=_STOP_LIMIT_S)
    except RunFailed:
        if not jvm.is_alive():
            return
        raise
    if "Stopped recording" not in said and not file.is_file():
        raise RunFailed(f"attach: pid {jvm.pid} refused JFR.stop, it said: {said.strip()}")


def _off(jvm: Attached, log: Log, folder: Path) -> None:
    """The log's file is whole. A failure here is the watchdog's to mend."""
    if jvm.is_alive():
        system.run(jvm.command(*log.switch_off(folder)), check=False)


def _keep(folder: Path, into: Path) -> None:
    """The folder belongs to the JVM's user: a link that leads elsewhere is not followed."""
    try:
        left = untrusted.move_files(folder, into)
        if left:
            raise RunFailed(f"attach: {str(left[0])!a} is no plain file of a probe's; the JVM's user put it there.")
    except OSError as error:
        raise RunFailed(f"attach: what the JVM wrote to {folder} cannot be kept in {into}: {error}") from None
