// Loss curves of several runs as one SVG: zoom by dragging, values under the pointer or by keys, a legend that hides.
// Every line has a colour for colour-blind readers and its own dash, like the figures of a report.
import { byId, duration, el, number, replace, say, svg } from "./page.js";
import { scale, short } from "./scale.js";

const KINDS = { val: "validation", train: "training" };
const DASHES = ["", "7 3", "2 3", "9 3 2 3", "12 3", "4 2 1 2", "1 4"];
const COLOURS = 7;
// Measure -> the kind of line that has it; the loss has both.
const MEASURES = { loss: null, accuracy: "val", learning_rate: "train", tokens_per_second: "train", cores: "train" };
const SMOOTHING = [0, 0.6, 0.9, 0.98];
const MARGIN = { top: 26, right: 22, bottom: 34, left: 50 };
const LISTED = 14; // values listed next to the pointer

export class Chart {
  // `series`: [{id, name, arm}]; `fine(id, first, last)` returns a part of a curve with more points.
  constructor(box, series, fine) {
    this.series = looks(series).map((one) => ({ ...one, data: empty(), part: null, hidden: false }));
    this.fine = fine;
    this.view = { x: "step", y: "loss", smooth: 0, log: false, val: true, train: series.length === 1, steep: false };
    this.zoom = null; // [first, last] on the x axis
    this.cursor = null; // where values are read, on the x axis
    this.drag = null;
    this.box = box;
    this.picture = svg("svg", { tabindex: 0, role: "img", class: "plot" });
    this.tooltip = el("div", { class: "tooltip", role: "status", hidden: true });
    this.notes = el("p", { class: "soft notes" });
    this.keys = el("div", { class: "legend", role: "group" });
    replace(box, this.controls(), el("div", { class: "canvas" }, this.picture, this.tooltip), this.keys, this.notes,
      el("p", { class: "soft hint" }, say("plot_hint")));
    this.legend();
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.picture);
  }

  // ---- data

  take(id, answer) {
    const one = this.series.find((found) => found.id === id);
    for (const kind of Object.keys(KINDS)) {
      const fresh = points(answer[kind]);
      one.data[kind] = answer.whole ? fresh : one.data[kind].concat(fresh);
    }
    this.offerMeasures();
    if (this.zoom) this.refine();
    this.draw();
  }

  // Offer the measures that some run has.
  offerMeasures() {
    const has = (measure) => this.series.some((one) => Object.values(one.data).some((line) => line.some((p) => !Number.isNaN(p[measure]))));
    const found = Object.keys(MEASURES).filter((measure) => measure === "loss" || has(measure));
    if (found.length === this.measure.options.length) return;
    replace(this.measure, found.map((measure) => el("option", { value: measure, selected: measure === this.view.y }, say(`plot_${measure}`))));
    this.measure.parentNode.hidden = found.length < 2;
  }

  async refine() {
    const zoom = this.zoom;
    for (const one of this.series) {
      const steps = Object.values(one.data).flat().filter((p) => p[this.view.x] >= zoom[0] && p[this.view.x] <= zoom[1]).map((p) => p.step);
      if (!steps.length) continue;
      const answer = await this.fine(one.id, Math.min(...steps), Math.max(...steps));
      if (this.zoom !== zoom) return;
      one.part = { val: points(answer.val), train: points(answer.train) };
    }
    this.draw();
  }

  look(first, last) {
    const [low, high] = this.extent();
    const [a, b] = [Math.max(low, Math.min(first, last)), Math.min(high, Math.max(first, last))];
    if (!(b > a)) return;
    this.zoom = a <= low && b >= high ? null : [a, b];
    for (const one of this.series) one.part = null;
    if (this.zoom) this.refine();
    this.draw();
  }

  reset() {
    this.zoom = null;
    for (const one of this.series) one.part = null;
    this.draw();
  }

  // ---- the visible part

  lines() {
    return this.series.filter((one) => !one.hidden).flatMap((one) =>
      Object.keys(KINDS).filter((kind) => (MEASURES[this.view.y] ? MEASURES[this.view.y] === kind : this.view[kind]))
        .map((kind) => ({ one, kind, points: this.smoothed((one.part ?? one.data)[kind]), all: one.data[kind] })));
  }

  // Every point with its value of the chosen measure, as an exponential mean over the points before it.
  smoothed(found) {
    const { y, smooth } = this.view;
    let mean = NaN;
    return found.filter((p) => y === "loss" || !Number.isNaN(p[y])).map((p) => {
      mean = Number.isFinite(mean) && Number.isFinite(p[y]) ? smooth * mean + (1 - smooth) * p[y] : p[y];
      return { ...p, value: mean };
    });
  }

  extent() {
    let [low, high] = [Infinity, -Infinity];
    for (const { all } of this.lines()) for (const p of all) { low = Math.min(low, p[this.view.x]); high = Math.max(high, p[this.view.x]); }
    return [low, high];
  }

  heights([first, last]) {
    // In its first fifth a curve falls so steeply that nothing else would be visible.
    const start = this.zoom || this.view.steep || this.view.y !== "loss" ? first : last / 5;
    let [low, high] = [Infinity, -Infinity];
    for (const { points: found } of this.lines()) for (const p of found) {
      const inside = p[this.view.x] >= first && p[this.view.x] <= last && Number.isFinite(p.value) && !(this.view.log && p.value <= 0);
      if (!inside) continue;
      low = Math.min(low, p.value);
      if (p[this.view.x] >= start) high = Math.max(high, p.value);
    }
    if (!(high >= low)) high = low;
    const pad = 0.06 * (high - low) || 0.05 * Math.abs(high) || 1;
    return this.view.log ? [low / 1.02, high * 1.02] : [low - pad, high + pad];
  }

  draw() {
    const width = this.picture.clientWidth;
    if (!width) return;
    const height = Math.round(Math.max(240, Math.min(420, width * 0.5)));
    const range = this.zoom ?? this.extent();
    this.picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.picture.setAttribute("height", height);
    this.picture.setAttribute("aria-label", say("plot_label", { y: say(`plot_${this.view.y}`), x: say(`axis_${this.view.x}`), n: this.lines().length }));
    byId("reset").hidden = !this.zoom;
    this.noteDivergence();
    const [low, high] = Number.isFinite(range[0]) ? this.heights(range) : [NaN, NaN];
    if (!Number.isFinite(low)) {
      this.axes = null;
      replace(this.picture, svg("text", { x: width / 2, y: height / 2, class: "label", "text-anchor": "middle" }, say("no_curve")));
      return;
    }
    const last = range[1] > range[0] ? range[1] : range[0] + 1;
    const x = scale(range[0], last, MARGIN.left, width - MARGIN.right);
    const y = scale(low, high, height - MARGIN.bottom, MARGIN.top, this.view.log);
    this.axes = { x, y, width, height };
    const clip = svg("clipPath", { id: "inside" }, svg("rect", { x: MARGIN.left, y: MARGIN.top - 4, width: Math.max(0, width - MARGIN.left - MARGIN.right + 4), height: height - MARGIN.top - MARGIN.bottom + 8 }));
    const drawn = this.lines().sort((a, b) => (a.kind === "val") - (b.kind === "val")).map((line) => this.path(line));
    this.marks = svg("g", { class: "marks" });
    replace(this.picture, svg("defs", {}, clip), this.grid(), svg("g", { "clip-path": "url(#inside)" }, drawn), this.marks);
    this.tell();
  }

  grid() {
    const { x, y, width, height } = this.axes;
    const bottom = height - MARGIN.bottom;
    const parts = [];
    for (const tick of y.ticks(height / 60))
      parts.push(svg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(tick), y2: y(tick) }),
        svg("text", { class: "tick", x: MARGIN.left - 8, y: y(tick) + 4, "text-anchor": "end" }, short(tick)));
    for (const tick of x.ticks(width / 110))
      parts.push(svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: bottom, y2: bottom + 4 }),
        svg("text", { class: "tick", x: x(tick), y: bottom + 17, "text-anchor": "middle" }, short(tick)));
    parts.push(svg("text", { class: "label", x: 0, y: 12 }, say(`plot_${this.view.y}`)),
      svg("text", { class: "label", x: width - MARGIN.right, y: height - 2, "text-anchor": "end" }, say(`axis_${this.view.x}`)));
    return svg("g", {}, parts);
  }

  path({ one, kind, points: found }) {
    const { x, y } = this.axes;
    let pen = "M";
    let path = "";
    for (const p of found) {
      if (!Number.isFinite(p.value) || (this.view.log && p.value <= 0)) { pen = "M"; continue; } // a gap, explained below the chart
      path += `${pen}${x(p[this.view.x]).toFixed(1)},${y(p.value).toFixed(1)}`;
      pen = "L";
    }
    if (found.length === 1 && path) path += "h0.01"; // one point is a dot
    return svg("path", { d: path, class: `line ${kind} c${one.colour}`, "stroke-dasharray": DASHES[one.dash], "data-run": one.id });
  }

  // ---- values under the pointer

  tell() {
    if (!this.axes || this.cursor === null || this.drag?.moved) { this.tooltip.hidden = true; this.marks?.replaceChildren(); return; }
    const { x, y, width, height } = this.axes;
    const close = this.lines().map((line) => nearest(line.points, this.view.x, this.cursor)?.[this.view.x]).filter((found) => found !== undefined);
    if (!close.length) return;
    // Show the values at the measured point that is nearest to the pointer.
    const place = close.reduce((a, b) => (Math.abs(b - this.cursor) < Math.abs(a - this.cursor) ? b : a));
    const values = this.lines().map((line) => ({ ...line, point: nearest(line.points, this.view.x, place) })).filter(({ point }) => point)
      .sort((a, b) => a.point.value - b.point.value);
    const at = Math.min(Math.max(x(place), MARGIN.left), width - MARGIN.right);
    const dots = values.filter(({ point }) => Number.isFinite(point.value)).map(({ one, point }) =>
      svg("circle", { class: `dot c${one.colour}`, r: 3.5, cx: x(point[this.view.x]), cy: y(point.value), "clip-path": "url(#inside)" }));
    replace(this.marks, svg("line", { class: "cursor", x1: at, x2: at, y1: MARGIN.top, y2: height - MARGIN.bottom }), dots);
    const several = this.view.val && this.view.train;
    const list = values.slice(0, LISTED).map(({ one, kind, point }) => el("div", {},
      swatch(one), el("span", { class: "name" }, several ? `${one.name} · ${say(KINDS[kind])}` : one.name), el("b", {}, number(point.value))));
    const where = this.view.x === "step" ? `${say("axis_step")} ${number(place)}` : duration(place);
    replace(this.tooltip, el("div", { class: "at" }, where), list, values.length > LISTED ? el("div", {}, "…") : null);
    this.tooltip.hidden = false;
    const room = this.tooltip.offsetWidth + 14;
    this.tooltip.style.left = `${at + room < width ? at + 12 : Math.max(0, at - room)}px`;
    this.tooltip.style.top = `${MARGIN.top + 4}px`;
  }

  noteDivergence() {
    const found = [];
    for (const { one, kind, all } of this.lines()) {
      const bad = all.find((p) => !Number.isFinite(p.loss));
      if (bad) found.push(say("diverged", { run: one.name, kind: say(KINDS[kind]), step: number(bad.step) }));
    }
    this.notes.textContent = found.join("; ");
  }

  // ---- controls

  controls() {
    const choice = (name, options) => el("span", { class: "choice", role: "group" }, options.map(([value, word]) =>
      el("button", { type: "button", "aria-pressed": String(this.view[name] === value), onclick: (event) => {
        this.view[name] = value;
        for (const button of event.target.parentNode.children) button.setAttribute("aria-pressed", String(button === event.target));
        if (name === "x") { this.cursor = null; this.reset(); } else this.draw();
      } }, say(word))));
    const check = (name, word) => {
      const input = el("input", { type: "checkbox", onchange: (event) => { this.view[name] = event.target.checked; this.draw(); } });
      input.checked = this.view[name];
      return el("label", { class: "check" }, input, " ", say(word));
    };
    const select = (name, word, options) => el("label", { class: "check" }, say(word), " ", el("select", { onchange: (event) => {
      this.view[name] = name === "smooth" ? Number(event.target.value) : event.target.value;
      this.draw();
    } }, options.map(([value, text]) => el("option", { value }, text))));
    const measure = select("y", "measure", [["loss", say("plot_loss")]]);
    measure.hidden = true;
    this.measure = measure.querySelector("select");
    return el("div", { class: "controls" }, measure, select("smooth", "smoothing", SMOOTHING.map((n) => [n, n ? String(n) : say("off")])), choice("x", [["step", "axis_step"], ["seconds", "axis_seconds"]]), choice("log", [[false, "linear"], [true, "log"]]),
      check("val", "validation"), check("train", "training"), check("steep", "steep"),
      el("button", { type: "button", id: "reset", class: "button", hidden: true, onclick: () => this.reset() }, say("whole")));
  }

  legend() {
    replace(this.keys, this.series.map((one) => el("button", { type: "button", "aria-pressed": "true", onclick: (event) => {
      one.hidden = !one.hidden;
      event.currentTarget.setAttribute("aria-pressed", String(!one.hidden));
      this.draw();
    } }, swatch(one), one.name)));
  }

  listen() {
    const at = (event) => this.axes.x.back(event.clientX - this.picture.getBoundingClientRect().left);
    const on = (name, action) => this.picture.addEventListener(name, (event) => this.axes && action(event));
    on("pointerdown", (event) => {
      if (event.button) return;
      this.picture.setPointerCapture(event.pointerId);
      this.drag = { from: at(event), pixel: event.clientX, moved: false };
    });
    on("pointermove", (event) => {
      this.cursor = at(event);
      if (this.drag) {
        this.drag.moved ||= Math.abs(event.clientX - this.drag.pixel) > 5;
        if (this.drag.moved) return this.band(this.drag.from, this.cursor);
      }
      this.tell();
    });
    on("pointerup", (event) => {
      const { from, moved } = this.drag ?? {};
      this.drag = null;
      if (moved) this.look(from, at(event));
    });
    on("pointercancel", () => { this.drag = null; this.draw(); });
    on("pointerleave", () => { if (!this.drag) { this.cursor = null; this.tell(); } });
    on("dblclick", () => this.reset());
    on("blur", () => { this.cursor = null; this.tell(); });
    on("keydown", (event) => this.key(event));
  }

  band(from, to) {
    const { x, width, height } = this.axes;
    const [a, b] = [Math.max(MARGIN.left, Math.min(x(from), x(to))), Math.min(width - MARGIN.right, Math.max(x(from), x(to)))];
    this.tooltip.hidden = true;
    replace(this.marks, svg("rect", { class: "band", x: a, y: MARGIN.top, width: Math.max(0, b - a), height: height - MARGIN.top - MARGIN.bottom }));
  }

  key(event) {
    const [first, last] = this.zoom ?? this.extent();
    const span = last - first;
    const middle = Math.min(last, Math.max(first, this.cursor ?? (first + last) / 2));
    const zoom = (factor) => this.look(middle - (middle - first) * factor, middle + (last - middle) * factor);
    const move = (share) => { this.cursor = Math.min(last, Math.max(first, middle + share * span)); this.tell(); };
    const actions = { ArrowLeft: () => move(-0.02), ArrowRight: () => move(0.02), "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => this.reset(), Escape: () => this.reset() };
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in actions)) return;
    event.preventDefault();
    actions[event.key]();
  }
}

