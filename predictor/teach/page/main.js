// The page as a whole: views, undo, paste, and what came by zip.

import * as api from "./api.js";
import { ask, showState, startAsking } from "./ask.js";
import { startCamera } from "./camera.js";
import { showCheck } from "./check.js";
import { byId, count, say, takeNames } from "./dom.js";
import { startDrawing } from "./drawing.js";
import { dropZone, pasted, zipIn } from "./files.js";
import { showMap, startMap } from "./map.js";
import { act, change, listen, sentence, session, take, teach } from "./session.js";
import { showCategories, startTeaching } from "./teach.js";

const VIEWS = ["teach", "ask", "check", "away"];
const currentView = () => document.body.dataset.view;

function showView() {
  const asked = location.hash.slice(1);
  const view = VIEWS.includes(asked) ? asked : "teach";
  document.body.dataset.view = view;
  for (const link of document.querySelectorAll(".views a")) {
    if (link.hash === `#${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (view === "check") refreshCheck();
}

function refreshCheck() {
  showCheck();
  showMap();
}

function showHistory(state) {
  for (const kind of ["undo", "redo"]) {
    byId(kind).disabled = !state[kind];
    byId(kind).title = state[kind] ? `${kind === "undo" ? "Undo" : "Redo"}: ${state[kind]}` : "";
  }
}

function showAbout(state) {
  const known = state.known ? `, knows ${count(state.known, "category", "categories")}` : "";
  byId("about").textContent = `${state.network.name}${known}`;
  byId("where").textContent = `Everything is kept in the folder ${state.session}; the same command goes on with it.`;
}

async function bringZip(zip) {
  say(`Reading ${zip.name} …`);
  const done = await change(api.bring(zip, session.asked));
  if (done) say(sentence(done.said));
}

function startKeys() {
  document.addEventListener("keydown", (event) => {
    if (!(event.ctrlKey || event.metaKey) || event.target.closest("input, textarea, dialog")) return;
    const key = event.key.toLowerCase();
    const kind = key === "y" || (key === "z" && event.shiftKey) ? "redo" : key === "z" ? "undo" : null;
    if (!kind) return;
    event.preventDefault();
    if (!byId(kind).disabled) act({ do: kind });
  });
  document.addEventListener("paste", (event) => {
    const images = pasted(event);
    if (!images.length) return;
    event.preventDefault();
    const card = document.activeElement?.closest(".category");
    if (card) teach(card.dataset.category, images);
    else ask(images[0]);
  });
}

async function start() {
  history.replaceState(null, "", location.pathname + location.hash); // the token is a cookie now, and need not be seen
  listen(showHistory);
  listen(showAbout);
  listen(showCategories);
  listen(showState);
  listen(() => { if (currentView() === "check") refreshCheck(); });
  startTeaching(bringZip);
  startAsking(bringZip);
  startCamera();
  startDrawing();
  startMap();
  startKeys();
  for (const kind of ["undo", "redo"]) byId(kind).addEventListener("click", () => act({ do: kind }));
  for (const close of document.querySelectorAll("[data-close]")) close.addEventListener("click", () => close.closest("dialog").close());
  byId("bring-file").addEventListener("click", () => byId("bring-input").click());
  byId("bring-input").addEventListener("change", (event) => { if (event.target.files.length) bringZip(event.target.files[0]); event.target.value = ""; });
  dropZone(document.body, { onFiles: ({ files }) => (zipIn(files) ? bringZip(zipIn(files))
    : say("Drop images on a category, on “New category”, or on “Ask”.", "error")) });
  window.addEventListener("hashchange", () => { showView(); byId("main").focus({ preventScroll: true }); window.scrollTo(0, 0); });
  window.addEventListener("focus", () => refresh(false)); // another tab may have taught, too
  await refresh(true);
  showView();
}

async function refresh(loud) {
  try {
    if (loud) takeNames(await api.getNames());
    take(await api.getState(session.asked));
    document.body.classList.add("ready");
  } catch (error) {
    if (loud) say(error.message, "error");
  }
}

start();
