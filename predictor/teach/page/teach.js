// Categories as cards, examples as thumbnails.

import * as api from "./api.js";
import { openCamera } from "./camera.js";
import { byId, count, hue, make, milliseconds, say, shown } from "./dom.js";
import { openDrawing } from "./drawing.js";
import { openExample } from "./example.js";
import { draggable, dropZone, zipIn } from "./files.js";
import { act, session, teach } from "./session.js";

const FIRST = 48; // thumbnails of a category before "show all"
const cards = new Map(); // category -> {card, content}
const opened = new Set(); // categories of which all are shown
let bringZip = () => {};

export function startTeaching(onZip) {
  bringZip = onZip;
  const form = byId("new-category");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const name = form.elements.name.value.trim();
    if (!name) { say("A category needs a name.", "error"); form.elements.name.focus(); return; }
    if (await act({ do: "create", category: name })) form.reset();
  });
  dropZone(form, { onFiles: (found) => takeDrop(found, form.elements.name.value.trim()) });
}

async function takeDrop({ files, folders }, name) {
  if (zipIn(files)) { bringZip(zipIn(files)); return; }
  for (const [folder, images] of Object.entries(folders)) await teach(folder, images);
  if (!files.length) return;
  if (await teach(name || freeName(), files)) byId("new-category").reset();
}

function freeName() {
  const taken = new Set(session.state.categories.map((category) => category.name));
  for (let number = 1; ; number += 1) if (!taken.has(`category ${number}`)) return `category ${number}`;
}

export function showCategories(state) {
  const list = byId("categories");
  const names = new Set(state.categories.map((category) => category.name));
  for (const [name, { card }] of cards) if (!names.has(name)) { card.remove(); cards.delete(name); }
  state.categories.forEach((category, place) => {
    const content = `${place} ${opened.has(category.name)} ${category.examples.map((one) => one.key).join()}`;
    let known = cards.get(category.name);
    if (known?.content !== content) {
      const card = categoryCard(category, place, known?.card);
      known = { card, content };
      cards.set(category.name, known);
    }
    if (list.children[place] !== known.card) list.insertBefore(known.card, list.children[place] ?? null);
  });
  byId("nothing-taught").hidden = state.categories.length > 0;
  const taught = state.categories.filter((category) => category.examples.length).length;
  byId("learnt").textContent = taught
    ? `${count(taught, "category", "categories")} learnt in ${milliseconds(state.milliseconds)}` : "";
}

function categoryCard(category, place, before) {
  const card = before ?? make("article", { class: "category drop", "data-category": category.name, tabindex: "-1" });
  const focused = card.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
  card.style.setProperty("--hue", hue(place));
  card.replaceChildren(cardHead(category), thumbnails(category), cardTools(category));
  if (!before) {
    dropZone(card, {
      onFiles: async ({ files, folders }) => {
        if (zipIn(files)) bringZip(zipIn(files));
        else await teach(category.name, [...files, ...Object.values(folders).flat()]);
      },
      onExample: (key) => act({ do: "move", keys: [key], category: category.name }),
    });
  }
  if (focused) (card.querySelector(`[data-focus="${CSS.escape(focused)}"]`) ?? card).focus();
  return card;
}

function cardHead(category) {
  const title = make("button", { class: "name", type: "button", title: "Rename", "data-focus": "name",
    "aria-label": `Rename ${category.name}` }, shown(category.name));
  title.addEventListener("click", () => rename(category.name, title));
  return make("header", {}, make("span", { class: "dot", "aria-hidden": "true" }), make("h3", {}, title),
    make("span", { class: "quiet" }, count(category.examples.length, "example")),
    make("button", { type: "button", class: "plain", "aria-label": `Remove category ${category.name}`, title: "Remove category",
      "data-focus": "delete", onclick: () => act({ do: "delete", category: category.name }) }, "✕"));
}

function rename(name, title) {
  const input = make("input", { value: name, maxlength: 80, "aria-label": `New name of ${name}`, spellcheck: "false" });
  const form = make("form", { class: "rename" }, input);
  let over = false;
  const end = async (to) => {
    if (over) return;
    over = true;
    form.replaceWith(title);
    if (to && to !== name) { if (await act({ do: "rename", category: name, to })) focusCategory(to); }
    else title.focus();
  };
  form.addEventListener("submit", (event) => { event.preventDefault(); end(input.value.trim()); });
  input.addEventListener("keydown", (event) => { if (event.key === "Escape") end(null); });
  input.addEventListener("blur", () => end(input.value.trim()));
  title.replaceWith(form);
  input.select();
}

function focusCategory(name) {
  cards.get(name)?.card.querySelector("[data-focus=name]")?.focus();
}

function thumbnails(category) {
  const all = opened.has(category.name) || category.examples.length <= FIRST;
  const some = all ? category.examples : category.examples.slice(0, FIRST);
  if (!some.length) return make("p", { class: "hint nothing" }, "Drop images here, or paste them while this card has the focus.");
  const list = make("div", { class: "thumbnails" }, some.map((example, number) => thumbnail(category, example, number)));
  if (!all) {
    list.append(make("button", { type: "button", class: "more", "data-focus": "more", onclick: () => {
      opened.add(category.name);
      showCategories(session.state);
    } }, `Show all ${category.examples.length}`));
  }
  return list;
}

function thumbnail(category, example, number) {
  const button = make("button", { type: "button", class: "thumbnail", "data-focus": example.key, title: example.name,
    "aria-label": `Example ${number + 1} of ${category.name}: ${example.name}`, onclick: () => openExample(category.name, example) },
    example.image ? make("img", { src: api.imageOf(example.key), alt: "", loading: "lazy", draggable: "false" })
      : make("span", { class: "imageless", "aria-hidden": "true" }, "·"));
  button.addEventListener("keydown", (event) => {
    if (event.key === "Delete" || event.key === "Backspace") act({ do: "remove", keys: [example.key] });
  });
  draggable(button, example.key);
  return button;
}

function cardTools(category) {
  const input = make("input", { type: "file", accept: "image/*", multiple: true, class: "unseen", tabindex: "-1",
    "aria-label": `Images of ${category.name}`, onchange: () => { teach(category.name, [...input.files]); input.value = ""; } });
  const send = (image) => teach(category.name, [image]);
  return make("div", { class: "tools" },
    make("button", { type: "button", "data-focus": "choose", onclick: () => input.click() }, "Choose…"),
    make("button", { type: "button", "data-focus": "camera", onclick: () => openCamera(shown(category.name), send, true) }, "Camera"),
    session.state.network.draw
      ? make("button", { type: "button", "data-focus": "draw", onclick: () => openDrawing(shown(category.name), send, true) }, "Draw") : null,
    input);
}
