// Which points are near a place of the map or inside of a line, by a grid of cells: places are whole numbers to 65,535.
class Finder {
  constructor(places) {
    const count = places.length / 2;
    this.places = places;
    this.across = Math.max(1, Math.min(1024, Math.round(Math.sqrt(count / 2))));
    this.starts = new Uint32Array(this.across ** 2 + 1);
    const cells = new Uint32Array(count);
    for (let point = 0; point < count; point++) {
      cells[point] = this.cell(places[2 * point + 1]) * this.across + this.cell(places[2 * point]);
      this.starts[cells[point] + 1]++;
    }
    for (let cell = 0; cell < this.across ** 2; cell++) this.starts[cell + 1] += this.starts[cell];
    this.order = new Uint32Array(count);
    const next = this.starts.slice();
    for (let point = 0; point < count; point++) this.order[next[cells[point]]++] = point;
  }

  cell(place) {
    return Math.max(0, Math.min(this.across - 1, Math.floor(place / 65536 * this.across)));
  }

  // The points of all cells that a box touches.
  *within(left, bottom, right, top) {
    const [first, last] = [this.cell(left), this.cell(right)];
    for (let row = this.cell(bottom); row <= this.cell(top); row++) {
      const stop = this.starts[row * this.across + last + 1];
      for (let place = this.starts[row * this.across + first]; place < stop; place++) yield this.order[place];
    }
  }

  // The nearest point to (x, y) that is no further than `reach`, or -1.
  nearest(x, y, reach) {
    let best = -1, least = reach ** 2;
    for (const point of this.within(x - reach, y - reach, x + reach, y + reach)) {
      const away = (this.places[2 * point] - x) ** 2 + (this.places[2 * point + 1] - y) ** 2;
      if (away <= least) [best, least] = [point, away];
    }
    return best;
  }

  // Points inside of a closed line of [x, y], ascending.
  inside(line) {
    if (line.length < 3) return [];
    const [xs, ys] = [line.map(at => at[0]), line.map(at => at[1])], found = [];
    const box = [Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys)];
    for (const point of this.within(...box)) {
      const x = this.places[2 * point], y = this.places[2 * point + 1];
      let isInside = false;
      for (let i = 0, j = line.length - 1; i < line.length; j = i++) {
        if ((ys[i] > y) !== (ys[j] > y) && x < (xs[j] - xs[i]) * (y - ys[i]) / (ys[j] - ys[i]) + xs[i]) isInside = !isInside;
      }
      if (isInside) found.push(point);
    }
    return found.sort((one, other) => one - other);
  }
}
