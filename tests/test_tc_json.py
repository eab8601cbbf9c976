"""Output of `tc -j` and `ip -j` is read also where it is not quite JSON."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.network.act import interface_facts
from ingest_bench.network.plan import commands
from ingest_bench.network.plan.interface_rules import Qdisc


# As iproute2 6.1 prints them: these options by fprintf, in the middle of JSON.
@pytest.mark.parametrize(
    ("kind", "options"),
    [("hfsc", "default 1 "), ("hfsc", ""), ("multiq", "bands 4/4 "), ("choke", "limit 1000p min 83p max 250p ")],
)
def test_qdiscs_whose_options_are_plain_text_are_read(monkeypatch: pytest.MonkeyPatch, kind: str, options: str) -> None:
    printed = (
        f'[{{"kind":"{kind}","handle":"2:","root":true,"refcnt":2,"options":{{{options}}}}},'
        '{"kind":"fq_codel","handle":"3:","parent":"2:1","options":{"limit":10240,"ecn":true}}]'
    )

    def run(argv: Sequence[str]) -> str:
        assert argv[:4] == ("tc", "-j", "qdisc", "show")
        return printed

    monkeypatch.setattr(system, "run", run)
    assert interface_facts.qdiscs_of("eth0") == (
        Qdisc(kind=kind, handle="2:", parent=""),
        Qdisc(kind="fq_codel", handle="3:", parent="2:1"),
    )
    assert commands.parse_json("tc", printed)[1]["options"] == {"limit": 10240, "ecn": True}


def test_output_without_a_line_is_an_empty_list() -> None:
    assert commands.parse_json("ip", " \n") == []


@pytest.mark.parametrize("printed", ['[{"kind":"new" bands 4}]', "qdisc noqueue 0: root", "[" * 100_000])
def test_output_that_is_not_json_is_one_sentence(printed: str) -> None:
    with pytest.raises(RunFailed, match=r"^tc -j qdisc show: its output is not JSON \(.*\); install a newer iproute2$"):
        commands.parse_json("tc -j qdisc show", printed)
