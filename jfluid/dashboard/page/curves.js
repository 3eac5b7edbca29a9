// Curves of logged values: one canvas for each name.
import {STEP, byName, data, started, titled} from "./data.js";
import {$, css, el} from "./dom.js";
import {fmt, lasting, short, ticks} from "./numbers.js";

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
    if (chart.visible) drawChart(chart);
    else chart.dirty = true;
  }
  for (const [name, chart] of charts)
    if (!keep.has(name)) {
      chart.figure.remove();
      watcher.unobserve(chart.canvas);
      charts.delete(name);
    }
  $("more").hidden = all <= most;
  $("more").textContent = `Show ${Math.min(MORE, all - most)} more of ${all} curves`;
}
const watcher = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) {
      const chart = [...charts.values()].find((c) => c.canvas === entry.target);
      if (chart) {
        chart.visible = entry.isIntersecting;
        if (chart.visible) drawChart(chart);
      }
    }
  },
  {rootMargin: "200px"},
);
function makeChart(name) {
  const canvas = el("canvas", {class: "curve", tabindex: "0", role: "img"});
  const chart = {name, canvas, visible: true, at: null};
  chart.read = el("div", {class: "read", "aria-live": "polite"});
  chart.legend = el("ul", {class: "legend"});
  const save = el(
    "button",
    {type: "button", "aria-label": `Save ${name} as PNG`, onclick: () => savePng(chart)},
    "PNG",
  );
  chart.figure = el(
    "figure",
    {},
    el("figcaption", {}, el("span", {}, name), save),
    canvas,
    chart.read,
    chart.legend,
  );
  canvas.addEventListener("pointermove", (e) => {
    chart.at = chart.value ? chart.value(e.offsetX) : null;
    drawChart(chart);
  });
  canvas.addEventListener("pointerleave", () => {
    chart.at = null;
    drawChart(chart);
  });
  canvas.addEventListener("blur", () => {
    chart.at = null;
    drawChart(chart);
  });
  canvas.addEventListener("keydown", (e) => {
    const way = {ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity}[e.key];
    if (way === undefined || !chart.range) return;
    e.preventDefault();
    const [low, high] = chart.range;
    const from = chart.at === null ? (way > 0 ? low : high) : chart.at;
    chart.at =
      way === -Infinity
        ? low
        : way === Infinity
          ? high
          : Math.min(high, Math.max(low, from + (way * (high - low)) / 50));
    drawChart(chart);
  });
  watcher.observe(canvas);
  return chart;
}
function drawChart(chart) {
  const canvas = chart.canvas,
    lines = linesOf(chart.found),
    log = $("log").checked;
  const width = canvas.clientWidth,
    height = canvas.clientHeight,
    ratio = devicePixelRatio || 1;
  chart.dirty = false;
  if (!width) return;
  if (canvas.width !== Math.round(width * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const g = canvas.getContext("2d");
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.fillStyle = css("--card");
  g.fillRect(0, 0, width, height);
  let x0 = Infinity,
    x1 = -Infinity,
    y0 = Infinity,
    y1 = -Infinity,
    odd = 0;
  const up = (v) => (log ? (v > 0 ? Math.log10(v) : NaN) : v);
  for (const line of lines)
    for (const set of [line.raw, line.points])
      for (const [x, v] of set) {
        if (x < x0) x0 = x;
        if (x > x1) x1 = x;
        const y = up(v);
        if (Number.isFinite(y)) {
          if (y < y0) y0 = y;
          if (y > y1) y1 = y;
        } else if (set === line.raw) odd++;
      }
  if (!Number.isFinite(y0)) {
    y0 = 0;
    y1 = 1;
  }
  if (y0 === y1) {
    const d = Math.abs(y0) / 10 || 1;
    y0 -= d;
    y1 += d;
  }
  if (!(y1 - y0 < Infinity)) {
    y0 = -1e308;
    y1 = 7e307;
  }
  if (!Number.isFinite(x0)) {
    x0 = 0;
    x1 = 1;
  }
  if (x0 === x1) {
    x0 -= 0.5;
    x1 += 0.5;
  }
  const pad = (y1 - y0) * 0.05,
    left = 52,
    right = 10,
    top = 10,
    bottom = 22;
  y0 -= pad;
  y1 += pad;
  const X = (x) => left + ((x - x0) / (x1 - x0)) * (width - left - right),
    Y = (y) => top + ((y1 - y) / (y1 - y0)) * (height - top - bottom);
  chart.range = [x0, x1];
  chart.value = (at) => Math.min(x1, Math.max(x0, x0 + ((at - left) / (width - left - right)) * (x1 - x0)));
  g.font = "11px system-ui, sans-serif";
  g.lineWidth = 1;
  g.strokeStyle = css("--edge");
  g.fillStyle = css("--quiet");
  g.textAlign = "right";
  g.textBaseline = "middle";
  for (const y of ticks(y0, y1, 4)) {
    g.beginPath();
    g.moveTo(left, Y(y));
    g.lineTo(width - right, Y(y));
    g.stroke();
    g.fillText(short(log ? 10 ** y : y), left - 5, Y(y));
  }
  g.textAlign = "center";
  g.textBaseline = "top";
  const byTime = $("axis").value === "time" || (chart.found.length > 0 && timed(chart.found[0]));
  for (const x of ticks(x0, x1, Math.max(2, width / 110)))
    g.fillText(byTime ? lasting(x) : short(x), Math.min(Math.max(X(x), left + 8), width - 24), height - bottom + 6);
  const smoothing = Number($("smooth").value) > 0;
  const draw = (points, thick, alpha, colour, dash) => {
    g.globalAlpha = alpha;
    g.lineWidth = thick;
    g.strokeStyle = g.fillStyle = colour;
    g.setLineDash([[], [6, 3], [2, 3]][dash]);
    g.beginPath();
    let before = null,
      count = 0;
    for (const [x, v] of points) {
      const y = up(v);
      // a process that was started again begins another line
      if (!Number.isFinite(y)) {
        before = null;
        continue;
      }
      if (before === null || x < before) g.moveTo(X(x), Y(y));
      else g.lineTo(X(x), Y(y));
      before = x;
      count++;
    }
    g.stroke();
    g.setLineDash([]);
    if (count && count < 40)
      for (const [x, v] of points) {
        const y = up(v);
        if (Number.isFinite(y)) {
          g.beginPath();
          g.arc(X(x), Y(y), 2, 0, 7);
          g.fill();
        }
      }
    g.globalAlpha = 1;
  };
  for (const line of lines) {
    const colour = css(line.colour);
    if (smoothing) draw(line.raw, 1, 0.3, colour, 0);
    draw(line.points, 1.6, lines.length > 12 ? 0.6 : 1, colour, line.dash);
    g.fillStyle = css("--bad");
    for (const [x, v] of line.raw)
      if (!Number.isFinite(up(v))) {
        g.beginPath();
        g.moveTo(X(x) - 4, top);
        g.lineTo(X(x) + 4, top);
        g.lineTo(X(x), top + 7);
        g.fill();
      }
  }
  let told = "";
  if (chart.at !== null) {
    g.strokeStyle = css("--quiet");
    g.beginPath();
    g.moveTo(X(chart.at), top);
    g.lineTo(X(chart.at), height - bottom);
    g.stroke();
    const near = lines.slice(0, 8).map((line) => {
      const p = nearest(line.points, chart.at);
      return (
        p &&
        `${lines.length > 1 ? `${line.name} ` : ""}${fmt(p[1])} at ${byTime ? lasting(p[0]) : `step ${fmt(p[2][1])}`}`
      );
    });
    told = near.filter(Boolean).join("; ");
  } else if (odd)
    told = `${odd} ${odd === 1 ? "point is" : "points are"} ${log ? "not finite, or not above 0" : "not finite"}`;
  if (chart.read.textContent !== told) chart.read.textContent = told;
  const sums = lines.slice(0, 60).map((line) => {
    const last = line.raw.length ? line.raw[line.raw.length - 1] : null;
    return [line, last ? `${line.name}: ${fmt(last[1])}` : line.name];
  });
  const swatches = sums.map(([line, text]) => {
    const swatch = el("span", {class: "swatch", "aria-hidden": "true"});
    swatch.style.background = `var(${line.colour})`;
    return el("li", {}, swatch, text);
  });
  if (lines.length > 60) swatches.push(el("li", {class: "quiet"}, `and ${chart.found.length - 60} more`));
  chart.legend.replaceChildren(...swatches);
  canvas.setAttribute(
    "aria-label",
    `${chart.name}, newest: ${sums
      .slice(0, 8)
      .map((s) => s[1])
      .join("; ")}. Arrow keys read values.`,
  );
}
function nearest(points, at) {
  let found = null;
  for (const p of points) if (!found || Math.abs(p[0] - at) <= Math.abs(found[0] - at)) found = p;
  return found;
}
function savePng(chart) {
  drawChart(chart);
  chart.canvas.toBlob((blob) => {
    const url = URL.createObjectURL(blob);
    el("a", {href: url, download: `${chart.name.replace(/[^\w.-]+/g, "_")}.png`}).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  });
}
export function showMore() {
  most += MORE;
}
