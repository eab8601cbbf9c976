"""Record part of a running JVM's life: a flight recording and log files, without leaving a trace in the JVM.

Both are steps of a ledger session: its watchdog switches them off when we exit, are killed, or exceed the time limit.
If the watchdog is killed too, `ingest-bench net restore` and the next session with this JVM switch them off, and the
recording ends by itself.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.inputs import untrusted
from ingest_bench.jvm import scratch
from ingest_bench.jvm.attach import AttachedJvm
from ingest_bench.jvm.options import Log
from ingest_bench.ledger import watchdog
from ingest_bench.ledger.steps import Action, Step, Undo

# To write a recording of some hundred megabytes.
_STOP_LIMIT_S = 600
# The recording's own end, after the watchdog's.
_EXTRA_DURATION_S = 60
_SUCCESS = "Command executed successfully"
RECORDING = "recording.jfr"


@contextmanager
def observe(
    jvm: AttachedJvm, into: Path, *, settings: Path | None, logs: Sequence[Log], limit_s: int
) -> Iterator[None]:
    """Observe a JVM for the block's time: afterwards `into` has `recording.jfr`, with these settings (.jfc), and logs.

    The recording may begin before the block: a JVM gives whole chunks. The JVM writes with its own rights, into a
    scratch folder of its user. The recording of a killed JVM is lost. InvalidRun if the block took longer than
    `limit_s`: everything was switched off then. RunFailed if another run of this program observes this JVM.
    """
    # The name cannot be guessed.
    name = f"ingest-bench-{secrets.token_hex(8)}"
    title = f"probes in the JVM with pid {jvm.pid}"
    with (
        scratch.choose(jvm, name) as chosen,
        watchdog.open_session(
            f"jvm-{jvm.pid}",
            title,
            time_limit_s=limit_s,
            namespace_kinds=("mnt", "pid"),
            inherited_fds=(chosen.parent,),
        ) as session,
    ):
        path = chosen.path
        session.apply((chosen.make_step(settings),))
        folder = chosen.open()
        try:
            if settings is not None:
                duration_s = limit_s + _EXTRA_DURATION_S
                session.apply((_start_recording(jvm, path, duration_s),))
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(scratch.SETTINGS, dir_fd=folder)
            session.apply([_enable_log(jvm, log, path) for log in logs])
            try:
                yield
            finally:
                # If the session is over, the watchdog has switched off and deleted all; the session reports that.
                if not session.is_expired():
                    if settings is not None:
                        _stop_recording(jvm, path, folder)
                    for log in logs:
                        # If this fails, the watchdog does it.
                        if jvm.is_alive():
                            system.run(jvm.jcmd_argv(*log.disable_command(path)), check=False)
                    _keep_files(jvm, folder, into)
        finally:
            os.close(folder)


def _start_recording(jvm: AttachedJvm, folder: Path, duration_s: int) -> Step:
    name, settings, file = folder.name, folder / scratch.SETTINGS, folder / RECORDING
    # maxsize=0: the default drops the oldest chunks beyond 250 MB.
    options = (f"name={name}", f"settings={settings}", f"filename={file}", "maxsize=0", f"duration={duration_s}s")
    start = Action(argv=jvm.jcmd_argv("JFR.start", *options), expected_output="Started recording")
    stop = Action(argv=jvm.jcmd_argv("JFR.stop", f"name={name}"), expected_output="Stopped recording")
    undo = Undo(action=stop, check_argv=jvm.jcmd_argv("JFR.check"), check_output=f"name={name}", pid=jvm.pid)
    return Step(name=f"recording of pid {jvm.pid}", action=start, undo=(undo,))


def _enable_log(jvm: AttachedJvm, log: Log, folder: Path) -> Step:
    enable = Action(argv=jvm.jcmd_argv(*log.enable_command(folder)), expected_output=_SUCCESS)
    disable = Action(argv=jvm.jcmd_argv(*log.disable_command(folder)), expected_output=_SUCCESS)
    outputs = jvm.jcmd_argv("VM.log", "list")
    undo = Undo(action=disable, check_argv=outputs, check_output=str(folder / log.name), pid=jvm.pid)
    return Step(name=f"{log.name} of pid {jvm.pid}", action=enable, undo=(undo,))


def _stop_recording(jvm: AttachedJvm, path: Path, folder: int) -> None:
    """Let the JVM complete the file of its recording. A JVM that exited in good order has done so itself."""
    if not jvm.is_alive():
        return
    try:
        response = jvm.run_jcmd("JFR.stop", f"name={path.name}", timeout_s=_STOP_LIMIT_S)
    except RunFailed:
        if not jvm.is_alive():
            return
        raise
    if "Stopped recording" not in response and RECORDING not in os.listdir(folder):
        raise RunFailed(f"attach: pid {jvm.pid} refused JFR.stop and said: {response.strip()}")


def _keep_files(jvm: AttachedJvm, folder: int, into: Path) -> None:
    """Copy the files of the JVM's user into ours. A link that leads elsewhere is not followed."""
    try:
        refused = untrusted.copy_files(folder, into, jvm.uid)
    except OSError as error:
        raise RunFailed(f"attach: the files of pid {jvm.pid} cannot be copied to {into}: {error}") from None
    if refused:
        raise RunFailed(f"attach: {refused[0]!a} is not a plain file of a probe; the JVM's user put it there.")
