// Logged images and histograms.
import {data} from "./data.js";
import {$, css, el, theme} from "./dom.js";
import {fmt, num} from "./numbers.js";

const pictures = new Map();
export function drawPictures() {
  const groups = new Map();
  data.runs.forEach((run) => {
    for (const kind of ["images", "histograms"])
      for (const line of run[kind]) {
        const key = [kind, run.name, line.source, line.name].join("\0");
        if (!groups.has(key)) groups.set(key, {kind, run, list: []});
        groups.get(key).list.push(line);
      }
  });
  $("pictures").hidden = $("topictures").hidden = groups.size === 0;
  for (const [key, p] of pictures)
    if (!groups.has(key)) {
      p.figure.remove();
      pictures.delete(key);
    }
  for (const [key, group] of [...groups].slice(0, 100)) {
    let p = pictures.get(key);
    if (!p) {
      const first = group.list[0],
        title = (data.runs.length > 1 ? `${group.run.name}, ` : "") + `${first.name} (${first.source})`;
      p = {
        list: [],
        slider: el("input", {type: "range", min: "0", value: "0", "aria-label": `Step of ${title}`}),
        note: el("div", {class: "read"}),
      };
      p.body = group.kind === "images" ? el("img", {class: "logged"}) : el("canvas", {class: "bars", role: "img"});
      p.figure = el("figure", {}, el("figcaption", {}, title), p.body, p.slider, p.note);
      p.slider.addEventListener("input", () => showPicture(p, group.kind, title));
      p.title = title;
      $("shown").append(p.figure);
      pictures.set(key, p);
    }
    if (p.list.length === group.list.length && p.list.at(-1) === group.list.at(-1) && p.theme === theme()) continue;
    const atEnd = Number(p.slider.value) >= p.list.length - 1;
    p.list = group.list;
    p.theme = theme();
    p.slider.max = String(group.list.length - 1);
    if (atEnd) p.slider.value = p.slider.max;
    showPicture(p, group.kind, p.title);
  }
}
function showPicture(p, kind, title) {
  const line = p.list[Number(p.slider.value)];
  if (!line) return;
  if (kind === "images") {
    p.body.src = `data:image/png;base64,${line.png}`;
    p.body.alt = `${title} at step ${line.step}`;
    p.note.textContent = `step ${fmt(line.step)}, ${line.width} x ${line.height} pixels`;
    return;
  }
  const low = num(line.low),
    high = num(line.high),
    peak = Math.max(1, ...line.counts);
  const odd = line.nan + line.infinite ? `, ${fmt(line.nan)} NaN, ${fmt(line.infinite)} infinite` : "";
  const count = line.counts.reduce((a, b) => a + b, 0);
  const about = `step ${fmt(line.step)}, from ${fmt(low)} to ${fmt(high)}, ${fmt(count)} elements${odd}`;
  p.note.textContent = about;
  p.body.setAttribute("aria-label", `Histogram of ${title}: ${about}`);
  const width = p.body.clientWidth || 300,
    height = p.body.clientHeight || 110,
    ratio = devicePixelRatio || 1,
    g = p.body.getContext("2d");
  p.body.width = Math.round(width * ratio);
  p.body.height = Math.round(height * ratio);
  g.scale(ratio, ratio);
  g.fillStyle = css("--accent");
  const bar = width / line.counts.length;
  line.counts.forEach((count, i) =>
    g.fillRect(
      i * bar,
      height - (count / peak) * (height - 4),
      Math.max(bar - 1, 1),
      (count / peak) * (height - 4),
    ),
  );
}
