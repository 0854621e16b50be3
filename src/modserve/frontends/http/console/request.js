// A form that sends a request made of the model's metadata, and shows the response.

const MOST_SHOWN = 400; // elements of a tensor
const MOST_TEXTS = 50;
const addresses = []; // of pictures in the response that is shown

function requestForm(row) {
  const place = element("div", {}, element("h3", {}, "Send a request"));
  if (!row.total) {
    place.append(element("p", { class: "soft" }, "The version is not READY."));
    return place;
  }
  const why = whyNot("metadata") || whyNot("inference");
  if (why) {
    place.append(element("p", { class: "soft" }, why));
    return place;
  }
  place.append(element("p", { class: "soft" }, "…"));
  makeForm(row).then((form) => place.lastChild.replaceWith(form),
    (error) => place.lastChild.replaceWith(element("p", { class: "bad message" }, error.message)));
  return place;
}

async function makeForm(row) {
  const [metadata, examples] = await Promise.all([
    ask(pathOf(row)), ask(`docs/examples/${encodeURIComponent(row.name)}`)]);
  const example = examples.infer || examples.infer_stream || null;
  const byName = new Map((example ? example.inputs : []).map((input) => [input.name, input]));
  const inputs = metadata.inputs.map((spec) => inputFields(spec, byName.get(spec.name), example === null));
  const parameters = element("textarea", { spellcheck: "false", rows: 2 });
  parameters.value = JSON.stringify((example && example.parameters) || {});
  const send = element("button", { type: "submit", class: "primary" }, "Send");
  const result = element("div", { class: "result", "aria-live": "polite", hidden: true });
  const form = element("form", { class: "request" }, element("p", { class: "soft" }, examples.note || ""), ...inputs.map((input) => input.element),
    element("details", {}, element("summary", {}, "Parameters"), element("label", {}, "JSON ", parameters)),
    element("div", { class: "fields" }, send), result);
  const streamed = !examples.infer && Boolean(examples.infer_stream);
  const prepare = () => {
    addresses.splice(0).forEach((address) => URL.revokeObjectURL(address));
    const status = element("p", {}, "…");
    result.replaceChildren(status);
    result.hidden = false;
    return status;
  };
  stoppable(form, send, prepare, async (status, signal) => {
    const tensors = await Promise.all(inputs.filter((input) => input.used()).map((input) => input.tensor()));
    await (streamed ? sendStream : sendOne)(row, tensors, parse(parameters.value, "the parameters"), result, status, signal);
  });
  return form;
}

