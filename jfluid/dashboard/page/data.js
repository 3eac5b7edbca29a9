// The runs that the page shows, and the state of their processes.
import {lasting, num} from "./numbers.js";

export const data = {runs: [], silence: 60, offline: false, skew: 0};
export const STEP = "step time (ms): ";
const MOST = 5000;
export function read(run) {
  for (const points of Object.values(run.series)) for (const p of points) p[2] = num(p[2]);
  return run;
}
export const now = () => (data.offline ? data.now : Date.now() / 1000 + data.skew);

// ---- what is known ---------------------------------------------------------------------------------
export function merge(told) {
  told.runs.forEach((change, i) => {
    const run = data.runs[i];
    read(change);
    for (const [key, points] of Object.entries(change.series)) {
      let held = run.series[key];
      held = held ? held.concat(points) : points;
      run.series[key] = held.length > MOST ? thinned(held, MOST / 2) : held;
    }
    Object.assign(run.progress, change.progress || {});
    Object.assign(run.processes, change.processes || {});
    Object.assign(run.programs, change.programs || {});
    Object.assign(run.waits, change.waits || {});
    for (const name of ["events", "images", "histograms", "compilations"]) {
      run[name] = run[name].concat(change[name] || []);
      run[name] = run[name].slice(name === "events" ? -5000 : -400);
    }
    if (change.job) run.job = change.job;
    if (change.dropped) run.dropped = change.dropped;
    run.newest = change.newest;
  });
}
function thinned(points, most) {
  const size = Math.ceil(points.length / (most / 2)),
    found = [];
  for (let i = 0; i < points.length; i += size) {
    let low = null,
      high = null,
      odd = null;
    for (let j = i; j < Math.min(i + size, points.length); j++) {
      const v = points[j][2];
      if (!Number.isFinite(v)) {
        if (odd === null) odd = j;
        continue;
      }
      if (low === null || v < points[low][2]) low = j;
      if (high === null || v > points[high][2]) high = j;
    }
    found.push(
      ...[...new Set([low, high, odd])]
        .filter((j) => j !== null)
        .sort((a, b) => a - b)
        .map((j) => points[j]),
    );
  }
  return found;
}
export function started(run) {
  if (run.job.t) return run.job.t;
  let first = Infinity;
  for (const points of Object.values(run.series)) if (points.length) first = Math.min(first, points[0][0]);
  return Number.isFinite(first) ? first : run.newest;
}
// The state of each process, by what happened to it in turn.
export function processesOf(run) {
  const found = new Map();
  const of = (name) => {
    if (!found.has(name)) found.set(name, {name, state: "", kind: "quiet", restarts: 0, metrics: {}});
    return found.get(name);
  };
  for (const [name, start] of Object.entries(run.processes)) {
    if (name.startsWith("launcher")) continue;
    Object.assign(of(name), {host: start.host, restarts: start.restarts || 0});
  }
  const hosts = {};
  for (const [name, start] of Object.entries(run.processes)) hosts[name] = start.host;
  let ended = null;
  for (const event of run.events) {
    if (event.event === "end" && event.source === "launcher 0") ended = event;
    if (event.role === undefined) continue;
    const p = of(`${event.role} ${event.rank}`);
    p.host = p.host || hosts[event.source];
    if (event.event === "start")
      Object.assign(p, {state: "running", kind: "good", pid: event.pid, starts: (p.starts || 0) + 1});
    else if (event.event === "exit")
      Object.assign(
        p,
        event.code === 0 ? {state: "finished", kind: "quiet"} : {state: `failed: ${event.reason}`, kind: "bad"},
      );
    else if (event.event === "restart") Object.assign(p, {state: "starts again", kind: "warn"});
    if (p.starts) p.restarts = p.starts - 1;
  }
  const failure = run.events.filter((e) => e.event === "failure").pop();
  for (const report of Object.values(run.progress)) {
    const p = of(report.source);
    if (p.t === undefined || report.t >= p.t) Object.assign(p, {t: report.t, report});
  }
  const lost = !ended && now() - run.newest > data.silence;
  for (const p of found.values()) {
    if (!p.state) Object.assign(p, lost ? {state: "silent", kind: "quiet"} : {state: "running", kind: "good"});
    else if (p.state === "running" && (ended || lost))
      Object.assign(p, {state: ended ? "ended" : "silent", kind: "quiet"});
    // one that hung as it ended, and was killed, failed before
    if (p.kind === "bad" && failure && failure.label === labelOf(p.name)) p.state = `failed: ${failure.reason}`;
    if (p.kind === "bad" && ended && ended.code === 0)
      Object.assign(p, {kind: "quiet", state: p.state.replace("failed", "ended")});
    if (p.kind === "bad" && failure && !failure.again && failure.label !== labelOf(p.name))
      Object.assign(p, {kind: "warn", state: p.state.replace("failed", "ended")});
  }
  return {list: [...found.values()].sort(byName), ended, failure, lost};
}
const labelOf = (name) => name.replace("trainer ", "rank ");
// A name of one run, with the run where there are several.
export const titled = (run, name) => (data.runs.length > 1 ? `${run.name}, ${name}` : name);
export const byName = (a, b) => a.name.localeCompare(b.name, "en", {numeric: true});
export function stateOf(run, p) {
  if (p.ended) return p.ended.code === 0 ? ["finished", "good"] : [`failed, exit code ${p.ended.code}`, "bad"];
  if (p.lost) return [`silent for ${lasting(now() - run.newest)}`, "warn"];
  return ["running", "good"];
}
