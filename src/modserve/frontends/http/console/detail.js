// One model: its charts, why its batches are as large as they are, and what may be done with it.

let chosen = null; // { name, version } of the model that is open
let detail = null; // the parts of its section

const REASONS = {
  full: "full", preferred: "preferred size", delay: "queue delay over", idle_instance: "instance free",
  shape: "different shape next", deadline: "deadline near", single: "one request at a time", no_gain: "no gain in waiting",
  refused: "refused by the engine",
};

// The charts of a model, and the fields of their lines.
const DRAWN = { requests: ["requests", "failed"], latency: ["p50", "p99"], queue: ["pending", "in_flight"], batch: ["batch"] };
const DRAWN_BY_TOKEN = { ...DRAWN, firstToken: ["first_p50", "first_p99"], betweenTokens: ["between_p50", "between_p99"],
  tokens: ["generated_tokens", "prompt_tokens"], sequences: ["running", "waiting"], kvCache: ["kv_cache"] };
const DRAWN_BY_RESPONSE = { ...DRAWN, firstResponse: ["first_p50", "first_p99"], betweenResponses: ["between_p50", "between_p99"] };
const drawnOf = (row) => (!row.stream ? DRAWN : row.stream.by_token ? DRAWN_BY_TOKEN : DRAWN_BY_RESPONSE);

const pathOf = (row) => `v2/models/${encodeURIComponent(row.name)}${row.version ? `/versions/${encodeURIComponent(row.version)}` : ""}`;
const currentRow = () => chosen && allRows().find((row) => row.name === chosen.name && row.version === chosen.version);

function choose(name, version) {
  location.hash = new URLSearchParams({ model: name, version }).toString();
}

function chooseByAddress() {
  const said = new URLSearchParams(location.hash.slice(1));
  const name = said.get("model");
  if (name === null) {
    closeDetail();
    return;
  }
  chosen = { name, version: said.get("version") || "" };
  openDetail();
  arrange();
}

function closeDetail() {
  stopCalls();
  chosen = null;
  detail = null;
  byId("detail").hidden = true;
  byId("detail").replaceChildren();
  arrange();
}

function openDetail() {
  const row = currentRow();
  const section = byId("detail");
  stopCalls();
  if (!row) {
    detail = null;
    section.replaceChildren(element("p", {}, `There is no model '${chosen.name}', version '${chosen.version}'.`));
    section.hidden = false;
    return;
  }
  const title = element("h2", { id: "detail-title", tabindex: "-1" }, row.name, row.version ? ` ${NOTHING} version ${row.version}` : "");
  const close = element("button", { type: "button" }, "Close");
  close.addEventListener("click", () => {
    const made = shownRows.get(row.key);
    history.replaceState(null, "", location.pathname);
    closeDetail();
    (made ? made.tr.querySelector("button") : byId("models-title")).focus();
  });
  const state = element("span");
  const reason = element("p", { class: "notice message" });
  const actions = element("div", { class: "fields" });
  const outcome = element("p", { role: "status", "aria-live": "polite", class: "soft message" });
  const block = (name, ...content) => element("div", { hidden: true }, element("h3", {}, name), ...content);
  const bars = () => element("dl", { class: "bars" });
  const [parts, closed, sizes, failures] = [bars(), bars(), bars(), bars()];
  const advice = element("p", { class: "soft" });
  const facts = element("dl", { class: "facts" });
  const engine = element("pre", { tabindex: "0", "aria-label": "Engine details" });
  const engineBlock = element("details", {}, element("summary", {}, "Engine details"), engine);
  engineBlock.addEventListener("toggle", () => { if (engineBlock.open) { showEngine(engine, row); } });
  detail = {
    key: row.key, state, reason, actions, charts: {}, facts, engineBlock,
    parts: [block("Parts of the mean time", parts, advice), parts, advice],
    closed: [block("Why batches were closed", closed), closed],
    sizes: [block("Batch sizes", sizes), sizes],
    failures: [block("Failures by reason", failures), failures],
    before: {}, tiles: element("div", { class: "tiles" }),
  };
  section.replaceChildren(
    element("div", { class: "head" }, title, state, close), reason, facts, actions, outcome,
    textPlace(row), detail.tiles,
    element("div", { class: "columns" }, detail.parts[0], detail.closed[0], detail.sizes[0], detail.failures[0]),
    engineBlock, requestForm(row));
  addActions(row, actions, outcome);
  section.hidden = false;
  refreshDetail();
  section.scrollIntoView({ block: "start" });
  title.focus({ preventScroll: true });
}

async function showEngine(place, row) {
  write(place, "…");
  try {
    write(place, JSON.stringify(await ask(`${pathOf(row)}/engine`), null, 2));
  } catch (error) {
    write(place, error.message);
  }
}

