"""What settings of the machine did, side by side."""

from __future__ import annotations

import csv

import made_summaries as made

from ingest_bench.model.results import Summary
from ingest_bench.report import REPORTS


def run(level: str, replicate: int, **values: object) -> Summary:
    levels = {"host.transparent_hugepages": level}
    return made.changed(made.summary(levels, replicate), values={"docs_per_s_mean": 1700.0, **values})


def test_each_level_has_its_row_with_what_the_kernel_counted_and_no_column_that_nobody_measured() -> None:
    counted = {
        "docs_per_s_p10": 900.0,
        "server_context_switches_voluntary": 12_000,
        "thp_fault_alloc": None,
        "pgmajfault": 3,
        "numa_pages_migrated": None,
    }
    found = [
        run("always", 1, **counted | {"thp_fault_alloc": 60}),
        run("always", 2, **counted | {"thp_fault_alloc": 80}),
        run("never", 1, **counted | {"thp_fault_alloc": 0}),
    ]
    head, *rows = csv.reader(REPORTS["machine"](found)["report/machine.csv"].decode().splitlines())
    assert head[:3] == ["transparent hugepages", "runs", "docs/s"]
    assert {"huge pages by faults", "its seconds, p10", "its context switches, voluntary"} <= set(head)
    assert "in the kernel, s" not in head
    assert "pages moved between nodes" not in head
    place = head.index("huge pages by faults")
    assert [row[place] for row in rows] == ["70 (60..80)", "0"]


def test_without_a_setting_of_the_machine_among_the_factors_there_is_no_such_table() -> None:
    found = [made.summary({"network": network}) for network in ("loopback", "ethernet")]
    assert REPORTS["machine"](found) == {}
