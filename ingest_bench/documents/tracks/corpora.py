"""Files of a track's corpora: which of them a bulk operation sends, where they are, and where they come from."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ingest_bench.documents.lines import COMPRESSED_SUFFIXES, compression_suffix
from ingest_bench.documents.tracks.declarations import Declarations, check_index_name, object_list, parse_number
from ingest_bench.documents.tracks.templates import Templates, without_marks
from ingest_bench.errors import SpecError
from ingest_bench.inputs import untrusted
from ingest_bench.inputs.names import check_name
from ingest_bench.model.load import CorpusSource, TrackFile
from ingest_bench.units import quote_name, quote_value

# Documents of each corpus in the test mode of both tools.
TEST_DOCUMENTS = 1000
_LARGEST_COUNT = 10**15
# The only format that a bulk can send; others belong to operations that need code.
_BULK_FORMAT = "bulk"
# Keys for readers of a track. "#COMMENT" is a comment in published tracks.
_FOR_READERS = frozenset({"name", "meta", "description"})
_COMMENT = "#"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Treatment of each key of one kind of object. Other keys are reported as unknown."""

    used: Sequence[str]
    harmless: Sequence[str]
    """Keys that do not change the requests."""
    unsupported: Mapping[str, str]
    """Unsupported keys of Rally or OpenSearch Benchmark that change what is sent: what happens instead."""

    def select(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """Return the used keys of *table*."""
        return {key: value for key, value in table.items() if key in self.used}

    def notes(self, table: Mapping[str, Any], where: str) -> Iterator[str]:
        """Yield a note for each key of *table* that is neither used nor harmless."""
        for key, value in table.items():
            plain = without_marks(key)
            if key in (*self.used, *self.harmless, *_FOR_READERS) or plain.startswith(_COMMENT) or value is None:
                continue
            if key not in self.unsupported:
                yield f'{where}: "{quote_name(plain)}" is not used: the key is unknown here'
            # 0, false and empty are the defaults.
            elif value:
                yield f'{where}: "{key}" is not used: {self.unsupported[key]}'


_TABLES = tomllib.loads(Path(__file__).with_name("keys.toml").read_text(encoding="utf-8"))
BULK_KEYS, TASK_KEYS, DOCUMENT_KEYS = (Keys(**_TABLES[name]) for name in ("bulk", "task", "documents"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpora:
    """All corpora of a track, and the folders that may have their files."""

    table: Sequence[Mapping[str, Any]]
    declarations: Declarations
    templates: Templates
    downloads: Path | None
    """The folder of downloaded files."""
    tool_caches: Sequence[Path]
    """The folders to which Rally and OpenSearch Benchmark download corpora."""
    test_mode: bool
    notes: list[str] = field(default_factory=list)
    """Unused keys of document sets, and skipped document sets."""

    def files(self, operation: Mapping[str, Any], where: str) -> tuple[TrackFile, ...]:
        """Return the files that a bulk operation sends: those of its corpora that go to its indices."""
        corpora, indices, streams = (_names(operation.get(key)) for key in ("corpora", "indices", "data-streams"))
        names = [str(corpus.get("name")) for corpus in self.table]
        for name in corpora:
            check_name(name, names, f'{where}: there is no corpus "{name}"')
        files = []
        for corpus in self.table:
            if corpora and corpus.get("name") not in corpora:
                continue
            for item in object_list(corpus, "documents", f"{where}: corpus {corpus.get('name')}"):
                documents = self._document_set(corpus, item)
                if documents is None:
                    continue
                target = self._target(documents, where)
                if indices and target not in indices:
                    continue
                if streams and not (target in streams and self._is_stream(documents, target)):
                    continue
                files.append(self._file(documents, target, str(corpus.get("name")), where))
        if not files:
            targets = f" for {', '.join((*indices, *streams))}" if indices or streams else ""
            raise SpecError(f"{where}: nothing to send: no corpus of the track has documents{targets}")
        return _limit_files(files, operation, where, test_mode=self.test_mode)

    def _document_set(self, corpus: Mapping[str, Any], item: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the used keys of a document set with the defaults of its corpus; None if a bulk cannot send it."""
        where = f"corpus {without_marks(str(corpus.get('name')))}"
        documents = self.templates.require_complete(DOCUMENT_KEYS.select({**corpus, **item}), where)
        name = documents.get("source-file")
        self.notes.extend(DOCUMENT_KEYS.notes({**corpus, **item}, f"{where}: {name}" if name else where))
        source_format = documents.get("source-format") or _BULK_FORMAT
        if source_format != _BULK_FORMAT:
            self.notes.append(f'{where}: {name} is skipped: its "source-format" is {quote_value(source_format)}')
            return None
        if item.get("source-file-parts") and not documents.get("source-url"):
            # The complete file does not exist at its address.
            documents.pop("base-url", None)
        return documents

    def _is_stream(self, documents: Mapping[str, Any], target: str) -> bool:
        return bool(documents.get("target-data-stream")) or target in self.declarations.streams

    def _target(self, documents: Mapping[str, Any], where: str) -> str:
        source = documents.get("source-file")
        for key in ("target-index", "target-data-stream"):
            if documents.get(key) is not None:
                return check_index_name(str(documents[key]), f"{where}: {source}: {key}")
        if documents.get("includes-action-and-meta-data"):
            return ""
        names = self.declarations.names
        if len(names) == 1:
            return names[0]
        declared = "several indices" if names else "neither an index nor a data stream"
        raise SpecError(
            f'{where}: {source}: requires "target-index" or "target-data-stream", because the track declares {declared}'
        )

    def _file(self, documents: Mapping[str, Any], target: str, corpus: str, where: str) -> TrackFile:
        name = str(documents.get("source-file", "documents.json"))
        if not Path(os.path.normpath(name)).name:
            raise SpecError(f"{where}: {quote_value(name)} is not a valid file name")
        has_action_lines = bool(documents.get("includes-action-and-meta-data", False))
        origin = CorpusSource(
            url=_parse_url(documents, name, where),
            compressed_bytes=_parse_count(documents, "compressed-bytes", f"{where}: {name}"),
            uncompressed_bytes=_parse_count(documents, "uncompressed-bytes", f"{where}: {name}"),
            documents=_parse_count(documents, "document-count", f"{where}: {name}"),
        )
        path, limit = self._find(name, corpus, origin), None
        if self.test_mode:
            head, dot, tail = name.partition(".")
            small = f"{head}-1k{dot}{tail}"
            small_origin = CorpusSource(url="" if documents.get("source-url") else _parse_url(documents, small, where))
            small_path = self._find(small, corpus, small_origin)
            if small_path is None and path is not None:
                limit = TEST_DOCUMENTS
            else:
                name, path, origin = small, small_path, small_origin
        return TrackFile(
            path=str(path or self._download_path(name, corpus, origin) or self.templates.folder / name),
            index="" if has_action_lines else target,
            has_action_lines=has_action_lines,
            is_data_stream=not has_action_lines and self._is_stream(documents, target),
            documents=limit,
            origin=origin,
        )

    def _find(self, name: str, corpus: str, origin: CorpusSource) -> Path | None:
        """Return the plain file if it exists, else a compressed one, next to the track or downloaded."""
        plain = name.removesuffix(compression_suffix(name))
        for candidate in dict.fromkeys((plain, name, *(plain + suffix for suffix in COMPRESSED_SUFFIXES))):
            path = self.templates.check_inside(self.templates.folder / candidate, candidate)
            if path.is_file():
                if untrusted.borrows_our_rights(path):
                    raise SpecError(
                        f"{path}: refused: a link of another user leads to a file that not all users can read. "
                        "Replace the link with a copy of the file if it belongs to the track."
                    )
                return path
        downloaded = self._download_path(name, corpus, origin)
        if downloaded is not None and downloaded.is_file():
            return downloaded
        return self._find_in_tool_cache(plain, corpus, origin.uncompressed_bytes) or (
            self._find_in_tool_cache(name, corpus, origin.compressed_bytes) if name != plain else None
        )

    def _find_in_tool_cache(self, name: str, corpus: str, size_bytes: int | None) -> Path | None:
        """Return a file that Rally or OpenSearch Benchmark downloaded. As in both tools, a wrong size is incomplete."""
        for cache in self.tool_caches:
            path = Path(os.path.normpath(cache / corpus / name))
            with contextlib.suppress(OSError):
                status = path.stat()
                is_complete = stat.S_ISREG(status.st_mode) and size_bytes in (None, status.st_size)
                if is_complete and path.is_relative_to(cache):
                    return path
        return None

    def _download_path(self, name: str, corpus: str, origin: CorpusSource) -> Path | None:
        """Return the path of the downloaded file: it depends on the address, so that tracks share it."""
        if self.downloads is None or not origin.url:
            return None
        slug = re.sub(r"[^A-Za-z0-9_-]+", "_", corpus)[:60]
        # Without the query string, which changes each time for a signed address.
        address = origin.url.partition("?")[0]
        folder = f"{slug}-{hashlib.sha256(address.encode()).hexdigest()[:12]}"
        return self.downloads / folder / Path(os.path.normpath(name)).name


def _parse_url(documents: Mapping[str, Any], name: str, where: str) -> str:
    """Return the address of a file; empty if the track has none."""
    key = "source-url" if documents.get("source-url") else "base-url"
    address = str(documents.get(key) or "")
    if not address:
        return ""
    if not address.isprintable() or " " in address or "@" in address.partition("://")[2].partition("/")[0]:
        raise SpecError(f'{where}: "{key}" is {quote_value(address)}. Remove spaces, user and password.')
    return address if key == "source-url" else f"{address.rstrip('/')}/{quote(name)}"


def _parse_count(table: Mapping[str, Any], key: str, where: str) -> int | None:
    return None if table.get(key) is None else int(parse_number(table, key, where, maximum=_LARGEST_COUNT))


def _limit_files(
    files: list[TrackFile], operation: Mapping[str, Any], where: str, *, test_mode: bool
) -> tuple[TrackFile, ...]:
    """Limit the documents of the files: to a share of each, or to a total number, from the first file on."""
    percentage = parse_number(operation, "ingest-percentage", where, 100, maximum=100)
    if not percentage:
        raise SpecError(f'{where}: "ingest-percentage" is 0: nothing would be sent')
    share = percentage / 100
    remaining = _parse_count(operation, "ingest-doc-count", where)
    if remaining is not None and share < 1:
        raise SpecError(f'{where}: "ingest-doc-count" cannot be combined with "ingest-percentage"')
    if test_mode or (share >= 1 and remaining is None):
        return tuple(files)
    limited: list[TrackFile] = []
    for file in files:
        count = file.origin.documents
        if count is None:
            key = "ingest-percentage" if remaining is None else "ingest-doc-count"
            raise SpecError(f'{where}: "{key}" requires a "document-count" of {Path(file.path).name}')
        documents = max(1, int(count * share)) if remaining is None else min(remaining, count)
        if remaining is not None:
            remaining -= documents
        if documents:
            limited.append(replace(file, documents=documents))
    return tuple(limited)


def _names(value: Any) -> list[str]:
    if value is None:
        return []
    return [str(name) for name in value] if isinstance(value, list) else [str(value)]
