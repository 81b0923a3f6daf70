// The state of the page, and what people do to it.
const REACH = 14;  // pixels from the pointer to the point that it means
const stage = document.getElementById("stage"), [pointsCanvas, marksCanvas] = ["points", "marks"].map(id => document.getElementById(id));
const tip = document.getElementById("tip");

// x, y: the place of the map, in [0, 1], in the middle of the screen. pixels: of the whole map at this zoom.
const view = {
  x: 0.5, y: 0.5, zoom: 1, width: 1, height: 1, ratio: 1,
  get pixels() { return Math.min(this.width, this.height) * 0.92 * this.zoom; },
  toScreen(x, y) { return [this.width / 2 + (x - this.x) * this.pixels, this.height / 2 - (y - this.y) * this.pixels]; },
  toMap(left, top) { return [this.x + (left - this.width / 2) / this.pixels, this.y - (top - this.height / 2) / this.pixels]; },
  zoomAt(left, top, factor) {
    const [x, y] = this.toMap(left, top);
    this.zoom = Math.max(0.5, Math.min(400, this.zoom * factor));
    const [newX, newY] = this.toMap(left, top);
    this.x += x - newX;
    this.y += y - newY;
  },
};

unpack().then(start).catch(error => {
  stage.textContent = `This browser cannot show the map: ${error.message}`;
  document.body.classList.add("failed");
});

