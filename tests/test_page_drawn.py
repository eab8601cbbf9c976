"""The page in a real Chromium: charts, zoom by keys, escaped names, narrow and dark windows."""

from __future__ import annotations

import dataclasses
import json
import queue
import shutil
import subprocess
import threading
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import example_summaries as made
import pytest

from ingest_bench.report import page

# Runs in the page after its own script, and sends `observed` as JSON.
OBSERVE = """<script>
addEventListener("load", () => setTimeout(() => {
%s
  parent.fetch("/", { method: "POST", body: JSON.stringify(observed) });
}, 300));
</script></body>"""
CHARTS = """
  const svg = document.querySelector("figure svg");
  const texts = (box) => [...box.querySelectorAll("text")].map((text) => text.textContent);
  const numbers = (box) => texts(box).filter((text) => / s$/.test(text));
  const observed = {
    figures: document.querySelectorAll("figure").length,
    panels: [...svg.querySelectorAll("text.head")].map((text) => text.textContent),
    faults: [...svg.querySelectorAll("text.kind")].map((text) => text.textContent),
    causes: [...svg.querySelectorAll("text.cause")].map((text) => text.textContent),
    steps: svg.querySelector("path.blue").getAttribute("d").match(/H/g).length,
    unbroken: [...svg.querySelectorAll("path.line")].every((path) => !/NaN|undefined/.test(path.getAttribute("d"))),
    axis: numbers(svg),
    wide: document.documentElement.scrollWidth - innerWidth,
    stacked: [...document.querySelectorAll(".wide:has(.stacked)")].map((box) => box.scrollWidth - box.clientWidth),
    cut: [...svg.querySelectorAll("text")].filter((text) => {
      const [own, all] = [text.getBoundingClientRect(), svg.getBoundingClientRect()];
      return own.right > all.right || own.left < all.left;
    }).map((text) => text.textContent),
    bold: document.querySelectorAll("b.hostile").length,
    panels_at: [...document.querySelectorAll(".matrix > div")].map((box) => [box.offsetLeft, box.offsetTop]),
    is_inside: [...document.querySelectorAll(".matrix svg")].every((box) =>
      box.getBoundingClientRect().right <= innerWidth),
    touching: [...document.querySelectorAll(".matrix svg")].flatMap((box) => {
      const all = [...box.querySelectorAll("text")].map((text) => text.getBoundingClientRect());
      return all.filter((one) => all.some((other) => other !== one && one.left < other.right && other.left < one.right
        && one.top < other.bottom && other.top < one.bottom));
    }),
    label: getComputedStyle(document.querySelector(".matrix text") || svg).fill,
    paper: getComputedStyle(document.body).backgroundColor,
  };
  for (const key of ["+", "+", "ArrowRight"]) svg.dispatchEvent(new KeyboardEvent("keydown", { key }));
  observed.zoomed = numbers(svg);
  for (let number = 0; number < 9; number++) svg.dispatchEvent(new KeyboardEvent("keydown", { key: "+" }));
  observed.deep = texts(svg);
  svg.dispatchEvent(new KeyboardEvent("keydown", { key: "0" }));
  observed.again = numbers(svg);
"""
ICICLE = """
  const svg = document.querySelector("figure[data-flames] svg");
  const readout = () => svg.parentElement.querySelector(".readout").textContent;
  const widths = () => Object.fromEntries([...svg.querySelectorAll("g")].map((group) =>
    [group.querySelector("title").textContent, +group.querySelector("rect").getAttribute("width")]));
  const type = (...keys) => {
    for (const key of keys) svg.dispatchEvent(new KeyboardEvent("keydown", { key }));
    return readout();
  };
  const observed = {
    width: svg.clientWidth, all: widths(), bold: document.querySelectorAll("b.hostile").length,
    kinds: [...svg.querySelectorAll("g")].map((group) => group.getAttribute("class")),
    texts: [...svg.querySelectorAll("text")].map((text) => text.textContent),
    wide: document.documentElement.scrollWidth - innerWidth,
  };
  observed.down = type("ArrowDown");
  observed.right = type("ArrowRight");
  observed.deeper = type("ArrowDown", "ArrowDown");
  observed.zoomed = type("Enter");
  observed.parts = widths();
  observed.up = type("ArrowUp");
  type("0");
  observed.again = widths();
  svg.querySelector("g[data-frame='1']").dispatchEvent(new MouseEvent("click", { bubbles: true }));
  observed.clicked = widths();
"""
HOSTILE = '</script><b class="hostile">x</b>"'


