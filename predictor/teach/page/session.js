// What the page knows of the session, and how it changes it. Views listen; the server decides.

import * as api from "./api.js";
import { say } from "./dom.js";

export const session = { state: null, asked: null };
const listeners = [];
export const listen = (listener) => listeners.push(listener);

export function take(state) {
  session.state = state;
  for (const listener of listeners) listener(state);
}

export const place = (name) => session.state.categories.findIndex((category) => category.name === name);

/** Any change: its sentence is said, and the state that it led to is shown. Returns undefined where it was refused. */
export async function change(request) {
  try {
    const done = await request;
    take(done.state);
    return done;
  } catch (error) {
    say(error.message, "error");
    return undefined;
  }
}

export async function act(action) {
  const done = await change(api.act(action, session.asked));
  if (done) say(sentence(done.said));
  return done;
}

export const sentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;

/** Images into a category, one after the other; says how it goes. */
export async function teach(category, images) {
  const outcomes = { added: 0, moved: 0, there: 0 };
  let refused = null;
  for (const [number, image] of images.entries()) {
    if (images.length > 2) say(`Teaching ${category}: ${number + 1} of ${images.length} …`);
    try {
      const done = await api.addExample(category, image, session.asked);
      outcomes[done.outcome] += 1;
      if (done.outcome === "moved") outcomes.before = done.before;
      take(done.state);
    } catch (error) {
      refused = error;
      if (images.length === 1) break;
    }
  }
  if (refused) say(refused.message, "error");
  else say(summary(category, outcomes));
  return refused === null;
}

function summary(category, { added, moved, there, before }) {
  const parts = [];
  if (added) parts.push(`${added === 1 ? "One example" : `${added} examples`} added to ${category}`);
  if (moved) parts.push(`${moved === 1 ? "one" : moved} moved here from ${before}`);
  if (there) parts.push(`${there === 1 ? "one was" : `${there} were`} there already`);
  return sentence(parts.join(", "));
}
