// Elements of the page. All content is put in as text.

export const $ = (id) => document.getElementById(id);
// Everything is put in as text.
export function el(tag, props, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null) node.setAttribute(name, value);
  }
  for (const child of children) if (child !== null && child !== undefined) node.append(child);
  return node;
}
export const stored = (name, value) => {
  try {
    if (value === undefined) return localStorage.getItem(name);
    localStorage.setItem(name, value);
  } catch {
    return null;
  }
};
// Show `make(item)` for each item as the children of a node; many items follow when the page has been drawn.
const AT_ONCE = 40;
export function put(node, items, make) {
  const mine = (node.putting = (node.putting || 0) + 1);
  const before = node.children.length;
  if (before > AT_ONCE || items.length <= AT_ONCE) {
    node.replaceChildren(...items.map(make));
    return;
  }
  node.replaceChildren(...items.slice(0, AT_ONCE).map(make));
  setTimeout(() => {
    if (node.putting === mine) node.append(...items.slice(AT_ONCE).map(make));
  });
}
export const theme = () => document.documentElement.dataset.theme;
export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
export function setOptions(select, options) {
  const held = select.value,
    state = JSON.stringify(options);
  if (select.dataset.state === state) return;
  select.dataset.state = state;
  select.replaceChildren(...options.map(([value, text]) => el("option", {value}, text)));
  if (options.some(([value]) => value === held)) select.value = held;
}
export async function get(path, json) {
  try {
    const answer = await fetch(path);
    if (!answer.ok) return json ? null : await answer.text();
    return json ? await answer.json() : await answer.text();
  } catch {
    return null;
  }
}
export function paint(node, variable) {
  node.style.background = `var(${variable})`;
  return node;
}