const empty = () => ({ val: [], train: [] });
const OTHERS = ["accuracy", "learning_rate", "tokens_per_second"];
function points(columns) {
  let before = null;
  return columns.step.map((step, n) => {
    const read = (name) => (columns[name] ? Number(columns[name][n]) : NaN);
    const p = { step, loss: Number(columns.loss[n]), seconds: Number(columns.seconds[n]), processor: read("processor_seconds") };
    for (const name of OTHERS) p[name] = read(name);
    // Processor seconds per second: the cores that the process kept busy since the point before.
    p.cores = before && p.seconds > before.seconds ? (p.processor - before.processor) / (p.seconds - before.seconds) : NaN;
    before = p;
    return p;
  });
}

// One colour per arm and one dash per line; no two lines share both as long as there are enough.
function looks(series) {
  const several = new Set(series.map((one) => one.arm)).size > 1;
  const key = (one) => (several ? one.arm : one.id); // within one arm every run has a colour of its own
  const arms = [...new Set(series.map(key))];
  const met = new Map();
  return series.map((one) => {
    const arm = arms.indexOf(key(one));
    const place = met.get(arm) ?? 0;
    met.set(arm, place + 1);
    return { ...one, colour: arm % COLOURS, dash: (arm + place + Math.floor(arm / COLOURS)) % DASHES.length };
  });
}

export const swatch = (one) => svg("svg", { class: "swatch", width: 26, height: 8, "aria-hidden": "true" },
  svg("path", { d: "M1,4H25", class: `line val c${one.colour}`, "stroke-dasharray": DASHES[one.dash] }));

function nearest(found, axis, where) {
  let [low, high] = [0, found.length - 1];
  if (high < 0) return null;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (found[middle][axis] < where) low = middle;
    else high = middle;
  }
  return Math.abs(found[low][axis] - where) <= Math.abs(found[high][axis] - where) ? found[low] : found[high];
}
