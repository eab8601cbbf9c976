"""The user's own documents: checks before the start, and that each line is sent once."""

from __future__ import annotations

import bz2
import contextlib
import dataclasses
import gzip
import io
import itertools
import json
import lzma
import random
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
import zstandard

from ingest_bench.documents import corpus as corpora
from ingest_bench.documents import lines, source
from ingest_bench.documents.body import Body, IdSequence
from ingest_bench.documents.corpus import Corpus, check_corpus
from ingest_bench.documents.source import Bodies, BodyPool, BodyStream, BulkSize, Source
from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.experiment import catalog
from ingest_bench.inputs import records
from ingest_bench.model.load import BulkAction, LoadOptions, ProtocolOptions, TrackFile, Workload
from ingest_bench.protocols.bulk import Bulk
from ingest_bench.protocols.json_array import JsonArray

BULK = Bulk(path="/i/_bulk", action=BulkAction())
DOCUMENTS = [json.dumps({"n": number, "text": "ü" * (number % 5 * number // 50)}) for number in range(1000)]
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    # Without the time: ids of tests are made of the data.
    ".gz": partial(gzip.compress, mtime=0),
    ".bz2": bz2.compress,
    ".zst": zstandard.compress,
}


DEEP = b'{"a":' + b"[" * 100_000


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def bulk_text() -> str:
    pairs = ('{"index": {"_index": "own"}}\n' + text + "\n" for text in DOCUMENTS)
    return "".join(pairs) + '{"delete": {"_id": "1"}}\n'


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write(tmp_path / "docs.json", "".join(f"{text}\n" for text in DOCUMENTS))


def open_corpus(corpus: Corpus, protocol: Bulk, size: BulkSize, **more: int) -> Bodies:
    file = TrackFile(path=str(corpus.path), index="", has_action_lines=corpus.has_action_lines)
    return source.open_corpus(file, protocol, size, seed=1, **more)


def iterate_forever(bodies: Bodies, users: int = 1) -> list[Iterator[Body]]:
    """Return the bodies of each user of one worker."""
    shared = Source(
        files=[bodies], repeats=True, conflicts="sequential", seed=1, first_id=0, users=users, worker=0, workers=1
    )
    return [shared.bodies_of(user) for user in range(users)]


def iterate_once(bodies: Bodies, user: int = 0, users: int = 1) -> Iterator[Body]:
    return bodies.iterate_once(user, users, IdSequence(user, users, "sequential", 1))


def numbers(data: bytes) -> list[int]:
    return [document["n"] for document in map(json.loads, data.splitlines()) if "n" in document]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_each_document_is_sent_once_with_any_compression(tmp_path: Path, suffix: str) -> None:
    text = "".join(f"{text}\n" for text in DOCUMENTS).encode()
    path = write(tmp_path / f"docs.json{suffix}", COMPRESS[suffix](text))
    corpus_file = check_corpus(path)
    assert (corpus_file.has_action_lines, corpus_file.documents) == (False, 1000)
    bodies = open_corpus(corpus_file, BULK, BulkSize(documents=64))
    assert isinstance(bodies, BodyPool)
    sent = list(iterate_once(bodies))
    assert [body.documents for body in sent] == [64] * 15 + [40]
    assert list(itertools.chain.from_iterable(numbers(bytes(body.data)) for body in sent)) == list(range(1000))


TEXT = ["cpu,host=a usage=1.5 1465839830100400200", "id,name", '[1,"ü"', "{"]


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("pool_bytes", [10, 10**6])
def test_each_line_of_text_is_a_document(tmp_path: Path, suffix: str, pool_bytes: int) -> None:
    path = write(tmp_path / f"points.txt{suffix}", COMPRESS[suffix]("\r\n".join(TEXT).encode()))
    corpus_file = check_corpus(path, is_text=True)
    assert (corpus_file.is_text, corpus_file.has_action_lines, corpus_file.documents) == (True, False, 4)
    protocol = JsonArray.from_options(
        ProtocolOptions(protocol="json-array", keys={"path": "/", "format": "lines"}), "", LoadOptions()
    )
    file = TrackFile(path=str(path), index="", is_text=True)
    bodies = source.open_corpus(file, protocol, BulkSize(documents=3), seed=1, pool_bytes=pool_bytes)
    assert [bytes(body.data).decode().split("\r\n") for body in iterate_once(bodies)] == [
        [*TEXT[:3], ""],
        [f"{TEXT[3]}\n"],
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "points.txt: is empty. Give a file with one document per line"),
        (b"a\n\nb\n", "line 2 is empty"),
        (b"a\n\xff\n", "line 2 is not UTF-8"),
        (b"\xef\xbb\xbfa\n", "line 1 begins with a byte order mark"),
    ],
)
def test_invalid_text_is_refused(tmp_path: Path, text: bytes, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        check_corpus(write(tmp_path / "points.txt", text), is_text=True)


def test_text_that_is_not_json_names_the_key_for_text(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"line 1 is not JSON .* for lines of any text use --set text_lines=true"):
        check_corpus(write(tmp_path / "points.txt", f"{TEXT[0]}\n"))


@pytest.mark.parametrize("read_bytes", [1, 5, 21, 42])
def test_zstd_frame_may_end_at_the_end_of_a_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_bytes: int
) -> None:
    monkeypatch.setattr(lines, "_ZSTD_BYTES", read_bytes)
    frame = zstandard.compress(b'{"number":1}')
    path = write(tmp_path / "a.json.zst", frame * 4)
    assert len(frame) == 21
    assert b"".join(lines.read_chunks(path)) == b'{"number":1}' * 4


SPACED_ITEMS = """{ "delete" : { "_index" : "own", "_id" : "1" } }
\t{"index" : { "_id":"2" } }
  {"n": 0}
{\t"create":{}}\r
{"n": 1}\r
{"update": {"_id": "2"}}
{ "doc": {"n": 2} }
{"delete":{"_id":"3"}}
"""


@pytest.mark.parametrize("pool_bytes", [10, 10**6])
@pytest.mark.parametrize("size", [1, 3, 5])
def test_action_lines_may_have_any_spacing_of_json(tmp_path: Path, pool_bytes: int, size: int) -> None:
    corpus_file = check_corpus(write(tmp_path / "bulk.json", SPACED_ITEMS))
    assert (corpus_file.has_action_lines, corpus_file.documents) == (True, 5)
    assert (corpus_file.indices, corpus_file.has_unnamed_index) == (("own",), True)
    bodies = list(iterate_once(open_corpus(corpus_file, BULK, BulkSize(documents=size), pool_bytes=pool_bytes)))
    assert b"".join(bytes(body.data) for body in bodies) == SPACED_ITEMS.encode()
    assert [body.documents for body in bodies] == [size] * (5 // size) + ([5 % size] if 5 % size else [])
    firsts = [bytes(body.data).split(b'"')[1] for body in bodies]
    assert set(firsts) <= {b"delete", b"index", b"create", b"update"}


@pytest.mark.parametrize("tail", ['{"index": {}}\n', '{"n": 1}\n{"n": 2}\n', '{"delete": {"_id": "1"}}\n{"n": 2}\n'])
def test_invalid_items_beyond_the_checked_part_end_the_run(tmp_path: Path, tail: str) -> None:
    path = write(tmp_path / "bulk.json", '{"index": {}}\n{"n": 1}\n' * 1000 + tail)
    with pytest.raises(RunFailed, match=r"its document is missing|an action line of a bulk is missing"):
        list(
            iterate_once(
                open_corpus(Corpus(path, has_action_lines=True), BULK, BulkSize(documents=10), pool_bytes=1000)
            )
        )


def test_indented_documents_are_sent(tmp_path: Path) -> None:
    path = write(tmp_path / "docs.json", '{"n": 0}\n  {"n": 1}\t\n{"n": 2}\r\n')
    bodies = open_corpus(check_corpus(path), BULK, BulkSize(documents=2), pool_bytes=1)
    assert [number for body in iterate_once(bodies) for number in numbers(bytes(body.data))] == [0, 1, 2]


def test_indices_and_pipelines_of_action_lines_are_recorded(tmp_path: Path) -> None:
    text = '{"index": {"_index": "a", "pipeline": "p"}}\n{"n": 1}\n{"delete": {"_index": "b", "_id": "1"}}\n'
    corpus = check_corpus(write(tmp_path / "bulk.json", text))
    assert (corpus.indices, corpus.pipelines, corpus.has_unnamed_index) == (("a", "b"), ("p",), False)


def test_flag_has_priority_over_the_first_line(tmp_path: Path) -> None:
    path = write(tmp_path / "odd.json", '{"index": {}}\n{"n": 1}\n')
    assert check_corpus(path).documents == 1
    assert check_corpus(path, has_action_lines=False).documents == 2


WORKLOAD = catalog.load_workload("nyc_taxis")
ITEMS = [
    item
    for number, document in enumerate(DOCUMENTS)
    for item in (f'{{"index": {{}}}}\n{document}\n', '{ "delete": {"_id": "1"} }\n')[: 1 + number % 2]
]


def send(*files: TrackFile, workers: int, protocol: Bulk = BULK, pool_bytes: int = 64 << 20) -> list[Body]:
    """Return copies of the bodies that eight users of several workers send: ids are written in place."""
    options = LoadOptions(action=protocol.action, bulk_documents=50)
    bodies = []
    for worker in range(workers):
        opened = source.open_source(
            WORKLOAD,
            options,
            protocol,
            files=files,
            repeats=False,
            pool_bytes=pool_bytes,
            users=8,
            worker=worker,
            workers=workers,
        )
        for user in range(worker, 8, workers):
            bodies += [dataclasses.replace(body, data=bytes(body.data)) for body in opened.bodies_of(user)]
    return bodies


@pytest.mark.parametrize("items", [[f"{document}\n" for document in DOCUMENTS], ITEMS], ids=["documents", "items"])
@pytest.mark.parametrize("share", [None, 301])
@pytest.mark.parametrize("workers", [1, 2, 7])
def test_workers_together_send_each_item_of_a_share_once(
    tmp_path: Path, items: list[str], share: int | None, workers: int
) -> None:
    path = write(tmp_path / "docs.json", "".join(items))
    file = TrackFile(path=str(path), index="", has_action_lines=items is ITEMS, documents=share)
    bodies = send(file, workers=workers)
    expected, sent = "".join(items[:share]).encode(), b"".join(body.data for body in bodies)
    assert sum(body.documents for body in bodies) == len(items[:share])
    assert sorted(numbers(sent)) == numbers(expected)
    assert sent.count(b"delete") == expected.count(b"delete")


@pytest.mark.parametrize("pool_bytes", [1, 10**6])
@pytest.mark.parametrize("workers", [1, 2])
def test_documents_of_all_files_get_unique_ids(corpus: Path, workers: int, pool_bytes: int) -> None:
    protocol = Bulk(path="/_bulk", action=BulkAction(conflicts="sequential", conflict_probability_ppm=0))
    file = TrackFile(path=str(corpus), index="")
    sent = b"".join(body.data for body in send(file, file, workers=workers, protocol=protocol, pool_bytes=pool_bytes))
    assert sorted(numbers(sent)) == sorted([*range(1000)] * 2)
    assert len({json.loads(line)["index"]["_id"] for line in sent.splitlines()[0::2]}) == 2000


def test_large_corpus_is_streamed_once_for_all_users(corpus: Path) -> None:
    bodies = open_corpus(check_corpus(corpus), BULK, BulkSize(documents=30), pool_bytes=5000)
    assert isinstance(bodies, BodyStream)
    users = [iterate_once(bodies, user, 4) for user in range(4)]
    next_bodies = (next(user, None) for user in itertools.cycle(users))
    sent = [numbers(bytes(body.data)) for body in iter(lambda: next(next_bodies), None) if body]
    assert list(itertools.chain.from_iterable(sent)) == list(range(1000))
    assert len(sent) == 34


def test_streamed_corpus_restarts_after_its_end(corpus: Path) -> None:
    bodies = open_corpus(check_corpus(corpus), BULK, BulkSize(documents=400), pool_bytes=5000)
    users = itertools.cycle(iterate_forever(bodies, 2))
    # Only the user that reaches the end first restarts it.
    assert [next(user).documents for user in itertools.islice(users, 9)] == [400, 400, 200] * 3


def test_compressed_corpus_is_decompressed_for_several_workers(tmp_path: Path, corpus: Path) -> None:
    compressed = write(tmp_path / "packed.json.gz", gzip.compress(corpus.read_bytes()))
    with pytest.raises(SpecError, match="Decompress it"):
        open_corpus(check_corpus(compressed), BULK, BulkSize(documents=10), worker=0, workers=2)
    copy = tmp_path / "plain"
    assert lines.decompress_to(compressed, copy) == copy
    assert copy.read_bytes() == corpus.read_bytes()
    assert lines.decompress_to(corpus, copy) == corpus


def long_window(text: bytes, window_log: int) -> bytes:
    parameters = zstandard.ZstdCompressionParameters(window_log=window_log)
    # A frame without a content size has a window descriptor.
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return compressor.compress(text) + compressor.flush()


@pytest.mark.parametrize(
    ("content", "documents"),
    [
        (b'{"n": 1}\n{"n": 2}', 2),
        (b'{"n": 0}\n  {"n": 1}\t\n{"n": 2}\r\n', 3),
        # The magic number of tar, where a tar archive has it.
        (b'{"text": "%s"}\n' % b"ustar".rjust(252), 1),
        *((pack(b'{"n":1}\n') + pack(b'{"n":2}\n'), 2) for pack in COMPRESS.values()),
        *((long_window(b'{"n": 1}\n', window_log), 1) for window_log in (28, 31)),
    ],
)
def test_file_of_any_name_is_read_by_its_content(tmp_path: Path, content: bytes, documents: int) -> None:
    assert check_corpus(write(tmp_path / "a.ndjson", content)).documents == documents


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b'{"n": 1}\n{"n": 2,}\n{"n": 3}\n', "line 2 is not JSON"),
        (b'{"n": 1}\n{"n": 2}\n{"n": ', "line 3 is the last one and incomplete"),
        (b'{"n": 1}\n{"n": \n', "line 2 is not JSON"),
        (b'{"n": 1}\n\n{"n": 3}\n', "line 2 is empty; remove it"),
        (b'{"n": 1}\n17\n', "line 2 is b'17', not a JSON object"),
        (b'{"n": NaN}\n', "NaN is not a number in JSON"),
        ('{"n": "ü"}\n'.encode() + '{"n": "ü"}\n'.encode("latin-1"), "line 2 is not UTF-8 (byte 0xfc at column 8)"),
        ('{"n": 1}\n'.encode("utf-16"), "line 1 begins with a byte order mark of UTF-16"),
        (b'\xef\xbb\xbf{"n": 1}\n', "byte order mark of UTF-8"),
        (b'[{"n": 1},\n{"n": 2}]\n', "is a JSON array. Give one document per line, such as with jq -c '.[]'"),
        (b'{"n": 1}\n' + DEEP + b"\n", "line 2 is nested too deeply to be parsed"),
        (b'{"index": {}}\n{"n": 1}\n{"n": 2}\n{"n": 3}\n', "line 3 is not an action line"),
        (b'{"index": {}}\n{"n": 1}\n{"index": {}}\n', "line 3 is an action line and the file ends there"),
        (
            b'{"index": {"_index": "prod", "_index": "mine"}}\n{"n": 1}\n',
            "line 1 is not JSON (an object has two values for the key '_index'",
        ),
        (b'{"index": {"_index": ["prod"]}}\n{"n": 1}\n', """line 1 is an action line whose "_index" is ['prod'], n"""),
        (
            b'{"index": {"_index": "a\\ud800"}}\n{"n": 1}\n',
            """whose "_index" is 'a\\ud800', an invalid name""",
        ),
        (b'{"index": {"_indx": "i"}}\n{"n": 1}\n', "line 1 is an action line with the unknown key '_indx'; remove it"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_file_is_refused_with_line_and_remedy(tmp_path: Path, content: bytes, message: str) -> None:
    path = write(tmp_path / "bad.json", content)
    with pytest.raises(SpecError) as caught:
        check_corpus(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def zipped(*members: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return buffer.getvalue()


def tarred(*members: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        folder = tarfile.TarInfo("docs")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


ARCHIVES: dict[str, Callable[..., bytes]] = {
    "a.zip": zipped,
    "a.tar": tarred,
    "a.tgz": lambda *members: gzip.compress(tarred(*members)),
    "a.tar.zst": lambda *members: zstandard.compress(tarred(*members)),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_archive_of_one_file_is_read(tmp_path: Path, name: str) -> None:
    text = "".join(f"{text}\n" for text in DOCUMENTS).encode()
    path = write(tmp_path / name, ARCHIVES[name](("docs/._docs.json", b"\0\5\x16\7"), ("docs/docs.json", text)))
    assert check_corpus(path).documents == 1000
    assert b"".join(lines.read_chunks(path)) == text
    assert lines.decompress_to(path, tmp_path / "plain").read_bytes() == text


@pytest.mark.parametrize("name", ARCHIVES)
def test_archive_of_none_or_several_files_is_refused(tmp_path: Path, name: str) -> None:
    members = [(f"docs/{number}.json", b'{"n": 1}\n') for number in range(4)]
    with pytest.raises(SpecError, match=r"contains several files \(docs/0.json, docs/1.json") as caught:
        check_corpus(write(tmp_path / name, ARCHIVES[name](*members)))
    assert "damaged" not in str(caught.value)
    with pytest.raises(SpecError, match="contains no file"):
        check_corpus(write(tmp_path / name, ARCHIVES[name]()))


@pytest.mark.parametrize("name", ARCHIVES)
def test_damaged_archive_is_a_spec_error(tmp_path: Path, name: str) -> None:
    intact = ARCHIVES[name](("docs.json", "".join(f"{text}\n" for text in DOCUMENTS).encode()))
    chosen = random.Random(1)  # noqa: S311 - a sample, not a secret
    for _ in range(40):
        damaged = bytearray(intact)
        damaged[chosen.randrange(4, len(damaged))] ^= 1 << chosen.randrange(8)
        path = write(
            tmp_path / name, bytes(damaged[: chosen.choice((len(intact), chosen.randrange(600, len(intact))))])
        )
        with contextlib.suppress(SpecError):
            check_corpus(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lzma.compress(b'{"n": 1}\n'), "xz is not supported"),
        (b"7z\xbc\xaf\x27\x1c\0\4", "7-Zip is not supported"),
        (b"PAR1\x15\4", "Parquet is not supported"),
        (gzip.compress(bz2.compress(b'{"n": 1}\n')), "contains bzip2 data. Decompress it once"),
        (zipped(("a.json.gz", gzip.compress(b'{"n": 1}\n'))), "contains gzip data. Decompress it once"),
        (
            ARCHIVES["a.tar"](("a.json.xz", lzma.compress(b'{"n": 1}\n'))),
            "contains xz data. Decompress it once",
        ),
        (zipped(("a.json", b'{"n": 1}\n')).replace(b"\0\0\x08\0", b"\1\0\x08\0"), "encrypted"),
    ],
    ids=["xz", "7z", "parquet", "bzip2 in gzip", "gzip in zip", "xz in tar", "encrypted zip"],
)
def test_unsupported_format_is_named_and_not_called_damaged(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        check_corpus(write(tmp_path / "documents.ndjson", content))
    assert "damaged" not in str(caught.value)


def test_zstd_with_a_dictionary_is_not_called_damaged(tmp_path: Path) -> None:
    dictionary = zstandard.train_dictionary(
        1024, [f'{{"n": {n}, "text": "{n * 7919:x}"}}\n'.encode() for n in range(999)]
    )
    compressed = zstandard.ZstdCompressor(dict_data=dictionary).compress(b'{"n": 1}\n')
    with pytest.raises(SpecError, match=r"[Dd]ictionary mismatch. Decompress it with zstd") as caught:
        check_corpus(write(tmp_path / "a.zst", compressed))
    assert not isinstance(caught.value, lines.DamagedFile)


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".zst"])
def test_truncated_or_invalid_compressed_file_is_refused(tmp_path: Path, suffix: str) -> None:
    complete = COMPRESS[suffix]("".join(f"{text}\n" for text in DOCUMENTS).encode())
    for content in (complete[: len(complete) // 2], b"not packed at all", complete + b"trailing"):
        if suffix == ".bz2" and content.endswith(b"trailing"):
            continue  # bz2 ignores trailing data
        with pytest.raises(SpecError, match="cannot be decompressed"):
            check_corpus(write(tmp_path / f"a.json{suffix}", content))


def test_number_of_checked_lines_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "_CHECK_LINES", 1000)
    monkeypatch.setattr(lines, "CHUNK_BYTES", 4096)
    path = write(tmp_path / "short.json.gz", gzip.compress(b'{"n":1}\n' * 9000 + b"no document\n"))
    assert check_corpus(path).documents is None


def test_document_larger_than_a_request_is_refused_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpora, "MAX_REQUEST_BYTES", 20)
    path = write(tmp_path / "a.json", '{"n": 1}\n{"n": "' + "x" * 20 + '"}')
    with pytest.raises(SpecError, match="line 2 has 29 bytes, and servers accept requests of 20 by default; split"):
        check_corpus(path)


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("orders.ndjson.zst", "orders-"),
        ("Orders (1).v2.json", "orders-1-"),
        (".hidden.json", "hidden-"),
        ("-_+x..json", "x-"),
        ("заказы.ndjson", ""),
        ('a"*<>|?#:,{}%b.json', "a-b-"),
        ("é\udcff.json", ""),
        ("x" * 250 + ".json", "x" * 20 + "-"),
        ("ab" * 9 + "a----b.json", "ab" * 9 + "a-"),
    ],
)
def test_index_has_the_name_of_the_file_in_characters_of_every_server(name: str, stem: str) -> None:
    index = corpora.index_name(Path("folder") / name)
    assert re.fullmatch(f"ingest-bench-{stem}[0-9a-f]{{8}}", index)
    records.read_key(Workload, ("index",), index, "index")
    assert len(f"{index}-999") <= 48


def test_files_whose_names_an_index_cannot_tell_apart_have_different_indices() -> None:
    names = ("orders.json", "Orders.json", "orders.ndjson", "заказы.json", "订单.json")
    assert len({corpora.index_name(Path(name)) for name in names}) == 5


MAPPING = {"properties": {"mappings": {"type": "keyword"}}}
SETTINGS = {"number_of_shards": 2}


@pytest.mark.parametrize(
    ("mapping", "settings"),
    [
        (MAPPING, SETTINGS),
        ({"mappings": MAPPING}, {"settings": SETTINGS}),
        ({"orders": {"mappings": MAPPING}}, {"orders": {"settings": SETTINGS}}),
        *[({"orders": {"aliases": {}, "mappings": MAPPING, "settings": SETTINGS}},) * 2],
        *[({"mappings": MAPPING, "settings": SETTINGS},) * 2],
    ],
)
def test_index_body_is_read_in_each_form_that_servers_have(tmp_path: Path, mapping: object, settings: object) -> None:
    files = [write(tmp_path / str(number), json.dumps(part)) for number, part in enumerate((mapping, settings))]
    assert corpora.read_index_body(*map(str, files)) == {"mappings": MAPPING, "settings": SETTINGS}


def test_settings_that_a_server_only_reports_are_left_out(tmp_path: Path) -> None:
    reported = {"index": {"uuid": "u", "creation_date": "1", "version": {"created": "1"}, "refresh_interval": "5s"}}
    path = write(tmp_path / "settings.json", json.dumps({"orders": {"settings": reported}}))
    assert corpora.read_index_body(None, str(path)) == {"settings": {"index": {"refresh_interval": "5s"}}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "cannot be read as JSON"),
        ("[1]", "is not a JSON object"),
        ('{"settings": {}}', 'has no object "mappings"'),
        ('{"mappings": []}', 'has no object "mappings"'),
        ('{"dynamic": true, "dynamic": false}', "an object has two values for the key 'dynamic'"),
        (DEEP.decode(), "cannot be read as JSON"),
    ],
)
def test_bad_mapping_is_refused_with_its_key_and_file(tmp_path: Path, content: str, message: str) -> None:
    path = write(tmp_path / "mapping.json", content)
    with pytest.raises(SpecError, match=re.escape(f"load.mapping {path}: ") + ".*" + re.escape(message)):
        corpora.read_index_body(str(path), None)


