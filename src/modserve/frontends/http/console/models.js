// The table of all model versions, also of those that are in the repositories and not loaded.

const MOST_ROWS = 300;
const MOST_REASON = 4000; // characters; the section of a model has the rest
const COLUMNS = [
  // name in a row, title, how it is shown, whether it is a number, the narrowest screen that has it (see the style)
  ["name", "model", (row) => row.name, false, ""],
  ["version", "version", (row) => row.version || NOTHING, true, "medium"],
  ["state", "state", (row) => row.state || "not loaded", false, ""],
  ["engine", "engine", (row) => row.engine || NOTHING, false, "large"],
  ["instances", "instances", (row) => instances(row), true, "large"],
  ["requests", "requests/s", (row) => (row.total ? number(row.requests) : NOTHING), true, ""],
  ["p50", "p50", (row) => milliseconds(row.p50), true, "medium"],
  ["p99", "p99", (row) => milliseconds(row.p99), true, "small"],
  ["pending", "queue", (row) => (row.total ? number(row.pending) : NOTHING), true, "medium"],
  ["batch", "batch", (row) => number(row.batch), true, "large"],
  ["failed", "errors/s", (row) => (row.total ? number(row.failed) : NOTHING), true, "medium"],
  ["memory", "memory", (row) => bytes(row.memory), true, "large"],
  ["load_ms", "load time", (row) => (row.load_ms ? milliseconds(row.load_ms) : NOTHING), true, "large"],
];
const LIVE_COLUMNS = new Set(["requests", "p50", "p99", "pending", "batch", "failed"]);
const TITLES = {
  memory: "Measured while the model was loaded; an estimate if several were loaded at the same time",
  instances: "Executions that may run at the same time; lost ones are being restarted",
  batch: "Mean batch size in the last second",
  p50: "In the last second", p99: "In the last second",
};

const absent = new Map(); // models in the repositories that are not loaded, by key
const shownRows = new Map(); // by key: the row of the table, and its cells
let sorted = { by: "", up: true }; // by no column: failed versions first
let limit = MOST_ROWS;
let sinceOrder = 0;

function instances(row) {
  if (!row.instances) {
    return NOTHING;
  }
  return row.lost ? `${row.instances - row.lost} of ${row.instances}` : String(row.instances);
}

function stateClass(row) {
  return { READY: "good", LOADING: "busy", UNLOADING: "busy", UNAVAILABLE: "bad", UNKNOWN: "soft" }[row.state] || "bad";
}

// Why a version is in its state; where one that is READY is in memory is no trouble.
const isFailed = (row) => row.state === "UNAVAILABLE" && !isUnloaded(row);
const isUnloaded = (row) => row.state === "UNAVAILABLE" && row.reason.startsWith("unloaded");

function allRows() {
  const names = new Set([...models.values()].map((row) => row.name));
  return [...models.values(), ...[...absent.values()].filter((row) => !names.has(row.name))];
}

function matches(row) {
  const part = byId("filter").value.toLowerCase();
  if (part && !`${row.name} ${row.engine}`.toLowerCase().includes(part)) {
    return false;
  }
  switch (byId("states").value) {
    case "ready": return row.state === "READY";
    case "trouble": return row.state !== "READY";
    case "busy": return row.requests > 0 || row.in_flight > 0;
    default: return true;
  }
}

function compared(a, b) {
  if (!sorted.by && isFailed(a) !== isFailed(b)) {
    return isFailed(a) ? -1 : 1;
  }
  const [x, y] = [a[sorted.by], b[sorted.by]];
  const numeric = sorted.by === "version" ? Number(x) - Number(y)
    : typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : (x ?? -1) - (y ?? -1);
  return (sorted.up ? numeric : -numeric) || a.name.localeCompare(b.name) || Number(a.version) - Number(b.version);
}

function newRow(row) {
  const open = element("button", { type: "button", class: "link" }, row.name);
  open.addEventListener("click", () => choose(row.name, row.version));
  const version = element("span", { class: "soft narrow" }, row.version ? `version ${row.version}` : "");
  const cells = COLUMNS.map(([name, , , numeric, least]) => (name === "name" ? element("th", { scope: "row" }, open, version)
    : element("td", { class: `${numeric ? "number" : "text"} ${least}` })));
  return { tr: element("tr", {}, ...cells), cells, why: null };
}

