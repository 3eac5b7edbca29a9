// Curves of logged values: one chart for each name.
import {STEP, byName, data, started, titled} from "./data.js";
import {$, css, el, theme} from "./dom.js";
import {fmt, lasting, short} from "./numbers.js";
import {limited, makePlot, update} from "./plots.js";

const charts = new Map();
const MORE = 24;
let most = MORE;
function chosen() {
  const who = $("who").value,
    filter = $("filter").value.toLowerCase(),
    names = new Map();
  data.runs.forEach((run, r) => {
    for (const key of Object.keys(run.series)) {
      const [process, name] = key.split("\0");
      if (name.startsWith(STEP)) continue;
      if (filter && !name.toLowerCase().includes(filter)) continue;
      if (who !== "all" && who !== process && !(who === "first" && /^(trainer|server) 0$|^process /.test(process)))
        continue;
      if (!names.has(name)) names.set(name, []);
      names.get(name).push({r, run, process, key});
    }
  });
  // what was logged comes before what is known without a word
  const place = ([name, found]) =>
    timed(found[0])
      ? /^(memory|processor) \(/.test(name)
        ? 3
        : 2
      : name.startsWith("train: ") || name.startsWith("step: ")
        ? 1
        : 0;
  return new Map([...names].sort((m, n) => place(m) - place(n) || m[0].localeCompare(n[0], "en", {numeric: true})));
}
function smoothed(points, weight) {
  if (!weight) return points;
  let sum = 0,
    norm = 0;
  return points.map(([x, v, p]) => {
    if (!Number.isFinite(v)) return [x, v, p];
    sum = sum * weight + v * (1 - weight);
    norm = norm * weight + (1 - weight);
    return [x, sum / norm, p];
  });
}
function linesOf(found) {
  const axis = $("axis").value,
    weight = Number($("smooth").value);
  return [...found]
    .sort((a, b) => a.r - b.r || byName({name: a.process}, {name: b.process}))
    .slice(0, 250)
    .map((s, i) => {
      const begin = started(s.run);
      const raw = s.run.series[s.key].map((p) => [axis === "step" && p[1] !== null ? p[1] : p[0] - begin, p[2], p]);
      const name = titled(s.run, s.process);
      return {name, raw, points: smoothed(raw, weight), colour: `--l${i % 10}`, dash: Math.floor(i / 10) % 3};
    });
}
const timed = (s) => s.run.series[s.key].every((p) => p[1] === null);
export function drawCharts() {
  const names = chosen(),
    all = names.size;
  $("nocurves").hidden = all > 0 && !data.reading;
  $("nocurves").textContent = data.reading
    ? "Reading the record ..."
    : $("filter").value
      ? "No name has this text."
      : "Nothing has been logged yet.";
  let shown = 0;
  const keep = new Set();
  for (const [name, found] of names) {
    if (++shown > most) break;
    keep.add(name);
    let chart = charts.get(name);
    if (!chart) charts.set(name, (chart = makeChart(name)));
    if ($("charts").children[shown - 1] !== chart.figure)
      $("charts").insertBefore(chart.figure, $("charts").children[shown - 1] || null);
    chart.found = found;
    if (chart.visible || isStale(chart)) drawChart(chart);
  }
  for (const [name, chart] of charts)
    if (!keep.has(name)) {
      chart.figure.remove();
      watcher.unobserve(chart.node);
      charts.delete(name);
    }
  $("more").hidden = all <= most;
  $("more").textContent = `Show ${Math.min(MORE, all - most)} more of ${all} curves`;
}
const isStale = ({node, plot, theme: drawn}) => plot && (drawn !== theme() || plot.width !== node.clientWidth);
const watcher = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) {
      const chart = [...charts.values()].find((c) => c.node === entry.target);
      if (chart) {
        chart.visible = entry.isIntersecting;
        if (chart.visible) drawChart(chart);
      }
    }
  },
  {rootMargin: "200px"},
);
function makeChart(name) {
  const node = el("div", {class: "curve", tabindex: "0", role: "img"});
  const chart = {name, node, visible: true, at: null, form: null, plot: null, theme: null};
  chart.read = el("div", {class: "read", "aria-live": "polite"});
  chart.legend = el("ul", {class: "legend"});
  const save = el(
    "button",
    {type: "button", "aria-label": `Save ${name} as PNG`, onclick: () => savePng(chart)},
    "PNG",
  );
  chart.figure = el("figure", {}, el("figcaption", {}, el("span", {}, name), save), node, chart.read, chart.legend);
  node.addEventListener("blur", () => chart.plot?.setCursor({left: -10, top: -10}));
  node.addEventListener("keydown", (e) => {
    const way = {ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity}[e.key];
    if (way === undefined || !chart.plot) return;
    e.preventDefault();
    const most = chart.plot.over.clientWidth,
      from = chart.at === null ? (way > 0 ? 0 : most) : chart.plot.cursor.left;
    chart.plot.setCursor({left: Math.min(most, Math.max(0, from + (way * most) / 50)), top: 0});
  });
  watcher.observe(node);
  return chart;
}
// The lines of points as [xs, ys]; a process that was started again begins another line.
function partsOf(points, log) {
  const parts = [];
  let before = Infinity;
  for (const [x, v] of points) {
    if (x < before) parts.push([[], []]);
    before = x;
    parts.at(-1)[0].push(x);
    parts.at(-1)[1].push(drawable(v, log) ? limited(v) : null);
  }
  return parts;
}
const drawable = (v, log) => Number.isFinite(v) && (!log || v > 0);
const few = (plot, i) => plot.data[i][0].length < 40;
function seriesOf(line, width, alpha, dash) {
  return {
    facets: [{scale: "x", auto: true, sorted: 1}, {scale: "y", auto: true}],
    stroke: () => css(line.colour),
    width,
    alpha,
    dash: [undefined, [6, 3], [2, 3]][dash],
    points: {
      show: few,
      filter: (plot, i) => (few(plot, i) ? plot.data[i][0].map((_, place) => place) : null),
      size: 4,
      width: 0,
      fill: () => css(line.colour),
    },
  };
}
function drawChart(chart) {
  if (!chart.node.clientWidth) return;
  const lines = linesOf(chart.found),
    log = $("log").checked,
    smooth = Number($("smooth").value) > 0;
  chart.lines = lines;
  chart.theme = theme();
  chart.byTime = $("axis").value === "time" || (chart.found.length > 0 && timed(chart.found[0]));
  const series = [],
    parts = [null];
  for (const line of lines)
    for (const [points, ...look] of [
      ...(smooth ? [[line.raw, 1, 0.3, 0]] : []),
      [line.points, 1.6, lines.length > 12 ? 0.6 : 1, line.dash],
    ])
      for (const part of partsOf(points, log)) {
        series.push(seriesOf(line, ...look));
        parts.push(part);
      }
  const form = JSON.stringify([log, chart.byTime, series, lines.map((line) => [line.name, line.colour])]);
  if (form === chart.form) update(chart.plot, chart.node, parts);
  else {
    chart.plot?.destroy();
    chart.form = form;
    chart.plot = makePlot(chart.node, {
      mode: 2,
      series,
      data: parts,
      labels: chart.byTime ? lasting : short,
      log,
      margin: 0.05,
      hooks: {draw: [(plot) => markOdd(plot, chart.lines, log)], setCursor: [(plot) => readValues(chart, plot)]},
    });
  }
  chart.odd = lines.reduce((sum, line) => sum + line.raw.filter(([, v]) => !drawable(v, log)).length, 0);
  readValues(chart, chart.plot);
  describe(chart);
}
// Marks at the top for values that no line can show.
function markOdd({ctx, bbox, valToPos}, lines, log) {
  ctx.fillStyle = css("--bad");
  const size = 4 * devicePixelRatio;
  for (const line of lines)
    for (const [x, v] of line.raw)
      if (!drawable(v, log)) {
        const at = valToPos(x, "x", true);
        ctx.beginPath();
        ctx.moveTo(at - size, bbox.top);
        ctx.lineTo(at + size, bbox.top);
        ctx.lineTo(at, bbox.top + 1.75 * size);
        ctx.fill();
      }
}
function readValues(chart, plot) {
  const {lines, byTime, odd} = chart;
  chart.at = plot.cursor.left >= 0 ? plot.posToVal(plot.cursor.left, "x") : null;
  let told = "";
  if (chart.at !== null) {
    const near = lines.slice(0, 8).map((line) => {
      const p = nearest(line.points, chart.at);
      return (
        p &&
        `${lines.length > 1 ? `${line.name} ` : ""}${fmt(p[1])} at ${byTime ? lasting(p[0]) : `step ${fmt(p[2][1])}`}`
      );
    });
    told = near.filter(Boolean).join("; ");
  } else if (odd)
    told = `${odd} ${odd === 1 ? "point is" : "points are"} ${$("log").checked ? "not finite, or not above 0" : "not finite"}`;
  if (chart.read.textContent !== told) chart.read.textContent = told;
}
function describe({name, node, legend, lines, found}) {
  const sums = lines.slice(0, 60).map((line) => {
    const last = line.raw.length ? line.raw[line.raw.length - 1] : null;
    return [line, last ? `${line.name}: ${fmt(last[1])}` : line.name];
  });
  const swatches = sums.map(([line, text]) => {
    const swatch = el("span", {class: "swatch", "aria-hidden": "true"});
    swatch.style.background = `var(${line.colour})`;
    return el("li", {}, swatch, text);
  });
  if (lines.length > 60) swatches.push(el("li", {class: "quiet"}, `and ${found.length - 60} more`));
  legend.replaceChildren(...swatches);
  const newest = sums.slice(0, 8).map((s) => s[1]);
  node.setAttribute("aria-label", `${name}, newest: ${newest.join("; ")}. Arrow keys read values.`);
}
function nearest(points, at) {
  let found = null;
  for (const p of points) if (!found || Math.abs(p[0] - at) <= Math.abs(found[0] - at)) found = p;
  return found;
}
function savePng(chart) {
  chart.plot.ctx.canvas.toBlob((blob) => {
    const url = URL.createObjectURL(blob);
    el("a", {href: url, download: `${chart.name.replace(/[^\w.-]+/g, "_")}.png`}).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  });
}
export function showMore() {
  most += MORE;
}
