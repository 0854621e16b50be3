// The page begins.

function setTheme(name) {
  if (name) {
    document.documentElement.dataset.theme = name;
  } else {
    delete document.documentElement.dataset.theme;
  }
  byId("theme").value = name;
}

function keptTheme(name) {
  try {
    if (name === undefined) {
      return localStorage.getItem("modserve-theme") || "";
    }
    localStorage.setItem("modserve-theme", name);
  } catch {
    // a browser that keeps nothing
  }
  return "";
}

async function showName() {
  try {
    const { name, version } = await ask("v2");
    write(byId("server"), name === "modserve" ? version : `${name}, modserve ${version}`);
    document.title = name === "modserve" ? "modserve" : `${name}: modserve`;
  } catch {
    write(byId("server"), "");
  }
}

// All that depends on which headers are sent.
function begin() {
  failuresShown = -1;
  showName();
  showLog();
  showControl();
  lookForAbsent();
  if (chosen) {
    openDetail();
  }
  if (!paused) {
    follow();
  }
}

// On a narrow screen the models come first, to the eye and to a screen reader.
const narrow = matchMedia("(max-width: 48rem)");
const place = () => (narrow.matches ? byId("models").after(byId("overview")) : byId("detail").before(byId("overview")));
narrow.addEventListener("change", place);
place();
byId("tiles").append(...Object.values(tiles).map((chart) => chart.element));
makeTable();
setTheme(keptTheme());
byId("theme").addEventListener("change", (event) => { setTheme(event.target.value); keptTheme(event.target.value); });
byId("pause").addEventListener("click", () => setPaused(!paused));
byId("secrets").addEventListener("submit", (event) => { event.preventDefault(); keepSecrets(); begin(); });
byId("log").addEventListener("submit", changeLog);
document.addEventListener("visibilitychange", visibilityChanged);
// A browser may keep a page that was left, with its connections, to show it again.
window.addEventListener("pagehide", stopFollowing);
window.addEventListener("pageshow", (event) => { if (event.persisted && !paused) { follow(); } });
window.addEventListener("hashchange", chooseByAddress);
let wasThere = false;
listeners.figures.push(refreshServer, refreshTable, () => {
  if (!wasThere) {
    wasThere = true;
    if (location.hash) {
      chooseByAddress();
    }
    document.body.dataset.ready = "true";
  }
  refreshDetail();
});
setInterval(() => {
  for (const chart of [...Object.values(tiles), ...(detail ? Object.values(detail.charts) : [])]) {
    chart.label();
  }
}, 10_000);

(async () => {
  try {
    allowed = await ask("console/about");
  } catch (error) {
    notice(error.message);
  }
  makeSecrets();
  begin();
})();
