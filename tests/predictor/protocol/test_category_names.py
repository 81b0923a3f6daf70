"""Class names of a store beside those that a network was trained on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import actstore
from actstore.backbones.network import imagenet_wnids
from predictor.protocol.category_names import compare_names, english_names
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.honesty import contamination

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
    for expected in (BIRDS[0], BUNTING, BIRDS[2], "1 of 4"):
        assert expected in said
    assert BIRDS[1] not in said  # of the base, which it may know


def test_kinds_of_several_are_not_all_called_kinds_of_the_first(tmp_path: Path) -> None:
    names = ("073.Blue_Jay", "001.Laysan_Albatross", "a")
    store = actstore.from_arrays(tmp_path / "x.zarr", {"train": (np.ones((3, 3), np.float32), np.arange(3))}, classes=names)
    store.add_provenance(trained_classes=list(imagenet_wnids()))
    said = contamination(actstore.open(tmp_path / "x.zarr")["train"], CategorySplit(names[2:], names[:2])) or ""
    assert "albatross and 1 more, which may include novel class '001.Laysan_Albatross' and 1 more" in said