def test_head_and_last_line_of_a_long_file_are_checked(tmp_path: Path, corpus: Path) -> None:
    assert check_corpus(corpus, limit_bytes=1000).documents is None
    for content, message in (
        (corpus.read_bytes()[:-10], "ends in the middle of a line"),
        (corpus.read_bytes() + DEEP, "its last line is nested too deeply to be parsed"),
    ):
        with pytest.raises(SpecError, match=message):
            check_corpus(write(tmp_path / "long.json", content), limit_bytes=1000)
    with pytest.raises(SpecError, match="cannot be read: No such file"):
        check_corpus(tmp_path / "nothing.json")


def test_foreign_line_beyond_the_checked_part_ends_the_run(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "CHUNK_BYTES", 4096)
    path = write(tmp_path / "long.json", corpus.read_bytes() + b'"foreign"\n' + corpus.read_bytes())
    bodies = open_corpus(check_corpus(path, limit_bytes=1000), BULK, BulkSize(documents=500), pool_bytes=1000)
    with pytest.raises(RunFailed, match="is not a JSON object: b'\"foreign\"'"):
        list(iterate_once(bodies))


@pytest.mark.parametrize("pool_bytes", [10, 10**6])
def test_resent_items_with_ids_add_nothing(tmp_path: Path, pool_bytes: int) -> None:
    lines = '{"index": {"_id": "1"}}\n{"n": 1}\n{"create": {}}\n{"n": 2}\n{"update": {"_id": "1"}}\n{"doc": {}}\n'
    corpus_file = check_corpus(write(tmp_path / "bulk.json", lines * 2 + '{"delete": {"_id": "1"}}\n'))
    bodies = open_corpus(corpus_file, BULK, BulkSize(documents=3), pool_bytes=pool_bytes)
    (user,) = iterate_forever(bodies)
    assert [body.count_added() for body in itertools.islice(user, 6)] == [2, 2, -1, 1, 1, 0]
    assert isinstance(bodies, BodyPool) == (pool_bytes > 10)


