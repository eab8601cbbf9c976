"""The files of a track's corpora: which of them a bulk operation sends, where they are, and where they come from."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ingest_bench.documents.lines import ENDINGS, packing
from ingest_bench.documents.tracks import keys
from ingest_bench.documents.tracks.declared import Declared, index_name, listed
from ingest_bench.documents.tracks.template import Templates, without_marks
from ingest_bench.errors import SpecError
from ingest_bench.inputs import untrusted
from ingest_bench.inputs.records import nearest
from ingest_bench.model.track import Origin, TrackFile
from ingest_bench.units import quoted

# What both tools send of each corpus in their test mode.
TEST_DOCUMENTS = 1000
_LARGEST_COUNT = 10**15
# The only format of a file that a bulk can send; others are of operations that need code.
_BULK_FORMAT = "bulk"


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpora:
    """All corpora of a track, and where their files may be."""

    table: Sequence[Mapping[str, Any]]
    declared: Declared
    templates: Templates
    downloads: Path | None
    """Where downloaded files are kept; None: nowhere."""
    tool_caches: Sequence[Path]
    """Folders in which Rally and OpenSearch Benchmark keep corpora that they downloaded."""
    test_mode: bool
    notes: list[str] = field(default_factory=list)
    """Keys of document sets that are not used, and document sets that are left out."""

    def files(self, operation: Mapping[str, Any], where: str) -> tuple[TrackFile, ...]:
        """What a bulk operation sends: of the corpora that it names, what goes to the indices that it names."""
        wanted_corpora, wanted_indices = _names(operation.get("corpora")), _names(operation.get("indices"))
        wanted_streams = _names(operation.get("data-streams"))
        known = [str(corpus.get("name")) for corpus in self.table]
        for name in wanted_corpora:
            if name not in known:
                raise SpecError(f'{where}: there is no corpus "{name}"; {nearest(name, known)}')
        found = []
        for corpus in self.table:
            if wanted_corpora and corpus.get("name") not in wanted_corpora:
                continue
            for one in listed(corpus, "documents", f"{where}: corpus {corpus.get('name')}"):
                documents = self._document_set(corpus, one)
                if documents is None:
                    continue
                target = self._target(documents, where)
                if wanted_indices and target not in wanted_indices:
                    continue
                if wanted_streams and not (target in wanted_streams and self._is_stream(documents, target)):
                    continue
                found.append(self._file(documents, target, str(corpus.get("name")), where))
        if not found:
            wanted = [*wanted_indices, *wanted_streams]
            of = f" for {', '.join(wanted)}" if wanted else ""
            raise SpecError(f"{where}: has nothing to send: no corpus of the track has documents{of}")
        return _limited(found, operation, where, test_mode=self.test_mode)

    def _document_set(self, corpus: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the used keys of a document set with the defaults of its corpus; None for one that is no bulk's."""
        where = f"corpus {without_marks(str(corpus.get('name')))}"
        documents = self.templates.complete(keys.DOCUMENTS.select({**corpus, **own}), where)
        name = documents.get("source-file")
        self.notes.extend(keys.DOCUMENTS.notes({**corpus, **own}, f"{where}: {name}" if name else where))
        source_format = documents.get("source-format") or _BULK_FORMAT
        if source_format != _BULK_FORMAT:
            self.notes.append(f'{where}: {name} is left out: its "source-format" is {quoted(source_format)}')
            return None
        if own.get("source-file-parts") and not documents.get("source-url"):
            # The address of the whole file leads nowhere.
            documents.pop("base-url", None)
        return documents

    def _is_stream(self, documents: Mapping[str, Any], target: str) -> bool:
        return bool(documents.get("target-data-stream")) or target in self.declared.streams

    def _target(self, documents: Mapping[str, Any], where: str) -> str:
        source = documents.get("source-file")
        for key in ("target-index", "target-data-stream"):
            if documents.get(key) is not None:
                return index_name(str(documents[key]), f"{where}: {source}: {key}")
        if documents.get("includes-action-and-meta-data"):
            return ""
        names = self.declared.names
        if len(names) == 1:
            return names[0]
        what = "several indices" if names else "neither an index nor a data stream"
        raise SpecError(
            f'{where}: {source}: the track declares {what}, so "target-index" or "target-data-stream" must say where '
            "its documents go"
        )

    def _file(self, documents: Mapping[str, Any], target: str, corpus: str, where: str) -> TrackFile:
        name = str(documents.get("source-file", "documents.json"))
        if not Path(os.path.normpath(name)).name:
            raise SpecError(f"{where}: {quoted(name)} is named in it, and no file of a track is called so")
        bulk = bool(documents.get("includes-action-and-meta-data", False))
        origin = _origin(documents, name, where)
        path, limit = self._existing(name, corpus, origin), None
        if self.test_mode:
            head, dot, tail = name.partition(".")
            small = f"{head}-1k{dot}{tail}"
            small_origin = Origin(url="" if documents.get("source-url") else _url(documents, small, where))
            there = self._existing(small, corpus, small_origin)
            if there is None and path is not None:
                limit = TEST_DOCUMENTS
            else:
                name, path, origin = small, there, small_origin
        return TrackFile(
            path=str(path or self._kept(name, corpus, origin) or self.templates.folder / name),
            index="" if bulk else target,
            bulk=bulk,
            stream=not bulk and self._is_stream(documents, target),
            documents=limit,
            origin=origin,
        )

    def _existing(self, name: str, corpus: str, origin: Origin) -> Path | None:
        """The plain file if it is there, else the packed one, in any packing; beside the track or downloaded."""
        plain = name.removesuffix(packing(name))
        for candidate in dict.fromkeys((plain, name, *(plain + suffix for suffix in ENDINGS))):
            path = self.templates.named_inside(self.templates.folder / candidate, candidate)
            if path.is_file():
                if untrusted.borrows_our_rights(path):
                    raise SpecError(
                        f"{path}: a link of another user leads to a file that not everybody can read; it is not sent. "
                        "Put a copy of it in the place of the link if it belongs to the track"
                    )
                return path
        kept = self._kept(name, corpus, origin)
        if kept is not None and kept.is_file():
            return kept
        return self._in_tool_cache(plain, corpus, origin.unpacked_bytes) or (
            self._in_tool_cache(name, corpus, origin.packed_bytes) if name != plain else None
        )

    def _in_tool_cache(self, name: str, corpus: str, size_bytes: int | None) -> Path | None:
        """Return a file that Rally or OpenSearch Benchmark downloaded; as there, one of another size is incomplete."""
        for cache in self.tool_caches:
            path = Path(os.path.normpath(cache / corpus / name))
            with contextlib.suppress(OSError):
                status = path.stat()
                is_whole = stat.S_ISREG(status.st_mode) and size_bytes in (None, status.st_size)
                if is_whole and path.is_relative_to(cache):
                    return path
        return None

    def _kept(self, name: str, corpus: str, origin: Origin) -> Path | None:
        """Where the downloaded file is or would be: by its address, so that tracks share it."""
        if self.downloads is None or not origin.url:
            return None
        slug = re.sub(r"[^A-Za-z0-9_-]+", "_", corpus)[:60]
        # Without the query string: a signed address is another one each time.
        address = origin.url.partition("?")[0]
        folder = f"{slug}-{hashlib.sha256(address.encode()).hexdigest()[:12]}"
        return self.downloads / folder / Path(os.path.normpath(name)).name


