// Charts by uPlot (uPlot.iife.min.js), in the colours of the page.
import {css} from "./dom.js";
import {short, ticks} from "./numbers.js";

const FONT = "11px system-ui, sans-serif";
export const HEIGHT = 190;
const FARTHEST = 8e307;
// The number as a chart draws it: the distance between two numbers must be finite.
export const limited = (v) => Math.min(Math.max(v, -FARTHEST), FARTHEST);
// The range of a scale: `margin` of it above and below; a single value gets a range too.
const spread = (low, high, margin) => {
  if (!Number.isFinite(low)) return [0, 1];
  const size = low === high ? Math.abs(low) / 5 || 2 : high - low,
    more = low === high ? size / 2 : size * margin;
  return [low - more, high + more];
};
const axis = (labels, size, grid, splits) => ({
  font: FONT,
  stroke: () => css("--quiet"),
  size,
  gap: 5,
  grid: {show: grid, stroke: () => css("--edge"), width: 1},
  ticks: {show: false},
  incrs: () => [Infinity], // `splits` chooses
  filter: (_, found) => found,
  splits: (plot, _, low, high) => splits(low, high, plot),
  values: (_, found) => found.map(labels),
});
// A chart in `node`; `log` has a logarithmic scale, `labels` writes the values below the chart. `range` is that of the
// heights, by default that of the data.
export function makePlot(node, {mode, series, data, labels, log, range, hooks, cursor}) {
  const up = log ? Math.log10 : (v) => v,
    down = log ? (v) => 10 ** v : (v) => v;
  const plot = new uPlot(
    {
      mode,
      width: node.clientWidth,
      height: HEIGHT,
      padding: [10, 20, 0, 0],
      legend: {show: false},
      cursor: {y: false, points: {show: false}, drag: {x: false, y: false}, dataIdx: () => null, ...cursor},
      scales: {
        x: {time: false, range: (_, low, high) => spread(low ?? NaN, high, 0)},
        y: {
          distr: log ? 3 : 1,
          range: (_, low, high) => range || spread(up(low ?? NaN), up(high), 0.05).map((v) => Math.min(down(v), Number.MAX_VALUE)),
        },
      },
      axes: [
        axis(labels, 24, false, (low, high, plot) => ticks(low, high, Math.max(2, plot.width / 110))),
        axis(short, 58, true, (low, high) => ticks(up(low), up(high), 4).map(down)),
      ],
      series: [mode === 2 ? null : {}, ...series],
      hooks: {
        ...hooks,
        drawClear: [
          ({ctx}) => {
            ctx.fillStyle = css("--card");
            ctx.fillRect(0, 0, ctx.canvas.width, ctx.canvas.height);
          },
        ],
      },
    },
    data,
    node,
  );
  plot.ctx.canvas.setAttribute("aria-hidden", "true"); // the node has the words
  return plot;
}
// Draw new data in a chart, which takes the width of its node.
export function update(plot, node, data) {
  if (plot.width !== node.clientWidth) plot.setSize({width: node.clientWidth, height: HEIGHT});
  plot.setData(data);
}
