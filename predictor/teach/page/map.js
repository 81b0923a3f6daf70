// Examples and known categories as points; the nearest one to the pointer says what it is.

import * as api from "./api.js";
import { byId, count, hue, make, say, shown } from "./dom.js";
import { place } from "./session.js";

const NS = "http://www.w3.org/2000/svg";
const WIDE = 1000;
const HIGH = 640;
const MARGIN = 24;
let way = "axes";

export function startMap() {
  for (const button of document.querySelectorAll("[data-way]")) {
    button.addEventListener("click", () => {
      way = button.dataset.way;
      for (const other of document.querySelectorAll("[data-way]")) other.setAttribute("aria-pressed", other === button);
      showMap();
    });
  }
}

export async function showMap() {
  const holder = byId("map");
  holder.setAttribute("aria-busy", "true");
  holder.querySelector(".told")?.replaceChildren(make("span", { class: "quiet" }, "Placing the dots …"));
  const found = await api.map(way).catch((error) => { say(error.message, "error"); return null; });
  holder.removeAttribute("aria-busy");
  if (!found) return;
  const points = [...found.base.map((one) => ({ ...one, known: true })), ...found.examples];
  if (!points.length) { holder.replaceChildren(make("p", { class: "empty" }, "There is nothing to show yet.")); return; }
  holder.replaceChildren(...draw(points, found));
}

function draw(points, { examples, base }) {
  const across = (x) => WIDE / 2 + x * (WIDE / 2 - MARGIN);
  const down = (y) => HIGH / 2 - y * (HIGH / 2 - MARGIN);
  const picture = document.createElementNS(NS, "svg");
  picture.setAttribute("viewBox", `0 0 ${WIDE} ${HIGH}`);
  picture.setAttribute("role", "img");
  picture.setAttribute("aria-label", `Map of ${count(examples.length, "example")} and ${count(base.length, "known category", "known categories")}`);
  for (const point of points) {
    const circle = document.createElementNS(NS, "circle");
    circle.setAttribute("cx", across(point.x));
    circle.setAttribute("cy", down(point.y));
    circle.setAttribute("r", point.known ? 4 : 8);
    if (!point.known) circle.style.setProperty("--hue", hue(place(point.category)));
    circle.classList.add(point.known ? "known" : "example");
    point.circle = circle;
    picture.append(circle);
  }
  const told = make("p", { class: "told" }, make("span", { class: "quiet" }, "Point at a dot to see what it is."));
  picture.addEventListener("pointermove", (event) => tell(told, nearestTo(event, picture, points, across, down)));
  const legend = make("ul", { class: "legend" }, [...new Set(examples.map((one) => one.category))].slice(0, 16).map((name) =>
    make("li", { "--hue": hue(place(name)) }, make("span", { class: "dot" }), shown(name))),
    base.length ? make("li", { "--hue": "var(--base)" }, make("span", { class: "dot" }), "known before") : null);
  return [picture, told, legend];
}

function nearestTo(event, picture, points, across, down) {
  const box = picture.getBoundingClientRect();
  const [x, y] = [(event.clientX - box.left) * WIDE / box.width, (event.clientY - box.top) * HIGH / box.height];
  let [best, least] = [null, 60 ** 2];
  for (const point of points) {
    const far = (across(point.x) - x) ** 2 + (down(point.y) - y) ** 2 - (point.known ? 0 : 60); // examples first
    if (far < least) [best, least] = [point, far];
  }
  return best;
}

let marked = null;
function tell(told, point) {
  if (point === marked) return;
  marked?.circle.classList.remove("marked");
  marked = point;
  if (!point) return;
  point.circle.classList.add("marked");
  told.replaceChildren(...(point.image ? [make("img", { src: api.imageOf(point.key), alt: "" })] : []),
    make("strong", {}, shown(point.category)), make("span", { class: "quiet" }, point.known ? "known before" : point.name));
}
