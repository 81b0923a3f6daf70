// What the page holds: typed arrays, ids, and sheets of thumbnails.
const NOBODY = 0xffffffff;
const TYPES = {uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, float32: Float32Array, float64: Float64Array};

const textOf = id => document.getElementById(id).textContent;

function bytesOf(base64) {
  const text = atob(base64), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

async function unpack() {
  const about = JSON.parse(textOf("about"));
  const stream = new Blob([bytesOf(textOf("data"))]).stream().pipeThrough(new DecompressionStream("gzip"));
  const buffer = await new Response(stream).arrayBuffer();
  const arrays = {};
  for (const [name, {type, start, length}] of Object.entries(about.arrays)) arrays[name] = new TYPES[type](buffer, start, length);
  return new MapData(about, arrays);
}

class MapData {
  constructor(about, arrays) {
    Object.assign(this, about, arrays);  // points, places, rows, neighbours, pictured, notes, scales, …
    this.nearest = this.neighbours.length / this.points;
    this.decoder = new TextDecoder();
    this.tiles = new Map([...this.pictured].map((point, tile) => [point, tile]));
    this.scales.forEach((scale, number) => { scale.values = arrays[`scale${number}`]; });
    this.classes = this.scales.find(scale => scale.name === "class" && scale.kind === "category");
    this.addresses = new Map();
  }

  id(point) {
    if (!this.idOffsets) return String(this.rows[point]);
    return this.decoder.decode(this.idBytes.subarray(this.idOffsets[point], this.idOffsets[point + 1]));
  }

  // Points whose id holds the text, whatever its case.
  withId(text) {
    this.folded ??= Array.from({length: this.points}, (_, point) => this.id(point).toLowerCase());
    const found = [];
    this.folded.forEach((id, point) => { if (id.includes(text)) found.push(point); });
    return found;
  }

  describe(scale, point) {
    const value = scale.values[point];
    if (scale.kind === "category") return scale.names[value] ?? "(none)";
    return Number.isNaN(value) ? "(none)" : numberText(scale.kind, value);
  }

  neighboursOf(point) {
    return [...this.neighbours.subarray(point * this.nearest, (point + 1) * this.nearest)].filter(one => one !== NOBODY);
  }

  // An element that shows the image of a point in `pixels`, or null.
  thumbnail(point, pixels) {
    const tile = this.tiles.get(point);
    if (tile === undefined) return null;
    const each = this.across ** 2, sheet = Math.floor(tile / each), place = tile % each;
    if (!this.addresses.has(sheet)) {
      this.addresses.set(sheet, URL.createObjectURL(new Blob([bytesOf(textOf(`sheet${sheet}`))], {type: "image/jpeg"})));
    }
    const shown = document.createElement("span"), scale = pixels / this.side;
    shown.className = "thumbnail";
    shown.style.cssText = `width:${pixels}px;height:${pixels}px;background-image:url(${this.addresses.get(sheet)});` +
      `background-size:${this.across * pixels}px auto;` +
      `background-position:${-(place % this.across) * this.side * scale}px ${-Math.floor(place / this.across) * this.side * scale}px`;
    return shown;
  }
}

function numberText(kind, value) {
  if (kind === "date") return new Date(value).toISOString().slice(0, 16).replace("T00:00", "").replace("T", " ");
  if (kind === "int") return value.toLocaleString("en");
  return String(Number(value.toPrecision(5)));
}

const RAMPS = {
  light: ["#2c1a66", "#3b4fa0", "#2b80a4", "#2ba58c", "#79b83f", "#d8a800"],
  dark: ["#5b4bc4", "#4b7be0", "#3fb0c9", "#4fce9a", "#b4dc55", "#ffe14d"],
};
const GREY = {light: [150, 148, 142], dark: [110, 110, 108]};

// Red, green and blue of every category, or of 256 steps from low to high.
function tableOf(scale, ground) {
  const parse = text => [1, 3, 5].map(place => parseInt(text.slice(place, place + 2), 16));
  if (scale.kind === "category") return scale[ground].map(parse);
  const stops = RAMPS[ground].map(parse);
  return Array.from({length: 256}, (_, step) => {
    const place = step / 255 * (stops.length - 1), low = Math.min(stops.length - 2, Math.floor(place));
    return [0, 1, 2].map(part => Math.round(stops[low][part] + (place - low) * (stops[low + 1][part] - stops[low][part])));
  });
}
