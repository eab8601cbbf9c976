"""Who may join a load: both sides must know the secret."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from ingest_bench import catalog
from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.load import LoadPlan, wire
from ingest_bench.load.agent import Agent
from ingest_bench.load.remote import Remote, gather
from ingest_bench.load.wire import Wire
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.target import Endpoint


def handshake(here: str, there: str) -> tuple[Wire | RunFailed, Wire | RunFailed]:
    """What both sides make of each other, with these secrets: the supervisor's view and the worker's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
    found: list[Wire | RunFailed] = []

    def worker() -> None:
        try:
            found.append(wire.introduce(client, there, "elsewhere"))
        except RunFailed as error:
            found.append(error)
            client.close()

    thread = threading.Thread(target=worker)
    thread.start()
    try:
        admitted, name = wire.admit(accepted, here)
        assert name == "elsewhere"
        mine: Wire | RunFailed = admitted
    except RunFailed as error:
        mine = error
        accepted.close()
    thread.join(60)
    return mine, found[0]


@pytest.mark.parametrize("secret", ["open sesame", "", "ümläut"])
def test_who_knows_the_secret_is_let_in_and_lines_and_files_pass(secret: str, tmp_path: Path) -> None:
    mine, theirs = handshake(secret, secret)
    assert isinstance(mine, Wire)
    assert isinstance(theirs, Wire)
    (tmp_path / "a").write_bytes(b"\n{}\x00" * 100)
    mine.send(plan={"users": 3})
    mine.send_file(tmp_path / "a")
    mine.send(after=1)
    assert theirs.ask() == {"plan": {"users": 3}}
    theirs.receive_file(tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()
    assert theirs.ask() == {"after": 1}
    mine.close()
    assert theirs.read() is None
    theirs.close()


def test_who_has_another_secret_is_refused_and_told() -> None:
    mine, theirs = handshake("open sesame", "open simsim")
    assert isinstance(mine, RunFailed)
    assert "wanted to join with another secret" in str(mine)
    assert isinstance(theirs, RunFailed)
    assert "refused us" in str(theirs)


def test_a_worker_does_nothing_for_a_supervisor_that_cannot_prove_itself() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        impostor = Wire(listener.accept()[0])
    impostor.send(hello="ingest-bench", nonce="1")
    impostor.send(proof="00")
    with pytest.raises(RunFailed, match="does not know the secret"):
        wire.introduce(client, "open sesame", "here")
    impostor.close()
    client.close()


def test_what_does_not_speak_the_protocol_is_called_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
    client.sendall(b"GET / HTTP/1.1\r\n\r\n")
    with pytest.raises(RunFailed, match="does not speak our protocol"):
        wire.admit(accepted, "")
    accepted.close()
    client.close()


@pytest.mark.parametrize("host", ["192.0.2.1", "::", "example.org"])
def test_other_machines_may_not_join_without_a_secret(host: str) -> None:
    with pytest.raises(SpecError, match="INGEST_BENCH_SECRET"):
        gather(Remote(bind=Endpoint(host, 0), workers=1), print)


def test_workers_that_do_not_come_are_not_waited_for_for_ever() -> None:
    with pytest.raises(RunFailed, match="0 of 2 workers joined"):
        gather(Remote(bind=Endpoint("127.0.0.1", 0), workers=2, patience_s=0.01), print)


@pytest.mark.parametrize(
    ("size_here", "said"),
    [(None, "this machine does not have this file"), (3, "has 3 bytes, but 5 there; put the same file here")],
)
def test_a_corpus_that_a_machine_does_not_have_like_that_is_named(
    tmp_path: Path, size_here: int | None, said: str
) -> None:
    mine, theirs = handshake("", "")
    assert isinstance(mine, Wire)
    assert isinstance(theirs, Wire)
    corpus = tmp_path / "only-there.json"
    if size_here is not None:
        corpus.write_bytes(b"." * size_here)
    plan = LoadPlan(
        address=Endpoint("127.0.0.1", 1),
        bulk_path="/i/_bulk",
        workload=catalog.workload("nyc_taxis"),
        options=LoadOptions(),
        out=tmp_path,
        corpus=str(corpus),
    )
    mine.send(load=plan.table(), files={str(corpus): 5})
    mine.send(dismissed=True)
    told: list[str] = []
    Agent(theirs, tmp_path, told.append).run()
    assert f"only-there.json: {said}" in mine.ask()["error"]
    assert [line.partition(" ")[0] for line in told] == ["joined", "load", told[-1].partition(" ")[0]]
    mine.close()
    theirs.close()


def test_a_supervisor_that_ends_without_a_word_is_an_error(tmp_path: Path) -> None:
    mine, theirs = handshake("", "")
    assert isinstance(mine, Wire)
    assert isinstance(theirs, Wire)
    mine.close()
    with pytest.raises(RunFailed, match="ended before its experiment did"):
        Agent(theirs, tmp_path, print).run()
    theirs.close()


def test_another_version_does_not_join() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = Wire(socket.create_connection(listener.getsockname()))
        accepted, _ = listener.accept()
    said: list[RunFailed] = []

    def admit() -> None:
        try:
            wire.admit(accepted, "")
        except RunFailed as error:
            said.append(error)

    thread = threading.Thread(target=admit)
    thread.start()
    nonce = client.ask()["nonce"]
    client.send(name="old", nonce="1", proof=wire._proof("", "worker", nonce, "1"), version="0.0.1")
    assert "install the same here and there" in client.ask()["refused"]
    thread.join(60)
    assert "ingest-bench 0.0.1" in str(said[0])
    client.close()
    accepted.close()


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("bench", "bench", wire.PORT),
        ("bench.example:9", "bench.example", 9),
        ("192.0.2.1:65535", "192.0.2.1", 65535),
        ("2001:db8::7", "2001:db8::7", wire.PORT),
        ("[2001:db8::7]", "2001:db8::7", wire.PORT),
        ("[2001:db8::7]:9", "2001:db8::7", 9),
    ],
)
def test_an_address_is_read_with_or_without_a_port(text: str, host: str, port: int) -> None:
    assert wire.endpoint(text) == Endpoint(host, port)


@pytest.mark.parametrize("text", ["", ":9", "bench:", "bench:0", "bench:65536", "bench:http"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="write it like"):
        wire.endpoint(text)
