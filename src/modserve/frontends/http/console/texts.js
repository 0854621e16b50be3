// Texts for a model that compares, ranks or labels them, and what it says of each.

const MOST_IN_MATRIX = 16;
const MOST_PAIRS = 5;
const MOST_LABELS = 5;
const SAMPLE = ["A man is playing a guitar.", "Someone strums an instrument.", "The stock market fell sharply.", "Share prices dropped today."];

// By task: the title, the field of the query, a note, and the function that shows the result.
const TASKS = {
  embedding: ["Compare texts", "Query (optional)", "With a query, the texts are ranked by it; without one, each is compared with each.", showEmbeddings],
  rerank: ["Rank texts", "Query", "The texts are ranked by how well they answer the query.", showRanks],
  classification: ["Label texts", "", "", showLabels],
  token_classification: ["Label words", "", "", showWordLabels],
};

function textBox(row, surface) {
  const [title, queryName, note, show] = TASKS[surface.kind];
  const query = element("input", { autocomplete: "off", "data-text": "query" });
  query.value = surface.kind === "rerank" ? "Who plays music?" : "";
  const texts = element("textarea", { rows: 5, "data-text": "texts" });
  texts.value = SAMPLE.join("\n");
  const send = element("button", { type: "submit", class: "primary" }, title);
  const result = element("div", { class: "result", "aria-live": "polite", hidden: true });
  const form = element("form", {}, ...(queryName ? [element("label", { class: "whole" }, queryName, query)] : []),
    element("label", { class: "whole" }, "Texts, one on each line", texts), element("div", { class: "fields" }, send), result);
  const prepare = () => {
    const status = element("p", {}, "…");
    result.replaceChildren(status);
    result.hidden = false;
    return status;
  };
  stoppable(form, send, prepare, async (status, signal) => {
    const lines = texts.value.split("\n").map((line) => line.trim()).filter(Boolean);
    if (!lines.length) {
      throw new Error("There are no texts.");
    }
    if (surface.kind === "rerank" && !query.value.trim()) {
      throw new Error("A query is missing.");
    }
    const begun = performance.now();
    const call = (path, body) => ask(path, { method: "POST", body: JSON.stringify({ model: row.name, ...body }), signal });
    const [figures, ...parts] = await show(call, lines, query.value.trim());
    write(status, [milliseconds(performance.now() - begun), ...figures].join(", "));
    result.append(...parts);
  });
  return element("section", { class: "texts", "aria-labelledby": "texts-title" },
    element("h3", { id: "texts-title" }, title), ...(note ? [element("p", { class: "soft" }, note)] : []), form);
}

async function showEmbeddings(call, texts, query) {
  const input = query ? [query, ...texts] : texts;
  const { data, usage } = await call("v1/embeddings", { input, encoding_format: "base64" });
  const vectors = data.map((each) => unit(floats(each.embedding)));
  const { prompt_tokens: tokens, truncated_tokens: cut } = usage;
  const figures = [`${number(vectors[0].length)} dimensions`, `${number(tokens)} tokens`, ...(cut ? [`${number(cut)} tokens cut`] : [])];
  if (query) {
    const [own, ...others] = vectors;
    return [figures, rankedTable("similarity", others.map((each, index) => [dot(own, each), texts[index]]))];
  }
  const pairs = [];
  for (let a = 0; a < texts.length; a += 1) {
    for (let b = a + 1; b < texts.length; b += 1) {
      pairs.push([dot(vectors[a], vectors[b]), a, b]);
    }
  }
  const most = pairs.sort(([x], [y]) => y - x).slice(0, MOST_PAIRS);
  return [figures, matrix(texts, vectors), ...(most.length ? [element("h4", {}, "Most similar"),
    rankedTable("similarity", most.map(([score, a, b]) => [score, `${a + 1} ${texts[a]}\n${b + 1} ${texts[b]}`]))] : [])];
}

async function showRanks(call, texts, query) {
  const ranks = await call("rerank", { query, texts });
  return [[`${number(ranks.length)} texts`], rankedTable("score", ranks.map(({ index, score }) => [score, texts[index]]))];
}

