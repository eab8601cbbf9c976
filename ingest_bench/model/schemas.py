"""The schema number of each file of a results folder: one more each time its form changes.

plan.json 2: it may leave out cells. Schema 1 had all of them, and is read.

run.json 3: a sample says where it went, and how many bytes had no answer (model/samples.py). In schema 2 it did not,
and in schema 1 it was one attempt of a ticket: these two are read no more.
"""

from __future__ import annotations

from collections.abc import Mapping

SCHEMAS: Mapping[str, int] = {"plan.json": 2, "facts.json": 1, "load.json": 1, "run.json": 3}
# The oldest that is read. Files of schema 1 did not say so at first.
OLDEST: Mapping[str, int] = {"run.json": 3}
