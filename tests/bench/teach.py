"""`ppa teach` in a real browser: milliseconds from a drop to the bars, and from an example to what was learnt of it.

The time of a drop is taken by the page, from the event to the frame in which the bars are drawn. The images are drawn
here: glyphs, and noise in JPEGs of the size of a photo, which are harder to decode than photos are.
"""

from __future__ import annotations

import io
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from actstore.compute.process import Result
from tests.bench.common import report
from tests.predictor.teach.browser import CHROMIUM, Page, open_browser
from tests.teach_server import TeachServer, glyph_files, write_glyph_classifier

ASKS, TAUGHT, WARM = 40, 20, 5


def main(threads: int = 2) -> None:
    if CHROMIUM is None:
        print("skipped: no chromium here; apt-get install chromium, or set $CHROMIUM")
        return
    results = []
    with tempfile.TemporaryDirectory() as name, open_browser() as browser:
        folder = Path(name)
        glyphs = [file for files in glyph_files(folder / "glyphs", 12, 6) for file in files]
        start = folder / "start.safetensors"
        write_glyph_classifier(start, 1000)
        with taught(browser, folder / "g", threads, glyphs[:TAUGHT], "--classifier", start) as page:
            results += [asking("glyphs, from drop to bars", page, glyphs[TAUGHT:]), *page.results]
        for side, what in ((1200, "photos of 1200x900"), (4000, "photos of 4000x3000")):
            photos = make_photos(folder / f"photos{side}", side, ASKS + WARM + TAUGHT if side < 2000 else WARM + 10)
            options = ("--backbone", "efficientnet-lite0", "--keep-known")
            first = TAUGHT if side < 2000 else 0
            with taught(browser, folder / f"p{side}", threads, photos[:first], *options) as page:
                results.append(asking(f"efficientnet-lite0, {what}, from drop to bars", page, photos[first:]))
                results += page.results
    report("teach", results, ["glyphs <= 150 ms", "efficientnet-lite0 <= 400 ms", "teaching <= 50 ms"])


@contextmanager
def taught(browser: Any, session: Path, threads: int, files: list[Path], *options: Any) -> Iterator[Any]:
    """A page of a server that was taught a category of each of the files; results: how long that took."""
    with TeachServer(session, *options, threads=threads) as server:
        page: Any = Page(browser, server.address)
        known = server.state()["known"]
        took = [server.add(f"new {number}", file.read_bytes())["state"]["milliseconds"]
                for number, file in enumerate(files)]  # fmt: skip
        name = f"teaching a category beside {known:,} ({server.state()['network']['name']}), network's pass not counted"
        page.results = [Result(name, statistics.median(took), "ms")] if took else []
        page.page.reload()
        yield page
        page.close()


def asking(name: str, page: Page, files: list[Path]) -> Result:
    """The median over images that were never seen before; some asks go first."""
    taken = []
    for number, file in enumerate(files[: ASKS + WARM]):
        page.ask(file)
        taken += [page.milliseconds()] if number >= WARM else []
    print(f"{name}: {min(taken):.0f} to {max(taken):.0f} ms", file=sys.stderr)
    return Result(name, statistics.median(taken), "ms")


def make_photos(folder: Path, width: int, count: int) -> list[Path]:
    """JPEGs with as much detail as a photo: noise of a tenth of their size, enlarged."""
    folder.mkdir()
    size, chance, found = (width, width * 3 // 4), np.random.default_rng(0), []
    for number in range(count):
        pixels = chance.integers(0, 256, (size[1] // 10, size[0] // 10, 3), np.uint8)
        data = io.BytesIO()
        Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC).save(data, "JPEG", quality=90)
        found.append(folder / f"{number}.jpg")
        found[-1].write_bytes(data.getvalue())
    return found


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