function start(data) {
  const drawing = openDrawing(pointsCanvas, data.places), finder = new Finder(data.places);
  const labels = new Labels(document.getElementById("labels"), data.places), marks = marksCanvas.getContext("2d");
  const state = {scale: data.scales[0], highlighted: new Set(), found: null, selected: [], hovered: -1, picked: -1, line: null};
  const panel = new Panel(data, {pick, select, highlight, selectCategory});
  let isDue = false;
  Object.assign(document.body.dataset, {drawing: drawing.kind, points: data.points});
  document.getElementById("colour").replaceChildren(...data.scales.map((scale, place) => make("option", {value: place, textContent: scale.name})));
  document.getElementById("colour").onchange = event => { state.scale = data.scales[event.target.value]; highlight(null); labels.name(state.scale); };

  const isDark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const ground = () => isDark() ? "dark" : "light";
  const at = point => view.toScreen(data.places[2 * point] / 65535, data.places[2 * point + 1] / 65535);
  const pointSize = () => Math.max(2, Math.min(12, 0.62 * Math.sqrt(view.width * view.height / data.points))) * Math.min(3, view.zoom ** 0.35);

  // The colours of points; those that nothing is asked of are faint where something is.
  function recolour() {
    const {scale} = state, count = data.points, bytes = new Uint8Array(4 * count), words = new Uint32Array(bytes.buffer);
    const pack = (rgb, strength) => new Uint32Array(new Uint8Array([...rgb, strength]).buffer)[0];
    const grey = pack(GREY[ground()], 200), faint = pack(GREY[ground()], 40);
    const table = tableOf(scale, ground()).map(rgb => pack(rgb, 225));
    const isMarked = marked();
    const [low, span] = [scale.low, (scale.high - scale.low) || 1];
    for (let point = 0; point < count; point++) {
      const value = scale.values[point];
      const place = scale.kind === "category" ? value : Math.round((value - low) / span * (table.length - 1));
      words[point] = isMarked && !isMarked(point) ? faint : table[place] ?? grey;
    }
    drawing.colour(bytes, isMarked !== null);
    panel.explain(scale, ground(), state.highlighted);
    redraw();
  }

  function marked() {
    if (state.selected.length) return masked(state.selected);
    if (state.highlighted.size) return point => state.highlighted.has(state.scale.values[point]);
    return state.found ? masked(state.found) : null;
  }

  function masked(points) {
    const mask = new Uint8Array(data.points);
    for (const point of points) mask[point] = 1;
    return point => mask[point] === 1;
  }

  function redraw() {
    if (isDue) return;
    isDue = true;
    requestAnimationFrame(() => {
      isDue = false;
      drawing.draw(view, pointSize());
      const corner = stage.querySelector(".zoom"), box = {left: corner.offsetLeft, top: corner.offsetTop};
      labels.place(view, view.width, view.height, state.highlighted, [{...box, right: box.left + corner.offsetWidth, bottom: box.top + corner.offsetHeight}]);
      mark();
      document.body.classList.add("ready");
    });
  }

  // What is above the points: rings, lines to neighbours, the lasso.
  function mark() {
    const ink = getComputedStyle(stage).getPropertyValue("color");
    marks.setTransform(view.ratio, 0, 0, view.ratio, 0, 0);
    marks.clearRect(0, 0, view.width, view.height);
    marks.strokeStyle = marks.fillStyle = ink;
    if (state.picked >= 0) {
      marks.lineWidth = 1;
      for (const near of data.neighboursOf(state.picked)) {
        marks.beginPath();
        marks.moveTo(...at(state.picked));
        marks.lineTo(...at(near));
        marks.stroke();
      }
    }
    for (const [point, width] of [[state.picked, 3], [state.hovered, 2]]) {
      if (point < 0) continue;
      marks.lineWidth = width;
      marks.beginPath();
      marks.arc(...at(point), pointSize() / 2 + 4, 0, 7);
      marks.stroke();
    }
    if (!state.line) return;
    marks.lineWidth = 1.5;
    marks.setLineDash([5, 4]);
    marks.beginPath();
    for (const [x, y] of state.line) marks.lineTo(...view.toScreen(x, y));
    marks.closePath();
    marks.stroke();
    marks.globalAlpha = 0.1;
    marks.fill();
    marks.globalAlpha = 1;
    marks.setLineDash([]);
  }

  function nearest(left, top) {
    const [x, y] = view.toMap(left, top);
    return finder.nearest(x * 65535, y * 65535, (REACH + pointSize() / 2) / view.pixels * 65535);
  }

  function hover(point, left, top) {
    if (point !== state.hovered) {
      state.hovered = point;
      tip.hidden = point < 0;
      if (point >= 0) {
        const facts = panel.facts(point).filter(([name]) => name === state.scale.name || name === "class");
        tip.replaceChildren(...[data.thumbnail(point, 96)].filter(Boolean), make("span", {className: "id", textContent: data.id(point)}),
          ...facts.map(([name, value]) => make("span", {}, make("small", {textContent: `${name} `}), make("b", {textContent: value}))));
      }
      mark();
    }
    if (point < 0) return;
    const {offsetWidth: width, offsetHeight: height} = tip;
    const x = left + 18 + width > view.width ? left - 18 - width : left + 18;
    tip.style.transform = `translate(${Math.max(4, x)}px, ${Math.max(4, Math.min(view.height - height - 4, top - height / 2))}px)`;
  }

  // Keeps a point; go: moves there where it is out of sight.
  function pick(point, go = false) {
    state.picked = point;
    if (point >= 0) {
      const [left, top] = at(point);
      if (go && (left < 20 || top < 20 || left > view.width - 20 || top > view.height - 20)) {
        [view.x, view.y] = [data.places[2 * point] / 65535, data.places[2 * point + 1] / 65535];
      }
      panel.say(`${data.id(point)}, ${panel.facts(point).map(fact => fact.join(" ")).join(", ")}`, true);
    }
    panel.pick(point);
    redraw();
  }

  function select(points) {
    state.selected = points;
    panel.select(points);
    panel.say(points.length ? `${points.length.toLocaleString("en")} rows selected` : "Nothing selected", true);
    recolour();
  }

  function pointsOf(scale, categories) {
    const points = [];
    scale.values.forEach((value, point) => { if (categories.has(value)) points.push(point); });
    return points;
  }

  function selectCategory(category) {
    select(pointsOf(state.scale, new Set([category])));
  }

  function highlight(category) {
    const {highlighted} = state;
    if (category === null) highlighted.clear();
    else if (!highlighted.delete(category)) highlighted.add(category);
    state.found = null;
    if (state.selected.length) select([]);
    recolour();
  }

  // Classes whose name holds the text; where there are none, ids.
  function search(text) {
    const wanted = text.trim().toLowerCase();
    const named = data.classes ? data.classes.names.flatMap((name, category) => name.toLowerCase().includes(wanted) ? [category] : []) : [];
    state.selected = [];
    panel.select([]);
    state.highlighted = new Set();
    if (!wanted) state.found = null;
    else state.found = named.length ? pointsOf(data.classes, new Set(named)) : data.withId(wanted);
    if (wanted && named.length && state.scale === data.classes) state.highlighted = new Set(named);
    const what = named.length ? `${named.length} ${named.length > 1 ? "classes" : "class"}, ` : "";
    panel.say(wanted ? `${what}${state.found.length.toLocaleString("en")} rows found` : "");
    recolour();
  }

  // Shows what was found as large as fits.
  function zoomTo(points) {
    if (!points?.length) return;
    const edges = [0, 1].map(axis => points.reduce(([low, high], point) => {
      const place = data.places[2 * point + axis] / 65535;
      return [Math.min(low, place), Math.max(high, place)];
    }, [1, 0]));
    [view.x, view.y] = edges.map(([low, high]) => (low + high) / 2);
    view.zoom = Math.min(20, 0.8 / Math.max(0.02, edges[0][1] - edges[0][0], edges[1][1] - edges[1][0]));
    redraw();
    if (points.length === 1) pick(points[0]);
  }

  function showAll() {
    Object.assign(view, {x: 0.5, y: 0.5, zoom: 1});
    redraw();
  }

  function resize() {
    [view.width, view.height, view.ratio] = [stage.clientWidth, stage.clientHeight, Math.min(2, devicePixelRatio || 1)];
    for (const canvas of [pointsCanvas, marksCanvas]) {
      [canvas.width, canvas.height] = [Math.round(view.width * view.ratio), Math.round(view.height * view.ratio)];
    }
    redraw();
  }

  listen({data, state, hover, nearest, pick, select, finder, redraw, mark, search, zoomTo, showAll, recolour, isDark});
  new ResizeObserver(resize).observe(stage);
  resize();
  recolour();
  labels.name(state.scale);
}
