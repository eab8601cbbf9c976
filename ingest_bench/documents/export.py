"""Commands on workloads: describe one, and write its documents to a file."""

from __future__ import annotations

import bz2
import gzip
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import zstandard

from ingest_bench.documents.lines import compression_suffix
from ingest_bench.documents.source import limit_documents
from ingest_bench.documents.synthetic import DocumentGenerator, make_example
from ingest_bench.errors import SpecError
from ingest_bench.inputs import files
from ingest_bench.model.load import DocumentField, Workload


def describe_workload(workload: Workload) -> list[tuple[str, str]]:
    """Return rows of name and text: published numbers, fields with type and generator, an example document."""
    return [
        ("name", workload.name),
        ("description", workload.description),
        ("source", workload.source),
        ("index", workload.index),
        ("published documents", f"{workload.published_documents:,}"),
        (
            "published size",
            f"{workload.published_bytes / 1e9:.2f} GB, {workload.mean_document_bytes:.1f} B per document",
        ),
        ("bulk", f"{workload.bulk_documents} documents, {workload.users} users"),
        *((f"field {spec.name}", _describe_field(spec, workload.mapping)) for spec in workload.fields),
        *((f"query {query.name}", f"weight {query.weight}: {json.dumps(query.body)}") for query in workload.queries),
        ("example", make_example(workload)[:2000].decode(errors="replace")),
    ]


def write_documents(workload: Workload, documents: int, path: Path, seed: int) -> int:
    """Write documents as NDJSON, compressed by the suffix (.gz .bz2 .zst), and return the size of the text.

    The file is complete or absent. A device or pipe such as `/dev/stdout` is written to directly.
    """
    total, part = 0, None
    try:
        target = path
        if not files.is_special(path):
            target = files.resolve_links(path)
            part = target.with_name(target.name + ".part")
        with _open(part or target, compression_suffix(path.name)) as file:
            for block in limit_documents(DocumentGenerator(workload, seed).blocks(), documents):
                text = b"\n".join((*block, b""))
                file.write(text)
                total += len(text)
        if part is not None:
            part.replace(target)
    except OSError as error:
        if part is not None:
            part.unlink(missing_ok=True)
        raise SpecError(f"{path}: cannot be written: {error.strerror}") from None
    return total


def _open(path: Path, suffix: str) -> AbstractContextManager[Any]:
    if suffix == ".gz":
        return gzip.GzipFile(path, "wb", compresslevel=6, mtime=0)
    if suffix == ".bz2":
        return bz2.open(path, "wb")
    if suffix == ".zst":
        return zstandard.ZstdCompressor().stream_writer(path.open("wb"))
    return path.open("wb")


def _describe_field(spec: DocumentField, mapping: Mapping[str, Any]) -> str:
    """Return the field's mapping and generator. Only the server validates a mapping."""
    properties: Any = mapping
    for key in ("mappings", "properties", spec.name):
        properties = properties.get(key) if isinstance(properties, Mapping) else None
    share = f" in {spec.present:.0%}" if spec.present < 1 else ""
    options = ", ".join(f"{key}={value}" for key, value in spec.options.items() if not isinstance(value, (list, dict)))
    generator = f"{spec.kind}{share}{f' ({options})' if options else ''}"
    return f"{'unmapped' if properties is None else json.dumps(properties)}: {generator}"
