"""Key files of a fleet, the command that creates them, and addresses of the options."""

from __future__ import annotations

import errno
import itertools
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from ingest_bench.cli import app
from ingest_bench.errors import SpecError
from ingest_bench.load.fleet import join, keys
from ingest_bench.load.fleet.roster import PORT
from ingest_bench.model.target import Endpoint


def test_new_keys_are_private_files_that_match_each_other(tmp_path: Path) -> None:
    run, *workers = keys.write_new(tmp_path / "keys", 3)
    assert [path.name for path in (run, *workers)] == ["run.key", "worker-1.key", "worker-2.key", "worker-3.key"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in (run, *workers)} == {0o600}
    run_keys, worker_keys = keys.read(keys.RunKeys, run), [keys.read(keys.WorkerKeys, path) for path in workers]
    assert [run_keys.workers[key.public] for key in worker_keys] == [key.name for key in worker_keys]
    assert {key.run for key in worker_keys} == {run_keys.public}
    secrets = [run_keys.secret, *(key.secret for key in worker_keys)]
    assert len(set(secrets)) == 4
    assert not any(secret in repr((run_keys, worker_keys)) for secret in secrets)


def test_on_a_full_disk_no_key_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dump, count = json.dump, itertools.count()

    def full(*values: Any, **more: Any) -> None:
        if next(count) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        dump(*values, **more)

    monkeypatch.setattr(json, "dump", full)
    with pytest.raises(SpecError, match=r"cannot write new keys there \(No space left on device\)"):
        keys.write_new(tmp_path, 3)
    assert list(tmp_path.iterdir()) == []
    keys.write_new(tmp_path, 3)
    with pytest.raises(SpecError, match="/proc/none: cannot write new keys there"):
        keys.write_new(Path("/proc/none"), 3)


def test_keys_are_never_overwritten(tmp_path: Path) -> None:
    run, *_ = keys.write_new(tmp_path, 1)
    before = run.read_bytes()
    with pytest.raises(SpecError, match="exists already"):
        keys.write_new(tmp_path, 2)
    assert run.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.key", "worker-1.key"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_key_that_other_users_can_read_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    run, *_ = keys.write_new(tmp_path, 1)
    run.chmod(mode)
    with pytest.raises(SpecError, match="chmod 600"):
        keys.read(keys.RunKeys, run)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"of": "run"}', '{"of": "run", "public": 1, "secret": 2, "workers": 3}']
)
def test_a_file_without_a_key_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.key"
    path.touch(mode=0o600)
    path.write_text(text)
    with pytest.raises(SpecError, match="--new-keys"):
        keys.read(keys.RunKeys, path)


@pytest.mark.parametrize("key", ["~" * 40, "%" * 40, "a" * 39, "\u00e9" * 40])
@pytest.mark.parametrize("field", ["public", "secret", "run"])
def test_an_invalid_key_is_refused_and_not_repeated(tmp_path: Path, field: str, key: str) -> None:
    _, worker = keys.write_new(tmp_path, 1)
    worker.write_text(json.dumps(json.loads(worker.read_text()) | {field: key}))
    with pytest.raises(SpecError, match=r"worker-1\.key: the key file is incomplete; .*--new-keys") as refused:
        keys.read(keys.WorkerKeys, worker)
    assert key not in str(refused.value)


def test_a_key_of_the_other_side_is_refused(tmp_path: Path) -> None:
    run, worker = keys.write_new(tmp_path, 1)
    with pytest.raises(SpecError, match=r"the key of a worker. A file such as run\.key"):
        keys.read(keys.RunKeys, worker)
    with pytest.raises(SpecError, match=r"the key of a run. A file such as worker-1\.key"):
        keys.read(keys.WorkerKeys, run)


def test_the_command_creates_keys_and_prints_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["worker", "--new-keys", str(tmp_path / "new"), "--count", "2"]) == 0
    output = "".join(capsys.readouterr())
    for path in (tmp_path / "new").iterdir():
        assert json.loads(path.read_text())["secret"] not in output
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


