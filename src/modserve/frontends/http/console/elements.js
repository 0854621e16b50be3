// Drawings, numbers for people, and calls of this server.

function drawn(name, attributes = {}) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) {
    made.setAttribute(key, value);
  }
  return made;
}

const NOTHING = "–";

function rounded(value) {
  const digits = value !== 0 && Math.abs(value) < 10 ? 2 : Math.abs(value) < 100 ? 1 : 0;
  return value.toLocaleString("en", { maximumFractionDigits: digits });
}

const number = (value) => (value === null || value === undefined ? NOTHING : rounded(value));
const milliseconds = (value) => (value === null || value === undefined ? NOTHING
  : value >= 1000 ? `${rounded(value / 1000)} s` : `${rounded(value)} ms`);
const percent = (value) => (value === null ? NOTHING : `${rounded(100 * value)} %`);

function bytes(value) {
  if (value === null || value < 0) {
    return NOTHING;
  }
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (value >= size) {
      return `${rounded(value / size)} ${unit}`;
    }
  }
  return `${value} B`;
}

// Both by the server's clock, from which the browser's may differ.
function ago(at, now) {
  const seconds = Math.max(0, Math.round((now - at) / 1000));
  if (seconds < 120) {
    return `${seconds} s ago`;
  }
  return seconds < 7200 ? `${Math.round(seconds / 60)} min ago` : new Date(at).toLocaleString();
}

// Pairs of a term and a text, which are written over those that are there.
function writeFacts(list, facts) {
  while (list.children.length > facts.length) {
    list.lastChild.remove();
  }
  facts.forEach(([term, text], index) => {
    if (!list.children[index]) {
      list.append(element("div", {}, element("dt"), element("dd")));
    }
    const [dt, dd] = list.children[index].children;
    write(dt, term);
    write(dd, text);
  });
}

// Bars of counts or times, the share of each as a meter.
function writeBars(list, counts, rate = () => "", show = (count) => count.toLocaleString("en")) {
  const total = counts.reduce((sum, [, count]) => sum + count, 0);
  while (list.children.length > 3 * counts.length) {
    list.lastChild.remove();
  }
  counts.forEach(([name, count], index) => {
    if (!list.children[3 * index]) {
      list.append(element("dt"), element("dd", {}, element("meter", { min: 0, max: 1 })), element("dd"));
    }
    const [dt, dd, value] = [0, 1, 2].map((offset) => list.children[3 * index + offset]);
    write(dt, name);
    dd.firstChild.value = total ? count / total : 0;
    dd.firstChild.setAttribute("aria-label", `${name}: ${percent(total ? count / total : 0)}`);
    write(value, `${show(count)}${rate(name)}`);
  });
}

// Calls of this server, with the headers that the user has typed: these are here and nowhere else until the page is left.

const secrets = {};

function keepSecrets() {
  for (const input of byId("secret-fields").querySelectorAll("input")) {
    if (input.value) {
      secrets[input.name] = (input.name === "Authorization" ? "Bearer " : "") + input.value;
      input.value = "";
      input.placeholder = "in use";
    }
  }
}

function askFor(header, text) {
  if (!byId("secret-fields").querySelector(`[name="${header}"]`)) {
    byId("secret-fields").append(element("label", {}, text,
      element("input", { type: "password", name: header, autocomplete: "off" })));
  }
  byId("secrets").hidden = false;
}

class Refusal extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

async function refusalOf(response) {
  let text = await response.text();
  try {
    const { error } = JSON.parse(text);
    text = error?.message ?? error ?? text; // calls of OpenAI's have an object
  } catch {
    // it is no JSON, and stands as it is
  }
  return new Refusal(response.status, String(text) || `status ${response.status}`);
}

async function fetchOk(path, options = {}) {
  const response = await fetch(path, { ...options, headers: { ...secrets, ...options.headers } });
  if (response.status === 401) {
    askFor("Authorization", "Key ");
  }
  if (!response.ok) {
    throw await refusalOf(response);
  }
  return response;
}

async function ask(path, options) {
  const text = await (await fetchOk(path, options)).text();
  return text ? JSON.parse(text) : null;
}

const post = (path, body) => ask(path, { method: "POST", body: JSON.stringify(body) });
