// Small charts of the last minutes, one point a second.

const POINTS = 180;
const SPANS = [30, 60, 120, POINTS]; // seconds that a chart may cover
const WIDTH = 360;
const HEIGHT = 72;
const STEPS = [1, 2, 4, 5, 10]; // where a scale may end, times a power of ten: half of it is round too

const perSecond = (value) => (value === null ? NOTHING : `${number(value)}/s`);

const quantileSeries = ["p50", "p99"].map((name) => [name, (value) => `${name} ${milliseconds(value)}`]);

// What is drawn, of the server and of a model: the title, how the scale is written, and each line's name and legend.
const CHARTS = {
  requests: ["Requests per second", number, ["all", perSecond], ["failed", (value) => `${number(value)} failed`]],
  latency: ["Latency", milliseconds, ...quantileSeries],
  queue: ["Queue / in flight", number, ["queued", (value) => `${number(value)} queued`],
    ["in flight", (value) => `${number(value)} in flight`]],
  batch: ["Mean batch size", number, ["size", number]],
  batches: ["Batches per second", number, ["batches", perSecond]],
  cache: ["Cache hit rate", percent, ["hits", percent]],
  cpu: ["CPU", number, ["cores", (value) => `${number(value)} ${value === 1 ? "core" : "cores"}`]],
  memory: ["Memory", bytes, ["process", (value) => `process ${bytes(value)}`],
    ["requests", (value) => `requests ${bytes(value)}`]],
  firstToken: ["Time to first token", milliseconds, ...quantileSeries],
  betweenTokens: ["Time between tokens", milliseconds, ...quantileSeries],
  firstResponse: ["Time to first response", milliseconds, ...quantileSeries],
  betweenResponses: ["Time between responses", milliseconds, ...quantileSeries],
  tokens: ["Tokens per second", number, ["generated", (value) => `${number(value)} generated`],
    ["prompts", (value) => `${number(value)} of prompts`]],
  sequences: ["Running / waiting outputs", number, ["running", (value) => `${number(value)} running`],
    ["waiting", (value) => `${number(value)} waiting`]],
  kvCache: ["KV cache", percent, ["use", percent]],
};
const SERVER_CHARTS = ["requests", "latency", "queue", "batch", "batches", "cache", "cpu", "memory"];
const SHARES = new Set(["cache", "kvCache"]); // their scale is always the same

// The round number at or above a value at which its scale ends.
function topOf(most) {
  const power = 10 ** Math.floor(Math.log10(most));
  return power * STEPS.find((step) => step * power >= most * 0.9999);
}

