// How well the session tells its examples apart.

import * as api from "./api.js";
import { byId, count, hue, make, percent, say, shown } from "./dom.js";
import { openExample } from "./example.js";
import { place } from "./session.js";

const FEW = 8; // columns whose names are not turned
const MOST = 40; // categories of a matrix; beyond, mistakes are listed

export async function showCheck() {
  const found = await api.check().catch((error) => { say(error.message, "error"); return null; });
  if (!found) return;
  byId("cell").hidden = true;
  byId("check-result").replaceChildren(...(found.total ? [summary(found), ...alike(found), ...matrix(found)] : [nothing(found)]),
    ...single(found));
}

const nothing = () => make("p", { class: "empty" }, "A category can be checked from its second example on.");

function summary({ right, total }) {
  return make("p", { class: "score" }, make("strong", {}, percent(right / total)),
    ` right: ${right} of ${count(total, "example")}.`);
}

function alike({ alike: pairs }) {
  if (!pairs.length) return [];
  return [make("ul", { class: "alike" }, pairs.map(({ pair, share }) => make("li", {},
    make("strong", {}, shown(pair[0])), " and ", make("strong", {}, shown(pair[1])),
    ` look alike: they get ${percent(share)} of each other’s probability.`)))];
}

function single({ single: names }) {
  if (!names.length) return [];
  const some = names.slice(0, 5).map(shown).join(", ") + (names.length > 5 ? ` and ${names.length - 5} more` : "");
  return [make("p", { class: "quiet" }, `With a single example, so not checked: ${some}.`)];
}

function matrix({ categories, said, cells }) {
  if (categories.length > MOST || said.length > MOST) return [mistakes(cells)];
  const at = new Map(cells.map((cell) => [`${cell.truth}\n${cell.said}`, cell]));
  const totals = new Map(categories.map((name) => [name, cells.filter((cell) => cell.truth === name)
    .reduce((sum, cell) => sum + cell.examples.length, 0)]));
  const head = make("tr", {}, make("th", { class: "corner" }, make("span", { class: "unseen" }, "Category")),
    said.map((name) => make("th", { scope: "col", title: name }, make("span", {}, shown(name)))));
  const rows = categories.map((truth) => make("tr", {}, make("th", { scope: "row", title: truth }, shown(truth)),
    said.map((name) => cellOf(at.get(`${truth}\n${name}`), truth, name, totals.get(truth)))));
  return [make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Confusion matrix" },
    make("table", { class: said.length <= FEW ? "matrix few" : "matrix" }, make("caption", {}, "Rows: what it is. Columns: what it was taken for."),
      make("thead", {}, head), make("tbody", {}, rows)))];
}

function cellOf(cell, truth, said, total) {
  if (!cell) return make("td", {});
  const button = make("button", { type: "button", "aria-label":
    `${count(cell.examples.length, "example")} of ${truth} taken for ${said}`, onclick: () => showCell(cell) }, `${cell.examples.length}`);
  return make("td", { class: truth === said ? "right" : "wrong", "--share": cell.examples.length / total }, button);
}

function mistakes(cells) {
  const wrong = cells.filter((cell) => cell.truth !== cell.said).sort((a, b) => b.examples.length - a.examples.length);
  return make("ul", { class: "mistakes" }, wrong.map((cell) => make("li", {}, make("button",
    { type: "button", onclick: () => showCell(cell) }, `${shown(cell.truth)} taken for ${shown(cell.said)}: ${cell.examples.length}`))));
}

function showCell({ truth, said, examples }) {
  const title = truth === said ? `${shown(truth)}, recognised` : `${shown(truth)} taken for ${shown(said)}`;
  byId("cell").replaceChildren(make("h3", { tabindex: "-1" }, title), make("div", { class: "thumbnails" },
    examples.map((example) => make("button", { type: "button", class: "thumbnail", title: example.name, "--hue": hue(place(truth)),
      "aria-label": `Example of ${truth}: ${example.name}`, onclick: () => openExample(truth, example) },
      example.image ? make("img", { src: api.imageOf(example.key), alt: "" }) : make("span", { class: "imageless" }, "·")))));
  byId("cell").hidden = false;
  byId("cell").firstChild.focus();
  byId("cell").scrollIntoView({ block: "nearest" });
}
