"use strict";

// Tables: a click on a column's name sorts by it, a second one turns the order around.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.firstElementChild.addEventListener("click", () => sort(table, heads, column)));
}

function sort(table, heads, column) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const keys = new Map(rows.map((row) => [row, key(row.cells[column])]));
  const isNumeric = rows.some((row) => typeof keys.get(row) === "number");
  const before = heads[column].getAttribute("aria-sort");
  // numbers begin with the highest, as that is mostly the best
  const isUp = before ? before === "descending" : !isNumeric;
  const order = (a, b) => {
    const [x, y] = [keys.get(a), keys.get(b)];
    if (x === null || y === null) return (x === null) - (y === null); // what is empty stays at the end
    const found = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
    return isUp ? found : -found;
  };
  body.append(...rows.sort(order));
  heads.forEach((head) => head.removeAttribute("aria-sort"));
  heads[column].setAttribute("aria-sort", isUp ? "ascending" : "descending");
}

function key(cell) {
  if (cell.dataset.sort !== undefined) return Number(cell.dataset.sort);
  return cell.textContent === "" ? null : cell.textContent;
}

// Rows of one number of shots; those that hold for all of them stay.
for (const filter of document.querySelectorAll(".filter")) {
  const rows = document.getElementById(filter.dataset.table).tBodies[0].rows;
  filter.addEventListener("click", (event) => {
    const wanted = event.target.dataset.show;
    if (wanted === undefined) return;
    for (const row of rows) row.hidden = Boolean(wanted) && ![wanted, "all"].includes(row.dataset.shots);
    for (const button of filter.children) button.setAttribute("aria-pressed", button === event.target);
  });
}

for (const button of document.querySelectorAll(".picture")) {
  button.addEventListener("click", () => button.parentElement.classList.toggle("large"));
}

const map = document.getElementById("class-map");
if (map) showMap(map, JSON.parse(document.getElementById("class-map-data").textContent));

// The map: wheel, pinch and buttons enlarge it, dragging moves it. Points and names keep their size on the screen.
function showMap(map, data) {
  const svg = map.querySelector("svg");
  const side = svg.viewBox.baseVal.width;
  const points = [...map.querySelectorAll("g[data-place]")];
  const home = points.map((point) => point.getAttribute("transform")); // in the order of the points
  const told = map.querySelector(".told");
  const pointers = new Map();
  const view = { x: 0, y: 0, size: side };
  const NAMED_AT = Math.max(1, Math.min(8, Math.sqrt(points.length / 60)));

  function draw() {
    view.size = Math.min(side, Math.max(side / 60, view.size));
    view.x = Math.min(side - view.size, Math.max(0, view.x));
    view.y = Math.min(side - view.size, Math.max(0, view.y));
    svg.setAttribute("viewBox", `${view.x} ${view.y} ${view.size} ${view.size}`);
    const unit = view.size / svg.clientWidth; // of the picture, per pixel on the screen
    const scale = Math.min(1.6, Math.max(0.75, svg.clientWidth / 800)) * unit * (0.9 + 0.3 * Math.log2(side / view.size));
    points.forEach((point, row) => point.setAttribute("transform", `${home[row]} scale(${scale.toFixed(4)})`));
    map.classList.toggle("named", side / view.size >= NAMED_AT);
  }

  function zoom(factor, x, y) {
    const size = Math.min(side, Math.max(side / 60, view.size * factor));
    view.x = x - ((x - view.x) * size) / view.size;
    view.y = y - ((y - view.y) * size) / view.size;
    view.size = size;
    draw();
  }

  function at(event) {
    const box = svg.getBoundingClientRect();
    const shown = Math.min(box.width, box.height);
    const [left, top] = [box.left + (box.width - shown) / 2, box.top + (box.height - shown) / 2];
    return [view.x + ((event.clientX - left) / shown) * view.size, view.y + ((event.clientY - top) / shown) * view.size];
  }

  function tell(place) {
    const kind = place < data.base ? "base" : "novel";
    const near = data.nearest[place].map((other) => data.names[other]).join(", ");
    told.textContent = `${data.names[place]}, ${kind}. Nearest by mean activation: ${near}`;
  }

  svg.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(Math.exp(event.deltaY * 0.0015), ...at(event));
  }, { passive: false });
  svg.addEventListener("pointerdown", (event) => {
    pointers.set(event.pointerId, event);
    const point = event.target.closest("g[data-place]");
    if (point) tell(Number(point.dataset.place));
  });
  svg.addEventListener("pointermove", (event) => {
    const point = event.target.closest("g[data-place]");
    if (point && !pointers.size) tell(Number(point.dataset.place));
    const before = pointers.get(event.pointerId);
    if (!before) return;
    svg.setPointerCapture(event.pointerId);
    const others = [...pointers.values()].filter((other) => other.pointerId !== event.pointerId);
    if (others.length) {
      const apart = (one) => Math.hypot(one.clientX - others[0].clientX, one.clientY - others[0].clientY);
      zoom(apart(before) / Math.max(1, apart(event)), ...at(others[0]));
    } else {
      const [from, to] = [at(before), at(event)];
      view.x += from[0] - to[0];
      view.y += from[1] - to[1];
      draw();
    }
    pointers.set(event.pointerId, event);
  });
  for (const end of ["pointerup", "pointercancel"]) svg.addEventListener(end, (event) => pointers.delete(event.pointerId));
  map.querySelector(".tools").addEventListener("click", (event) => {
    const how = event.target.dataset.zoom;
    const [x, y] = [view.x + view.size / 2, view.y + view.size / 2];
    if (how === "in") zoom(0.6, x, y);
    if (how === "out") zoom(1 / 0.6, x, y);
    if (how === "all") zoom(1e6, x, y);
  });
  map.querySelector("input").addEventListener("input", (event) => {
    const wanted = event.target.value.trim().toLowerCase();
    const found = points.filter((point) => wanted && data.names[point.dataset.place].toLowerCase().includes(wanted));
    for (const point of points) point.classList.toggle("found", found.includes(point));
    for (const point of found.slice(0, 50)) point.parentNode.append(point); // on top of the others
    if (found.length) tell(Number(found[0].dataset.place));
  });
  window.addEventListener("resize", draw);
  draw();
}
