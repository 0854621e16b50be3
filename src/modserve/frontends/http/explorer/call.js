// A call of the document: a line that opens into a form, which sends it.

const MODEL_CALLS = new Set(["infer", "infer_stream", "generate", "generate_stream", "predict"]);
const OTHER_PARAMETERS = { region: "my_region", repository: "models", label: "stable" };
let models = []; // [{name, version}] of what is READY, the latest version last
let preferred = "";

function latest(name) {
  const versions = models.filter((model) => model.name === name).map((model) => Number(model.version));
  return versions.length ? String(Math.max(...versions)) : "1";
}

function parameterFields(path) {
  const inputs = {};
  for (const [, name] of path.matchAll(/\{(\w+)\}/g)) {
    inputs[name] = element("input", { autocomplete: "off", "data-parameter": name });
    inputs[name].value = OTHER_PARAMETERS[name] || "";
    if (name === "model") {
      inputs[name].setAttribute("list", "models");
      inputs[name].value = preferred;
    }
  }
  return inputs;
}

function keepFilled(path, inputs, content, note, body) {
  // Put an example of the model's into the body, now and whenever the model is another.
  const call = path.split(/[/:]/).pop();
  let newest = 0; // the newest look-up of examples is the one that counts
  async function fill() {
    if (inputs.version && inputs.model) {
      inputs.version.value = latest(inputs.model.value);
    }
    if (!content || !MODEL_CALLS.has(call) || !inputs.model.value) {
      return;
    }
    const turn = ++newest;
    let text = "";
    let remark = "";
    try {
      const examples = await fetched(`docs/examples/${encodeURIComponent(inputs.model.value)}`);
      remark = examples.note;
      text = examples[call] === undefined ? "" : formatted(examples[call]);
    } catch (error) {
      remark = `There is no example: ${error.message}`;
    }
    if (turn === newest) {
      note.textContent = remark;
      body.value = text;
    }
  }
  if (inputs.model) {
    inputs.model.addEventListener("change", fill);
  }
  fill();
}

function curlCommand(method, url, data) {
  const names = Object.keys(headers()).map((name) => ` -H ${quoted(`${name}: …`)}`).join("");
  const verb = method === "get" || data !== undefined && method === "post" ? "" : ` -X ${method.toUpperCase()}`;
  return `curl${verb}${names} ${quoted(url.href)}${data === undefined ? "" : ` -d ${quoted(data)}`}`;
}

async function readInto(response, answer) {
  const reader = response.body && response.body.getReader();
  const decoder = new TextDecoder();
  const streamed = (response.headers.get("content-type") || "").startsWith("text/event-stream");
  let text = "";
  for (let part; reader && !(part = await reader.read()).done;) {
    text += decoder.decode(part.value, { stream: true });
    if (streamed) {
      answer.textContent = text;
    }
  }
  answer.textContent = streamed ? text : readable(text);
}

function firstSentence(text) {
  return text.split(/(?<=[.?]) /)[0];
}

function operationForm(path, method, operation, schemas) {
  const description = operation.description || "";
  const form = element("form", {}, element("p", {}, ...marked(description.replace(firstSentence(description), ""))));
  const inputs = parameterFields(path);
  form.append(element("div", { class: "fields" },
    ...Object.entries(inputs).map(([name, input]) => element("label", {}, `${name} `, input))));
  const content = operation.requestBody && operation.requestBody.content["application/json"];
  const note = element("p", { class: "soft" });
  const body = element("textarea", { spellcheck: "false", "aria-label": "body" });
  if (content) {
    body.value = content.example === undefined ? "" : formatted(content.example);
    form.append(note, body);
  }
  const send = element("button", { type: "submit", class: "primary" }, "Send");
  const result = element("div", { "aria-live": "polite" });
  const schema = element("details", { class: "schema" }, element("summary", {}, "Schema"),
    element("pre", { tabindex: "0" }, operationSchemas(operation, schemas)));
  form.append(send, result, schema);
  const target = () => {
    const url = new URL(path.slice(1).replace(/\{(\w+)\}/g, (match, name) => encodeURIComponent(inputs[name].value)) || ".",
      document.baseURI);
    url.hash = "";
    return [url, content && body.value.trim() ? body.value : undefined];
  };
  const prepare = () => {
    const status = element("p", {}, "…");
    result.replaceChildren(element("div", { class: "code" }, ...copyable(curlCommand(method, ...target()))), status);
    return status;
  };
  stoppable(form, send, prepare, async (status, signal) => {
    const [url, data] = target();
    const answer = element("pre", { tabindex: "0" });
    result.append(answer);
    const begun = performance.now();
    const response = await fetch(url, { method: method.toUpperCase(), body: data, headers: headers(), signal });
    status.className = response.ok ? "" : "bad";
    await readInto(response, answer);
    write(status, `${response.status} ${response.statusText}, ${(performance.now() - begun).toFixed(1)} ms`);
  });
  keepFilled(path, inputs, content, note, body);
  return element("div", {}, form);
}

function callElement(path, method, operation, schemas) {
  const summary = element("summary", {},
    element("span", { class: `method ${method}` }, method.toUpperCase()),
    element("span", { class: "path" }, path),
    element("span", { class: "summary" }, ...marked(firstSentence(operation.description || ""))));
  const call = element("details", { class: "call", "data-path": path, "data-method": method }, summary);
  call.addEventListener("toggle", () => {
    if (call.open && call.children.length === 1) {
      call.append(operationForm(path, method, operation, schemas));
    }
  });
  return call;
}
