"use strict";
{
  const box = document.getElementById("find");
  const cards = [...document.querySelectorAll(".cards > li")];
  const told = document.getElementById("found");
  const find = () => {
    const wanted = box.value.trim().toLowerCase();
    let shown = 0;
    for (const card of cards) {
      card.hidden = wanted !== "" && !card.dataset.words.includes(wanted);
      shown += card.hidden ? 0 : 1;
    }
    told.textContent = wanted === "" ? "" : `${shown} of ${cards.length}`;
  };
  if (box) box.addEventListener("input", find);
}
