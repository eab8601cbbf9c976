"""The files of a track's corpora: which of them a bulk operation sends, and where they are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ingest_bench.documents.lines import OPENERS
from ingest_bench.documents.tracks.template import Templates
from ingest_bench.errors import SpecError
from ingest_bench.model.track import TrackFile, TrackIndex
from ingest_bench.records import nearest

# MetadataCreateIndexService.validateIndexOrAliasName of both servers: none of these, and none of the three in front.
_INDEX = re.compile(r'(?!\.{1,2}$)[^\s"*\\<>|,/?#:_+-][^\s"*\\<>|,/?#:]*')
_LONGEST_INDEX_BYTES = 255
# What both tools send of each corpus in their test mode.
TEST_DOCUMENTS = 1000


def files(
    operation: Mapping[str, Any],
    corpora: Sequence[Mapping[str, Any]],
    indices: tuple[TrackIndex, ...],
    templates: Templates,
    test_mode: bool,
) -> tuple[TrackFile, ...]:
    """What a bulk operation sends: of the corpora that it names, what goes to the indices that it names."""
    wanted_corpora = _listed(operation.get("corpora"))
    wanted_indices = _listed(operation.get("indices"))
    known = [str(corpus.get("name")) for corpus in corpora]
    for name in wanted_corpora:
        if name not in known:
            raise SpecError(f'{templates.folder}: there is no corpus "{name}"; {nearest(name, known)}')
    share = float(operation.get("ingest-percentage", 100)) / 100
    found = []
    for corpus in corpora:
        if wanted_corpora and corpus.get("name") not in wanted_corpora:
            continue
        for one in corpus.get("documents", ()):
            merged = {**{key: value for key, value in corpus.items() if key not in ("documents", "name")}, **one}
            target = _target(merged, indices)
            if wanted_indices and target not in wanted_indices:
                continue
            templates.complete(merged, f"corpus {corpus.get('name')}")
            found.append(_file(merged, target, templates, share, test_mode))
    if not found:
        raise SpecError(f"{templates.folder}: a bulk operation has nothing to send: no documents for {wanted_indices}")
    return tuple(found)


def _file(documents: Mapping[str, Any], target: str, templates: Templates, share: float, test_mode: bool) -> TrackFile:
    name = str(documents.get("source-file", "documents.json"))
    count = documents.get("document-count")
    if share < 1 and count is None and not test_mode:
        raise SpecError(f'{templates.folder}: "ingest-percentage" of {name} cannot be sent: it has no "document-count"')
    limit = None if share >= 1 or count is None else max(1, int(count * share))
    if test_mode:
        head, dot, tail = name.partition(".")
        small = _existing(f"{head}-1k{dot}{tail}", templates)
        limit = None if small else TEST_DOCUMENTS
        path = small or _existing(name, templates)
    else:
        path = _existing(name, templates)
    if path is None:
        source = documents.get("base-url")
        remedy = f"; download it from {source}/{name} into that folder" if source else "; put it into that folder"
        raise SpecError(f"{templates.folder}: the file {name} of a corpus is not there{remedy}")
    bulk = bool(documents.get("includes-action-and-meta-data", False))
    return TrackFile(path=str(path), index="" if bulk else target, bulk=bulk, documents=limit)


def _existing(name: str, templates: Templates) -> Path | None:
    """The plain file if it is there, else the packed one, in any packing."""
    plain = name.removesuffix(Path(name).suffix) if Path(name).suffix in OPENERS else name
    for candidate in (plain, name, *(plain + suffix for suffix in OPENERS)):
        path = templates.inside(templates.folder / candidate, candidate)
        if path.is_file():
            return path
    return None


def index_name(name: str, where: str) -> str:
    """The name, when an index may be called so; SpecError otherwise. The server itself may have more to say."""
    if not _INDEX.fullmatch(name) or not name.isprintable() or len(name.encode()) > _LONGEST_INDEX_BYTES:
        raise SpecError(f"{where}: no index can be called {name[:60]!r}")
    return name


def _target(documents: Mapping[str, Any], indices: tuple[TrackIndex, ...]) -> str:
    if "target-index" in documents:
        return index_name(str(documents["target-index"]), f"{documents.get('source-file')}: target-index")
    if documents.get("includes-action-and-meta-data"):
        return ""
    if len(indices) == 1:
        return indices[0].name
    raise SpecError(f'{documents.get("source-file")}: the track has several indices; "target-index" must name one')


def _listed(value: Any) -> list[str]:
    if value is None:
        return []
    return [str(one) for one in value] if isinstance(value, list) else [str(value)]