class PageServer(ThreadingHTTPServer):
    """Serves one page, and keeps what it sends."""

    def __init__(self, document: str) -> None:
        super().__init__(("127.0.0.1", 0), PageHandler)
        self.document = document.encode()
        self.observed: queue.Queue[dict[str, Any]] = queue.Queue()


class PageHandler(BaseHTTPRequestHandler):
    server: PageServer

    def do_GET(self) -> None:
        self.reply(200 if self.path == "/" else 404, self.server.document)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.reply(200, b"")
        self.server.observed.put(json.loads(body))

    def reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Write nothing."""


def observe(folder: Path, text: str, width: int, *options: str, script: str = CHARTS) -> dict[str, Any]:
    """Return the observations of a script in the page, in a frame of that width: windows are at least 500 wide."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs the program chromium")
    inner = escape(text.replace("</body>", OBSERVE % script))
    frame = f'<iframe srcdoc="{inner}" style="border: 0; height: 900px; width: {width}px"></iframe>'
    profile = f"--user-data-dir={folder / 'profile'}"
    basics = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--no-proxy-server", profile)
    with PageServer(f'<!doctype html><meta charset="utf-8"><body>{frame}</body>') as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        argv = (chromium, *basics, "--window-size=1400,1000", *options, url)
        with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as browser:
            try:
                return server.observed.get(timeout=120)
            finally:
                browser.terminate()
                server.shutdown()


@pytest.mark.processes
def test_runs_are_drawn_and_zoomed_by_keys_and_names_are_escaped(tmp_path: Path) -> None:
    runs = [
        made.with_series(run, fault=True) for run in made.experiment(replicates=1, network=["loopback", "ethernet"])
    ]
    runs[1] = dataclasses.replace(runs[1], run=HOSTILE, cell=HOSTILE, reason=HOSTILE, experiment=HOSTILE)
    text = page.render_results(runs, {})
    observed = observe(tmp_path, text, 1280)
    assert observed["figures"] == 2
    assert observed["panels"][0] == "Documents/s"
    assert len(observed["panels"]) == 4
    assert observed["faults"] == ["partition"]
    assert observed["causes"] == ["packets lost on the network"]
    assert observed["steps"] == 65
    assert observed["unbroken"]
    assert observed["axis"][0] == "-5 s" or observed["axis"][0] == "0 s"
    assert "60 s" in observed["axis"]
    # From -5..60 s to the half, to its half, and a quarter of that to the right.
    shown = [float(text.removesuffix(" s")) for text in observed["zoomed"]]
    assert min(shown) >= -5 + 65 * 3 / 8 + 65 / 16
    assert max(shown) <= -5 + 65 * 5 / 8 + 65 / 16
    # Between two points of a line its panel still has the line's scale.
    assert any(text.endswith(" k") for text in observed["deep"])
    assert observed["again"] == observed["axis"]
    assert observed["bold"] == 0
    assert observed["wide"] <= 0


