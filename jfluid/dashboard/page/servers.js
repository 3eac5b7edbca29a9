// Tables of servers, and the trainers that rounds of synchronous training wait for.
import {byName, data, now, titled} from "./data.js";
import {$, el, put} from "./dom.js";
import {fmt, lasting} from "./numbers.js";

const COLUMNS = [
  ["rows of ", "Rows"],
  ["MB of ", "MB"],
  ["rows made of ", "Made"],
  ["rows expired of ", "Expired"],
  ["ids that wait to enter ", "Ids that wait"],
  ["staleness of ", "Staleness (steps)"],
];

// The newest numbers of each server: its own, and those of its tables.
function serversOf(run) {
  const found = new Map();
  for (const [key, points] of Object.entries(run.series)) {
    const [process, name] = key.split("\0");
    if (!process.startsWith("server ") || !points.length) continue;
    if (!found.has(process)) found.set(process, {name: process, calls: 0, tables: new Map()});
    const server = found.get(process),
      value = points.at(-1)[2];
    if (name === "rounds") server.rounds = value;
    else if (name.startsWith("calls/s: ")) server.calls += value;
    else if (name.startsWith("waiting for others: ")) server.waiting = (server.waiting || 0) + value;
    for (const [prefix] of COLUMNS) {
      if (!name.startsWith(prefix)) continue;
      const table = name.slice(prefix.length);
      if (!server.tables.has(table)) server.tables.set(table, {});
      server.tables.get(table)[prefix] = value;
    }
  }
  return [...found.values()].sort(byName);
}

function waitsOf(run) {
  const found = new Map();
  for (const [server, {t, trainers}] of Object.entries(run.waits)) {
    for (const [trainer, [rounds, seconds, pending]] of Object.entries(trainers)) {
      if (!found.has(trainer))
        found.set(trainer, {name: `trainer ${trainer}`, rounds: 0, seconds: 0, pending: 0, by: []});
      const wait = found.get(trainer);
      wait.rounds += rounds;
      wait.seconds += seconds;
      // an old line says nothing of the next round
      if (pending >= 1 && now() - t < data.silence) wait.pending = Math.max(wait.pending, pending);
      wait.by.push(server);
    }
  }
  return [...found.values()].sort((a, b) => b.pending - a.pending || b.seconds - a.seconds);
}

const numbers = (...values) => values.map((value) => el("td", {class: "n"}, fmt(value)));
const head = (name) => el("th", {scope: "row"}, name);

export function drawServers() {
  const servers = data.runs.flatMap((run) => serversOf(run).map((server) => [run, server])),
    waits = data.runs.flatMap((run) => waitsOf(run).map((wait) => [run, wait]));
  $("servers").hidden = $("toservers").hidden = !servers.length && !waits.length;
  $("waitblock").hidden = !waits.length;
  put($("serverrows"), servers, ([run, s]) =>
    el("tr", {}, head(titled(run, s.name)), ...numbers(s.calls, s.rounds, s.waiting)),
  );
  const tables = servers.flatMap(([run, s]) => [...s.tables].map(([name, values]) => [run, s, name, values]));
  $("tableblock").hidden = !tables.length;
  put($("tablerows"), tables, ([run, s, name, values]) =>
    el(
      "tr",
      {},
      head(titled(run, s.name)),
      el("td", {class: "wrap"}, name),
      ...numbers(...COLUMNS.map(([prefix]) => values[prefix])),
    ),
  );
  put($("waitrows"), waits, ([run, w]) =>
    el(
      "tr",
      {},
      head(titled(run, w.name)),
      ...numbers(w.rounds, Number(w.seconds.toPrecision(4))),
      el("td", {class: w.pending ? "warn" : ""}, w.pending ? `for ${lasting(w.pending)}` : ""),
      el("td", {class: "wrap"}, w.by.sort((a, b) => byName({name: a}, {name: b})).join(", ")),
    ),
  );
}
