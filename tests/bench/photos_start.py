"""Someone with photos, from nothing: `ppa adapt` on ten categories of three photos, then `ppa predict` on others.

Both as a user runs them, each a process of its own, without internet (in a network namespace with no interface, where
the system allows one). `--fresh` clones this repository and installs it into a new environment with the README's one
command first; its seconds are given apart. The photos are mini-ImageNet's from $ACTSTORE_DATA (84 pixels, of categories
that the network was trained on).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from actstore.compute.process import Result
from tests.bench.common import ROOT, report

DATA = Path(os.environ.get("ACTSTORE_DATA", ROOT.parent / "shared" / "data"))
CATEGORIES, TAUGHT, ASKED = 10, 3, 10
BAR = 60.0  # seconds


def main(*arguments: str) -> None:
    archive = DATA / "miniimagenet.tar"
    if not archive.exists():
        print(f"skipped: no {archive}; set ACTSTORE_DATA")
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        here = [sys.executable, "-c", "from cli.ppa import main; main()"]
        results, tool = install(folder) if "--fresh" in arguments else ([], here)
        unpack(archive, folder)
        results += measure(folder, tool)
    report("photos_start", results, [f"adapt and predict together in under {BAR:.0f} s"])


def install(folder: Path) -> tuple[list[Result], list[str]]:
    """A clone with an environment of its own."""
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder / "clone")], check=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    command = re.search(r"`(pip install -c constraints\.txt torch[^`]+)`", (folder / "clone" / "README.md").read_text())
    assert command is not None
    environment = {**os.environ, "PATH": f"{folder / 'venv' / 'bin'}:{os.environ['PATH']}"}
    environment.pop("PYTHONPATH", None)
    begin = time.perf_counter()
    subprocess.run(f"{command[1]} -q", shell=True, cwd=folder / "clone", env=environment, check=True)
    taken = Result("one install command, from a clone", time.perf_counter() - begin, "s")
    return [taken], [str(folder / "venv" / "bin" / "ppa")]


def unpack(archive: Path, folder: Path) -> None:
    """photos/CATEGORY/*.jpg to learn from, others/CATEGORY/*.jpg to ask about."""
    counts: dict[str, int] = {}
    with tarfile.open(archive) as file:
        for member in file:
            split, category = [*member.name.split("/"), "", ""][1:3]
            if split != "val" or not member.isfile() or (category not in counts and len(counts) == CATEGORIES):
                continue
            number = counts[category] = counts.get(category, 0) + 1
            if number <= TAUGHT + ASKED:
                target = folder / ("photos" if number <= TAUGHT else "others") / category / Path(member.name).name
                target.parent.mkdir(parents=True, exist_ok=True)
                content = file.extractfile(member)
                assert content is not None
                target.write_bytes(content.read())
            elif len(counts) == CATEGORIES and min(counts.values()) > TAUGHT + ASKED:
                return


def offline() -> list[str]:
    """What makes a command run without any network, where that can be had."""
    command = ["unshare", "--user", "--map-root-user", "--net"]
    if shutil.which("unshare") and subprocess.run([*command, "true"], capture_output=True).returncode == 0:
        return command
    print("note: no network namespace here; the network was not cut off", file=sys.stderr)
    return []


def measure(folder: Path, tool: list[str]) -> list[Result]:
    environment = {key: value for key, value in os.environ.items() if key != "ACTSTORE"}
    cut = offline()

    def run(*words: str) -> tuple[float, str]:
        begin = time.perf_counter()
        done = subprocess.run([*cut, *tool, *words], cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return time.perf_counter() - begin, done.stdout

    learning, _ = run("adapt", "--backbone", "efficientnet-lite0", "--support", "photos")
    asking, printed = run("predict", "others", "--json")
    found = json.loads(printed)
    right = sum(one["top"][0]["category"] == Path(one["image"]).parent.name for one in found)
    unknown = sum(one["unknown"] for one in found)
    return [
        Result(f"ppa adapt, {CATEGORIES} categories of {TAUGHT} photos", learning, "s"),
        Result(f"ppa predict, {len(found)} others", asking, "s"),
        Result("together", learning + asking, "s", "the bar", BAR, BAR / (learning + asking)),
        Result("right of the others", 100 * right / len(found), "%"),
        Result("called unknown of the others", 100 * unknown / len(found), "%"),
    ]


if __name__ == "__main__":
    main(*sys.argv[1:])