def test_users_that_share_a_body_repeat_its_ids(tmp_path: Path) -> None:
    corpus_file = check_corpus(write(tmp_path / "bulk.json", '{"index": {"_id": "1"}}\n{"n": 1}\n'))
    bodies = open_corpus(corpus_file, BULK, BulkSize(documents=3))
    assert [next(user).count_added() for user in iterate_forever(bodies, 3)] == [1, 0, 0]


def test_bulk_bodies_refuse_generated_ids(tmp_path: Path) -> None:
    corpus_file = check_corpus(write(tmp_path / "bulk.json", bulk_text()))
    protocol = Bulk(path="/i/_bulk", action=BulkAction(conflicts="random"))
    with pytest.raises(SpecError, match="cannot be combined with bulk bodies"):
        open_corpus(corpus_file, protocol, BulkSize(documents=10))


@pytest.mark.parametrize("on_conflict", ["index", "update"])
def test_streamed_documents_can_have_ids(corpus: Path, on_conflict: Literal["index", "update"]) -> None:
    action = BulkAction(conflicts="random", conflict_probability_ppm=250_000, on_conflict=on_conflict)
    bodies = open_corpus(
        check_corpus(corpus), Bulk(path="/i/_bulk", action=action), BulkSize(documents=40), pool_bytes=5000
    )
    assert isinstance(bodies, BodyStream)
    users = iterate_forever(bodies, 2)
    ids_by_user: list[set[str]] = [set(), set()]
    sent: list[int] = []
    for turn in range(25):
        body = next(users[turn % 2])
        lines_of_body = [json.loads(line) for line in body.data.splitlines()]
        ids = [next(iter(line.values()))["_id"] for line in lines_of_body[0::2]]
        assert len(set(ids) - ids_by_user[turn % 2]) == body.count_added() < 40
        ids_by_user[turn % 2] |= set(ids)
        sent += [document.get("doc", document)["n"] for document in lines_of_body[1::2]]
    assert sent == list(range(1000))
    assert not ids_by_user[0] & ids_by_user[1]


def test_file_is_checked_again_only_after_a_change(corpus: Path) -> None:
    corpus_file = check_corpus(corpus)
    assert check_corpus(corpus) is corpus_file
    with corpus.open("a") as file:
        file.write('{"n": 1000}\n')
    assert check_corpus(corpus).documents == 1001


def test_decompression_bomb_of_one_line_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_LONGEST_LINE_BYTES", 1 << 20)
    (tmp_path / "bomb.json.gz").write_bytes(gzip.compress(b" " * (6 << 20), 9))
    with pytest.raises(SpecError, match=r"bomb\.json\.gz: a line is longer than 1 MiB"):
        check_corpus(tmp_path / "bomb.json.gz")


def test_decompression_bomb_is_read_in_bounded_pieces(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.zst"
    path.write_bytes(zstandard.ZstdCompressor(level=1).compress(bytes(256 << 20)))
    assert path.stat().st_size < 64 << 10
    sizes = [len(piece) for piece in lines.read_chunks(path)]
    assert sum(sizes) == 256 << 20
    assert max(sizes) <= 64 << 20
