// The table of all model versions, also of those that are in the repositories and not loaded.

const MOST_ROWS = 300;
const COLUMNS = [
  // name in a row or what computes it, title, how it is shown, whether it is a number
  ["name", "model", (row) => row.name, false],
  ["version", "version", (row) => row.version || NOTHING, true],
  ["state", "state", null, false],
  ["engine", "engine", (row) => row.engine || NOTHING, false],
  ["instances", "instances", (row) => instances(row), true],
  ["requests", "requests/s", (row) => (row.total ? number(row.requests) : NOTHING), true],
  ["p50", "p50", (row) => milliseconds(row.p50), true],
  ["p99", "p99", (row) => milliseconds(row.p99), true],
  ["pending", "queue", (row) => (row.total ? number(row.pending) : NOTHING), true],
  ["batch", "batch", (row) => number(row.batch), true],
  ["failed", "errors/s", (row) => (row.total ? number(row.failed) : NOTHING), true],
  ["memory", "memory", (row) => bytes(row.memory), true],
  ["load_ms", "load time", (row) => (row.load_ms ? milliseconds(row.load_ms) : NOTHING), true],
];
const LIVE_COLUMNS = new Set(["requests", "p50", "p99", "pending", "batch", "failed"]);
const TITLES = {
  memory: "What the model holds, as measured when it was loaded; an estimate where several loaded at the same time",
  instances: "Executions that may run at the same time; lost ones are about to be made anew",
  batch: "Mean batch size of the last second",
  p50: "Of the last second", p99: "Of the last second",
};

const absent = new Map(); // models in the repositories that are not loaded, by key
const shownRows = new Map(); // by key: the row of the table, and its cells
let sorted = { by: "name", up: true };
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
  const [x, y] = [a[sorted.by], b[sorted.by]];
  const numeric = sorted.by === "version" ? Number(x) - Number(y)
    : typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : (x ?? -1) - (y ?? -1);
  return (sorted.up ? numeric : -numeric) || a.name.localeCompare(b.name) || Number(a.version) - Number(b.version);
}

function newRow(row) {
  const open = element("button", { type: "button", class: "link" }, row.name);
  open.addEventListener("click", () => choose(row.name, row.version));
  const state = element("span");
  const why = element("span", { class: "why" });
  const cells = COLUMNS.map(([name, , , numeric]) => {
    if (name === "name") {
      return element("th", { scope: "row" }, open);
    }
    return name === "state" ? element("td", { class: "state" }, state, why) : element("td", { class: numeric ? "number" : "text" });
  });
  return { tr: element("tr", {}, ...cells), cells, state, why };
}

function writeRow(made, row) {
  COLUMNS.forEach(([name, , show], index) => {
    if (name === "state") {
      made.state.className = isUnloaded(row) ? "soft" : stateClass(row);
      write(made.state, row.state || "not loaded");
      write(made.why, row.reason || "");
    } else if (name !== "name") {
      write(made.cells[index], show(row));
    }
  });
  made.tr.className = chosen && chosen.name === row.name && chosen.version === row.version ? "chosen" : "";
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
      shownRows.delete(key);
    }
  }
  const body = byId("rows");
  shown.forEach((row, index) => {
    let made = shownRows.get(row.key);
    if (!made) {
      made = newRow(row);
      shownRows.set(row.key, made);
    }
    if (body.children[index] !== made.tr) {
      body.insertBefore(made.tr, body.children[index] || null);
    }
    writeRow(made, row);
  });
  const ready = rows.filter((row) => row.state === "READY").length;
  const hidden = chosenRows.length - shown.length;
  write(byId("model-count"), `${rows.length} versions, ${ready} READY${
    chosenRows.length < rows.length ? `, ${chosenRows.length} shown` : ""}`);
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
  for (const [name, title, , numeric] of COLUMNS) {
    const button = element("button", { type: "button", title: TITLES[name] || false }, title);
    button.addEventListener("click", () => sortBy(name));
    byId("heads").append(element("th", { scope: "col", class: numeric ? "number" : "", "data-name": name }, button));
  }
  byId("heads").firstChild.setAttribute("aria-sort", "ascending");
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
