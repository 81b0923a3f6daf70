// Paper for networks that read characters. Strokes are kept as lines and drawn again as such a network's images are:
// centred, the longer side 68% of the paper, black on white.

import { byId, count } from "./dom.js";

const SIDE = 256;
const FILL = 0.68;
const INK = 0.082; // width of a stroke, share of the paper
let strokes = [];
let use = () => {};

function paint(context, side, lines, width) {
  context.fillStyle = "#fff";
  context.fillRect(0, 0, side, side);
  context.strokeStyle = context.fillStyle = "#111";
  context.lineWidth = width;
  context.lineCap = context.lineJoin = "round";
  for (const line of lines) {
    context.beginPath();
    line.forEach(([x, y], place) => (place ? context.lineTo(x, y) : context.moveTo(x, y)));
    if (line.length === 1) context.lineTo(line[0][0], line[0][1] + 0.01);
    context.stroke();
  }
}

/** The strokes on a small square, as a file. */
function drawn() {
  const points = strokes.flat();
  const [xs, ys] = [points.map(([x]) => x), points.map(([, y]) => y)];
  const [left, top, right, bottom] = [Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys)];
  const ink = INK * SIDE;
  const scale = (FILL * SIDE - ink) / Math.max(right - left, bottom - top, 1);
  const moved = strokes.map((line) => line.map(([x, y]) => [
    SIDE / 2 + scale * (x - (left + right) / 2), SIDE / 2 + scale * (y - (top + bottom) / 2)]));
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = SIDE;
  paint(canvas.getContext("2d"), SIDE, moved, ink);
  return new Promise((resolve) => canvas.toBlob((blob) => resolve(new File([blob], "drawing.png", { type: "image/png" })), "image/png"));
}

function refresh() {
  const paper = byId("paper");
  paint(paper.getContext("2d"), paper.width, strokes, INK * paper.width);
  byId("drawn").disabled = !strokes.length;
}

/** many: the paper is cleared for the next drawing; else it is closed. */
export function openDrawing(title, send, many) {
  let taken = 0;
  byId("drawing-title").textContent = `Draw ${title}`;
  strokes = [];
  refresh();
  use = async () => {
    const image = await drawn();
    strokes = [];
    refresh();
    await send(image);
    taken += 1;
    if (many) byId("drawing-title").textContent = `Draw ${title}: ${count(taken, "drawing")}`;
    else byId("drawing").close();
  };
  byId("drawing").showModal();
}

export function startDrawing() {
  const paper = byId("paper");
  const at = (event) => {
    const box = paper.getBoundingClientRect();
    return [(event.clientX - box.left) * paper.width / box.width, (event.clientY - box.top) * paper.height / box.height];
  };
  paper.addEventListener("pointerdown", (event) => { paper.setPointerCapture(event.pointerId); strokes.push([at(event)]); refresh(); });
  paper.addEventListener("pointermove", (event) => {
    if (!paper.hasPointerCapture(event.pointerId)) return;
    strokes.at(-1).push(at(event));
    refresh();
  });
  byId("wipe").addEventListener("click", () => { strokes = []; refresh(); });
  byId("drawn").addEventListener("click", () => use());
}
