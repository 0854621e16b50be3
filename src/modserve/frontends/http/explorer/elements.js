// Texts of the document and calls of this server.

function marked(text) {
  // Descriptions are Markdown of one kind only: `code`.
  return text.split("`").map((part, index) => (index % 2 ? element("code", {}, part) : part));
}

function copyable(text) {
  const source = element("pre", { tabindex: "0" }, text);
  return [source, copyButton(source)];
}

function headers() {
  const name = byId("header-name").value.trim();
  return name ? { [name]: byId("header-value").value } : {};
}

async function fetched(path, options = {}) {
  const response = await fetch(path, { ...options, headers: headers() });
  if (!response.ok) {
    const body = await response.json().catch(() => ({}));
    throw new Error(body.error || `${path}: status ${response.status}`);
  }
  return response.json();
}

function formatted(value) {
  // Lists of plain values stay on one line: tensors would be a value a line otherwise.
  const lists = [];
  const text = JSON.stringify(value, (key, each) => {
    if (Array.isArray(each) && each.every((item) => typeof item !== "object" || item === null)) {
      lists.push(JSON.stringify(each));
      return `\u0000${lists.length - 1}\u0000`;
    }
    return each;
  }, 2);
  return text === undefined ? "" : text.replace(/"\\u0000(\d+)\\u0000"/g, (match, index) => lists[index]);
}

function readable(text) {
  try {
    return formatted(JSON.parse(text));
  } catch {
    return text;
  }
}

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