def _origin(documents: Mapping[str, Any], name: str, where: str) -> Origin:
    return Origin(
        url=_url(documents, name, where),
        packed_bytes=_count(documents, "compressed-bytes", f"{where}: {name}"),
        unpacked_bytes=_count(documents, "uncompressed-bytes", f"{where}: {name}"),
        documents=_count(documents, "document-count", f"{where}: {name}"),
    )


def _url(documents: Mapping[str, Any], name: str, where: str) -> str:
    """Where it can be downloaded; empty where nobody says it."""
    key = "source-url" if documents.get("source-url") else "base-url"
    address = str(documents.get(key) or "")
    if not address:
        return ""
    if not address.isprintable() or " " in address or "@" in address.partition("://")[2].partition("/")[0]:
        raise SpecError(f'{where}: "{key}" is {quoted(address)}: an address has no spaces, user or password in it')
    return address if key == "source-url" else f"{address.rstrip('/')}/{quote(name)}"


def _count(table: Mapping[str, Any], key: str, where: str) -> int | None:
    value = table.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LARGEST_COUNT:
        raise SpecError(f'{where}: "{key}" is {quoted(value)}, not a number of them')
    return int(value)


def _limited(
    files: list[TrackFile], operation: Mapping[str, Any], where: str, *, test_mode: bool
) -> tuple[TrackFile, ...]:
    """The files with how much of each is sent: a share of each, or so many documents of all, from the first on."""
    share = _percentage(operation, where) / 100
    most = _count(operation, "ingest-doc-count", where)
    if most is not None and share < 1:
        raise SpecError(f'{where}: has "ingest-doc-count" and "ingest-percentage"; take one of the two')
    if test_mode or (share >= 1 and most is None):
        return tuple(files)
    found: list[TrackFile] = []
    for file in files:
        count = file.origin.documents
        if count is None:
            key = "ingest-percentage" if most is None else "ingest-doc-count"
            name = Path(file.path).name
            raise SpecError(f'{where}: "{key}" of {name} cannot be sent: the track says no "document-count" for it')
        wanted = max(1, int(count * share)) if most is None else min(most, count)
        if most is not None:
            most -= wanted
        if wanted:
            found.append(replace(file, documents=wanted))
    return tuple(found)


def _percentage(operation: Mapping[str, Any], where: str) -> float:
    value = operation.get("ingest-percentage", 100)
    try:
        found = float(value)
    except (TypeError, ValueError):
        raise SpecError(f'{where}: "ingest-percentage" is {quoted(value)}, not a number') from None
    if not 0 < found <= 100:
        raise SpecError(f'{where}: "ingest-percentage" is {quoted(value)}, not more than 0 and at most 100')
    return found


def _names(value: Any) -> list[str]:
    if value is None:
        return []
    return [str(one) for one in value] if isinstance(value, list) else [str(value)]
