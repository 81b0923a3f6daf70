"""The examples in docstrings of public names run, each in a folder of its own that holds the stores they name."""

from __future__ import annotations

import doctest
import inspect
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import actstore
import baselines
import predictor

CLASSES = ["ant", "bee", "cat", "dog"]
PACKAGES = (actstore, predictor, baselines)
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def described() -> Iterator[tuple[str, Any]]:
    """Every public name, and the classes of the packages that a public class inherits methods from."""
    for package in PACKAGES:
        yield package.__name__, package
        for name in package.__all__:
            found = getattr(package, name)
            for one in found.__mro__ if inspect.isclass(found) else [found]:
                if (getattr(one, "__module__", None) or "").partition(".")[0] in {each.__name__ for each in PACKAGES}:
                    yield f"{package.__name__}.{name}" if one is found else one.__qualname__, one


def examples() -> list[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    tests: dict[tuple[str | None, int | None], doctest.DocTest] = {}
    for name, found in described():
        for test in finder.find(found, name, module=inspect.getmodule(found)):
            if test.examples:
                tests.setdefault((test.filename, test.lineno), test)
    return list(tests.values())


EXAMPLES = examples()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two stores of the same 60 images, and a phi that was trained for a moment."""
    folder = tmp_path_factory.mktemp("examples")
    random = np.random.default_rng(0)
    for name, dim in (("animals", 8), ("other", 6)):
        splits = {}
        for split, rows in (("train", 10), ("val", 5)):
            labels = np.repeat(np.arange(4), rows)
            values = np.eye(4, dim)[labels] + 0.1 * random.random((4 * rows, dim))
            ids = [f"{CLASSES[label]}/{number % rows}.jpg" for number, label in enumerate(labels)]
            splits[split] = (values.astype(np.float16), labels, ids, {"width": np.arange(4 * rows) % 10})
        actstore.from_arrays(folder / f"{name}.zarr", splits, classes=CLASSES)
    store = actstore.open(folder / "animals.zarr")
    predictor.train_phi(
        store, predictor.split_categories(store, novel=0.25), "phi1", folder / "phi1", epochs=1, batches=2
    )
    return folder


@pytest.fixture
def scope(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What examples may name without making it."""
    folder = tmp_path / "here"
    shutil.copytree(prepared, folder)
    monkeypatch.chdir(folder)
    store = actstore.open("animals.zarr")
    split = predictor.split_categories(store, novel=0.25)
    phi = predictor.load_phi("phi1")
    return {
        "actstore": actstore, "predictor": predictor, "baselines": baselines, "np": np, "torch": torch,
        "store": store, "train": store["train"], "val": store["val"], "other": actstore.open("other.zarr"),
        "split": split, "phi": phi, "classifier": predictor.Classifier.from_phi(phi, store=store, progress=False),
    }  # fmt: skip


@pytest.mark.parametrize("test", EXAMPLES, ids=lambda test: test.name)
def test_example(test: doctest.DocTest, scope: dict[str, Any]) -> None:
    test.globs = scope
    said: list[str] = []
    outcome = doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=said.append, clear_globs=False)
    assert outcome.failed == 0, "".join(said)


def test_all_packages_have_examples() -> None:
    assert {test.name.partition(".")[0] for test in EXAMPLES} >= {package.__name__ for package in PACKAGES}
