// Pointer, keyboard and buttons.
function listen({state, hover, nearest, pick, select, finder, redraw, mark, search, zoomTo, showAll, recolour, isDark}) {
  const byId = id => document.getElementById(id), lasso = byId("lasso"), pointers = new Map();
  const theme = byId("theme"), bar = byId("search");
  let moved = 0, pinch = null;

  const placeOf = event => {
    const box = stage.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const isLasso = () => lasso.getAttribute("aria-pressed") === "true";
  const setLasso = on => {
    lasso.setAttribute("aria-pressed", String(on));
    stage.classList.toggle("lasso", on);
  };

  marksCanvas.addEventListener("pointerdown", event => {
    const at = placeOf(event);
    pointers.set(event.pointerId, at);
    marksCanvas.setPointerCapture(event.pointerId);
    moved = 0;
    pinch = null;
    state.line = pointers.size === 1 && (isLasso() || event.shiftKey) ? [view.toMap(...at)] : null;
  });
  marksCanvas.addEventListener("pointermove", event => {
    const at = placeOf(event), before = pointers.get(event.pointerId);
    if (!before) {
      hover(nearest(...at), ...at);
      return;
    }
    pointers.set(event.pointerId, at);
    const [right, down] = [at[0] - before[0], at[1] - before[1]];
    moved += Math.hypot(right, down);
    if (pointers.size > 1) spread();
    else if (state.line) {
      state.line.push(view.toMap(...at));
      mark();
    } else if (moved > 3) {
      view.x -= right / view.pixels;
      view.y += down / view.pixels;
      hover(-1);
      redraw();
    }
  });
  for (const name of ["pointerup", "pointercancel"]) marksCanvas.addEventListener(name, event => {
    const at = placeOf(event), {line} = state;
    pointers.delete(event.pointerId);
    state.line = null;
    if (line && line.length > 2) select(finder.inside(line.map(([x, y]) => [x * 65535, y * 65535])));
    else if (name === "pointerup" && moved <= 3 && !pinch) {
      const point = nearest(...at);
      pick(point);
      if (event.pointerType === "touch") hover(point, ...at);  // a finger does not hover
    }
    if (line) setLasso(false);
    mark();
  });
  marksCanvas.addEventListener("pointerleave", event => { if (event.pointerType !== "touch") hover(-1); });
  marksCanvas.addEventListener("wheel", event => {
    event.preventDefault();
    view.zoomAt(...placeOf(event), Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0016)));
    redraw();
  }, {passive: false});

  function spread() {
    const [one, other] = [...pointers.values()], wide = Math.hypot(one[0] - other[0], one[1] - other[1]);
    const middle = [(one[0] + other[0]) / 2, (one[1] + other[1]) / 2];
    if (pinch) {
      view.zoomAt(...middle, wide / pinch.wide);
      view.x -= (middle[0] - pinch.middle[0]) / view.pixels;
      view.y += (middle[1] - pinch.middle[1]) / view.pixels;
      redraw();
    }
    pinch = {wide, middle};
  }

  const zoom = factor => { view.zoomAt(view.width / 2, view.height / 2, factor); redraw(); };
  const move = (right, up) => { view.x += right * 60 / view.pixels; view.y += up * 60 / view.pixels; redraw(); };
  const undo = () => {
    if (state.line) state.line = null;
    else if (state.picked >= 0) return pick(-1);
    else if (state.selected.length) return select([]);
    else if (bar.value || state.highlighted.size) { bar.value = ""; return search(""); }
    setLasso(false);
    return mark();
  };
  const keys = {
    ArrowLeft: () => move(-1, 0), ArrowRight: () => move(1, 0), ArrowUp: () => move(0, 1), ArrowDown: () => move(0, -1),
    "+": () => zoom(1.4), "=": () => zoom(1.4), "-": () => zoom(1 / 1.4), 0: showAll, Home: showAll,
    Enter: () => pick(finder.nearest(view.x * 65535, view.y * 65535, 65535)), l: () => setLasso(!isLasso()), Escape: undo,
  };
  stage.addEventListener("keydown", event => {
    const act = keys[event.key];
    if (!act || event.target !== stage || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });

  byId("in").onclick = () => zoom(1.6);
  byId("out").onclick = () => zoom(1 / 1.6);
  byId("whole").onclick = showAll;
  lasso.onclick = () => setLasso(!isLasso());
  let waiting = 0;
  bar.oninput = () => { clearTimeout(waiting); waiting = setTimeout(() => search(bar.value), 120); };
  bar.onkeydown = event => {
    if (event.key === "Escape") { bar.value = ""; search(""); }
    if (event.key === "Enter") { clearTimeout(waiting); search(bar.value); zoomTo(state.found); }
  };

  const name = () => { theme.textContent = isDark() ? "Light" : "Dark"; theme.title = `Show it ${isDark() ? "light" : "dark"}`; };
  theme.onclick = () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    name();
    recolour();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { name(); recolour(); });
  name();
}
