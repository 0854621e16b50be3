// Small charts of the last minutes, one point a second.

const POINTS = 180;
const FEWEST = 60; // points that there is room for from the beginning
const WIDTH = 360;
const HEIGHT = 70;

class Chart {
  // `names` are those of one or two lines; `show` writes a value.
  constructor(title, names, show) {
    this.title = title;
    this.names = names;
    this.show = show;
    this.lines = names.map(() => []);
    this.most = 1;
    this.at = -1;
    this.value = element("span", { class: "value" }, NOTHING);
    this.greatest = element("span");
    this.begin = element("span");
    this.svg = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
    this.under = drawn("path", { class: "under" });
    this.paths = names.map((_, index) => drawn("path", { class: `line ${"ab"[index]}` }));
    this.cursor = drawn("line", { class: "cursor", y1: 0, y2: HEIGHT, visibility: "hidden" });
    const axis = drawn("line", { class: "axis", x1: 0, x2: WIDTH, y1: HEIGHT - 1, y2: HEIGHT - 1 });
    this.svg.append(axis, this.under, ...this.paths, this.cursor);
    this.element = element("figure", { class: "chart" },
      element("figcaption", {}, element("span", {}, title), this.value), this.svg,
      element("div", { class: "scale" }, this.begin, this.greatest, element("span", {}, "now")));
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.point(null));
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
    this.lines = this.names.map((_, index) => rows.map((row) => row[index]));
  }

  draw() {
    const values = this.lines.flat().filter((value) => value !== null);
    const most = Math.max(...values, 0);
    this.most = most || 1;
    this.lines.forEach((line, index) => this.paths[index].setAttribute("d", this.path(line)));
    const area = this.path(this.lines[0]);
    const closed = area && !this.lines[0].includes(null);
    this.under.setAttribute("d", closed
      ? `${area}L${WIDTH},${HEIGHT}L${this.x(this.lines[0], 0)},${HEIGHT}Z` : "");
    write(this.begin, this.span < 120 ? `${this.span} s ago` : `${Math.round(this.span / 60)} min ago`);
    write(this.greatest, values.length ? `at most ${this.show(most)}` : "nothing yet");
    this.read();
  }

  // How many points there is room for.
  get span() {
    return Math.max(FEWEST, this.lines[0].length);
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
      const y = (HEIGHT - 2 - (value / this.most) * (HEIGHT - 6)).toFixed(1);
      // A value between two gaps is a line of its own width.
      text += `${pen}${this.x(line, index)},${y}${pen === "M" ? "h.1" : ""}`;
      pen = "L";
    });
    return text;
  }

  point(event) {
    if (event === null) {
      this.at = -1;
    } else {
      const box = this.svg.getBoundingClientRect();
      this.at = Math.round(((event.clientX - box.left) / box.width) * (this.span - 1));
    }
    this.read();
  }

  // The value line: of the point under the pointer, or the last one.
  read() {
    const length = this.lines[0].length;
    const index = this.at < 0 ? length - 1 : this.at - (this.span - length);
    this.cursor.setAttribute("visibility", this.at < 0 || index < 0 ? "hidden" : "visible");
    if (this.at >= 0) {
      const x = ((this.at / (this.span - 1)) * WIDTH).toFixed(1);
      this.cursor.setAttribute("x1", x);
      this.cursor.setAttribute("x2", x);
    }
    const texts = this.lines.map((line) => this.show(line[index] ?? null));
    const named = this.names.length > 1 ? texts.map((text, each) => `${this.names[each]} ${text}`) : texts;
    const when = this.at < 0 || index < 0 ? "" : `${length - 1 - index} s ago: `;
    write(this.value, when + named.join(" · "));
  }

  // What the chart says to those who do not see it; not each second, which nobody could listen to.
  label() {
    const lines = this.lines.map((line, index) => {
      const values = line.filter((value) => value !== null);
      return values.length ? `${this.names[index]} now ${this.show(line.at(-1))}, at most ${this.show(Math.max(...values))}`
        : `${this.names[index]}: nothing yet`;
    });
    this.svg.setAttribute("aria-label", `${this.title} in the last three minutes: ${lines.join("; ")}`);
  }
}
