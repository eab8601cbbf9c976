"""The schema number of each file of a results folder: one more each time its form changes.

plan.json 2: it may leave out cells. Schema 1 had all of them, and is read.

run.json 4: a sample says when the kernel had all of its request (model/samples.py). In schema 3 it did not. In schema 2
it said neither where it went nor how many bytes had no answer, and in schema 1 it was one attempt of a ticket: these
two are read no more.
"""

from __future__ import annotations

from collections.abc import Mapping

SCHEMAS: Mapping[str, int] = {"plan.json": 2, "facts.json": 1, "load.json": 1, "run.json": 4}
# The oldest that is read. Files of schema 1 did not say so at first.
OLDEST: Mapping[str, int] = {"run.json": 3}
