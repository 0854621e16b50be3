// What both pages have: elements, forms that can be stopped, and copying.
// What others say (names of models, reasons, responses) is only ever put into a page as text.

const byId = (id) => document.getElementById(id);

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== false) {
      made.setAttribute(key, value === true ? "" : value);
    }
  }
  made.append(...children);
  return made;
}

function write(node, text) {
  if (node.textContent !== text) {
    node.textContent = text;
  }
}

const openCalls = new Set(); // controllers of the calls that forms have made and that go on

function stopCalls() {
  openCalls.forEach((call) => call.abort());
}

// While a form's call goes on, its button stops it. `prepare` returns the place of the status; `call` gets that place and a signal.
function stoppable(form, button, prepare, call) {
  const name = button.textContent;
  let control = null;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (control) {
      control.abort();
      return;
    }
    control = new AbortController();
    openCalls.add(control);
    write(button, "Stop");
    const status = prepare();
    try {
      await call(status, control.signal);
    } catch (error) {
      status.className = error.name === "AbortError" ? "soft" : "bad";
      write(status, error.name === "AbortError" ? "stopped" : error.message);
    }
    control.abort(); // what was not read to its end
    openCalls.delete(control);
    control = null;
    write(button, name);
  });
}

// A button that copies the text of `source`.
function copyButton(source) {
  const button = element("button", { type: "button" }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(source.textContent);
      write(button, "Copied");
    } catch { // browsers give the clipboard to pages of https and localhost only
      getSelection().selectAllChildren(source);
      write(button, "Selected");
    }
    setTimeout(() => write(button, "Copy"), 1500);
  });
  return button;
}
