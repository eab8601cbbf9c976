// The charts of a page: the series of a run on one time axis, zoomed together. Everything comes from the data on the page.
"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const LEFT = 58, RIGHT = 28, TOP = 22, HEIGHT = 120, AXIS = 22;
  const data = JSON.parse(document.getElementById("data").textContent);

  const element = (parent, tag, attributes, text) => {
    const node = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== undefined) node.textContent = text; // never innerHTML: names may hold markup
    parent.append(node);
    return node;
  };

  const short = (value) =>
    value >= 1e9 ? `${+(value / 1e9).toPrecision(3)} G`
      : value >= 1e6 ? `${+(value / 1e6).toPrecision(3)} M`
        : value >= 1e4 ? `${+(value / 1e3).toPrecision(3)} k` : `${+value.toPrecision(3)}`;

  const size = (bytes) => {
    const power = Math.min(Math.floor(Math.log2(Math.max(bytes, 1)) / 10), 4);
    return `${+(bytes / 1024 ** power).toPrecision(3)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
  };
  const format = (value, line) => line.bytes ? size(value) : short(value);

  // A round step of the axis: 1, 2 or 5 times a power of ten, at most `most` of them.
  const step = (span, most) => {
    const power = 10 ** Math.floor(Math.log10(span / most));
    return power * [1, 2, 5, 10].find((times) => times * power * most >= span);
  };

  const nearest = (points, at, within) => {
    let best = null;
    for (const point of points) if (!best || Math.abs(point[0] - at) < Math.abs(best[0] - at)) best = point;
    return best && Math.abs(best[0] - at) <= within ? best : null;
  };

  class Chart {
    constructor(figure, run) {
      this.run = run;
      this.full = [run.from, run.to];
      this.span = [...this.full];
      this.svg = figure.querySelector("svg");
      this.readout = figure.querySelector(".readout");
      this.hint = this.readout.textContent;
      this.svg.addEventListener("keydown", (event) => this.key(event));
      this.svg.addEventListener("pointerdown", (event) => this.press(event));
      this.svg.addEventListener("pointermove", (event) => this.point(event));
      this.svg.addEventListener("pointerup", (event) => this.release(event));
      this.svg.addEventListener("pointercancel", () => { this.pressed = undefined; this.draw(); });
      this.svg.addEventListener("pointerleave", () => { this.readout.textContent = this.hint; });
      this.svg.addEventListener("dblclick", () => this.zoom(...this.full));
      new ResizeObserver(() => this.draw()).observe(figure);
    }

    x(at) { return LEFT + ((at - this.span[0]) / (this.span[1] - this.span[0])) * this.width; }
    at(x) { return this.span[0] + ((x - LEFT) / this.width) * (this.span[1] - this.span[0]); }
    place(event) {
      const x = event.clientX - this.svg.getBoundingClientRect().left;
      return this.at(Math.min(Math.max(x, LEFT), LEFT + this.width));
    }

    zoom(from, to) {
      const length = Math.min(Math.max(to - from, 0.05), this.full[1] - this.full[0]);
      const begin = Math.min(Math.max(from, this.full[0]), this.full[1] - length);
      this.span = [begin, begin + length];
      this.draw();
    }

    key(event) {
      const [from, to] = this.span, quarter = (to - from) / 4;
      const moves = {
        "+": [from + quarter, to - quarter], "=": [from + quarter, to - quarter], "-": [from - 2 * quarter, to + 2 * quarter],
        ArrowLeft: [from - quarter, to - quarter], ArrowRight: [from + quarter, to + quarter], 0: this.full, Escape: this.full,
      };
      if (!moves[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      this.zoom(...moves[event.key]);
      this.readout.textContent = `${short(this.span[0])} s to ${short(this.span[1])} s`;
    }

    press(event) {
      if (event.button !== 0 || event.pointerType === "touch") return;
      this.pressed = this.place(event);
      this.svg.setPointerCapture(event.pointerId);
    }

    release(event) {
      const began = this.pressed;
      this.pressed = undefined;
      if (began === undefined) return;
      const ends = [began, this.place(event)].sort((a, b) => a - b);
      if (this.x(ends[1]) - this.x(ends[0]) > 5) this.zoom(...ends);
      else this.draw();
    }

    point(event) {
      const at = this.place(event), reach = Math.max(1, (this.span[1] - this.span[0]) / 100);
      const nearby = this.run.panels.flatMap((panel) => panel.lines.map((line) => [line, nearest(line.points, at, reach)]));
      const faults = this.run.faults.filter((fault) => fault.from <= at && at <= fault.to).map((fault) => fault.kind);
      const stalls = this.run.stalls.filter((stall) => stall.from <= at && at <= stall.to).map((stall) => `stall: ${stall.cause}`);
      const values = nearby.filter(([, point]) => point).map(([line, point]) => `${line.name} ${format(point[1], line)}`);
      this.readout.textContent = [`${short(at)} s`, ...values, ...faults, ...stalls].join(" · ");
      if (this.pressed === undefined) return;
      const [left, right] = [this.x(this.pressed), this.x(at)].sort((a, b) => a - b);
      this.chosen.setAttribute("x", left);
      this.chosen.setAttribute("width", right - left);
    }

    draw() {
      this.width = Math.max(this.svg.clientWidth - LEFT - RIGHT, 50);
      const panelHeight = TOP + HEIGHT, height = panelHeight * this.run.panels.length + AXIS;
      this.svg.replaceChildren();
      this.svg.setAttribute("viewBox", `0 0 ${this.width + LEFT + RIGHT} ${height}`);
      this.svg.style.height = `${height}px`;
      element(this.svg, "title", {}, this.run.title);
      this.run.panels.forEach((panel, number) => {
        const name = `clip-${data.runs.indexOf(this.run)}-${number}`, y = number * panelHeight + TOP;
        element(element(this.svg, "clipPath", { id: name }), "rect", { x: LEFT, y, width: this.width, height: HEIGHT - 8 });
        this.panel(panel, y, name, number === 0);
      });
      const size = step(this.span[1] - this.span[0], Math.max(2, this.width / 90));
      for (let number = Math.ceil(this.span[0] / size); number <= this.span[1] / size + 1e-6; number++) {
        const at = number * size; // a sum would end near 0, not at it
        element(this.svg, "text", { x: this.x(at), y: height - 5, "text-anchor": "middle" }, `${+at.toPrecision(6)} s`);
      }
      this.chosen = element(this.svg, "rect", { class: "chosen", x: 0, y: 0, width: 0, height });
    }

    // Names of spans in one line, once per name, at the start of the span, or further left at the edge. A name that
    // would lie on another is left out: the pointer tells it.
    names(kind, y, spans) {
      const taken = new Map();
      for (const [at, text] of spans) {
        const left = this.x(at);
        if (left < LEFT || left >= LEFT + this.width || taken.has(text)) continue;
        const label = element(this.svg, "text", { class: kind, y }, text), wide = label.getComputedTextLength();
        const begin = Math.max(Math.min(left + 3, LEFT + this.width - wide), LEFT);
        label.setAttribute("x", begin);
        if ([...taken.values()].some(([from, to]) => begin < to + 6 && from < begin + wide + 6)) label.remove();
        else taken.set(text, [begin, begin + wide]);
      }
    }

    panel(panel, top, clip, first) {
      const bottom = top + HEIGHT - 10, [from, to] = this.span;
      // A line that crosses the span may have its points outside it.
      const visible = panel.lines.flatMap(({ kind, points }) => points.filter(([at], place) => kind === "bars"
        ? from <= at && at <= to : (points[place + 1]?.[0] ?? at + 1) >= from && (points[place - 1]?.[0] ?? at) <= to));
      const most = Math.max(...visible.map(([, value]) => value), 0) * 1.1 || 1;
      const y = (value) => bottom - (value / most) * (bottom - top);
      for (const fault of this.run.faults) {
        const left = this.x(fault.from), width = Math.max(this.x(fault.to) - left, 2);
        element(this.svg, "rect", { class: "fault", x: left, y: top, width, height: bottom - top, "clip-path": `url(#${clip})` });
      }
      for (const stall of this.run.stalls) {
        const left = this.x(stall.from), width = Math.max(this.x(stall.to) - left, 2);
        element(this.svg, "rect", { class: "stall", x: left, y: top, width, height: bottom - top, "clip-path": `url(#${clip})` });
      }
      if (first) {
        this.names("kind", top + 12, this.run.faults.map((fault) => [fault.from, fault.kind]));
        const longest = [...this.run.stalls].sort((a, b) => b.to - b.from - (a.to - a.from));
        this.names("cause", top + 26, longest.map((stall) => [stall.from, stall.cause]));
      }
      if (this.span[0] < 0) {
        const end = Math.min(this.x(0), LEFT + this.width);
        element(this.svg, "rect", { class: "warm-up", x: LEFT, y: top, width: Math.max(end - LEFT, 0), height: bottom - top });
        const free = this.run.faults.every((fault) => this.x(fault.from) > LEFT + 60 || fault.to < this.span[0]);
        if (first && free && end > LEFT) element(this.svg, "text", { x: LEFT + 3, y: top + 12 }, "warm-up");
      }
      const distance = panel.lines[0].bytes ? 2 ** Math.ceil(Math.log2(most / 3)) : step(most, 3);
      for (let value = 0; value <= most; value += distance) {
        element(this.svg, "line", { class: "rule", x1: LEFT, x2: LEFT + this.width, y1: y(value), y2: y(value) });
        element(this.svg, "text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, format(value, panel.lines[0]));
      }
      element(this.svg, "text", { class: "head", x: LEFT, y: top - 7 }, panel.title);
      for (const line of panel.lines) {
        let path = "", before = -Infinity;
        for (const [at, value] of line.points) {
          const follows = at - before <= 1.5;
          before = at;
          if (line.kind === "bars") path += `M${this.x(at)},${bottom}V${y(value)}`;
          else if (line.kind === "steps") path += `${follows ? "L" : "M"}${this.x(at)},${y(value)}H${this.x(at + 1)}`;
          // A second without an answer is a hole in the line: nothing was measured there.
          else if (line.kind === "seconds") path += `${follows ? "L" : "M"}${this.x(at + 0.5)},${y(value)}`;
          else path += `${path ? "L" : "M"}${this.x(at)},${y(value)}`;
        }
        element(this.svg, "path", { class: `line ${line.colour}`, d: path, "clip-path": `url(#${clip})` });
      }
    }
  }

  // Allocations by stack: a frame is below its caller and as wide as its bytes, the widest first.
  class Icicle {
    static ROW = 18;

    constructor(figure, graph) {
      this.figure = figure;
      this.title = `${graph.title}: allocations by stack`;
      this.svg = figure.querySelector("svg");
      this.readout = figure.querySelector(".readout");
      const path = [];
      this.frames = graph.nodes.map(([depth, name, bytes], number) => {
        const parent = path[depth - 1];
        const frame = { name: data.flames.names[name], number, depth, bytes, parent, begin: parent ? parent.taken : 0, children: [] };
        frame.taken = frame.begin; // up to where children were put
        if (parent) { parent.taken += bytes; parent.children.push(frame); }
        path[depth] = frame;
        return frame;
      });
      [this.chosen] = [this.top] = this.frames;
      this.svg.addEventListener("keydown", (event) => this.key(event));
      this.svg.addEventListener("click", (event) => {
        const frame = this.frames[event.target.closest("g")?.dataset.frame];
        if (frame) this.zoom(frame);
      });
      new ResizeObserver(() => this.draw()).observe(figure);
    }

    zoom(frame) {
      this.top = this.chosen = frame;
      this.draw();
      this.tell();
    }

    tell() {
      const { name, bytes } = this.chosen, all = this.frames[0].bytes;
      this.readout.textContent = `${name}: ${size(bytes)}, ${share(bytes / all)} of all`;
    }

    key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const at = this.chosen, beside = (at.parent?.children ?? [at]).filter((frame) => this.fits(frame)), place = beside.indexOf(at);
      const moves = {
        ArrowDown: () => at.children.find((frame) => this.fits(frame)), ArrowUp: () => at.parent,
        ArrowLeft: () => beside[place - 1], ArrowRight: () => beside[place + 1],
      };
      if (event.key === "Enter" || event.key === " ") this.zoom(at);
      else if (event.key === "0" || event.key === "Escape") this.zoom(this.frames[0]);
      else if (moves[event.key]) {
        this.chosen = moves[event.key]() ?? at;
        this.draw();
        this.tell();
        this.svg.querySelector(".chosen-frame")?.scrollIntoView({ block: "nearest" });
      } else return;
      event.preventDefault();
    }

    // Left edge and width of a frame in pixels. Callers of the zoomed frame are as wide as it.
    span(frame) {
      const scale = this.width / this.top.bytes;
      const left = Math.max((frame.begin - this.top.begin) * scale, 0);
      const right = Math.min((frame.begin + frame.bytes - this.top.begin) * scale, this.width);
      return [left, right - left];
    }

    fits(frame) { return this.span(frame)[1] >= 0.5; }

    draw() {
      if (!this.svg.clientWidth) return; // closed
      this.width = this.svg.clientWidth;
      const shown = this.frames.filter((frame) => this.fits(frame));
      const height = (Math.max(...shown.map((frame) => frame.depth)) + 1) * Icicle.ROW + 2;
      this.svg.replaceChildren();
      this.svg.setAttribute("viewBox", `0 0 ${this.width} ${height}`);
      this.svg.style.height = `${height}px`;
      element(this.svg, "title", {}, this.title);
      for (const frame of shown) {
        const [left, wide] = this.span(frame), y = frame.depth * Icicle.ROW + 1;
        const kind = `frame ${this.kind(frame)}${frame.depth < this.top.depth ? " above" : ""}`;
        const group = element(this.svg, "g", { class: frame === this.chosen ? `${kind} chosen-frame` : kind, "data-frame": frame.number });
        element(group, "title", {}, `${frame.name}\n${size(frame.bytes)}, ${share(frame.bytes / this.frames[0].bytes)} of all`);
        element(group, "rect", { x: left, y, width: Math.max(wide - 0.5, 0.5), height: Icicle.ROW - 1 });
        const label = fitted(frame.name, Math.floor((wide - 6) / 6.9));
        if (label) element(group, "text", { x: left + 3, y: y + 13 }, label);
      }
    }

    kind(frame) {
      if (frame.name.startsWith("(")) return "merged";
      if (frame.depth < 2) return "whole";
      if (!frame.children.length) return "class"; // the last frame of a stack
      if (frame.name.startsWith("io.netty.")) return "netty";
      if (frame.name.startsWith("org.apache.lucene.")) return "lucene";
      return /^(javax?|jdk|sun|com\.sun)\./.test(frame.name) ? "jdk" : "other";
    }
  }

  const share = (part) => `${+(part * 100).toPrecision(3)}%`;

  // The name in at most that many letters: complete, without its package, or its beginning.
  const fitted = (name, letters) => {
    if (letters < 3) return "";
    const bare = name.replace(/^(?:[a-z0-9_]+\.)+(?=[A-Z])/, "");
    return [name, bare].find((text) => text.length <= letters) ?? `${bare.slice(0, letters - 1)}…`;
  };

  for (const figure of document.querySelectorAll("figure[data-flames]")) {
    new Icicle(figure, data.flames.graphs[+figure.dataset.flames]);
  }
  for (const figure of document.querySelectorAll("figure[data-run]")) new Chart(figure, data.runs[+figure.dataset.run]);
})();