URL = ("--url", "http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["worker"], "give --connect HOST[:PORT]"),
        (["worker", "--connect", "bench:http", "--keys", "{key}"], "write it like"),
        (["worker", "--connect", "bench"], "--new-keys DIR"),
        (["worker", "--connect", "bench", "--keys", "/nowhere"], "cannot read the key"),
        (["worker", "--connect", "bench", "--keys", "{key}", "--credentials-to", "bench"], "write it like https"),
        (["worker", "--connect", "bench", "--keys", "{key}", "--ca-file", "x"], "--ca-file requires --credentials-to"),
        (
            [
                *("worker", "--connect", "bench", "--keys", "{key}", "--ca-file", "{key}"),
                "--credentials-to",
                "https://x",
            ],
            "it holds no certificate",
        ),
        (["worker", "--connect", "bench", "--new-keys", "x"], "--new-keys cannot be combined with --connect"),
        (
            ["worker", "--new-keys", "x", "--keys", "{key}", "--credentials-to", "x"],
            "--new-keys cannot be combined with --keys, --credentials-to",
        ),
        (["worker", "--connect", "bench", "--keys", "{key}", "--count", "3"], "--count requires --new-keys DIR"),
        (["run", "quickstart", "--bind", "127.0.0.1"], "--bind requires --workers N"),
        (["run", *URL, "--workers", "2"], "--new-keys DIR` creates it"),
        (["run", *URL, "--watchers", "2"], "--new-keys DIR` creates it"),
        (["run", "--watchers", "2", "--keys", "{run}"], "--watchers requires --url URL"),
        (["run", *URL, "--watchers", "2", "--attach", "1"], "target.attach conflicts with target.watchers"),
        (["run", *URL, "--keys", "{run}", "--set", "target.watchers=1,2"], "target.watchers: 1, 2: the same observers"),
        (["worker", "--connect", "h", "--watch", "4194304", "--keys", "{key}"], "--watch 4194304: no such process"),
        (["worker", "--connect", "h", "--may-shape", "eth1"], "--may-shape requires --watch PID"),
        (
            ["worker", "--connect", "h", "--keys", "{key}", "--watch", "1", "--may-shape", "none"],
            "--may-shape none: there is no such interface",
        ),
        (
            [
                *("run", *URL, "--watchers", "1", "--interface", "eth1", "--port", "9200", "--interface-mtu"),
                *("--set", "network=wan-50ms"),
            ],
            "--interface-mtu and --shared-settings conflict with --watchers",
        ),
        (
            ["worker", "--connect", "h", "--watch", "1", "--credentials-to", "http://h:1"],
            "--watch cannot be combined with --credentials-to",
        ),
        (["run", *URL, "--workers", "2", "--keys", "{run}", "--bind", "x:y"], "write it like"),
        (["run", "quickstart", "--workers", "2", "--keys", "{run}"], "--workers requires --url URL"),
        (
            ["run", *URL, "--workers", "2", "--keys", "{run}", "--set", "processes=2"],
            "--workers: each worker is one process",
        ),
    ],
)
def test_wrong_options_of_workers_are_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.delenv("INGEST_BENCH_KEYS", raising=False)
    run, key = keys.write_new(tmp_path, 1)
    assert app.run([word.format(key=key, run=run) for word in arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("bench", "bench", PORT),
        ("bench.example:9", "bench.example", 9),
        ("192.0.2.1:65535", "192.0.2.1", 65535),
        ("2001:db8::7", "2001:db8::7", PORT),
        ("[2001:db8::7]", "2001:db8::7", PORT),
        ("[2001:db8::7]:9", "2001:db8::7", 9),
    ],
)
def test_an_address_is_parsed_with_or_without_a_port(text: str, host: str, port: int) -> None:
    assert join.parse_endpoint(text) == Endpoint(host, port)


@pytest.mark.parametrize("text", ["", ":9", "bench:", "bench:0", "bench:65536", "bench:http", "bench:²", "bench:٣"])
def test_a_wrong_address_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="write it like"):
        join.parse_endpoint(text)
