// The timeline of starts, ends, failures, snapshots and profiles, and the compilations.
import {data, titled} from "./data.js";
import {$, el} from "./dom.js";
import {clock, fmt} from "./numbers.js";

let timelineOf = "";
export function drawTimeline() {
  const only = $("problems").checked,
    several = data.runs.length > 1,
    items = [];
  data.runs.forEach((run) => {
    if (run.job.t && !only) items.push({t: run.job.t, run, text: `job ${run.job.name || ""} begins`, kind: ""});
    let group = null;
    for (const e of run.events) {
      const quiet = (e.event === "start" || e.event === "exit") && !(e.event === "exit" && e.code !== 0);
      if (only && quiet) continue;
      if (only && e.event === "end" && e.code === 0) continue;
      // many starts, or ends, in a row are one line
      if (quiet && group && group.event === e.event && e.t - group.last < 10) {
        group.labels.push(e.label);
        group.last = e.t;
        continue;
      }
      const item = {t: e.t, last: e.t, run, e, event: e.event, labels: [e.label]};
      items.push(item);
      group = quiet ? item : null;
    }
  });
  const state = JSON.stringify([
    only,
    items.length,
    items.at(-1)?.labels?.length,
    data.runs.map((r) => r.newest && r.events.length),
  ]);
  if (state === timelineOf) return; // an open traceback stays open
  timelineOf = state;
  items.sort((a, b) => a.t - b.t);
  $("events").replaceChildren(
    ...items.map((item) => {
      const e = item.e;
      let text = item.text,
        kind = item.kind,
        more = null,
        link = null;
      if (e) {
        const who =
          item.labels.length > 1
            ? `${item.labels[0]} to ${item.labels.at(-1)} (${item.labels.length} processes)`
            : e.label;
        const plural = item.labels.length > 1;
        if (e.event === "start") [text, kind] = [`${who} ${plural ? "start" : "starts"}`, "good"];
        else if (e.event === "exit")
          [text, kind] =
            e.code === 0 ? [`${who} ${plural ? "end" : "ends"}`, ""] : [`${who} ends: ${e.reason}`, "warn"];
        else if (e.event === "restart")
          [text, kind, more] = [
            `${who} failed (${e.reason}) and is started again; ${e.left} more`,
            "warn",
            e.excerpt,
          ];
        else if (e.event === "failure")
          [text, kind, more] = [
            `${who} failed first (${e.reason})${e.again ? "; all are started again" : ""}`,
            "bad",
            e.excerpt,
          ];
        else if (e.event === "end")
          [text, kind] = [`${e.source} ends with ${e.code}`, e.code === 0 ? "good" : "bad"];
        else if (e.event === "profile") {
          [text, kind] = [e.name ? `profile: ${e.reason} ` : e.reason, e.name ? "" : "warn"];
          link = e.name;
        } else if (e.event === "snapshot") [text, kind] = [`snapshot of ${who} (${e.reason})`, ""];
        else text = `${e.event} ${who || ""}`;
      }
      const shown = [
        el("time", {datetime: new Date(item.t * 1000).toISOString()}, clock(item.t)),
        (several ? `${item.run.name}: ` : "") + text,
      ];
      if (link)
        shown.push(
          data.offline
            ? link
            : el(
                "a",
                {
                  href: `/profile?run=${data.runs.indexOf(item.run)}&name=${encodeURIComponent(link)}`,
                  download: "",
                },
                link,
              ),
        );
      const body = more
        ? el("details", {}, el("summary", {}, ...shown), el("pre", {tabindex: "0"}, more))
        : el("span", {}, ...shown);
      return el("li", {class: kind || ""}, body);
    }),
  );
}

export function drawCompilations() {
  const found = data.runs
    .flatMap((run) => run.compilations.map((c) => [run, c]))
    .sort(([, a], [, b]) => b.t - a.t)
    .slice(0, 200);
  $("compilations").hidden = found.length === 0;
  $("compiled").replaceChildren(
    ...found.map(([run, c]) =>
      el(
        "tr",
        {},
        el("td", {class: "n"}, clock(c.t)),
        el("th", {scope: "row"}, titled(run, c.source)),
        el("td", {class: "n"}, fmt(c.seconds)),
        el("td", {class: "n"}, fmt(c.count)),
        el("td", {class: "wrap"}, c.differ),
      ),
    ),
  );
}
