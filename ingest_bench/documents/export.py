"""What a person wants of a workload: to see what is in it, and to have its documents as a file."""

from __future__ import annotations

import bz2
import gzip
import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import zstandard

from ingest_bench.documents.lines import packing
from ingest_bench.documents.pool import first
from ingest_bench.documents.synthetic import Documents, example
from ingest_bench.errors import SpecError
from ingest_bench.inputs import files
from ingest_bench.model.workload import DocumentField, Workload


class _Writable(Protocol):
    def write(self, data: bytes, /) -> int: ...


def describe(workload: Workload) -> list[tuple[str, str]]:
    """Rows of name and text: what was published, the fields with type and generator, and an example document."""
    return [
        ("name", workload.name),
        ("description", workload.description),
        ("source", workload.source),
        ("index", workload.index),
        ("published documents", f"{workload.published_documents:,}"),
        ("published size", f"{workload.published_bytes / 1e9:.2f} GB, {workload.mean_document_bytes:.1f} B a document"),
        ("bulk", f"{workload.bulk_documents} documents, {workload.users} users"),
        *_field_rows(workload),
        *((f"query {query.name}", f"weight {query.weight}: {json.dumps(query.body)}") for query in workload.queries),
        ("example", example(workload)[:2000].decode(errors="replace")),
    ]


def write(workload: Workload, documents: int, out: Path, seed: int) -> int:
    """The size of the text that was written: so many documents as NDJSON, packed by the suffix (.gz .bz2 .zst).

    The file is whole or not there. What is no file (`/dev/stdout`, a pipe) is written to.
    """
    if documents < 1:
        raise SpecError(f"{documents} documents: at least 1 is needed")
    total, part = 0, None
    try:
        to = out
        if not files.is_special(out):
            to = files.behind_links(out)
            part = to.with_name(to.name + ".part")
        with _open(part or to, packing(out.name)) as file:
            for block in first(Documents(workload, seed).blocks(), documents):
                text = b"\n".join((*block, b""))
                file.write(text)
                total += len(text)
        if part is not None:
            part.replace(to)
    except OSError as error:
        if part is not None:
            part.unlink(missing_ok=True)
        raise SpecError(f"{out}: cannot be written: {error.strerror}") from None
    return total


def _open(path: Path, suffix: str) -> AbstractContextManager[_Writable]:
    if suffix == ".gz":
        return gzip.GzipFile(path, "wb", compresslevel=6, mtime=0)
    if suffix == ".bz2":
        return bz2.open(path, "wb")
    if suffix == ".zst":
        return zstandard.ZstdCompressor().stream_writer(path.open("wb"))
    return path.open("wb")


def _field_rows(workload: Workload) -> Iterator[tuple[str, str]]:
    properties = _table(_table(workload.mapping, "mappings"), "properties")
    for spec in workload.fields:
        yield f"field {spec.name}", f"{_type(_table(properties, spec.name))}: {_generator(spec)}"


def _table(mapping: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The table under a key; an empty one where none is: what a mapping means is the server's to judge."""
    found = mapping.get(key)
    return found if isinstance(found, Mapping) else {}


def _type(mapping: Mapping[str, Any]) -> str:
    fields = _table(mapping, "fields")
    inner = "".join(f" +{name} {_table(fields, name).get('type')}" for name in fields)
    analyzer = f" ({mapping['analyzer']})" if "analyzer" in mapping else ""
    return f"{mapping.get('type', 'object' if 'properties' in mapping else 'unmapped')}{analyzer}{inner}"


def _generator(spec: DocumentField) -> str:
    share = f" in {spec.present:.0%}" if spec.present < 1 else ""
    options = ", ".join(f"{key}={value}" for key, value in spec.options.items() if not isinstance(value, (list, dict)))
    return f"{spec.kind}{share}{f' ({options})' if options else ''}"
