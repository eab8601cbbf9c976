from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ingest_bench.errors import SpecError
from ingest_bench.experiment import catalog
from ingest_bench.inputs import files
from ingest_bench.model.network import Impairment


@pytest.mark.parametrize("name", sorted(files.data_files("netem")))
def test_shipped_profile_loads_and_names_its_source(name: str) -> None:
    profile = catalog.load_profile(name)
    assert profile.name == name
    assert profile.description
    first = files.data_files("netem")[name].read_text().splitlines()[0]
    assert first.startswith("# ")


def test_overrides_replace_keys_at_any_depth() -> None:
    profile = catalog.load_profile(
        "ethernet",
        {"mtu": "9000", "to_server": {"rate": "100mbit"}, "to_client": {"delay": "5ms"}, "offloads": {"tso": "off"}},
    )
    assert profile.mtu_bytes == 9000
    assert profile.to_server == Impairment(rate_bps=10**8)
    assert profile.to_client == Impairment(rate_bps=10**9, delay_ns=5 * 10**6)
    assert profile.offloads == {"tso": False}


def test_profile_may_be_a_users_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('mtu = 1400\n[to_server]\nrate = "5mbit"\n')
    profile = catalog.load_profile(str(path))
    assert (profile.name, profile.mtu_bytes, profile.to_server.rate_bps) == ("mine", 1400, 5 * 10**6)


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("ethernt", {}, 'did you mean "ethernet"'),
        ("./no-such.toml", {}, "file not found"),
        ("ethernet", {"mut": "1400"}, 'did you mean "mtu"'),
        ("ethernet", {"to_server": {"dely": "5ms"}}, 'did you mean "delay"'),
        ("ethernet", {"to_server": {"rate": "100"}}, "write it like 100mbit"),
        ("ethernet", {"mtu": "70000"}, "not between 576B and 64KiB"),
        ("ethernet", {"mtu": "65536"}, "a veth takes at most 65535"),
        ("ethernet", {"offloads": {"tso": "maybe"}}, "on or off"),
        ("ethernet", {"gso_max_segs": "0"}, "not between 1 and 65,535"),
        ("ethernet", {"to_server": {"loss": "1%"}, "gso_max_segs": "8"}, "super-packets"),
        ("ethernet", {"to_server": {"loss": "1%", "loss_gemodel": "1% 10%"}}, "one loss model at a time"),
        ("ethernet", {"to_server": {"loss_state": "60% 10% 0% 100% 60%"}}, "p13 and p14 are 120% together"),
        ("ethernet", {"to_server": {"loss_state": "1% 60% 41%"}}, "p31 and p32 are 101% together"),
        ("ethernet", {"to_server": {"reorder": "25%"}}, "reorder does nothing without delay"),
        ("ethernet", {"to_server": {"distribution": "normal"}}, "distribution does nothing without jitter"),
        ("ethernet", {"to_server": {"ecn": "true"}}, "ecn does nothing without loss"),
        ("ethernet", {"to_server": {"slot_min": "2ms", "slot_max": "1ms"}}, "slot_max is less"),
        (
            "ethernet",
            {"to_server": {"burst": "1513"}},
            "burst: 1513 bytes never let a frame of 1514 pass .*Set at least 1514B",
        ),
        ("ethernet", {"to_server": {"rate": "10kbit", "burst": "1MiB"}}, "more than 274 seconds of the rate"),
        ("ethernet", {"to_server": {"limit_packets": "3000000"}}, "more than 4 GiB of queue"),
        ("loopback", {"to_server": {"rate": "1gbit"}}, "one device for both directions"),
    ],
)
def test_contradictory_values_are_refused_with_key_and_remedy(
    name: str, overrides: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        catalog.load_profile(name, overrides)


def test_error_names_the_override() -> None:
    with pytest.raises(SpecError, match=r"ethernet\.toml, with to_server\.reorder = '25%': to_server: reorder does"):
        catalog.load_profile("ethernet", {"to_server": {"reorder": "25%"}})
