// What stands beside the map: the row that was clicked, the selection, and what the colours mean.
const LISTED = 200, LISTED_CATEGORIES = 1000;

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children.filter(child => child !== null));
  return element;
}

class Panel {
  constructor(data, actions) {
    Object.assign(this, {data, actions});
    for (const name of ["picked", "selection", "legend", "notes", "said"]) this[name] = document.getElementById(name);
    document.getElementById("copy").onclick = () => this.copy();
    document.getElementById("download").onclick = () => this.save("ids.txt", point => data.id(point));
    document.getElementById("download-rows").onclick = () => this.save("rows.txt", point => data.rows[point]);
    document.getElementById("clear").onclick = () => actions.select([]);
    const notes = [`${data.points.toLocaleString("en")} rows of ${data.split}, laid out by ${data.method.toUpperCase()}`, ...data.notes];
    this.notes.querySelector("ul").replaceChildren(...notes.map(note => make("li", {textContent: note})));
    this.notes.open = data.notes.length > 0;
  }

  // isShown: on the page already, so that only who hears the page needs it.
  say(text, isShown = false) {
    this.said.textContent = text;
    this.said.classList.toggle("heard", isShown);
  }

  facts(point) {
    return this.data.scales.map(scale => [scale.name, this.data.describe(scale, point)]);
  }

  pick(point) {
    this.picked.hidden = point < 0;
    if (point < 0) return;
    const near = this.data.neighboursOf(point);
    const rows = [["row", this.data.rows[point].toLocaleString("en")], ...this.facts(point)];
    this.picked.replaceChildren(
      make("h2", {}, make("span", {className: "id", textContent: this.data.id(point)}),
        make("button", {type: "button", textContent: "Close", onclick: () => this.actions.pick(-1)})),
      make("div", {className: "facts"}, this.data.thumbnail(point, 96),
        make("dl", {}, ...rows.flatMap(([name, value]) => [make("dt", {textContent: name}), make("dd", {textContent: value})]))),
      ...(near.length ? [make("h3", {textContent: "Nearest rows"}), make("ul", {className: "points"}, ...near.map(one => this.line(one)))] : []),
    );
  }

  line(point) {
    const name = this.data.classes ? this.data.describe(this.data.classes, point) : "";
    return make("li", {}, make("button", {type: "button", className: "point", onclick: () => this.actions.pick(point, true)},
      this.data.thumbnail(point, 32), make("span", {}, make("b", {textContent: name}), make("span", {className: "id", textContent: this.data.id(point)}))));
  }

  select(points) {
    this.chosen = points;
    this.selection.hidden = !points.length;
    if (!points.length) return;
    const more = points.length > LISTED ? `, the first ${LISTED} listed` : "";
    this.selection.querySelector("h2").textContent = `${points.length.toLocaleString("en")} selected${more}`;
    this.selection.querySelector("ul").replaceChildren(...points.slice(0, LISTED).map(point => this.line(point)));
  }

  texts(of) {
    return this.chosen.map(of).join("\n") + "\n";
  }

  async copy() {
    const text = this.texts(point => this.data.id(point));
    try {
      await navigator.clipboard.writeText(text);
    } catch {  // a page that is a file, in some browsers
      const area = make("textarea", {value: text});
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    this.say(`${this.chosen.length.toLocaleString("en")} ids copied`);
  }

  save(name, of) {
    const link = make("a", {download: name, href: URL.createObjectURL(new Blob([this.texts(of)], {type: "text/plain"}))});
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }

  // highlighted: categories. ground: light or dark.
  explain(scale, ground, highlighted) {
    this.legend.querySelector("h2").textContent = scale.name;
    const list = this.legend.querySelector("ul");
    if (scale.kind !== "category") {
      if (scale.values.every(Number.isNaN)) return list.replaceChildren(make("li", {textContent: "no row has a value"}));
      const ends = [scale.low, scale.high].map(end => make("span", {textContent: numberText(scale.kind, end)}));
      list.replaceChildren(make("li", {className: "ramp"}, make("div", {style: `background:linear-gradient(90deg,${RAMPS[ground].join()})`}),
        make("div", {className: "ends"}, ...ends)));
      return null;
    }
    const sizes = new Uint32Array(scale.names.length + 1);
    for (const value of scale.values) sizes[value]++;
    list.replaceChildren(...scale.names.slice(0, LISTED_CATEGORIES).map((name, category) => make("li", {},
      make("button", {type: "button", className: "category", ariaPressed: String(highlighted.has(category)), title: `Highlight ${name}`,
        onclick: () => this.actions.highlight(category)},
        make("i", {style: `background:${scale[ground][category]}`}), make("span", {className: "name", textContent: name}),
        make("small", {textContent: sizes[category].toLocaleString("en")})),
      make("button", {type: "button", className: "all", textContent: "select", ariaLabel: `Select all of ${name}`,
        onclick: () => this.actions.selectCategory(category)}))));
    if (scale.names.length > LISTED_CATEGORIES) list.append(make("li", {textContent: `and ${scale.names.length - LISTED_CATEGORIES} more`}));
    if (sizes[scale.names.length]) list.append(make("li", {textContent: `(none) ${sizes[scale.names.length].toLocaleString("en")}`}));
    return null;
  }
}
