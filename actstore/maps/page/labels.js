// Names of categories where they are densest; one that would cover another is left out until there is room.
const CELLS = 48, MOST_LABELS = 400;

// For each category its number of points and the middle of its densest part, in [0, 1].
function anchorsOf(scale, places) {
  const count = scale.names.length, cell = place => Math.min(CELLS - 1, Math.floor(place / 65536 * CELLS));
  const sums = Array.from({length: count}, () => new Float32Array(CELLS ** 2)), sizes = new Uint32Array(count);
  for (let point = 0; point < scale.values.length; point++) {
    const category = scale.values[point];
    if (category >= count) continue;
    sums[category][cell(places[2 * point + 1]) * CELLS + cell(places[2 * point])]++;
    sizes[category]++;
  }
  const best = sums.map(grid => densest(grid)), middles = new Float64Array(3 * count);
  for (let point = 0; point < scale.values.length; point++) {
    const category = scale.values[point];
    if (category >= count) continue;
    const [row, column] = best[category];
    if (Math.abs(cell(places[2 * point + 1]) - row) > 1 || Math.abs(cell(places[2 * point]) - column) > 1) continue;
    middles[3 * category] += places[2 * point];
    middles[3 * category + 1] += places[2 * point + 1];
    middles[3 * category + 2]++;
  }
  return Array.from(sizes, (size, category) => ({category, size,
    x: middles[3 * category] / middles[3 * category + 2] / 65535, y: middles[3 * category + 1] / middles[3 * category + 2] / 65535}))
    .filter(anchor => anchor.size).sort((one, other) => other.size - one.size).slice(0, MOST_LABELS);
}

// Row and column of the cell that has most points with those around it.
function densest(grid) {
  let most = -1, found = [0, 0];
  for (let row = 0; row < CELLS; row++) {
    for (let column = 0; column < CELLS; column++) {
      if (!grid[row * CELLS + column]) continue;
      let sum = 0;
      for (let y = Math.max(0, row - 1); y <= Math.min(CELLS - 1, row + 1); y++) {
        for (let x = Math.max(0, column - 1); x <= Math.min(CELLS - 1, column + 1); x++) sum += grid[y * CELLS + x];
      }
      if (sum > most) [most, found] = [sum, [row, column]];
    }
  }
  return found;
}

class Labels {
  constructor(layer, places) {
    Object.assign(this, {layer, places, shown: []});
  }

  name(scale) {
    this.shown = [];
    this.layer.replaceChildren();
    if (scale.kind !== "category" || scale.names.length < 2) return;
    for (const anchor of anchorsOf(scale, this.places)) {
      const element = document.createElement("span");
      element.textContent = scale.names[anchor.category];
      this.layer.append(element);
      this.shown.push({...anchor, element});
    }
    for (const one of this.shown) [one.width, one.height] = [one.element.offsetWidth + 10, one.element.offsetHeight + 4];
  }

  // first: the categories that are highlighted, whose names come before the others.
  place(view, width, height, first, avoided) {
    const taken = [...avoided];
    for (const one of [...this.shown].sort((a, b) => first.has(b.category) - first.has(a.category))) {
      const [x, y] = view.toScreen(one.x, one.y), {element} = one;
      const free = [[0, 0], [0, -1], [0, 1], [-0.55, 0], [0.55, 0]].map(([right, down]) => ({
        left: x + (right - 0.5) * one.width, top: y + (down - 0.5) * one.height,
      })).find(({left, top}) => left >= 0 && top >= 0 && left + one.width <= width && top + one.height <= height &&
        !taken.some(box => left < box.right && left + one.width > box.left && top < box.bottom && top + one.height > box.top));
      element.style.visibility = free ? "visible" : "hidden";
      element.classList.toggle("faint", first.size > 0 && !first.has(one.category));
      if (!free) continue;
      element.style.transform = `translate(${Math.round(free.left + 5)}px, ${Math.round(free.top + 2)}px)`;
      taken.push({left: free.left, top: free.top, right: free.left + one.width, bottom: free.top + one.height});
    }
  }
}
