"""Write the documents of a workload to a file."""

from __future__ import annotations

import bz2
import gzip
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import zstandard

from ingest_bench.documents.lines import compression_suffix
from ingest_bench.documents.source import limit_documents
from ingest_bench.documents.synthetic import DocumentGenerator
from ingest_bench.errors import SpecError
from ingest_bench.inputs import files
from ingest_bench.model.load import Workload


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
