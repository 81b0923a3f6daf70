// One example: looked at, moved, removed.

import * as api from "./api.js";
import { byId, make, shown } from "./dom.js";
import { act, session } from "./session.js";

export function picture(example) {
  return example.image ? make("img", { src: api.imageOf(example.key), alt: `Image ${example.name}` })
    : make("p", { class: "hint" }, "Learnt before this session: there is no image.");
}

export function openExample(category, example) {
  const dialog = byId("example");
  byId("example-title").textContent = `Example of ${shown(category)}`;
  byId("example-picture").replaceChildren(picture(example));
  byId("example-name").textContent = example.name;
  const others = session.state.categories.filter((one) => one.name !== category);
  byId("example-move").replaceChildren(...others.map((one) => make("option", { value: one.name }, shown(one.name))));
  for (const element of dialog.querySelectorAll("[value=move], #example-move")) element.disabled = !others.length;
  dialog.returnValue = "close";
  dialog.onclose = () => {
    if (dialog.returnValue === "remove") act({ do: "remove", keys: [example.key] });
    if (dialog.returnValue === "move") act({ do: "move", keys: [example.key], category: byId("example-move").value });
  };
  dialog.showModal();
}
