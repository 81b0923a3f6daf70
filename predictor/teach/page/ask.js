// One image in, bars out: what it is taken for, why, and what it is instead.

import * as api from "./api.js";
import { openCamera } from "./camera.js";
import { byId, hue, make, milliseconds, percent, say, shown } from "./dom.js";
import { openDrawing } from "./drawing.js";
import { dropZone, zipIn } from "./files.js";
import { place, session, teach } from "./session.js";

const CHOICES = 12;
let image = null; // what was asked about
let asking = 0; // the newest question; answers to older ones are passed over

export function startAsking(onZip) {
  dropZone(byId("ask-drop"), {
    onFiles: ({ files }, began) => (zipIn(files) ? onZip(zipIn(files)) : files.length && ask(files[0], began)),
  });
  const input = byId("ask-input");
  byId("ask-file").addEventListener("click", () => input.click());
  input.addEventListener("change", () => { if (input.files.length) ask(input.files[0]); input.value = ""; });
  byId("ask-camera").addEventListener("click", () => openCamera("Ask", (frame) => ask(frame), false));
  byId("ask-draw").addEventListener("click", () => openDrawing("something to ask", (drawn) => ask(drawn), false));
  byId("correct").addEventListener("submit", (event) => {
    event.preventDefault();
    const name = byId("correct-name").value.trim();
    if (name) correct(name);
  });
}

/** began: when it was dropped, for the time that is shown. */
export async function ask(asked, began = performance.now()) {
  const number = (asking += 1);
  preview(asked);
  try {
    const answer = await api.ask(asked);
    if (number !== asking) return;
    image = asked;
    session.asked = answer.key;
    showAnswer(answer);
    requestAnimationFrame(() => setTimeout(() => showTime(answer, performance.now() - began)));
    why(answer.key, number);
  } catch (error) {
    if (number !== asking) return;
    say(error.message, "error");
  }
}

let previewed = null;
function preview(asked) {
  if (previewed) URL.revokeObjectURL(previewed);
  previewed = URL.createObjectURL(asked);
  byId("ask-preview").replaceChildren(make("img", { src: previewed, alt: `The image asked about: ${asked.name}` }));
}

function showTime(answer, taken) {
  const network = answer.milliseconds.network;
  byId("ask-time").textContent = `${milliseconds(taken)}${network ? `, ${milliseconds(network)} of it the network` : ""}`;
  byId("answer").dataset.milliseconds = taken.toFixed(1);
  byId("answer").dataset.key = answer.key;
}

export function showAnswer(answer) {
  const bars = byId("bars");
  bars.replaceChildren(...answer.bars.map((bar, number) => barOf(bar, number, bars.children[number])));
  if (!answer.bars.length) bars.replaceChildren(make("li", { class: "hint" }, "Teach it something first: it knows no category yet."));
  byId("answer").hidden = false;
  showChoices(answer);
}

function barOf(bar, number, before) {
  const at = place(bar.category);
  const fill = make("span", { class: "fill", "--share": before?.dataset.share ?? 0 });
  const item = make("li", { class: bar.unknown ? "bar unknown" : "bar", "data-category": bar.category, "data-share": bar.probability,
    "--hue": at >= 0 ? hue(at) : "var(--base)" },
    make("span", { class: "label" }, shown(bar.category)), make("span", { class: "value" }, percent(bar.probability)),
    make("span", { class: "track", "aria-hidden": "true" }, fill));
  requestAnimationFrame(() => fill.style.setProperty("--share", bar.probability)); // so that bars are seen to move
  return item;
}

function showChoices(answer) {
  const said = answer.bars[0]?.category;
  const likely = answer.bars.map((bar) => bar.category);
  const taught = session.state.categories.map((category) => category.name);
  const order = [...likely.filter((name) => taught.includes(name)), ...taught.filter((name) => !likely.includes(name))];
  const chosen = order.filter((name) => name !== said).slice(0, CHOICES);
  byId("choices").replaceChildren(...chosen.map((name) => make("button",
    { type: "button", class: "chip", "--hue": hue(place(name)), onclick: () => correct(name) }, shown(name))));
  byId("correct-label").textContent = answer.bars.length ? "No, this is …" : "This is …";
}

async function correct(name) {
  if (!image) return;
  if (await teach(name, [image])) byId("correct-name").value = "";
}

async function why(key, number) {
  const found = await api.nearest(key).catch(() => null);
  if (number === asking && found) showWhy(found);
}

function showWhy({ examples, base }) {
  const row = (title, list) => (list.length ? [make("h3", {}, title), make("ul", { class: "nearest" }, list)] : []);
  const item = (source, one) => make("li", {}, source ? make("img", { src: source, alt: "" }) : make("span", { class: "imageless" }, "·"),
    make("span", {}, shown(one.category)), make("span", { class: "quiet" }, one.similarity.toFixed(2)));
  byId("why").replaceChildren(
    ...row("Nearest examples", examples.map((one) => item(one.image && api.imageOf(one.key), one))),
    ...row("Nearest of what it knows", base.map((one) => item(api.baseImageOf(one.row), one))));
}

/** After every change the question is asked again: the answer comes with the new state. */
export function showState(state) {
  byId("ask-draw").hidden = !state.network.draw;
  if (state.answer) {
    showAnswer(state.answer);
    why(state.answer.key, asking);
  }
}
