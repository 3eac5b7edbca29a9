// Numbers, durations and times as text, and means.

const NOT_FINITE = {NaN: NaN, Infinity: Infinity, "-Infinity": -Infinity};
export const num = (value) => (typeof value === "string" ? NOT_FINITE[value] : value);
export function fmt(value) {
  value = num(value);
  if (value === undefined || value === null) return "";
  if (!Number.isFinite(value)) return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en");
  const size = Math.abs(value);
  return size >= 1e5 || size < 1e-3 ? value.toExponential(3) : String(Number(value.toPrecision(5)));
}
export function lasting(seconds) {
  seconds = Math.max(0, Math.round(seconds));
  const h = Math.floor(seconds / 3600),
    m = Math.floor(seconds / 60) % 60,
    s = seconds % 60;
  return h ? `${h} h ${m} min` : m ? `${m} min ${s} s` : `${s} s`;
}
export const clock = (t) => new Date(t * 1000).toLocaleTimeString("en-GB");
export function ticks(low, high, count) {
  const rough = (high - low) / count,
    power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough) || rough,
    found = [];
  for (let i = Math.ceil(low / step); i * step <= high + step * 1e-9 && found.length < 20; i++)
    found.push(i * step);
  return found;
}
const compact = new Intl.NumberFormat("en", {notation: "compact", maximumSignificantDigits: 4});
export function short(v) {
  const a = Math.abs(v);
  if (a >= 1e4 && a < 1e15) return compact.format(v);
  return a >= 1e15 || (a && a < 1e-2) ? v.toExponential(1).replace("e+", "e") : String(Number(v.toPrecision(4)));
}
export const millis = (v) => (v >= 100 ? fmt(Math.round(v)) : v.toPrecision(3));
export const mean = (points) =>
  points.length ? points.reduce((sum, p) => sum + (Number.isFinite(p[2]) ? p[2] : 0), 0) / points.length : 0;
