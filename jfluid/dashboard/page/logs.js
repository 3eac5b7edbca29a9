// The ends of logs, and lines with a text.
import {data} from "./data.js";
import {$, get, setOptions} from "./dom.js";

export async function listLogs() {
  const found = [];
  for (let r = 0; r < data.runs.length; r++) {
    const names = data.offline ? Object.keys(data.logs[r]) : (await get(`/log?run=${r}`, true))?.names || [];
    for (const name of names)
      found.push([`${r}\0${name}`, (data.runs.length > 1 ? `${data.runs[r].name}/` : "") + name]);
  }
  setOptions($("logname"), found);
}
let asked = 0;
export async function showLog(follow) {
  const [r, name] = $("logname").value.split("\0"),
    search = $("search").value,
    mine = ++asked;
  if (!name) {
    $("logtext").textContent = "There are no logs here.";
    return;
  }
  let text;
  if (data.offline) {
    text = data.logs[r][name] || "";
    if (search)
      text = text
        .split("\n")
        .filter((l) => l.toLowerCase().includes(search.toLowerCase()))
        .join("\n");
  } else
    text = await get(`/log?run=${r}&name=${encodeURIComponent(name)}&search=${encodeURIComponent(search)}`, false);
  if (mine !== asked || text === null) return;
  const pre = $("logtext"),
    atEnd = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 8;
  if (pre.textContent !== text) pre.textContent = text;
  if (atEnd || !follow) pre.scrollTop = pre.scrollHeight;
  $("lognote").textContent = search ? `${text ? text.split("\n").length : 0} lines found` : "the end of the log";
}
