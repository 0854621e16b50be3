// What the page looks up when it is opened.

async function findModels() {
  let trouble = "No model is READY.";
  models = [];
  try {
    const body = JSON.stringify({ ready: true });
    models = await fetched("v2/repository/index", { method: "POST", body });
  } catch {
    try {
      models = (await fetched("v2/models")).models.map((name) => ({ name, version: "1" }));
    } catch (error) {
      trouble = error.message;
    }
  }
  const names = [...new Set(models.map((model) => model.name))];
  byId("models").replaceChildren(...names.map((name) => element("option", { value: name })));
  byId("name").replaceChildren(...names.map((name) => element("option", {}, name)));
  byId("chosen").hidden = !names.length;
  explain(names.length ? "" : trouble);
  if (names.length) {
    byId("name").value = names.includes(preferred) ? preferred : names.includes("simple") ? "simple" : names[0];
    prefer(byId("name").value);
  }
}

function show(specification) {
  byId("version").textContent = specification.info.version;
  byId("about").textContent = specification.info.description;
  for (const { name, description } of specification.tags) {
    const calls = [];
    for (const [path, methods] of Object.entries(specification.paths)) {
      for (const [method, operation] of Object.entries(methods)) {
        if (operation.tags[0] === name) {
          calls.push(callElement(path, method, operation, specification.components.schemas));
        }
      }
    }
    const about = element("p", { class: "soft" }, description);
    byId("calls").append(element("section", {}, element("h2", {}, name), about, ...calls));
  }
}

byId("filter").addEventListener("input", (event) => {
  const part = event.target.value.toLowerCase();
  for (const section of byId("calls").children) {
    let some = false;
    for (const call of section.querySelectorAll(".call")) {
      call.hidden = !call.dataset.path.toLowerCase().includes(part);
      some ||= !call.hidden;
    }
    section.hidden = !some;
  }
});
byId("settings").addEventListener("submit", (event) => event.preventDefault());
byId("name").addEventListener("change", () => prefer(byId("name").value));
byId("header-value").addEventListener("change", findModels);

addTabs();
(async () => {
  try {
    await findModels();
    show(await fetched("openapi.json"));
    document.body.dataset.ready = "true";
  } catch (error) {
    byId("about").textContent = `The server does not describe its calls: ${error.message}`;
    byId("about").className = "bad";
  }
})();
fetch("console/about").then((response) => { byId("console").hidden = !response.ok; }, () => {});
