"""`actstore map` in a browser: `python -m tests.bench.map`, on mini-ImageNet's 60,000 activations and their photos.

Seconds until the page of all rows is drawn, and milliseconds from a movement of the mouse until the frame that names
the point under it. Screenshots are left in bench-out/map-*.png to be looked at.
"""

from __future__ import annotations

import tarfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from actstore.compute.process import Result
from tests.bench.common import OUT, actstore, report
from tests.conftest import REAL_DATA
from tests.predictor.teach.browser import open_browser

OPENED, MOVES = 5, 200
# from the event, whose time is that of the input, until the frame after it has been handed over
TIMED = """
window.moves = [];
addEventListener("pointermove", event => requestAnimationFrame(() => {
    const channel = new MessageChannel();
    channel.port1.onmessage = () => window.moves.push([performance.now() - event.timeStamp, !tip.hidden]);
    channel.port2.postMessage(0);
}), true);
"""


def make_store() -> Path:
    """Both splits as one, with the paths of the photos as ids, the way a user imports them."""
    folder = OUT / "data"
    path, photos = folder / "map.zarr", folder / "miniimagenet"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(REAL_DATA / "miniimagenet.tar") as tar:
        tar.extractall(folder, filter="data")
    files = [file for part in ("train", "val") for file in sorted((photos / part).rglob("*.jpg"))]
    ids = [file.relative_to(photos).as_posix() for file in files]
    with np.load(REAL_DATA / "miniimagenet-activations.npz") as arrays:
        classes, labels = arrays["classes"].tolist(), np.concatenate([arrays["train_labels"], arrays["val_labels"]])
        np.save(folder / "map.npy", np.concatenate([arrays["train"], arrays["val"]]))
    if [name.split("/")[1] for name in ids] != [classes[label] for label in labels.tolist()]:
        raise ValueError("the photos are not in the order of the activations")
    np.save(folder / "map-labels.npy", labels)
    for name, lines in (("ids", ids), ("classes", classes)):
        (folder / f"map-{name}.txt").write_text("\n".join(lines) + "\n")
    options = {f"--{name.split('.')[0]}": folder / f"map-{name}" for name in ("labels.npy", "ids.txt", "classes.txt")}
    actstore("import", folder / "map.npy", path, *(word for option in options.items() for word in option))
    return path


def opened(browser: Any, page: Path, **options: Any) -> tuple[Any, float]:
    """The page, and seconds until its points are on the screen."""
    context = browser.new_context(**options)
    context.add_init_script(TIMED)
    found, begin = context.new_page(), time.perf_counter()
    found.goto(f"file://{page}")
    found.wait_for_selector("body.ready")
    found.evaluate("() => new Promise(requestAnimationFrame)")
    return found, time.perf_counter() - begin


def main() -> None:
    page, store, seconds = (OUT / "map.html").resolve(), make_store(), 0.0
    if not page.exists():
        seconds, _, _ = actstore("map", store, "--out", page, "--images", OUT / "data" / "miniimagenet")
    with open_browser() as browser:
        waits = []
        for _ in range(OPENED):
            found, waited = opened(browser, page, viewport={"width": 1280, "height": 800})
            waits.append(waited)
            found.context.close()
        for width, height in ((390, 844), (1280, 800)):
            for scheme in ("light", "dark"):
                found, _ = opened(browser, page, viewport={"width": width, "height": height}, color_scheme=scheme)
                found.screenshot(path=OUT / f"map-{width}-{scheme}.png")
                found.context.close()
        found, _ = opened(browser, page, viewport={"width": 1280, "height": 800})
        box = found.locator("#stage").bounding_box()
        for x, y in np.random.default_rng(0).uniform(0.3, 0.7, (MOVES, 2)).tolist():
            found.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
            found.wait_for_timeout(30)
        moves = [milliseconds for milliseconds, is_named in found.evaluate("window.moves") if is_named]
        drawn = found.evaluate("[document.body.dataset.points, document.body.dataset.drawing].join(' by ')")
    results = [
        Result(f"opens, {drawn}, the slowest of {OPENED}", max(waits), "s"),
        Result(f"a point is named, median of {len(moves)} movements", float(np.median(moves)), "ms"),
        Result("  95 of 100 within", float(np.quantile(moves, 0.95)), "ms"),
        Result("page", page.stat().st_size / 1e6, "MB"),
    ]
    results += [Result("neighbours, layout and page", seconds, "s")] if seconds else []
    report("map", results, ["opens in under 3 s", "a point is named within 50 ms"])


if __name__ == "__main__":
    main()
