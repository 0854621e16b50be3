// A model of the server: its tensors, and programs that call it, to copy.

const CLIENTS = [["curl", "curl"], ["python", "Python"], ["tritonclient", "tritonclient"]];
let client = CLIENTS[0][0];
let snippets = {};
let newestModel = 0; // the newest look-up is the one that counts

function here(text) {
  // Programs call localhost as the server writes them.
  const base = new URL(".", document.baseURI);
  const place = base.host + base.pathname.replace(/\/$/, "");
  const secure = base.protocol === "https:" ? ", ssl=True" : "";
  return text.replaceAll("http://localhost:8000", `${base.protocol}//${place}`)
    .replaceAll('"localhost:8000"', `"${place}"${secure}`)
    .replaceAll('"localhost:8001"', `"${base.hostname}:8001"${secure}`);
}

function showSnippet() {
  for (const tab of byId("clients").children) {
    const chosen = tab.id === `tab-${client}`;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
  }
  byId("snippet").setAttribute("aria-labelledby", `tab-${client}`);
  byId("snippet").replaceChildren(...(snippets[client] ? copyable(here(snippets[client])) : []));
}

function addTabs() {
  byId("clients").append(...CLIENTS.map(([name, label]) => {
    const tab = element("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "snippet" }, label);
    tab.addEventListener("click", () => {
      client = name;
      showSnippet();
    });
    return tab;
  }));
  byId("clients").addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) {
      const index = CLIENTS.findIndex(([name]) => name === client) + step;
      client = CLIENTS[(index + CLIENTS.length) % CLIENTS.length][0];
      showSnippet();
      byId(`tab-${client}`).focus();
    }
  });
}

function tensorRows(metadata, schemas) {
  const optional = new Set(Object.values(schemas)
    .filter((schema) => schema.description === "Optional.").map((schema) => schema.properties.name.const));
  return [["input", metadata.inputs], ["output", metadata.outputs]].flatMap(([use, tensors]) =>
    (tensors || []).map((tensor) => element("tr", {},
      element("th", { scope: "row" }, tensor.name),
      element("td", {}, use === "input" && optional.has(tensor.name) ? "optional input" : use),
      element("td", {}, tensor.datatype),
      element("td", {}, `[${tensor.shape.join(", ")}]`))));
}

function explain(trouble) {
  byId("model-note").textContent = trouble;
  byId("model-note").hidden = !trouble;
}

async function showModel() {
  const name = encodeURIComponent(byId("name").value);
  const turn = ++newestModel;
  let rows = [];
  let trouble = "";
  let programs = {};
  try {
    const [metadata, specification, texts] = await Promise.all([
      fetched(`v2/models/${name}`), fetched(`v2/models/${name}/openapi.json`), fetched(`docs/snippets/${name}`)]);
    rows = tensorRows(metadata, specification.components.schemas);
    programs = texts;
  } catch (error) {
    trouble = error.message;
  }
  if (turn !== newestModel) {
    return;
  }
  snippets = programs;
  byId("document").setAttribute("href", `v2/models/${name}/openapi.json`);
  explain(trouble);
  byId("tensors").hidden = !rows.length;
  byId("tensors").tBodies[0].replaceChildren(...rows);
  showSnippet();
  byId("model").dataset.model = byId("name").value;
}

function prefer(name) {
  // The forms that are open follow, unless somebody has put another model into them.
  for (const input of document.querySelectorAll("input[data-parameter=model]")) {
    if (input.value === preferred) {
      input.value = name;
      input.dispatchEvent(new Event("change"));
    }
  }
  preferred = name;
  showModel();
}