@pytest.mark.processes
def test_names_of_faults_and_stalls_do_not_overlap_or_leave_the_chart(tmp_path: Path) -> None:
    (run,) = made.experiment(replicates=1, network=["ethernet"])
    run = made.with_series(run, fault=True)
    spans = [("compact_memory", 4 * number, 4 * number + 1) for number in range(14)] + [("memory_pressure", 59, 60)]
    faults = [
        dataclasses.replace(run.faults[0], kind=kind, start_ns=made.START_NS + left * 10**9, end_ns=None)
        for kind, left, _ in spans
    ]
    stalls = [
        dataclasses.replace(run.stalls[0], start_ns=made.START_NS + left * 10**9, end_ns=made.START_NS + right * 10**9)
        for _, left, right in spans
    ]
    observed = observe(
        tmp_path, page.render_results([made.changed(run, faults=tuple(faults), stalls=tuple(stalls))], {}), 1280
    )
    assert observed["faults"] == ["compact_memory", "memory_pressure"]
    assert observed["causes"] == ["packets lost on the network"]
    assert observed["cut"] == []


@pytest.mark.processes
def test_page_adapts_to_narrow_and_dark_windows(tmp_path: Path) -> None:
    runs = made.experiment(replicates=2, network=["loopback", "ethernet"], receive_predictor=["32KiB", "512KiB"])
    facts = {"command": f"ingest-bench run quickstart --documents /{'long' * 40}"}
    text = page.render_results([made.with_series(run, fault=True) for run in runs], {}, facts=facts)
    observed = observe(tmp_path, text, 400)
    assert observed["wide"] <= 0
    # No table of sentences needs scrolling to the right.
    assert set(observed["stacked"]) == {0}
    # The panels of the matrix are below each other, their labels do not touch, and they are as dark as the page.
    (first, second) = observed["panels_at"]
    assert first[0] == second[0]
    assert first[1] < second[1]
    assert observed["is_inside"]
    assert observed["touching"] == []
    # No label of the axis is cut off.
    assert observed["cut"] == []
    assert observed["paper"] == "rgb(255, 255, 255)"
    dark = observe(tmp_path, text, 400, "--blink-settings=preferredColorScheme=0")
    assert dark["paper"] == "rgb(22, 24, 28)"
    assert [observed["label"], dark["label"]] == ["rgb(29, 31, 35)", "rgb(232, 234, 237)"]


@pytest.mark.processes
def test_icicle_is_drawn_and_zoomed_by_keys_and_click(tmp_path: Path) -> None:
    stacks = {
        "new TLABs;java.lang.Thread.run;byte[]": 6000,
        f"outside TLABs;java.lang.Thread.run;io.netty.Buffers.{HOSTILE};byte[]": 3000,
        "outside TLABs;java.lang.Thread.run;a.Main.run;int[]": 1000,
    }
    run = made.changed(made.summary({"network": "ethernet"}), stacks=stacks)
    observed = observe(tmp_path, page.render_results([run], {}), 1280, script=ICICLE)
    width = observed["width"]
    assert observed["all"]["all\n9.77 KiB, 100% of all"] == pytest.approx(width, abs=1)
    assert observed["all"]["new TLABs\n5.86 KiB, 60% of all"] == pytest.approx(width * 0.6, abs=1)
    assert observed["all"]["int[]\n1000 B, 10% of all"] == pytest.approx(width * 0.1, abs=1)
    assert {"frame jdk", "frame netty", "frame other", "frame class"} <= set(observed["kinds"])
    assert "Thread.run" in " ".join(observed["texts"])
    assert observed["down"] == "new TLABs: 5.86 KiB, 60% of all"
    assert observed["right"] == "outside TLABs: 3.91 KiB, 40% of all"
    assert observed["deeper"] == f"io.netty.Buffers.{HOSTILE}: 2.93 KiB, 30% of all"
    assert observed["zoomed"] == observed["deeper"]
    # Its callers stay above it with the same width; its siblings are gone.
    assert observed["parts"]["outside TLABs\n3.91 KiB, 40% of all"] == pytest.approx(width, abs=1)
    assert "int[]\n1000 B, 10% of all" not in observed["parts"]
    assert observed["up"] == "java.lang.Thread.run: 3.91 KiB, 40% of all"
    assert observed["again"] == observed["all"]
    assert observed["clicked"]["new TLABs\n5.86 KiB, 60% of all"] == pytest.approx(width, abs=1)
    assert observed["bold"] == 0
    assert observed["wide"] <= 0
