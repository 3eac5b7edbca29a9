// Loads the runs, follows their changes, and draws all parts.
import {drawCharts, showMore} from "./curves.js";
import {byName, data, merge, processesOf, read, stateOf, titled} from "./data.js";
import {$, el, get, setOptions, stored, theme} from "./dom.js";
import {drawGraph, foldAll} from "./graph.js";
import {drawJobs} from "./job.js";
import {listLogs, showLog} from "./logs.js";
import {drawPictures} from "./pictures.js";
import {drawProcesses} from "./processes.js";
import {drawServers} from "./servers.js";
import {drawSteps, profileNow} from "./steps.js";
import {drawCompilations, drawTimeline} from "./timeline.js";

export function draw() {
  const known = data.runs.map(processesOf);
  $("title").textContent = [...new Set(data.runs.map((run) => run.job.name || run.name))].join(", ") || "jfluid";
  document.title = `${$("title").textContent} - jfluid`;
  $("states").replaceChildren(
    ...data.runs.map((run, r) => {
      const [text, kind] = stateOf(run, known[r]);
      return el("span", {class: `chip ${kind}`}, data.runs.length > 1 ? `${run.name}: ${text}` : text);
    }),
  );
  const failures = known
    .map((k, r) => {
      if (!k.failure || k.failure.again) return "";
      return `${titled(data.runs[r], k.failure.label)} failed first (${k.failure.reason}). `;
    })
    .join("");
  const dropped = data.runs.reduce((sum, run) => sum + (run.dropped || 0), 0);
  const problem = failures + (dropped ? `${dropped} lines of the record are missing.` : "");
  $("problem").hidden = !problem;
  if ($("problem").dataset.text !== problem) {
    $("problem").dataset.text = problem;
    $("problem").replaceChildren(problem, failures ? el("a", {href: "#timeline"}, "Its traceback") : "");
  }
  const sources = [
    ...new Set(data.runs.flatMap((run) => Object.keys(run.series).map((key) => key.split("\0")[0]))),
  ];
  setOptions($("who"), [
    ["first", "the first of each kind"],
    ["all", "all"],
    ...sources.sort((a, b) => byName({name: a}, {name: b})).map((s) => [s, s]),
  ]);
  $("smoothed").textContent = $("smooth").value;
  drawCharts();
  drawProcesses(known);
  drawSteps(known);
  drawServers();
  drawTimeline();
  drawGraph();
  drawCompilations();
  drawPictures();
  drawJobs();
}
let source = null;
let waiting = false;
function soon() {
  if (!waiting) {
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      draw();
    });
  }
}
async function load() {
  const found = await get("/data", true);
  if (!found) {
    $("link").textContent = "not connected";
    setTimeout(load, 2000);
    return;
  }
  Object.assign(data, found);
  data.skew = data.now - Date.now() / 1000;
  data.runs.forEach(read);
  draw();
  requestAnimationFrame(() => setTimeout(() => performance.mark("drawn")));
  await listLogs();
  await showLog(false);
  follow();
}
export function follow() {
  if (source) source.close();
  source = new EventSource(`/events?since=${data.sequence}`);
  source.onopen = () => {
    $("link").textContent = "live";
  };
  source.onerror = () => {
    $("link").textContent = "not connected";
    source.close();
    setTimeout(load, 2000);
  };
  source.onmessage = (message) => {
    const told = JSON.parse(message.data);
    if (told.reload) {
      source.close();
      load();
      return;
    }
    data.sequence = told.sequence;
    data.reading = told.reading;
    merge(told);
    soon();
  };
}
function setTheme(name) {
  document.documentElement.dataset.theme = name;
  $("theme").textContent = name === "dark" ? "Light" : "Dark";
  $("theme").setAttribute("aria-label", `${$("theme").textContent} colours`);
}
$("theme").addEventListener("click", () => {
  setTheme(theme() === "dark" ? "light" : "dark");
  stored("jfluid-theme", theme());
  draw();
});
$("profile").addEventListener("click", profileNow);
$("unfold").addEventListener("click", () => foldAll(true));
$("fold").addEventListener("click", () => foldAll(false));
for (const id of ["axis", "who", "log", "problems", "stepwho", "stepspan", "program"])
  $(id).addEventListener("change", draw);
for (const id of ["smooth", "filter", "rowfilter"]) $(id).addEventListener("input", soon);
$("more").addEventListener("click", () => {
  showMore();
  draw();
});
$("logname").addEventListener("change", () => showLog(false));
let typed = 0;
$("search").addEventListener("input", () => {
  clearTimeout(typed);
  typed = setTimeout(() => showLog(false), 250);
});
addEventListener("resize", soon);
addEventListener("redraw", draw);
setTheme(stored("jfluid-theme") || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
if ($("data").textContent) {
  Object.assign(data, JSON.parse($("data").textContent), {offline: true});
  data.runs.forEach(read);
  $("export").hidden = true;
  $("link").textContent = `kept on ${new Date(data.now * 1000).toLocaleString("en-GB")}`;
  draw();
  listLogs().then(() => showLog(false));
} else {
  load();
  setInterval(() => {
    if (!document.hidden) {
      soon();
      listLogs();
      if (!$("search").value) showLog(true);
    }
  }, 3000);
}
