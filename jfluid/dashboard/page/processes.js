// The table of processes.
import {data, now} from "./data.js";
import {$, el, put} from "./dom.js";
import {fmt, lasting, num} from "./numbers.js";

let order = ["name", 1];
const HEADS = [
  ["run", "Run"],
  ["name", "Process"],
  ["host", "Host"],
  ["state", "State"],
  ["step", "Step"],
  ["rate", "Rate"],
  ["metrics", "Numbers"],
  ["memory", "Memory"],
  ["eta", "Left"],
  ["restarts", "Restarts"],
  ["sign", "Last sign"],
];
export function drawProcesses(known) {
  const several = data.runs.length > 1,
    rows = [];
  data.runs.forEach((run, r) => {
    for (const p of known[r].list) {
      const report = p.report,
        memory = run.series[`${p.name}\0memory (MB)`],
        rate = report ? num(report.rate) : null;
      const running = p.state === "running",
        steps = report && report.total ? report.total - report.step : null;
      const points = run.series[`${p.name}\0${report ? report.description : ""}: ${report ? report.unit : ""}/s`];
      const pace =
        points && points.length > 1 ? (points.at(-1)[1] - points[0][1]) / (points.at(-1)[0] - points[0][0]) : 0;
      rows.push({
        run: run.name,
        name: p.name,
        host: p.host || "",
        state: p.state,
        kind: p.kind,
        restarts: p.restarts || 0,
        step: report ? report.step : -1,
        steps: report ? fmt(report.step) + (report.total ? ` of ${fmt(report.total)}` : "") : "",
        rate: rate === null ? -1 : rate,
        rates: rate === null ? "" : `${fmt(Math.round(rate))} ${report.unit}/s`,
        metrics: report
          ? Object.entries(report.metrics)
              .map(([n, v]) => `${n} ${fmt(v)}`)
              .join(", ")
          : "",
        memory: memory ? memory.at(-1)[2] : -1,
        eta: running && !report?.done && steps && pace > 0 ? steps / pace : -1,
        sign: p.t || 0,
      });
    }
  });
  const filter = $("rowfilter").value.toLowerCase();
  const shown = rows.filter(
    (row) => !filter || `${row.run} ${row.name} ${row.host} ${row.state}`.toLowerCase().includes(filter),
  );
  const [by, way] = order;
  shown.sort(
    (a, b) =>
      way *
      (typeof a[by] === "number"
        ? a[by] - b[by]
        : String(a[by]).localeCompare(String(b[by]), "en", {numeric: true})),
  );
  if (!$("heads").children.length || $("heads").dataset.several !== String(several)) {
    $("heads").dataset.several = several;
    $("heads").replaceChildren(
      ...HEADS.filter(([key]) => several || key !== "run").map(([key, title]) => {
        const th = el(
          "th",
          {scope: "col", "data-key": key},
          el(
            "button",
            {
              type: "button",
              onclick: () => {
                order = [key, order[0] === key ? -order[1] : 1];
                dispatchEvent(new Event("redraw"));
              },
            },
            title,
          ),
        );
        return th;
      }),
    );
  }
  for (const th of $("heads").children) {
    if (th.dataset.key === by) th.setAttribute("aria-sort", way > 0 ? "ascending" : "descending");
    else th.removeAttribute("aria-sort");
  }
  put($("rows"), shown, (row) =>
    el(
      "tr",
      {},
      several ? el("td", {class: "wrap"}, row.run) : null,
      el("th", {scope: "row"}, row.name),
      el("td", {}, row.host),
      el("td", {class: row.kind}, row.state),
      el("td", {class: "n"}, row.steps),
      el("td", {class: "n"}, row.rates),
      el("td", {class: "wrap"}, row.metrics),
      el("td", {class: "n"}, row.memory < 0 ? "" : `${fmt(Math.round(row.memory))} MB`),
      el("td", {class: "n"}, row.eta < 0 ? "" : lasting(row.eta)),
      el("td", {class: "n"}, row.restarts ? String(row.restarts) : ""),
      el("td", {class: "n"}, row.sign ? `${lasting(now() - row.sign)} ago` : ""),
    ),
  );
  const bad = rows.filter((row) => row.kind === "bad").length;
  $("counts").textContent =
    `${rows.length} ${rows.length === 1 ? "process" : "processes"}` + (bad ? `, ${bad} failed` : "");
}
