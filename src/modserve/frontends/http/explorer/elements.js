// Parts of the page.
// What others say (names of models, answers) is only ever put into the page as text.

const byId = (id) => document.getElementById(id);

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function marked(text) {
  // Descriptions are Markdown of one kind only: `code`.
  return text.split("`").map((part, index) => (index % 2 ? element("code", {}, part) : part));
}

function copyable(text) {
  const button = element("button", { type: "button" }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch { // browsers give the clipboard to pages of https and localhost only
      getSelection().selectAllChildren(button.previousSibling);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  return [element("pre", { tabindex: "0" }, text), button];
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
