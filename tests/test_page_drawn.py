"""The page as a real Chromium draws it: its charts, their zoom by keys, names that would be markup, narrow and wide."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

import made_summaries as made
import pytest

from ingest_bench.report.page import page

# Runs in the page after its own script, and leaves what it saw as JSON.
LOOK = """<script>
addEventListener("load", () => setTimeout(() => {
%s
  const left = document.createElement("pre");
  left.id = "seen";
  left.textContent = JSON.stringify(seen);
  parent.document.body.append(left);
}, 300));
</script></body>"""
# What it looks at: `seen`.
TRY = """
  const svg = document.querySelector("figure svg");
  const texts = (box) => [...box.querySelectorAll("text")].map((text) => text.textContent);
  const numbers = (box) => texts(box).filter((text) => / s$/.test(text));
  const seen = {
    figures: document.querySelectorAll("figure").length,
    panels: [...svg.querySelectorAll("text.head")].map((text) => text.textContent),
    faults: [...svg.querySelectorAll("text.kind")].map((text) => text.textContent),
    causes: [...svg.querySelectorAll("text.cause")].map((text) => text.textContent),
    steps: svg.querySelector("path.blue").getAttribute("d").match(/H/g).length,
    unbroken: [...svg.querySelectorAll("path.line")].every((path) => !/NaN|undefined/.test(path.getAttribute("d"))),
    axis: numbers(svg),
    wide: document.documentElement.scrollWidth - innerWidth,
    stacked: [...document.querySelectorAll(".wide:has(.stacked)")].map((each) => each.scrollWidth - each.clientWidth),
    cut: [...svg.querySelectorAll("text")].filter((text) => {
      const [own, all] = [text.getBoundingClientRect(), svg.getBoundingClientRect()];
      return own.right > all.right || own.left < all.left;
    }).map((text) => text.textContent),
    bold: document.querySelectorAll("b.hostile").length,
    paper: getComputedStyle(document.body).backgroundColor,
  };
  for (const key of ["+", "+", "ArrowRight"]) svg.dispatchEvent(new KeyboardEvent("keydown", { key }));
  seen.zoomed = numbers(svg);
  svg.dispatchEvent(new KeyboardEvent("keydown", { key: "0" }));
  seen.again = numbers(svg);
"""
TRY_ICICLE = """
  const svg = document.querySelector("figure[data-flames] svg");
  const said = () => svg.parentElement.querySelector(".said").textContent;
  const widths = () => Object.fromEntries([...svg.querySelectorAll("g")].map((group) =>
    [group.querySelector("title").textContent, +group.querySelector("rect").getAttribute("width")]));
  const type = (...keys) => {
    for (const key of keys) svg.dispatchEvent(new KeyboardEvent("keydown", { key }));
    return said();
  };
  const seen = {
    width: svg.clientWidth, whole: widths(), bold: document.querySelectorAll("b.hostile").length,
    kinds: [...svg.querySelectorAll("g")].map((group) => group.getAttribute("class")),
    texts: [...svg.querySelectorAll("text")].map((text) => text.textContent),
    wide: document.documentElement.scrollWidth - innerWidth,
  };
  seen.down = type("ArrowDown");
  seen.right = type("ArrowRight");
  seen.deeper = type("ArrowDown", "ArrowDown");
  seen.zoomed = type("Enter");
  seen.parts = widths();
  seen.up = type("ArrowUp");
  type("0");
  seen.again = widths();
  svg.querySelector("g[data-frame='1']").dispatchEvent(new MouseEvent("click", { bubbles: true }));
  seen.clicked = widths();
