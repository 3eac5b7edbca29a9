// The job file, versions and flags, and differences between runs.
import {data} from "./data.js";
import {$, el} from "./dom.js";

function keysOf(text) {
  const found = Object.create(null),
    path = [];
  for (const line of (text || "").split("\n")) {
    const m = /^( *)(- )?([^:#]+?)(?:: ?(.*))?$/.exec(line);
    if (!m || line.startsWith("#")) continue;
    const depth = m[1].length / 2 + (m[2] ? 1 : 0);
    path.length = Math.floor(depth);
    if (m[2] || m[4] === undefined) {
      const key = path.join(".") || "?";
      found[key] = (found[key] ? `${found[key]}, ` : "") + line.trim();
      continue;
    }
    path[Math.floor(depth)] = m[3];
    if (m[4] !== "") found[path.join(".")] = m[4];
  }
  return found;
}
let jobsOf = "";
export function drawJobs() {
  const state = JSON.stringify(data.runs.map((run) => run.job));
  if (state === jobsOf) return;
  jobsOf = state;
  const table = (rows, heads) =>
    el(
      "div",
      {class: "scroll", tabindex: "0", role: "region", "aria-label": heads.join(", ")},
      el(
        "table",
        {},
        el("thead", {}, el("tr", {}, ...heads.map((h) => el("th", {scope: "col"}, h)))),
        el(
          "tbody",
          {},
          ...rows.map(([name, ...values]) =>
            el("tr", {}, el("th", {scope: "row"}, name), ...values.map((v) => el("td", {class: "wrap"}, v))),
          ),
        ),
      ),
    );
  if (data.runs.length > 1) {
    const maps = data.runs.map((run) => ({
      __proto__: null,
      ...keysOf(run.job.job),
      ...prefixed("version of ", run.job.versions),
      ...prefixed("", run.job.environment),
    }));
    const names = [...new Set(maps.flatMap(Object.keys))].filter(
      (name) => new Set(maps.map((m) => m[name])).size > 1,
    );
    $("differences").replaceChildren(
      el("h3", {}, "What differs"),
      names.length
        ? table(
            names.map((name) => [name, ...maps.map((m) => (m[name] === undefined ? "" : m[name]))]),
            ["", ...data.runs.map((run) => run.name)],
          )
        : el("p", {class: "quiet"}, "Nothing in their job files, versions and flags."),
    );
  }
  $("jobs").replaceChildren(
    ...data.runs.map((run, r) => {
      const job = run.job,
        rows = [...Object.entries(job.versions || {}), ...Object.entries(job.environment || {})];
      for (const [name, value] of [
        ["system", job.system],
        ["processors", job.processors],
        ["started in", job.folder],
        ["hosts", job.hosts],
      ])
        if (value) rows.push([name, String(value)]);
      return el(
        "div",
        {},
        el("h3", {}, run.folder),
        data.offline
          ? null
          : el("p", {}, el("a", {href: `/table?run=${r}`, download: ""}, "All numbers as a table (CSV)")),
        job.job
          ? el("pre", {tabindex: "0", role: "region", "aria-label": "job file"}, job.job)
          : el("p", {class: "quiet"}, "No launcher has written here."),
        rows.length ? table(rows, ["Name", "Value"]) : null,
      );
    }),
  );
}
const prefixed = (prefix, table) =>
  Object.fromEntries(Object.entries(table || {}).map(([name, value]) => [prefix + name, value]));