function parse(text, what) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${what} cannot be read: ${error.message}`);
  }
}

// The fields of one input; `example` has its shape and data, `large` means there are too many elements to show.
function inputFields(spec, example, large) {
  const shape = example ? example.shape : spec.shape.map((size) => Math.abs(Number(size)));
  const layout = layoutOf(shape);
  const isText = spec.datatype === "BYTES";
  const sources = isText ? { text: "text", values: "JSON values", file: "file, as raw bytes" }
    : { values: "JSON values", zeros: "zeros", ones: "ones", random: "random, 0 to 1",
      ...(layout && layout.height > 1 ? { picture: "picture, 0 to 255", unit: "picture, 0 to 1" } : {}) };
  const first = large && !isText ? "zeros" : isText && sizeOf(shape) === 1 ? "text" : "values";
  const use = element("input", { type: "checkbox" });
  use.checked = Boolean(example) || large;
  const source = element("select", { "aria-label": `Data source of ${spec.name}` },
    ...Object.entries(sources).map(([value, text]) => element("option", { value, selected: value === first }, text)));
  const size = element("input", { autocomplete: "off", size: 14, "aria-label": `Shape of ${spec.name}` });
  size.value = shape.join(", ");
  const data = element("textarea", { spellcheck: "false", "aria-label": `Data of ${spec.name}` });
  const file = element("input", { type: "file", "aria-label": `File for ${spec.name}` });
  const values = example ? example.data : [];
  const refresh = () => {
    const kind = source.value;
    data.hidden = kind !== "values" && kind !== "text";
    file.hidden = !["file", "picture", "unit"].includes(kind);
    data.value = kind === "text" ? String(values[0] ?? "") : JSON.stringify(values);
  };
  source.addEventListener("change", refresh);
  refresh();
  const made = element("fieldset", { "data-input": spec.name },
    element("legend", {}, element("label", {}, use, ` ${spec.name} `),
      element("span", { class: "soft" }, `${spec.datatype} [${spec.shape.join(", ")}]`)),
    element("div", { class: "fields" }, element("label", {}, "Shape ", size), element("label", {}, "Data ", source), file), data);
  const tensor = async () => {
    const sizes = size.value.trim() ? size.value.split(",").map(Number) : [];
    if (!sizes.every((each) => Number.isInteger(each) && each >= 0)) {
      throw new Error(`${spec.name}: the shape is numbers with commas between them, not '${size.value}'`);
    }
    const base = { name: spec.name, datatype: spec.datatype, shape: sizes };
    const kind = source.value;
    if (!file.hidden && !file.files.length) {
      throw new Error(`${spec.name}: no file is chosen`);
    }
    if (kind === "values") {
      return { ...base, data: parse(data.value, `${spec.name}: the values`) };
    }
    if (kind === "text") {
      return { ...base, raw: packedBytes([new TextEncoder().encode(data.value)]) };
    }
    if (kind === "file") {
      return { ...base, raw: packedBytes([new Uint8Array(await file.files[0].arrayBuffer())]) };
    }
    if (kind === "picture" || kind === "unit") {
      const sized = layoutOf(sizes);
      if (!sized) {
        throw new Error(`${spec.name}: a picture does not fit into this shape`);
      }
      const elements = await elementsOfPicture(file.files[0], sized, kind === "unit" ? 1 : 255);
      return { ...base, raw: packed(spec.datatype, sizeOf(sizes), (index) => elements[index % elements.length]) };
    }
    const value = { zeros: () => 0, ones: () => 1, random: () => Math.random() }[kind];
    return { ...base, raw: packed(spec.datatype, sizeOf(sizes), value) };
  };
  return { element: made, used: () => use.checked, tensor };
}

async function sendOne(row, tensors, parameters, result, status, signal) {
  const { body, headers } = written(tensors, parameters);
  const begun = performance.now();
  const response = await fetchOk(`${pathOf(row)}/infer`, { method: "POST", body, headers, signal });
  const data = new Uint8Array(await response.arrayBuffer());
  const took = performance.now() - begun;
  const length = Number(response.headers.get("Inference-Header-Content-Length") || data.length);
  const document = JSON.parse(new TextDecoder().decode(data.subarray(0, length)));
  const cost = response.headers.get("Server-Timing");
  write(status, `${response.status} in ${milliseconds(took)}, version ${document.model_version}${cost ? `; ${cost}` : ""}`);
  result.append(...outputsOf(document, data.subarray(length)).map(shownOutput));
}

async function sendStream(row, tensors, parameters, result, status, signal) {
  const { body, headers } = written(tensors, parameters);
  const begun = performance.now();
  const response = await fetchOk(`${pathOf(row)}/infer_stream`, {
    method: "POST", body, headers: { ...headers, Accept: "text/event-stream" }, signal });
  let count = 0;
  for await (const [, data] of eventsOf(response)) {
    const document = JSON.parse(data);
    if (document.error) {
      throw new Error(document.error);
    }
    const outputs = outputsOf(document);
    count += outputs.length ? 1 : 0;
    if (count <= MOST_TEXTS) {
      result.append(...outputs.map(shownOutput));
    }
    write(status, `${count} responses in ${milliseconds(performance.now() - begun)}`);
  }
}

function shownOutput(output) {
  const place = element("div", { "data-output": output.name },
    element("h3", {}, output.name, " ", element("span", { class: "soft" }, `${output.datatype} [${output.shape.join(", ")}]`)));
  if (output.datatype === "BYTES") {
    place.append(...output.values.slice(0, MOST_TEXTS).map((value) => shownBytes(value, output.name)));
    if (output.values.length > MOST_TEXTS) {
      place.append(element("p", { class: "soft" }, `and ${output.values.length - MOST_TEXTS} more`));
    }
    return place;
  }
  const picture = pictureOf(output);
  const values = element("pre", { tabindex: "0" }, textOf(output));
  place.append(...(picture ? [picture, element("details", {}, element("summary", {}, "Values"), values)] : [values]));
  return place;
}

function shownBytes(value, name) {
  if (typeof value === "string") {
    return element("pre", { tabindex: "0" }, value);
  }
  const type = pictureType(value);
  if (type) {
    const address = URL.createObjectURL(new Blob([value], { type }));
    addresses.push(address);
    return element("img", { src: address, alt: `${name}: a picture of ${value.length} bytes` });
  }
  try {
    return element("pre", { tabindex: "0" }, new TextDecoder("utf-8", { fatal: true }).decode(value));
  } catch {
    const start = [...value.subarray(0, 32)].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    return element("pre", { tabindex: "0" }, `${value.length} bytes: ${start}${value.length > 32 ? " …" : ""}`);
  }
}

// Elements in rows of the last dimension, the first of them; what lies between which bounds if there are many.
function textOf(output) {
  const { values } = output;
  const width = Math.max(1, output.shape.at(-1) ?? 1);
  const rows = [];
  for (let at = 0; at < Math.min(values.length, MOST_SHOWN); at += width) {
    const row = values.slice(at, Math.min(at + width, MOST_SHOWN));
    rows.push(row.map((value) => (typeof value === "number" && !Number.isInteger(value) ? Number(value.toPrecision(6)) : value)).join(", "));
  }
  if (values.length > MOST_SHOWN) {
    rows.push(`… and ${(values.length - MOST_SHOWN).toLocaleString("en")} more`);
  }
  if (values.length > 4 && typeof values[0] === "number") {
    let [least, most] = [0, 0];
    values.forEach((value, index) => {
      least = value < values[least] ? index : least;
      most = value > values[most] ? index : most;
    });
    const exact = (value) => Number(value.toPrecision(6));
    rows.push(`minimum ${exact(values[least])} at ${least}, maximum ${exact(values[most])} at ${most}, of ${values.length.toLocaleString("en")} values`);
  }
  return rows.join("\n");
}
