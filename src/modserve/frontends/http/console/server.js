// What is about the server as a whole: its charts, what it allows, its failures and its log.

let allowed = { restricted: {}, model_control: "none" };
let failuresShown = -1;
let seconds = 0;

// Why calls of a category are not made; empty if they may be.
function whyNot(category) {
  const header = allowed.restricted[category];
  return header && !secrets[header] ? `Calls of category '${category}' need the header '${header}': type its value above.` : "";
}

const tiles = Object.fromEntries(SERVER_CHARTS.map((kind) => [kind, new Chart(kind)]));

function refreshServer() {
  const { requests, failed, p50, p99, pending, in_flight: inFlight, batch, batches, hits, misses, cpu } = server;
  const looked = hits + misses;
  for (const [name, values] of Object.entries({
    requests: [requests, failed], latency: [p50, p99], queue: [pending, inFlight], batch: [batch], batches: [batches],
    cache: [looked ? hits / looked : null], cpu: [cpu], memory: [server.rss, server.request_memory],
  })) {
    tiles[name].push(values);
    tiles[name].draw();
  }
  const { workers, sequences } = server;
  writeFacts(byId("facts"), [
    ...(workers ? [["workers", `${workers.serving} of ${workers.count} serving${workers.restarts ? `, ${workers.restarts} restarts` : ""}; all figures are their sum`]] : []),
    ...(sequences >= 0 ? [["open sequences", number(sequences)]] : []),
    ["memory limit for requests", server.request_memory_limit ? bytes(server.request_memory_limit) : "none"],
    ...(server.model_memory_limit ? [["memory of models", `${bytes(server.model_memory)} of ${bytes(server.model_memory_limit)}`]] : []),
    ...(server.recorded >= 0 ? [["requests recorded to files", number(server.recorded)]] : []),
    ["failed since start", number(server.failures)],
  ]);
  fill("tenant", 1, (server.tenants || []).map((tenant) => [tenant.name, number(tenant.requests), percent(tenant.share),
    number(tenant.waiting), number(tenant.in_flight), number(tenant.refused), tenant.refused_total.toLocaleString("en")]));
  if (allowed.peers && seconds++ % 5 === 0) {
    ask("console/peers").then((rows) => fill("peer", 3, rows), (error) => fill("peer", 3, [["", error.message]]));
  }
  const phase = byId("phase");
  phase.hidden = false;
  phase.className = `badge ${server.ready ? "good" : "busy"}`;
  const down = [...models.values()].filter((row) => row.state !== "READY" && !isUnloaded(row)).length;
  const notReady = down ? `not ready: ${down} of ${models.size} versions` : "not ready";
  write(phase, `server ${server.ready ? "ready" : server.phase === "running" ? notReady : server.phase}`);
  if (server.failures !== failuresShown) {
    showFailures(server.failures);
  }
}

// Rows of a table that is hidden without any; the first cells are texts.
function fill(name, texts, rows) {
  byId(`${name}s`).hidden = !rows.length;
  byId(`${name}-rows`).replaceChildren(...rows.map((row) => element("tr", {},
    ...row.map((text, index) => element("td", { class: index < texts ? "text" : "number" }, text)))));
}

let showingFailures = false;

async function showFailures(count) {
  const why = whyNot("logging");
  if (why) {
    write(byId("failures-note"), why);
    return;
  }
  if (showingFailures) {
    return;
  }
  showingFailures = true;
  try {
    const failures = await ask("console/failures");
    failuresShown = count;
    byId("failures").hidden = !failures.length;
    write(byId("failures-note"), failures.length ? "Equal failures share a line." : "None since the server started.");
    byId("failure-rows").replaceChildren(...failures.map((failure) => element("tr", {},
      element("td", { title: new Date(failure.last_ms).toISOString() }, ago(failure.last_ms, serverTime)),
      element("td", { class: "number" }, failure.count.toLocaleString("en")),
      element("td", {}, failure.protocol),
      element("td", { class: "text" }, failure.model + (failure.version ? ` version ${failure.version}` : "")
        + (failure.request_id ? `, request '${failure.request_id}'` : "")),
      element("td", {}, failure.status),
      element("td", { class: "text" }, element("div", { class: "message" }, failure.message)))));
  } catch (error) {
    write(byId("failures-note"), error.message);
  }
  showingFailures = false;
}

async function showLog() {
  const form = byId("log");
  form.hidden = true;
  const why = whyNot("logging");
  if (why) {
    write(byId("log-note"), why);
    return;
  }
  try {
    writeLog(await ask("v2/logging"));
    form.hidden = false;
    write(byId("log-note"), "");
  } catch (error) {
    write(byId("log-note"), error.message);
  }
}

function writeLog(settings) {
  byId("log-verbose").value = settings.log_verbose_level;
  for (const name of ["info", "warning", "error"]) {
    byId(`log-${name}`).checked = settings[`log_${name}`];
  }
}

async function changeLog(event) {
  event.preventDefault();
  const said = { log_verbose_level: Number(byId("log-verbose").value) };
  for (const name of ["info", "warning", "error"]) {
    said[`log_${name}`] = byId(`log-${name}`).checked;
  }
  write(byId("log-note"), "");
  try {
    writeLog(await post("v2/logging", said));
    write(byId("log-note"), "Applied.");
  } catch (error) {
    write(byId("log-note"), error.message);
  }
}

function makeSecrets() {
  const byHeader = new Map();
  for (const [category, header] of Object.entries(allowed.restricted)) {
    byHeader.set(header, [...(byHeader.get(header) || []), category]);
  }
  byHeader.forEach((categories, header) => askFor(header, `${header} (${categories.join(", ")}) `));
}

function showControl() {
  const explicit = allowed.model_control === "explicit";
  write(byId("control-note"), whyNot("model-repository") || (explicit ? "" : allowed.model_control === "poll"
    ? "Models follow the repositories (--model-control-mode=poll): they are not loaded and unloaded by hand."
    : "To load and unload models here, start the server with --model-control-mode=explicit."));
}
