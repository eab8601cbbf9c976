"""`BulkIndexUser` in a locustfile, run by Locust's own command."""

from __future__ import annotations

import itertools
import json
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import certificates
import pytest
from bulk_server import BulkServer, answer, bulk_answer, bulk_server, documents_in
from running import free_port

pytestmark = pytest.mark.processes

LOCUST = (sys.executable, "-m", "locust", "-f", "locustfile.py")
LOCUSTFILE = """
from locust import constant
from ingest_bench.load.locustfile import BulkIndexUser

class Indexing(BulkIndexUser):
    workload = "nyc_taxis"
    bulk_documents = 20
    wait_time = constant(0.01)
"""


def run_locust(folder: Path, host: str, *more: str, key: str = "") -> dict[str, Any]:
    """Return Locust's own statistics of the bulks. `key` is one more line of the user class."""
    (folder / "locustfile.py").write_text(f"{LOCUSTFILE}    {key}\n")
    argv = [*LOCUST, "--headless", "--users", "3", "--spawn-rate", "3"]
    argv += ["--run-time", "8", "--stop-timeout", "60", "--host", host, "--json", "--exit-code-on-error", "0", *more]
    with (folder / "stdout").open("w+") as stdout, (folder / "stderr").open("w") as stderr:
        done = subprocess.run(
            argv, cwd=folder, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, check=False, timeout=300
        )
        stdout.seek(0)
        message = stdout.read()
    assert done.returncode == 0, (folder / "stderr").read_text()
    # With several processes each one prints a list; only that of the first has something in it.
    (entry,) = itertools.chain(*json.loads("[" + message.replace("]\n[", "],[") + "]"))
    assert (entry["method"], entry["name"]) == ("POST", "/nyc_taxis/_bulk")
    return dict(entry)


def counted(by_locust: int, by_server: int) -> bool:
    """Locust may end a user while its last request is under way, and then does not count it; there are 3 users."""
    return 0 < by_locust <= by_server <= by_locust + 3


def test_bulks_and_their_failed_items_are_in_locusts_own_statistics(tmp_path: Path) -> None:
    def reply(body: bytes, number: int) -> bytes:
        documents = documents_in(body)
        return answer(bulk_answer([201] * documents if number % 2 else [201] * (documents - 1) + [400]))

    with bulk_server(reply) as server:
        stats = run_locust(tmp_path, f"http://{server.address}")
    assert counted(stats["num_requests"], server.requests)
    assert stats["num_failures"] == pytest.approx(stats["num_requests"] / 2, abs=3)
    assert "1 of 20 documents not acknowledged" in (tmp_path / "stderr").read_text()
    mean_bytes = server.bytes_read / server.requests
    assert stats["total_content_length"] == pytest.approx(stats["num_requests"] * mean_bytes, rel=0.01)
    assert server.documents == 20 * server.requests
    assert server.connections == 3


@pytest.mark.nightly
def test_locusts_own_processes_share_the_bodies(tmp_path: Path) -> None:
    with bulk_server() as server:
        server.keep_bodies = True
        stats = run_locust(tmp_path, f"http://{server.address}", "--processes", "2")
    are_shared(server, stats)


@pytest.mark.nightly
def test_a_users_own_master_and_workers_share_the_bodies(tmp_path: Path) -> None:
    port = str(free_port())
    (tmp_path / "locustfile.py").write_text(LOCUSTFILE)
    worker = [*LOCUST, "--worker", "--master-port", port]
    null = subprocess.DEVNULL
    with bulk_server() as server:
        server.keep_bodies = True
        workers = [subprocess.Popen(worker, cwd=tmp_path, stdin=null, stdout=null, stderr=null) for _ in range(2)]
        try:
            master = ("--master", "--master-bind-port", port, "--expect-workers", "2")
            stats = run_locust(tmp_path, f"http://{server.address}", *master)
            assert [request.wait(60) for request in workers] == [0, 0]
        finally:
            for request in workers:
                request.kill()
                request.wait()
    are_shared(server, stats)


def are_shared(server: BulkServer, stats: dict[str, Any]) -> None:
    # Locust's master waits half a second for the last reports (MasterRunner.quit), and there is one every 3 seconds:
    # on a busy machine it counts no more than most of the requests.
    assert 0 < stats["num_requests"] <= server.requests
    assert server.documents == 20 * server.requests
    assert len(server.ports) == 3
    # Both run through their own bodies; no worker has come around yet.
    assert len(set(server.bodies)) == len(server.bodies)


@pytest.mark.nightly
def test_a_host_with_tls_is_verified_and_spoken_to_by_tls(tmp_path: Path) -> None:
    certificate = certificates.create_certificates(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.server)
    with bulk_server(tls=context) as server:
        url = f"https://localhost:{server.address.port}"
        assert run_locust(tmp_path, url)["num_failures"] > 0
        assert not server.documents
        stats = run_locust(tmp_path, url, key=f"ca_file = {str(certificate.ca)!r}")
    assert counted(stats["num_requests"], server.requests)
    assert stats["num_failures"] == 0
    assert server.documents == 20 * server.requests
