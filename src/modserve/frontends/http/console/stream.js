// The figures of the server, as it sends them once a second as long as somebody looks.

const models = new Map(); // by key: what the server says of a version, and in `history` the last minutes
const listeners = { figures: [] };
let server = {};
let serverTime = 0; // of the last figures, in milliseconds by the server's clock
let follower = null; // ends the connection that there is
let paused = false;

const HISTORY = ["requests", "p50", "p99", "pending", "batch", "failed", "in_flight"];
// Of models that respond many times: where each value is in `stream`.
const STREAM_HISTORY = Object.entries({
  first_p50: ["first", 0], first_p99: ["first", 1], between_p50: ["between", 0], between_p99: ["between", 1],
  prompt_tokens: ["tokens", 0], generated_tokens: ["tokens", 1], running: ["sequences", 0], waiting: ["sequences", 1],
  kv_cache: ["cache"],
});
const PLACES = new Map([...HISTORY, ...STREAM_HISTORY.map(([name]) => name)].map((name, index) => [name, index]));

function remember(row) {
  if (!row.history.length && !row.requests && !row.pending && !row.in_flight) {
    return;
  }
  const { stream } = row;
  row.history.push([...HISTORY.map((name) => row[name]), ...(stream ? STREAM_HISTORY.map(([, [name, index]]) => (
    index === undefined ? stream[name] : stream[name][index] ?? null)) : [])]);
  if (row.history.length > POINTS) {
    row.history.shift();
  }
}

function apply(kind, content) {
  if (kind === "whole") {
    const keys = new Set(Object.keys(content.models));
    for (const key of models.keys()) {
      if (!keys.has(key)) {
        models.delete(key);
      }
    }
  }
  for (const key of content.gone || []) {
    models.delete(key);
  }
  for (const [key, fields] of Object.entries(content.models)) {
    models.set(key, Object.assign(models.get(key) || { key, history: [] }, fields));
  }
  server = content.server;
  serverTime = content.at;
  for (const row of models.values()) {
    remember(row);
  }
  for (const listener of listeners.figures) {
    listener();
  }
}

function say(text, kind = "") {
  const badge = byId("live");
  badge.className = `badge ${kind}`;
  write(badge, text);
}

// Yields the name and the data of each event of a response.
async function* eventsOf(response) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  for (let part; !(part = await reader.read()).done;) {
    text += decoder.decode(part.value, { stream: true });
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
      let name = "message";
      const data = [];
      for (const line of text.slice(0, end).split("\n")) {
        if (line.startsWith("event: ")) {
          name = line.slice(7);
        } else if (line.startsWith("data: ")) {
          data.push(line.slice(6));
        }
      }
      yield [name, data.join("\n")];
    }
  }
}

async function followOnce(signal) {
  const response = await fetchOk("console/events", { signal, cache: "no-store" });
  for await (const [name, data] of eventsOf(response)) {
    const content = JSON.parse(data);
    if (name === "end") {
      return content.reason;
    }
    say("connected", "good");
    byId("notice").hidden = true;
    apply(name, content);
  }
  return "the connection has ended";
}

const sleep = (seconds, signal) => new Promise((resolve) => {
  const timer = setTimeout(resolve, seconds * 1000);
  signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); });
});

async function follow() {
  stopFollowing();
  const control = follower = new AbortController();
  let wait = 1;
  while (!control.signal.aborted) {
    const begun = performance.now();
    let why;
    try {
      why = await followOnce(control.signal);
    } catch (error) {
      if (control.signal.aborted) {
        return;
      }
      why = error.message;
      if ([401, 403, 404].includes(error.status)) {
        say("not allowed", "bad");
        notice(`The figures are not shown: ${why}`);
        return;
      }
    }
    wait = performance.now() - begun > 10_000 ? 1 : Math.min(15, 2 * wait);
    say("not connected", "bad");
    notice(`No figures: ${why}. The page tries again every few seconds.`);
    await sleep(wait, control.signal);
  }
}

function stopFollowing() {
  if (follower !== null) {
    follower.abort();
    follower = null;
  }
}

function notice(text) {
  write(byId("notice"), text);
  byId("notice").hidden = false;
}

// Who does not look costs the server nothing.
const PATIENCE = 30_000;
let hiding = 0;

function visibilityChanged() {
  clearTimeout(hiding);
  if (document.hidden && follower !== null) {
    hiding = setTimeout(() => { stopFollowing(); say("paused while hidden"); }, PATIENCE);
  } else if (!document.hidden && follower === null && !paused) {
    follow();
  }
}

function setPaused(value) {
  paused = value;
  byId("pause").setAttribute("aria-pressed", String(paused));
  write(byId("pause"), paused ? "Resume" : "Pause");
  if (paused) {
    stopFollowing();
    say("paused");
  } else {
    follow();
  }
}
