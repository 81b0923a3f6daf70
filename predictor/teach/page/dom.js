// Elements, and words that several views share.

export const byId = (id) => document.getElementById(id);

/** make("button", {class: "x", onclick: f, "aria-label": "y"}, "text", child, …) */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name.startsWith("--")) element.style.setProperty(name, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

let names = {};
/** What known categories are shown as: n01440764 as tench, U+0041 as A. */
export const takeNames = (found) => { names = found; };
export const shown = (name) => names[name] ?? name;

export const count = (number, word, many = `${word}s`) => `${number.toLocaleString("en")} ${number === 1 ? word : many}`;

export const percent = (share) => (share >= 0.9995 ? "100%" : share <= 0 ? "0%" : share < 0.001 ? "<0.1%" : `${(100 * share).toFixed(share < 0.1 ? 1 : 0)}%`);

export const milliseconds = (value) => (value < 10 ? `${value.toFixed(1)} ms` : `${Math.round(value)} ms`);

let quiet;
/** One sentence at the foot of the page; errors stay until the next one. */
export function say(text, kind = "note") {
  const said = byId("said");
  said.textContent = text;
  said.dataset.kind = kind;
  clearTimeout(quiet);
  if (kind !== "error") quiet = setTimeout(() => { said.textContent = ""; }, 4000);
}

const HUES = 8;
/** Categories keep the colour of their place. */
export const hue = (place) => `var(--hue-${place % HUES})`;