async function showLabels(call, texts) {
  const predictions = await call("predict", { inputs: texts.map((text) => [text]) });
  return [[`${number(texts.length)} texts`], ...texts.flatMap((text, index) => [element("h4", {}, text),
    rankedTable("score", predictions[index].slice(0, MOST_LABELS).map(({ label, score }) => [score, label]), "label")])];
}

async function showWordLabels(call, texts) {
  const predictions = await call("predict", { inputs: texts.map((text) => [text]) });
  const count = predictions.reduce((sum, entities) => sum + entities.length, 0);
  return [[`${number(count)} labelled tokens`], ...texts.map((text, index) => markedText(text, predictions[index]))];
}

// A text whose labelled tokens are marked. Places count characters, of which some are two of JavaScript's.
function markedText(text, entities) {
  const characters = [...text];
  const parts = [];
  let at = 0;
  for (const { entity, score, start, end } of entities) {
    parts.push(characters.slice(at, start).join(""), element("mark", { title: `${entity}: ${percent(score)}` },
      characters.slice(start, end).join(""), element("span", {}, ` ${entity} ${percent(score)}`)));
    at = end;
  }
  return element("p", { class: "marked" }, ...parts, characters.slice(at).join(""));
}

// Scores and texts, the highest first; a score of 0 to 1 has a meter.
function rankedTable(title, rows, what = "text") {
  const sorted = [...rows].sort(([a], [b]) => b - a);
  return element("div", { class: "wide" }, element("table", { class: "ranks" },
    element("thead", {}, element("tr", {}, ...["", title, what].map((head) => (head
      ? element("th", { scope: "col" }, head) : element("td"))))),
    element("tbody", {}, ...sorted.map(([score, text], index) => element("tr", {}, element("td", { class: "number" }, String(index + 1)),
      element("td", { class: "score" }, element("meter", { min: 0, max: 1, value: Math.max(0, Math.min(1, score)),
        "aria-label": `${title}: ${score.toFixed(3)}` }), ` ${score.toFixed(3)}`),
      element("td", { class: "text" }, text))))));
}

// The similarities of the first texts with each other: the darker, the more alike.
function matrix(texts, vectors) {
  const shown = texts.slice(0, MOST_IN_MATRIX);
  const cell = (a, b) => {
    const value = dot(vectors[a], vectors[b]);
    const made = element("td", { class: "number" }, value.toFixed(2));
    made.style.setProperty("--share", `${Math.round(45 * Math.max(0, Math.min(1, value)))}%`);
    return made;
  };
  const table = element("table", { class: "matrix" }, element("caption", {}, "Similarity of each text to each"),
    element("thead", {}, element("tr", {}, element("td"),
      ...shown.map((text, index) => element("th", { scope: "col", class: "number", title: text }, String(index + 1))))),
    element("tbody", {}, ...shown.map((text, a) => element("tr", {}, element("th", { scope: "row" }, `${a + 1} ${text}`),
      ...shown.map((_, b) => cell(a, b))))));
  const rest = texts.length - shown.length;
  return element("div", { class: "scrolls", tabindex: "0", role: "group", "aria-label": "Similarities" }, table,
    ...(rest > 0 ? [element("p", { class: "soft" }, `and ${number(rest)} more`)] : []));
}

function floats(base64) {
  const data = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  return new Float32Array(data.buffer);
}

const dot = (a, b) => a.reduce((sum, value, index) => sum + value * b[index], 0);

function unit(vector) {
  const length = Math.sqrt(dot(vector, vector)) || 1;
  return vector.map((value) => value / length);
}

// The chat or the box of texts of a model; nothing for one that takes only tensors.
function textPlace(row) {
  const place = element("div", { class: "text-place" });
  if (row.total && !whyNot("metadata")) {
    fillTextPlace(place, row).catch((error) => place.append(element("p", { class: "bad message" }, error.message)));
  }
  return place;
}

async function fillTextPlace(place, row) {
  const surface = await ask(`console/texts/${encodeURIComponent(row.name)}`);
  const why = surface.trouble || whyNot("inference")
    || (surface.version === row.version ? "" : `Calls of texts go to version ${surface.version} of this model.`);
  if (surface.kind || surface.trouble) {
    place.append(why ? element("p", { class: "notice message" }, why) : surface.kind in TASKS ? textBox(row, surface) : chatBox(row, surface));
  }
}
