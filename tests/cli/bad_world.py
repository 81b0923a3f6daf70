"""A folder of good and bad files of every kind, made once; `Bad` runs a command in it that must fail cleanly."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import shlex
import shutil
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import click.testing
import h5py
import numpy as np
import pyarrow
import pyarrow.parquet
from PIL import Image
from safetensors.numpy import save_file

import actstore
from actstore.layout.metadata import read_document, write_document
from actstore.storage.place import parse_place
from tests.cli.conftest import CLASSES

Case = tuple[str, str]  # a command line, and a part of what it must say


class Malicious:
    """A pickle that leaves a file behind when it is opened as one."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("it ran"),)


class Bad:
    """The folder, which no failing command may change but for files that it names itself."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._before = folder, contents(folder)

    def __call__(self, command: str, said: str) -> None:
        from cli.actstore import main as actstore_main
        from cli.ppa import main as ppa_main

        tool, *words = shlex.split(command)
        result = click.testing.CliRunner().invoke({"actstore": actstore_main, "ppa": ppa_main}[tool], words)
        try:
            self._check(result, words, said)
        finally:
            changed = self._clean_up(words)
        assert changed == [], f"{command} changed {changed}"

    def _check(self, result: click.testing.Result, words: list[str], said: str) -> None:
        """One line that says why, at the end, and nothing on stdout."""
        assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
        assert result.exit_code in (1, 2), result.output
        lines = [line for line in result.stderr.splitlines() if not line.startswith("\t")]  # choices that click lists
        errors = [line for line in lines if line.startswith("Error: ")]
        assert len(errors) == 1, result.stderr
        assert lines[-1] == errors[0], result.stderr
        assert said in errors[0], errors[0]
        assert "Traceback" not in result.stderr
        assert "allow_pickle" not in errors[0]
        plain = re.sub(r"`[^`]*`|--[a-z-]+ \S+", "", errors[0])  # what to do about it may name the file once more
        assert [word for word in words if re.search(r"\.[a-z]", word) and plain.count(word) > 1] == []
        assert "\r" not in result.stderr
        assert result.stdout == ""
        assert not Path("it ran").exists()

    def _clean_up(self, words: list[str]) -> list[str]:
        """Put the folder back; names of files that changed, or are new though the command does not name them."""
        after = contents(self.folder)
        changed = [name for name, digest in self._before.items() if after.get(name) != digest]
        for name in after.keys() - self._before.keys():
            if not any(name.startswith(word.removeprefix("./")) for word in words if word):
                changed.append(name)
            (self.folder / name).unlink()
        for place, _, _ in os.walk(self.folder, topdown=False):
            if not any(Path(place).iterdir()) and Path(place).name != "empty":
                Path(place).rmdir()
        return changed


def contents(folder: Path) -> dict[str, str]:
    """Path -> digest of every file; of a link where it leads to."""
    found = {}
    for place, folders, files in os.walk(folder):
        for name in [*files, *(one for one in folders if Path(place, one).is_symlink())]:
            path = Path(place, name)
            data = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
            found[path.relative_to(folder).as_posix()] = hashlib.sha256(data).hexdigest()
    return found


def make_world(folder: Path, world: Path, rows: Any) -> None:
    """world: the folder of the fixture of that name, whose store, split and runs are good."""
    shutil.copytree(world, folder, dirs_exist_ok=True)
    before = Path.cwd()
    os.chdir(folder)
    try:
        _arrays()
        _containers()
        _texts()
        _stores(rows)
        _images()
        _results()
    finally:
        os.chdir(before)


def cut(source: str, target: str, share: float = 0.5) -> None:
    data = Path(source).read_bytes()
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    Path(target).write_bytes(data[: int(len(data) * share)])


def _arrays() -> None:
    good = np.random.default_rng(0).random((20, 16), dtype=np.float32)
    arrays: dict[str, Any] = {
        "good": good, "wide": np.ones((20, 17), "f4"), "vector": good[0], "cube": np.ones((2, 3, 4), "f4"),
        "norows": good[:0], "nocolumns": good[:, :0], "complex": good.astype(complex), "words": np.array([["a", "b"]]),
        "nan": np.where(good == good[3, 3], np.nan, good), "inf": np.where(good == good[3, 3], np.inf, good),
        "huge": good * 1e30, "zeros": np.zeros(16, "f4"), "labels": np.arange(20) % 10, "fewlabels": np.arange(19),
        "minus": np.arange(20) - 9, "halves": np.arange(20) / 2, "far": np.full(20, 10**9),
        "table": np.ones((20, 2), int),
        "dates": np.array(["2020-01-01"] * 20, "M8[D]"), "rows999": np.array([1, 999]), "rowsminus": np.array([-999]),
        "rowsfloat": np.array([0.5]),
    }  # fmt: skip
    for name, values in arrays.items():
        np.save(f"{name}.npy", values)
    np.save("objects.npy", np.array([Malicious()], object), allow_pickle=True)
    Path("pickle.npy").write_bytes(pickle.dumps(Malicious()))
    Path("empty.npy").touch()
    Path("text.npy").write_text("no numbers\n")
    cut("good.npy", "cut.npy")
    cut("good.npy", "header.npy", 0.03)
    claim = "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 16), }".ljust(117) + "\n"
    Path("liar.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + claim.encode() + b"1234")


def _containers() -> None:
    good = np.load("good.npy")
    np.savez("two.npz", first=good, second=good)
    np.savez("scalars.npz", a=np.array(1))
    np.savez("good.npz", train=good, train_labels=np.arange(20) % 10)
    np.savez("odd.npz", train=good, train_labels=np.arange(7))
    np.savez("pickled.npz", train=good, train_labels=np.array([Malicious()] * 20, object), allow_pickle=True)
    cut("two.npz", "cut.npz")
    Path("text.npz").write_text("no archive")
    with zipfile.ZipFile("bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:  # 20 MB of nothing in 20 KB
        archive.writestr("train.npy", Path("liar.npy").read_bytes() + bytes(20 << 20))
    with zipfile.ZipFile("nothing.npz", "w") as archive:
        archive.writestr("readme.txt", "no array")
    with h5py.File("good.h5", "w") as file:
        file["a"], file["b"], file["text"] = good, good, "some words"
    with h5py.File("nothing.h5", "w") as file:
        file.create_group("group")
    cut("good.h5", "cut.h5")
    Path("text.h5").write_text("no hdf5")
    pyarrow.parquet.write_table(pyarrow.table({"x": ["a"] * 3}), "words.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"x": [[1.0], [1.0, 2.0]]}), "ragged.parquet")
    cut("words.parquet", "cut.parquet")
    Path("text.parquet").write_text("no parquet")
    save_file({"activations": good}, "good.safetensors")
    save_file({"words": np.arange(3)}, "flat.safetensors")
    cut("good.safetensors", "cut.safetensors")
    Path("long.safetensors").write_bytes(struct.pack("<Q", 1 << 60) + b"{}")
    Path("pickle.safetensors").write_bytes(pickle.dumps(Malicious()))
    Path("empty.safetensors").touch()


def _texts() -> None:
    texts = {
        "notes.txt": "my own notes\n", "few.txt": "c1\n" * 19, "twice.txt": "a\na\n", "blank.txt": "a\n\nb\n",
        "long.txt": "9" * 400 + "\n", "notjson.json": "{ base", "list.json": "[1, 2]", "nobase.json": '{"novel": []}',
        "number.json": '{"base": 3, "novel": []}', "double.json": '{"base": ["c1", "c1"], "novel": []}',
        "both.json": '{"base": ["c1"], "novel": ["c1"]}', "unknown.json": '{"base": ["emu"], "novel": ["c1"]}',
        "bare.json": '{"base": [], "novel": ["c1"]}', "allbase.json": json.dumps({"base": CLASSES, "novel": []}),
        "onenovel.json": json.dumps({"base": CLASSES[:9], "novel": ["c9"]}), "listing.csv": "path,label\n",
        "columns.csv": "a,b\n1,2\n", "lost.csv": "path,label\nnone.png,a\n", "empty.txt": "", "empty.json": "",
    }  # fmt: skip
    for name, text in texts.items():
        Path(name).write_text(text)
    Path("latin.txt").write_bytes("é\n".encode("latin-1") * 20)
    Path("latin.json").write_bytes('{"base": ["é"]}'.encode("latin-1"))
    Path("zeros.bin").write_bytes(bytes(100))
    Path("loop").symlink_to("loop")
    Path("dangling").symlink_to("nowhere")
    Path("link.safetensors").symlink_to("classifier.safetensors")
    Path("empty").mkdir()
    Path("deep.json").write_text("[" * 100_000)


def _stores(rows: Any) -> None:
    train = actstore.open("x.zarr")["train"]
    train.means()
    train.search(train.take([0]), 1)
    actstore.from_arrays("narrow.zarr", {"train": rows(1, 9, dim=8), "val": rows(1, 8, dim=8)}, classes=CLASSES)
    actstore.from_arrays("alone.zarr", {"train": rows(2, 9)}, classes=CLASSES)
    actstore.from_arrays("parts.zarr", {"one": rows(1, 9), "two": rows(1, 9)}, classes=CLASSES)
    actstore.from_arrays("unlabelled.zarr", {"train": (rows(1, 9)[0], np.full(10, -1))}, classes=CLASSES)
    facts = {"area": np.arange(10) / 10, "source": ["web", ""] * 5, "date": np.array(["2024-01-01"] * 10, "M8[us]")}
    actstore.from_arrays("facts.zarr", {"train": (*rows(1, 9), None, facts)}, classes=CLASSES)
    Path("short.csv").write_text("area,source\n" + "1,web\n" * 19)
    Path("texts.csv").write_text("area\n" + "much\n" * 20)
    Path("odd.csv").write_text("area,source\n1\n")
    Path("reserved.csv").write_text("label\n" + "1\n" * 20)
    actstore.create("nosplit.zarr", classes=CLASSES, dim=16)
    other = actstore.create("other.zarr", classes=CLASSES, dim=16, provenance={"weights_sha256": "b", "backbone": "w"})
    with other.writer("train") as writer:
        writer.append(*rows(2, 3))
    half = actstore.create("half.zarr", classes=CLASSES, dim=16, chunk_rows=128)
    writer = half.writer("train", source={"kind": "test"})
    writer.__enter__()
    writer.append(*rows(20, 3))
    writer.__exit__(RuntimeError, RuntimeError(), None)
    for name in ("cutchunk", "nochunk", "nojson", "future", "notours", "badlabels"):
        shutil.copytree("alone.zarr", f"{name}.zarr")
    chunk = next(Path("cutchunk.zarr/train/activations").rglob("c/0/0"))
    chunk.write_bytes(chunk.read_bytes()[:513])
    next(Path("nochunk.zarr/train/activations").rglob("c/0/0")).unlink()
    Path("nojson.zarr/zarr.json").write_text("{")
    Path("notours.zarr/zarr.json").write_text('{"zarr_format": 3, "node_type": "group", "attributes": {}}')
    text = json.dumps(read_document(parse_place("future.zarr")))
    write_document(parse_place("future.zarr"), json.loads(text.replace('"format_version": 1', '"format_version": 99')))
    shutil.rmtree("badlabels.zarr/train/labels")
    actstore.from_arrays("blosc.zarr", {"train": rows(2, 9)}, classes=CLASSES, codec="blosc", dtype="f2")
    chunk = next(Path("blosc.zarr/train/activations").rglob("c/0/0"))
    chunk.write_bytes(chunk.read_bytes()[:20])


def _images() -> None:
    for name, colour in (("cat", (40, 9, 90)), ("dog", (9, 60, 20))):
        Path("photos", name).mkdir(parents=True)
        for number in range(2):
            Image.new("RGB", (20, 24), colour).save(f"photos/{name}/{number}.png")
    Image.new("RGB", (20, 24), (9, 60, 20)).save("photo.jpg")
    Path("spoilt/cat").mkdir(parents=True)
    cut("photo.jpg", "spoilt/cat/cut.jpg", 0.4)
    Path("spoilt/cat/text.jpg").write_text("no picture")
    Path("spoilt/cat/none.jpg").touch()
    Path("spoilt/cat/bomb.png").write_bytes(_png_bomb())
    Path("hollow/cat").mkdir(parents=True)
    Path("hollow/cat/notes.txt").write_text("no picture")
    Path("text.tar").write_text("no archive")
    Path("mynet.py").write_text(
        "import torch\nmake = 3\ndef fails(): raise KeyError('x')\ndef text(): return 'net'\n"
        "def plain(): return torch.nn.Module()\ndef deep(): return torch.nn.Conv2d(3, 4, 3)\n"
    )
    Path("syntax.py").write_text("def (")


def _png_bomb() -> bytes:
    """A picture of 60,000 x 60,000 pixels in a hundred bytes."""

    def part(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", header) + part(b"IDAT", zlib.compress(bytes(100))) + part(b"IEND", b"")


def _results() -> None:
    from cli.actstore import main as actstore_main
    from cli.ppa import main as ppa_main
    from tests.cli.conftest import invoke

    def run(command: str) -> None:
        tool, *words = shlex.split(command)
        invoke({"actstore": actstore_main, "ppa": ppa_main}[tool], tuple(words), 0)

    run("ppa adapt --phi runs/phi2 --store x.zarr --support-store x.zarr --rows 85:110")
    run("ppa export --onnx good.onnx --torch good.pt")
    run("actstore build photos photos.zarr --backbone small --random-weights --workers 0")
    run("actstore export alone.zarr export.npy")
    shutil.copytree("runs/phi1", "runs/calibrated")
    Path("runs/calibrated/calibration.json").write_text("[]")
    cut("runs/phi1/model.safetensors", "runs/cut/model.safetensors")
    shutil.copytree("runs/phi1", "runs/begun")
    Path("runs/begun/model.safetensors").rename("runs/begun/checkpoint.safetensors")
    Path("runs/empty").mkdir()
    Path("runs/pickle").mkdir()
    Path("runs/pickle/model.safetensors").write_bytes(pickle.dumps(Malicious()))
    Path("mine").mkdir()
    Path("mine/log.csv").write_text("day,weight\n1,80\n")
    Path("mine/model.json").write_text('{"my": "model"}')
    Path("mine/methods.png").write_bytes(Path("photos/cat/0.png").read_bytes())
    Path("mine/best.safetensors").write_bytes(Path("good.safetensors").read_bytes())
    Path("mine/steps.json").write_text('{"my": "steps"}')
    cut("classifier.safetensors", "cutclassifier.safetensors")
    run("actstore import good.npy imported.zarr")
    Path("fresh.ids.txt").write_text("my own ids\n")
    Path("loop.npy").symlink_to("loop.npy")