"""
HOSTILE = '</script><b class="hostile">x</b>"'


def drawn(folder: Path, text: str, width: int, *options: str, looks: str = TRY) -> dict[str, Any]:
    """What the page is in Chromium, in a frame of so many pixels: its own windows are 500 or wider."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs the program chromium")
    file = folder / "page.html"
    inner = escape(text.replace("</body>", LOOK % looks))
    frame = f'<iframe srcdoc="{inner}" style="border: 0; height: 900px; width: {width}px"></iframe>'
    file.write_text(f'<!doctype html><meta charset="utf-8"><body>{frame}</body>', encoding="utf-8")
    of_its_own = (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        f"--user-data-dir={folder / 'profile'}",
    )
    argv = [
        chromium,
        *of_its_own,
        "--virtual-time-budget=2000",
        "--window-size=1400,1000",
        *options,
        "--dump-dom",
        file.as_uri(),
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    found = re.search('<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    seen: dict[str, Any] = json.loads(unescape(found[1]))
    return seen


@pytest.mark.processes
def test_the_runs_are_drawn_zoomed_by_keys_and_hostile_names_are_text(tmp_path: Path) -> None:
    runs = [
        made.with_series(run, fault=True) for run in made.experiment(replicates=1, network=["loopback", "ethernet"])
    ]
    runs[1] = dataclasses.replace(runs[1], run=HOSTILE, cell=HOSTILE, reason=HOSTILE, experiment=HOSTILE)
    text = page.index(runs, {})
    seen = drawn(tmp_path, text, 1280)
    assert seen["figures"] == 2
    assert seen["panels"][0] == "Documents/s"
    assert len(seen["panels"]) == 4
    assert seen["faults"] == ["partition"]
    assert seen["causes"] == ["packets lost on the network"]
    assert seen["steps"] == 65
    assert seen["unbroken"]
    assert seen["axis"][0] == "-5 s" or seen["axis"][0] == "0 s"
    assert "60 s" in seen["axis"]
    # From -5..60 s to the half, to its half, and a quarter of that to the right.
    shown = [float(text.removesuffix(" s")) for text in seen["zoomed"]]
    assert min(shown) >= -5 + 65 * 3 / 8 + 65 / 16
    assert max(shown) <= -5 + 65 * 5 / 8 + 65 / 16
    assert seen["again"] == seen["axis"]
    assert seen["bold"] == 0
    assert seen["wide"] <= 0


@pytest.mark.processes
def test_names_of_faults_and_stalls_lie_on_no_other_and_do_not_leave_the_chart(tmp_path: Path) -> None:
    (run,) = made.experiment(replicates=1, network=["ethernet"])
    run = made.with_series(run, fault=True)
    spans = [("compact_memory", 4 * number, 4 * number + 1) for number in range(14)] + [("memory_pressure", 59, 60)]
    faults = [
        dataclasses.replace(run.faults[0], kind=kind, started=made.START_NS + left * 10**9, ended=None)
        for kind, left, _ in spans
    ]
    stalls = [
        dataclasses.replace(run.stalls[0], start_ns=made.START_NS + left * 10**9, end_ns=made.START_NS + right * 10**9)
        for _, left, right in spans
    ]
    seen = drawn(tmp_path, page.index([made.changed(run, faults=tuple(faults), stalls=tuple(stalls))], {}), 1280)
    assert seen["faults"] == ["compact_memory", "memory_pressure"]
    assert seen["causes"] == ["packets lost on the network"]
    assert seen["cut"] == []


@pytest.mark.processes
def test_a_narrow_and_a_dark_window_have_their_own_look(tmp_path: Path) -> None:
    runs = made.experiment(network=["loopback", "ethernet"])
    text = page.index([made.with_series(run, fault=True) for run in runs], {})
    seen = drawn(tmp_path, text, 400)
    assert seen["wide"] <= 0
    # What was ruled out of a stall is read without scrolling to the right.
    assert seen["stacked"] == [0]
    # The last second of the axis stands below its end.
    assert seen["cut"] == []
    assert seen["paper"] == "rgb(255, 255, 255)"
    dark = drawn(tmp_path, text, 400, "--blink-settings=preferredColorScheme=0")
    assert dark["paper"] == "rgb(22, 24, 28)"


@pytest.mark.processes
def test_who_allocated_is_drawn_and_zoomed_by_keys_and_by_a_click(tmp_path: Path) -> None:
    stacks = {
        "new TLABs;java.lang.Thread.run;byte[]": 6000,
        f"outside TLABs;java.lang.Thread.run;io.netty.Buffers.{HOSTILE};byte[]": 3000,
        "outside TLABs;java.lang.Thread.run;a.Main.run;int[]": 1000,
    }
    run = made.changed(made.summary({"network": "ethernet"}), stacks=stacks)
    seen = drawn(tmp_path, page.index([run], {}), 1280, looks=TRY_ICICLE)
    width = seen["width"]
    assert seen["whole"]["all\n10 kB, 100% of all"] == pytest.approx(width, abs=1)
    assert seen["whole"]["new TLABs\n6000 B, 60% of all"] == pytest.approx(width * 0.6, abs=1)
    assert seen["whole"]["int[]\n1000 B, 10% of all"] == pytest.approx(width * 0.1, abs=1)
    assert {"frame jdk", "frame netty", "frame other", "frame class"} <= set(seen["kinds"])
    assert "Thread.run" in " ".join(seen["texts"])
    assert seen["down"] == "new TLABs: 6000 B, 60% of all"
    assert seen["right"] == "outside TLABs: 4000 B, 40% of all"
    assert seen["deeper"] == f"io.netty.Buffers.{HOSTILE}: 3000 B, 30% of all"
    assert seen["zoomed"] == seen["deeper"]
    # What calls it stays above it, as wide; what is beside it is gone.
    assert seen["parts"]["outside TLABs\n4000 B, 40% of all"] == pytest.approx(width, abs=1)
    assert "int[]\n1000 B, 10% of all" not in seen["parts"]
    assert seen["up"] == "java.lang.Thread.run: 4000 B, 40% of all"
    assert seen["again"] == seen["whole"]
    assert seen["clicked"]["new TLABs\n6000 B, 60% of all"] == pytest.approx(width, abs=1)
    assert seen["bold"] == 0
    assert seen["wide"] <= 0