class Chart {
  constructor(kind) {
    const [title, show, ...series] = CHARTS[kind];
    this.title = title;
    this.show = show;
    this.series = series;
    this.lines = series.map(() => []);
    this.fixed = SHARES.has(kind) ? 1 : 0;
    this.top = 1;
    this.at = -1;
    this.when = element("span", { class: "soft" });
    this.values = series.map(() => element("span"));
    this.ticks = [0, 1, 2].map(() => element("span"));
    this.times = [0, 1].map(() => element("span"));
    // A slider over the points, so that the arrow keys read them as the pointer does.
    this.svg = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "slider", tabindex: 0 });
    this.under = drawn("path", { class: "under" });
    this.paths = series.map((_, index) => drawn("path", { class: `line ${"ab"[index]}` }));
    this.dots = series.map((_, index) => drawn("path", { class: `dots line ${"ab"[index]}` })); // values between two gaps
    this.cursor = drawn("line", { class: "cursor", y1: 0, y2: HEIGHT, visibility: "hidden" });
    const across = [0.5, HEIGHT / 2, HEIGHT - 0.5].map((y) => drawn("line", { class: "grid", x1: 0, x2: WIDTH, y1: y, y2: y }));
    const down = [0.5, WIDTH / 2, WIDTH - 0.5].map((x) => drawn("line", { class: "grid", x1: x, x2: x, y1: 0, y2: HEIGHT }));
    this.svg.append(...across, ...down, this.under, ...this.paths, ...this.dots, this.cursor);
    this.element = element("figure", { class: "chart" },
      element("figcaption", {}, element("span", {}, title),
        element("span", { class: "legend" }, this.when, ...this.values.map((value, index) => element("span", {},
          ...(series.length > 1 ? [element("i", { class: `key ${"ab"[index]}` })] : []), value)))),
      element("div", { class: "plot" }, element("div", { class: "ticks", "aria-hidden": "true" }, ...this.ticks), this.svg,
        element("div", { class: "times", "aria-hidden": "true" }, ...this.times, element("span", {}, "now"))));
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.moveTo(-1));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.svg.addEventListener("blur", () => this.moveTo(-1));
    this.label();
  }

  push(values) {
    values.forEach((value, index) => {
      this.lines[index].push(value);
      if (this.lines[index].length > POINTS) {
        this.lines[index].shift();
      }
    });
  }

  fill(rows) {
    this.lines = this.series.map((_, index) => rows.map((row) => row[index]));
  }

  draw() {
    const values = this.lines.flat().filter((value) => value !== null);
    this.top = this.fixed || topOf(Math.max(...values, 0) || 1);
    this.lines.forEach((line, index) => {
      const alone = line.map((value, at) => ((line[at - 1] ?? null) === null && (line[at + 1] ?? null) === null ? value : null));
      this.paths[index].setAttribute("d", this.path(line));
      this.dots[index].setAttribute("d", this.path(alone));
    });
    const area = this.path(this.lines[0]);
    const closed = area && !this.lines[0].includes(null);
    this.under.setAttribute("d", closed
      ? `${area}L${WIDTH},${HEIGHT}L${this.x(this.lines[0], 0)},${HEIGHT}Z` : "");
    [this.top, this.top / 2, 0].forEach((value, index) => write(this.ticks[index], values.length ? this.show(value) : ""));
    [this.span, this.span / 2].forEach((seconds, index) => write(this.times[index],
      seconds % 60 ? `−${seconds} s` : `−${seconds / 60} min`));
    this.read();
  }

  // How many points there is room for.
  get span() {
    return SPANS.find((span) => span >= this.lines[0].length);
  }

  x(line, index) {
    return (((this.span - line.length + index) / (this.span - 1)) * WIDTH).toFixed(1);
  }

  path(line) {
    let text = "";
    let pen = "M";
    line.forEach((value, index) => {
      if (value === null) {
        pen = "M";
        return;
      }
      const y = (HEIGHT - 1 - (value / this.top) * (HEIGHT - 2)).toFixed(1);
      // A value between two gaps is a dot.
      text += `${pen}${this.x(line, index)},${y}${pen === "M" ? "h.1" : ""}`;
      pen = "L";
    });
    return text;
  }

  point(event) {
    const box = this.svg.getBoundingClientRect();
    this.moveTo(Math.round(((event.clientX - box.left) / box.width) * (this.span - 1)));
  }

  key(event) {
    const [first, last] = [this.span - this.lines[0].length, this.span - 1];
    const at = this.at < 0 ? last : this.at;
    const goal = { ArrowLeft: at - 1, ArrowDown: at - 1, ArrowRight: at + 1, ArrowUp: at + 1, PageDown: at - 10,
      PageUp: at + 10, Home: first, End: last }[event.key];
    if (event.key === "Escape" || goal !== undefined) {
      event.preventDefault();
      this.moveTo(goal === undefined ? -1 : Math.max(first, Math.min(last, goal)));
      this.label();
    }
  }

  moveTo(at) {
    this.at = at;
    this.read();
  }

  // The legend: of the point that is pointed at, or of the last one.
  read() {
    const { length } = this.lines[0];
    const index = this.index;
    this.cursor.setAttribute("visibility", this.at < 0 || index < 0 ? "hidden" : "visible");
    if (this.at >= 0) {
      const x = ((this.at / (this.span - 1)) * WIDTH).toFixed(1);
      this.cursor.setAttribute("x1", x);
      this.cursor.setAttribute("x2", x);
    }
    write(this.when, this.at < 0 || index < 0 ? "" : `${length - 1 - index} s ago:`);
    this.texts(index).forEach((text, each) => write(this.values[each], text));
  }

  get index() {
    const { length } = this.lines[0];
    return this.at < 0 ? length - 1 : this.at - (this.span - length);
  }

  texts(index) {
    return this.lines.map((line, each) => this.series[each][1](line[index] ?? null));
  }

  // What the chart says to those who do not see it; not each second, which nobody could listen to.
  label() {
    const most = this.lines.map((line, index) => {
      const values = line.filter((value) => value !== null);
      const [name] = this.series[index];
      return values.length ? `${name} at most ${this.show(Math.max(...values))}` : `${name}: no values yet`;
    });
    const { index, span } = this;
    const ago = Math.max(0, this.lines[0].length - 1 - index);
    for (const [name, value] of Object.entries({
      label: `${this.title}, the last three minutes: ${most.join("; ")}`, valuemin: 1 - span, valuemax: 0, valuenow: -ago,
      valuetext: `${ago ? `${ago} seconds ago` : "now"}: ${this.texts(index).join(", ")}`,
    })) {
      this.svg.setAttribute(`aria-${name}`, value);
    }
  }
}
