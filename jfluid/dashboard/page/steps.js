// The time of a step by phase: a table, and bars over time.
import {STEP, byName, data, started, titled} from "./data.js";
import {$, css, el, put, paint, setOptions} from "./dom.js";
import {fmt, lasting, mean, millis} from "./numbers.js";
import {makePlot} from "./plots.js";

const PHASES = ["reader", "rows", "compute", "exchange", "waiting", "script"];
const PHASE_COLOURS = {
  reader: "--l1",
  rows: "--l2",
  compute: "--l0",
  exchange: "--l3",
  waiting: "--l4",
  script: "--quiet",
};
export function drawSteps(known) {
  const rows = [],
    span = Number($("stepspan").value);
  data.runs.forEach((run, r) => {
    const of = new Map();
    for (const key of Object.keys(run.series)) {
      const [process, name] = key.split("\0");
      if (name.startsWith(STEP)) {
        if (!of.has(process)) of.set(process, Object.create(null));
        of.get(process)[name.slice(STEP.length)] = run.series[key];
      }
    }
    for (const [process, series] of [...of].sort(([a], [b]) => byName({name: a}, {name: b}))) {
      const last = Math.max(...Object.values(series).map((points) => points.at(-1)[0])),
        means = {};
      for (const phase of PHASES) means[phase] = mean((series[phase] || []).filter((p) => p[0] >= last - span));
      rows.push({
        run,
        name: titled(run, process),
        key: `${r}\0${process}`,
        series,
        means,
        total: PHASES.reduce((sum, phase) => sum + means[phase], 0),
      });
    }
  });
  $("steptime").hidden = $("tosteptime").hidden = rows.length === 0;
  $("profiling").hidden = data.offline || !data.runs.some((run, r) => run.launched && !known[r].ended);
  if (!rows.length) return;
  const used = PHASES.filter((phase) => rows.some((row) => row.means[phase] > 0)),
    most = Math.max(...rows.map((row) => row.total), 1e-9);
  $("phases").replaceChildren(
    ...used.map((phase) =>
      el("li", {}, paint(el("span", {class: "swatch", "aria-hidden": "true"}), PHASE_COLOURS[phase]), phase),
    ),
  );
  $("phaseheads").replaceChildren(
    ...["Process", "", "Step", ...used].map((head) => el("th", {scope: "col"}, head)),
  );
  put($("phaserows"), rows.slice(0, 500), (row) => {
    const bar = el("div", {class: "stackbar", "aria-hidden": "true"});
    for (const phase of used) {
      const part = paint(el("span", {title: `${phase}: ${fmt(row.means[phase])} ms`}), PHASE_COLOURS[phase]);
      part.style.width = `${(100 * row.means[phase]) / most}%`;
      bar.append(part);
    }
    return el(
      "tr",
      {},
      el("th", {scope: "row"}, row.name),
      el("td", {}, bar),
      el("td", {class: "n"}, `${millis(row.total)} ms`),
      ...used.map((phase) => el("td", {class: "n"}, row.means[phase] ? millis(row.means[phase]) : "")),
    );
  });
  setOptions(
    $("stepwho"),
    rows.map((row) => [row.key, row.name]),
  );
  drawStack(rows.find((row) => row.key === $("stepwho").value) || rows[0], used);
}
export async function profileNow() {
  const r = data.runs.findIndex((run) => run.launched);
  try {
    const answer = await fetch(`/profile?run=${Math.max(r, 0)}&steps=10`, {
      method: "POST",
      headers: {"x-jfluid-dashboard": "1"},
    });
    $("profilenote").textContent = await answer.text();
  } catch {
    $("profilenote").textContent = "not connected";
  }
}
let stack = null;
function drawStack(row, used) {
  const node = $("stack");
  if (!node.clientWidth) return;
  const begin = started(row.run),
    all = used.flatMap((phase) => row.series[phase] || []);
  const t0 = Math.min(...all.map((p) => p[0])),
    t1 = Math.max(...all.map((p) => p[0]), t0 + 1),
    bins = Math.max(1, Math.min(120, (row.series[used[0]] || []).length));
  // each phase's mean in equal stretches of time; a stretch without points is that before it
  const heights = used.map((phase) => {
    const sums = Array.from({length: bins}, () => []);
    for (const p of row.series[phase] || [])
      sums[Math.min(bins - 1, Math.floor(((p[0] - t0) / (t1 - t0)) * bins))].push(p);
    let before = 0;
    return sums.map((points) => (before = points.length ? mean(points) : before));
  });
  const totals = Array.from({length: bins}, (_, i) => heights.reduce((sum, h) => sum + h[i], 0)),
    highest = Math.max(...totals, 1e-9);
  // steps that compile would hide all others
  const usual = [...totals].sort((a, b) => a - b)[Math.floor(bins / 2)],
    cut = highest > 6 * usual && usual > 0,
    most = (cut ? 3 * usual : highest) * 1.05;
  $("stacknote").textContent = cut ? `higher bars are cut off; the highest is ${millis(highest)} ms` : "";
  // the sum of all phases is drawn first, then the sums without the last phases
  const sums = used.map((_, k) =>
    totals.map((_, i) => Math.min(most, heights.slice(0, k + 1).reduce((sum, h) => sum + h[i], 0))),
  );
  stack?.destroy();
  stack = makePlot(node, {
    mode: 1,
    series: used.map((phase) => ({
      fill: () => css(PHASE_COLOURS[phase]),
      width: 0,
      paths: uPlot.paths.stepped({align: 1}),
      points: {show: false},
    })).reverse(),
    data: [
      Array.from({length: bins + 1}, (_, i) => t0 - begin + ((t1 - t0) * i) / bins),
      ...sums.map((sum) => [...sum, sum.at(-1)]).reverse(),
    ],
    labels: lasting,
    range: [0, most],
    cursor: {show: false},
  });
  const newest = used.map((phase, k) => `${phase} ${fmt(heights[k].at(-1))}`);
  node.setAttribute(
    "aria-label",
    `Milliseconds of a step of ${row.name} over time, newest: ${newest.join(", ")}`,
  );
}