function addActions(row, place, outcome) {
  const why = whyNot("model-repository")
    || (allowed.model_control === "explicit" ? ""
      : `Loading and unloading needs --model-control-mode=explicit; this server has ${allowed.model_control}.`);
  for (const [verb, text] of [["load", row.total ? "Reload" : "Load"], ["unload", "Unload"]]) {
    const button = element("button", { type: "button", disabled: Boolean(why) || (verb === "unload" && !row.total),
      "data-verb": verb, "aria-describedby": "action-note" }, text);
    button.addEventListener("click", () => act(row, verb, button, outcome));
    place.append(button);
  }
  place.append(element("span", { class: "soft", id: "action-note" }, why));
}

async function act(row, verb, button, outcome) {
  if (verb === "unload" && !confirm(`Unload all versions of '${row.name}'?`)) {
    return;
  }
  button.disabled = true;
  write(outcome, verb === "load" ? "Loading…" : "Unloading…");
  try {
    await post(`v2/repository/models/${encodeURIComponent(row.name)}/${verb}`, {});
    write(outcome, verb === "load" ? "Loaded." : "Unloaded.");
  } catch (error) {
    write(outcome, error.message);
  }
  button.disabled = false;
  lookForAbsent();
}

function refreshDetail() {
  if (!chosen) {
    return;
  }
  const row = currentRow();
  if (!row) {
    const loaded = allRows().find((each) => each.name === chosen.name);
    if (loaded && !chosen.version) {
      choose(loaded.name, loaded.version); // it was not loaded, and now it is
    } else if (detail) {
      detail.state.className = "badge soft";
      write(detail.state, "gone");
    }
    return;
  }
  if (!detail) {
    openDetail();
    return;
  }
  const unload = detail.actions.querySelector('[data-verb="unload"]');
  if (row.total && unload && unload.disabled && !byId("action-note").textContent) {
    unload.disabled = false;
  }
  detail.state.className = `badge ${isUnloaded(row) ? "soft" : stateClass(row)}`;
  write(detail.state, row.state || "not loaded");
  write(detail.reason, row.reason);
  detail.reason.hidden = !row.reason;
  const total = row.total || {};
  const [p50, p99] = row.since_load || [null, null];
  writeFacts(detail.facts, [
    ["engine", row.engine || NOTHING], ["instances", instances(row)],
    ["load time", row.load_ms ? milliseconds(row.load_ms) : NOTHING], ["memory", row.memory < 0 ? "not measured" : bytes(row.memory)],
    ...(row.total ? [["succeeded since load", number(total.success)], ["inferences", number(total.inferences)],
      ["p50 since load", milliseconds(p50)], ["p99 since load", milliseconds(p99)]] : []),
    ...(row.total && total.cache.length ? [["cache hits", number(total.cache[0])], ["cache misses", number(total.cache[1])],
      ["cache hits/s", number(row.hits)]] : []),
    ...(row.stream?.by_token ? [["tokens generated", number(row.stream.total[1])], ["tokens of prompts", number(row.stream.total[0])]] : []),
    ...(row.sequences >= 0 ? [["open sequences", number(row.sequences)]] : []),
    ...(total.restarts ? [["instances restarted", number(total.restarts)]] : []),
  ]);
  detail.tiles.hidden = !row.total && !row.history.length;
  drawCharts(row);
  refreshBars(row);
}

// A model that is loaded on demand may turn out to be a language model.
function drawCharts(row) {
  const lines = drawnOf(row);
  if (detail.lines !== lines) {
    detail.lines = lines;
    detail.charts = Object.fromEntries(Object.keys(lines).map((kind) => [kind, new Chart(kind)]));
    detail.tiles.replaceChildren(...Object.values(detail.charts).map((chart) => chart.element));
  }
  for (const [name, fields] of Object.entries(lines)) {
    detail.charts[name].fill(row.history.map((point) => fields.map((field) => point[PLACES.get(field)] ?? null)));
    detail.charts[name].draw();
  }
}

function refreshBars(row) {
  const closed = Object.entries(row.closed || {});
  const before = detail.before;
  const rate = (name) => {
    const [, count] = closed.find(([reason]) => (REASONS[reason] || reason) === name) || [];
    const gained = before[name] === undefined ? 0 : count - before[name];
    before[name] = count;
    return gained > 0 ? ` (+${gained})` : "";
  };
  const bounds = row.size_bounds || [];
  const sizes = (row.sizes || []).map((count, index) => {
    const [low, high] = [(bounds[index - 1] ?? 0) + 1, bounds[index]];
    return [high === undefined ? `over ${low - 1}` : low >= high ? String(high) : `${low} to ${high}`, count];
  }).filter(([, count]) => count);
  const failures = Object.entries(row.failures || {}).filter(([, count]) => count);
  const parts = (row.parts || []).map((time, index) => [["queue", "input", "infer", "output"][index], time]);
  write(detail.parts[2], row.advice || "");
  for (const [[place, list], counts, each, show] of [
    [detail.parts, parts, undefined, milliseconds],
    [detail.closed, closed.map(([reason, count]) => [REASONS[reason] || reason, count]), rate],
    [detail.sizes, sizes], [detail.failures, failures]]) {
    place.hidden = !counts.length;
    writeBars(list, counts, each, show);
  }
}
