"""The matcher of names: dotted keys, aliases, whole words and typing errors; a name unlike all others matches none."""

from __future__ import annotations

import pytest

from ingest_bench.analysis.run.columns import COLUMNS
from ingest_bench.experiment import key_paths
from ingest_bench.inputs.names import find_match, suggest

KEYS = tuple(key_paths.iter_keys())
COLUMN_NAMES = tuple(column.name for column in COLUMNS)
VERSIONS = ("0.7.4", "5.0.9", "8.19.21", "java11", "java17")


@pytest.mark.parametrize(
    ("name", "names", "expected"),
    [
        # The last part of a dotted key, before an alias and before typing errors.
        ("delay", KEYS, "network.to_server.delay"),
        ("to_client.loss", KEYS, "network.to_client.loss"),
        ("swappiness", KEYS, "host.swappiness"),
        ("load.heap", KEYS, "heap"),
        # An alias.
        ("threads", KEYS, "setting.threads"),
        ("Bandwidth", KEYS, "network.to_server.rate"),
        ("es", ("opensearch", "elasticsearch"), "elasticsearch"),
        # Other case and separators.
        ("NYC-taxis", ("nyc_taxis", "pmc"), "nyc_taxis"),
        ("--warmup", ("--measure", "--warm-up"), "--warm-up"),
        # Whole words.
        ("docs_per_s", COLUMN_NAMES, "docs_per_s_mean"),
        ("p99", COLUMN_NAMES, "response_ms_p99"),
        ("8", VERSIONS, "8.19.21"),
        ("17", VERSIONS, "java17"),
        # Typing errors: the nearest, at most one in four letters.
        ("netwrok", KEYS, "network"),
        ("to_server.dealy", KEYS, "network.to_server.delay"),
        ("gc_pause", COLUMN_NAMES, "gc_pauses"),
        ("0.7.5", VERSIONS, "0.7.4"),
        ("rn", ("report", "run"), "run"),
        # "processes" is four letters away.
        ("probes", KEYS, None),
        ("qqq", KEYS, None),
        ("", KEYS, None),
        ("heap" * 100, KEYS, None),
    ],
)
def test_name_is_matched(name: str, names: tuple[str, ...], expected: str | None) -> None:
    assert find_match(name, names) == expected


def test_every_known_name_matches_itself() -> None:
    for names in (KEYS, COLUMN_NAMES, VERSIONS):
        assert [find_match(name, names) for name in names] == list(names)


def test_names_without_a_match_are_listed_or_their_list_is_named() -> None:
    many = [f"column_{number}" for number in range(100)]
    assert suggest("qqq", many, "docs/columns.md") == "docs/columns.md lists all 100"
    assert suggest("qqq", ["b", "a"]) == "known: a, b"
    assert suggest("qqq", many).count("column_") == 40
