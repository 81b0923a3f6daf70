"""Splits of the categories: alphabetical, seeded, from files, and refused when they make no sense."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actstore
from actstore.backbones.network import imagenet_wnids
from actstore.errors import InvalidInputError
from predictor.protocol.category_split import (
    CategorySplit,
    alphabetical_split,
    compare_names,
    english_names,
    known_already,
    read_split,
    split_categories,
)
from predictor.protocol.setting import contamination

NAMES = [f"n{number:04d}" for number in range(1000)]
some_names = st.sets(st.text(min_size=1, max_size=4), min_size=2, max_size=30)


def test_a_taught_category_that_is_known_by_another_name() -> None:
    (line,) = known_already(["n07749582", "kiwi"], ["Lemon", "kiwi", "quokka"])
    assert "'Lemon'" in line
    assert "'n07749582'" in line


def test_the_papers_split_is_the_first_900_of_1000() -> None:
    split = alphabetical_split(reversed(NAMES))
    assert split.base == tuple(NAMES[:900])
    assert split.novel == tuple(NAMES[900:])
    assert split.validation == ()


@given(names=some_names, seed=st.integers(0, 2**40), shares=st.sampled_from([(0.9, 0.0), (0.5, 0.25), (0.6, 0.4)]))
def test_a_seeded_split_is_a_partition_that_ignores_the_order(
    names: set[str], seed: int, shares: tuple[float, float]
) -> None:
    shares_of: Any = {"novel": 1 - sum(shares), "validation": shares[1], "seed": seed}
    split = split_categories(sorted(names), **shares_of)
    assert sorted(split.base + split.novel + split.validation) == sorted(names)
    assert len(split.base) == round(shares[0] * len(names))
    assert len(split.validation) == round(shares[1] * len(names))
    assert split == split_categories(sorted(names, reverse=True), **shares_of)


def test_seeds_differ() -> None:
    assert split_categories(NAMES, seed=1).base != split_categories(NAMES, seed=2).base


def test_json_and_back(tmp_path: Path) -> None:
    split = split_categories(NAMES, 0.1, 0.1, seed=3)
    path = tmp_path / "split.json"
    path.write_text(json.dumps(split.to_json()))
    assert read_split(path) == split


def test_the_published_split_of_mini_imagenet(real_activations: Path) -> None:
    path = real_activations.with_name("miniimagenet-split.json")
    split = read_split(path)
    assert (len(split.base), len(split.novel), len(split.validation)) == (80, 20, 0)
    usual = split.hold_out(json.loads(path.read_text())["validation_novel_of_the_usual_split"])
    assert (len(usual.base), len(usual.novel), len(usual.validation)) == (64, 20, 16)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"base": ["a", "b"], "novel": ["b"]}', "'b' is both in base and in novel"),
        ('{"base": ["a"], "validation": ["a"]}', "'a' is both in base and in validation"),
        ('{"base": ["a", "a"]}', "'a' is twice in base"),
        ('{"base": []}', "at least one base class"),
        ('{"base": "abc"}', "base must be a list of class names, got 'abc'"),
        ('{"base": ["a", 3]}', "got 3 in it"),
        ('{"base": ["a", "x"], "classes": ["a", "b"]}', "base class 'x' of the split is not among the 2 classes"),
        ('{"novel": ["a"]}', "expected a JSON object with lists base, novel and validation, got keys novel"),
        ("[1]", "got list"),
        ("{", "must be a JSON file of class names"),
    ],
)
def test_files_that_make_no_sense(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "split.json"
    path.write_text(text)
    with pytest.raises(InvalidInputError) as caught:
        read_split(path)
    assert expected in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_arguments_that_make_no_sense(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no split file"):
        read_split(tmp_path / "absent.json")
    with pytest.raises(InvalidInputError, match="'a' is named twice"):
        alphabetical_split(["a", "b", "a"])
    with pytest.raises(InvalidInputError, match="no class names"):
        alphabetical_split([])
    with pytest.raises(InvalidInputError, match="between 0 and 1"):
        alphabetical_split(NAMES, 1.5)
    with pytest.raises(InvalidInputError, match="at most 1 together"):
        split_categories(NAMES, 0.9, 0.2, seed=0)
    with pytest.raises(InvalidInputError, match="seed of 0 or more"):
        split_categories(NAMES, seed=-1)
    with pytest.raises(InvalidInputError, match="'z' is none"):
        CategorySplit(("a", "b")).hold_out(["z"])


def test_only_the_parts_in_use_must_be_known() -> None:
    split = CategorySplit(("a",), ("b", "c"))
    split.require_known(["a"], ["base"])
    with pytest.raises(InvalidInputError, match="novel class 'b' and 1 more of the split is not among the 1 classes"):
        split.require_known(["a"])


BIRDS = ("014.Indigo_Bunting", "090.Red_breasted_Merganser", "073.Blue_Jay", "009.Brewer_Blackbird")
BUNTING, MERGANSER, JAY = "n01537544", "n01855032", "n01580077"


def test_names_are_compared_in_plain_english() -> None:
    assert english_names("014.Indigo_Bunting")[0] == english_names(BUNTING)[0] == "indigo bunting"
    assert english_names("red-breasted merganser") == english_names("090.Red_breasted_Merganser")


def test_birds_of_a_folder_are_found_among_imagenets() -> None:
    found = compare_names(BIRDS, imagenet_wnids(), BIRDS)
    assert found.same == {BIRDS[0]: BUNTING, BIRDS[1]: MERGANSER}
    assert found.kinds == {BIRDS[2]: JAY}
    assert found.unknown == (BIRDS[3],)


def test_cars_of_a_year_are_kinds_of_imagenets() -> None:
    cars = {"Audi S5 Convertible 2012": "n03100240", "BMW 3 Series Wagon 2012": "n02814533",
            "Dodge Dakota Crew Cab 2010": "n03930630", "Dodge Caravan Minivan 1997": "n03770679"}  # fmt: skip
    found = compare_names([*cars, "Audi S6 Sedan 2011", "category 2011"], imagenet_wnids(), list(cars))
    assert found.kinds == cars
    assert found.unknown == ("Audi S6 Sedan 2011", "category 2011")


@pytest.mark.parametrize("name", ["Japanese_Chin", "Red Panda", "007.scottish-terrier"])
def test_synonyms_are_the_same_category(name: str) -> None:
    assert list(compare_names([name], imagenet_wnids(), [name]).same) == [name]


def test_names_of_one_vocabulary_are_compared_as_they_are() -> None:
    found = compare_names(["b", "c"], ["a", "b"], ["a", "b", "c"])
    assert (found.same, found.unknown) == ({"b": "b"}, ())
    assert compare_names(["n00000001"], imagenet_wnids(), ["n00000001"]).unknown == ()
    assert compare_names(["a"], [], ["a"]).unknown == ()


def test_a_split_says_what_its_network_knows_and_what_cannot_be_told(tmp_path: Path) -> None:
    rows = np.ones((4, 3), np.float32), np.arange(4)
    store = actstore.from_arrays(tmp_path / "x.zarr", {"train": rows}, classes=BIRDS)
    store.add_provenance(trained_classes=list(imagenet_wnids()))
    split = actstore.open(tmp_path / "x.zarr")["train"]
    said = contamination(split, CategorySplit(BIRDS[1:2], (BIRDS[0], *BIRDS[2:]))) or ""
    for expected in (BIRDS[0], BUNTING, BIRDS[2], "WARNING: 1 of 3 novel", "may have seen them", "--trained-on"):
        assert expected in said
    assert BIRDS[1] not in said  # of the base, which it may know


def test_validation_categories_that_the_network_knows_are_not_called_novel(tmp_path: Path) -> None:
    names = tuple("abcdef")
    store = actstore.from_arrays(tmp_path / "x.zarr", {"train": (np.ones((6, 3)), np.arange(6))}, classes=names)
    store.add_provenance(trained_classes=["a", "c", "e"])
    split = actstore.open(store.path)["train"]
    said = contamination(split, CategorySplit(("a", "b"), ("e", "f"), ("c", "d"))) or ""
    assert "trained on novel class 'e'; these" in said
    assert "1 of 2 validation categories, such as 'c'" in said
    said = contamination(split, CategorySplit(("a", "b"), ("f",), ("c", "d"))) or ""
    assert "novel" not in said


def test_kinds_of_several_are_not_all_called_kinds_of_the_first(tmp_path: Path) -> None:
    names = ("073.Blue_Jay", "001.Laysan_Albatross", "a")
    store = actstore.from_arrays(
        tmp_path / "x.zarr", {"train": (np.ones((3, 3), np.float32), np.arange(3))}, classes=names
    )
    store.add_provenance(trained_classes=list(imagenet_wnids()))
    said = contamination(actstore.open(tmp_path / "x.zarr")["train"], CategorySplit(names[2:], names[:2])) or ""
    assert "albatross and 1 more, which may include novel class '001.Laysan_Albatross' and 1 more" in said