function writeRow(made, row) {
  COLUMNS.forEach(([name, , show], index) => {
    if (name !== "name") {
      write(made.cells[index], show(row));
    }
    if (name === "state") {
      made.cells[index].className = `state ${isUnloaded(row) ? "soft" : stateClass(row)}`;
    }
  });
  writeReason(made, row.reason || "");
  made.tr.className = chosen && chosen.name === row.name && chosen.version === row.version ? "chosen" : "";
}

// In a row of its own below that of the version, as wide as the table.
function writeReason(made, reason) {
  if (!reason) {
    made.why?.remove();
    made.why = null;
    return;
  }
  made.why ??= element("tr", { class: "why" }, element("td", { colspan: COLUMNS.length }));
  write(made.why.firstChild, reason.length > MOST_REASON ? `${reason.slice(0, MOST_REASON)}…` : reason);
  if (made.tr.nextSibling !== made.why) {
    made.tr.after(made.why);
  }
}

// Which rows there are, and in which order: not each second, since they would jump from under the pointer.
function arrange() {
  sinceOrder = 0;
  const rows = allRows();
  const chosenRows = rows.filter(matches).sort(compared);
  const shown = chosenRows.slice(0, limit);
  const keys = new Set(shown.map((row) => row.key));
  for (const [key, made] of shownRows) {
    if (!keys.has(key)) {
      made.tr.remove();
      made.why?.remove();
      shownRows.delete(key);
    }
  }
  const body = byId("rows");
  let index = 0;
  shown.forEach((row) => {
    let made = shownRows.get(row.key);
    if (!made) {
      made = newRow(row);
      shownRows.set(row.key, made);
    }
    if (body.children[index] !== made.tr) {
      body.insertBefore(made.tr, body.children[index] || null);
    }
    writeRow(made, row);
    index += made.why ? 2 : 1;
  });
  const ready = rows.filter((row) => row.state === "READY").length;
  const failed = rows.filter(isFailed).length;
  const hidden = chosenRows.length - shown.length;
  write(byId("model-count"), `${rows.length} ${rows.length === 1 ? "version" : "versions"}, ${ready} READY${
    failed ? `, ${failed} failed` : ""}${chosenRows.length < rows.length ? `, ${chosenRows.length} shown` : ""}`);
  byId("more").hidden = hidden <= 0;
  write(byId("more"), `Show ${hidden} more`);
}

function refreshTable() {
  let fresh = false;
  for (const [key, made] of shownRows) {
    const row = models.get(key) || absent.get(key);
    if (row) {
      writeRow(made, row);
    } else {
      fresh = true;
    }
  }
  const count = models.size + absent.size;
  const busy = byId("table").contains(document.activeElement) || byId("table").matches(":hover");
  sinceOrder += 1;
  if (fresh || count !== refreshTable.count || byId("states").value
      || (LIVE_COLUMNS.has(sorted.by) && sinceOrder >= 5 && !busy)) {
    refreshTable.count = count;
    arrange();
  }
}

function sortBy(name) {
  sorted = { by: name, up: sorted.by === name ? !sorted.up : !COLUMNS.find(([each]) => each === name)[3] || name === "version" };
  for (const head of byId("heads").children) {
    head.removeAttribute("aria-sort");
    if (head.dataset.name === name) {
      head.setAttribute("aria-sort", sorted.up ? "ascending" : "descending");
    }
  }
  arrange();
}

function makeTable() {
  for (const [name, title, , numeric, least] of COLUMNS) {
    const button = element("button", { type: "button", title: TITLES[name] || false }, title);
    button.addEventListener("click", () => sortBy(name));
    byId("heads").append(element("th", { scope: "col", class: `${numeric ? "number" : ""} ${least}`, "data-name": name }, button));
  }
  byId("filter").addEventListener("input", arrange);
  byId("states").addEventListener("change", arrange);
  byId("more").addEventListener("click", () => { limit += 10 * MOST_ROWS; arrange(); });
}

// What the repositories have beside what is loaded. Buckets take a while, so this is not looked at each second.
async function lookForAbsent() {
  absent.clear();
  try {
    for (const entry of await post("v2/repository/index", {})) {
      if (!entry.version && (!entry.state || entry.state === "UNKNOWN")) {
        const key = `:${entry.name}`;
        absent.set(key, {
          key, name: entry.name, version: "", state: "", reason: entry.reason || "", engine: "", instances: 0, lost: 0,
          memory: -1, load_ms: 0, history: [], total: null,
        });
      }
    }
  } catch {
    // the index is not for this user: what is loaded is shown all the same
  }
  arrange();
}
