// The folded graph of a program.
import {data, titled} from "./data.js";
import {$, el, setOptions} from "./dom.js";
import {clock, fmt} from "./numbers.js";

let graphOf = "";
export function drawGraph() {
  const found = data.runs.flatMap((run, r) =>
    Object.entries(run.programs)
      .sort(([, a], [, b]) => b.tree.children.length - a.tree.children.length || b.tree.ops - a.tree.ops)
      .map(([key, p]) => [
        `${r}\0${key}`,
        titled(run, `${fmt(p.tree.ops)} operators, first compiled by ${p.source} at ${clock(p.t)}`),
        p,
      ]),
  );
  $("graph").hidden = $("tograph").hidden = found.length === 0;
  setOptions(
    $("program"),
    found.map(([key, text]) => [key, text]),
  );
  const shown = found.find(([key]) => key === $("program").value);
  if (!shown || graphOf === shown[0]) return;
  graphOf = shown[0];
  $("tree").replaceChildren(treeOf(shown[2].tree, true));
}
function treeOf(node, open) {
  const reads = node.reads.length ? el("span", {class: "quiet"}, ` reads ${node.reads.join(", ")}`) : null,
    text = `${node.name}: ${fmt(node.ops)} ${node.ops === 1 ? "operator" : "operators"}`;
  if (!node.children.length) return el("p", {}, text, reads);
  const made = el("details", open ? {open: ""} : {}, el("summary", {}, text, reads));
  const fill = () => {
    if (made.children.length === 1) made.append(...node.children.map((child) => treeOf(child, false)));
  };
  made.fill = fill;
  if (open) fill();
  else made.addEventListener("toggle", fill, {once: true});
  return made;
}
export function foldAll(open) {
  const walk = (node) => {
    if (node.fill) {
      if (open) node.fill();
      node.open = open;
    }
    for (const child of node.children) walk(child);
  };
  for (const child of $("tree").children) {
    walk(child);
    child.open = true;
  }
}
