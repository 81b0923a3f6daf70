"""ILSVRC's own layout: tars per class, a flat val folder, its devkit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from actstore.errors import InvalidInputError
from actstore.images.image_set import read_bytes
from actstore.images.opening import find_images
from tests.actstore.images.image_files import GOLDFISH, KIT_FOX, TENCH, listed, picture, write, write_tar

# ---- ILSVRC


def write_ilsvrc_val(root: Path, count: int = 3) -> Path:
    return write(root, *(f"val/ILSVRC2012_val_{number:08d}.JPEG" for number in range(1, count + 1)))


def test_train_as_a_tar_per_class(tmp_path: Path) -> None:
    write_tar(tmp_path / "train" / f"{TENCH}.tar", [f"{TENCH}_2.JPEG", f"{TENCH}_1.JPEG"])
    write(tmp_path, f"train/{GOLDFISH}/{GOLDFISH}_1.JPEG")
    write_tar(tmp_path / "train" / "n09999999.tar", [])
    images = find_images(tmp_path)["train"]
    assert listed(images) == [
        (f"{TENCH}/{TENCH}_1.JPEG", TENCH),
        (f"{TENCH}/{TENCH}_2.JPEG", TENCH),
        (f"{GOLDFISH}/{GOLDFISH}_1.JPEG", GOLDFISH),
    ]
    assert read_bytes(images.items[0]) == picture(f"{TENCH}_1.JPEG")
    assert images.skipped == [("n09999999.tar", "no images in this tar")]


def test_a_class_as_folder_and_tar_is_refused(tmp_path: Path) -> None:
    write_tar(tmp_path / "train" / f"{TENCH}.tar", ["1.JPEG"])
    write(tmp_path, f"train/{TENCH}/1.JPEG")
    with pytest.raises(InvalidInputError, match=f"class '{TENCH}' is in .* both as a folder and as a tar"):
        find_images(tmp_path)


def test_the_tars_as_downloaded(tmp_path: Path) -> None:
    inner = {
        f"{wnid}.tar": write_tar(tmp_path / "t", [f"{wnid}_1.JPEG", f"{wnid}_2.JPEG"]).read_bytes()
        for wnid in (TENCH, GOLDFISH)
    }
    (tmp_path / "t").unlink()
    write_tar(tmp_path / "ILSVRC2012_img_train.tar", inner)
    write_tar(tmp_path / "ILSVRC2012_img_val.tar", ["ILSVRC2012_val_00000001.JPEG"])
    (tmp_path / "LOC_val_solution.csv").write_text(
        f"ImageId,PredictionString\nILSVRC2012_val_00000001,{TENCH} 1 2 3 4\n"
    )
    found = find_images(tmp_path)
    assert found["train"].classes == [TENCH, GOLDFISH]
    assert [read_bytes(item) for item in found["train"].items] == [
        picture(f"{wnid}_{number}.JPEG") for wnid in (TENCH, GOLDFISH) for number in (1, 2)
    ]
    assert listed(found["val"]) == [("ILSVRC2012_val_00000001.JPEG", TENCH)]


@pytest.mark.parametrize("place", ["", "val", "ILSVRC2012_devkit_t12/data"])
def test_ground_truth_and_synsets_are_found(tmp_path: Path, place: str) -> None:
    write_ilsvrc_val(tmp_path)
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    (tmp_path / place / "ILSVRC2012_validation_ground_truth.txt").write_text("2\n1\n2\n")
    (tmp_path / place / "synsets.txt").write_text(f"{KIT_FOX}\n{TENCH}\n")
    images = find_images(tmp_path)["val"]
    assert [item.label for item in images.items] == [TENCH, KIT_FOX, TENCH]
    assert images.classes == [TENCH, KIT_FOX]


def test_ground_truth_may_be_given_and_counts_by_the_number_in_the_name(tmp_path: Path) -> None:
    write_ilsvrc_val(tmp_path / "data")
    (tmp_path / "data/val/ILSVRC2012_val_00000001.JPEG").unlink()  # a part of the set keeps its labels
    truth, synsets = tmp_path / "t.txt", tmp_path / "words.txt"
    truth.write_text("2\n1\n")
    synsets.write_text(f"{KIT_FOX} kit fox, Vulpes macrotis\n{GOLDFISH} goldfish\n")
    for root in (tmp_path / "data", tmp_path / "data" / "val"):
        images = find_images(root, truth, synsets)["val"]
        assert listed(images) == [("ILSVRC2012_val_00000002.JPEG", KIT_FOX)]
        assert images.skipped == [("ILSVRC2012_val_00000003.JPEG", "t.txt has no label for it")]


def test_kaggle_solution(tmp_path: Path) -> None:
    write_ilsvrc_val(tmp_path / "ILSVRC" / "Data" / "CLS-LOC", 2)
    write(tmp_path / "ILSVRC" / "Data" / "CLS-LOC", f"train/{TENCH}/1.JPEG", "test/ILSVRC2012_test_00000001.JPEG")
    (tmp_path / "LOC_val_solution.csv").write_text(
        "ImageId,PredictionString\n"
        f"ILSVRC2012_val_00000002,{TENCH} 85 1 499 272 {TENCH} 1 2 3 4 \nILSVRC2012_val_00000001,{GOLDFISH} 1 2 3 4 \n"
    )
    for root in (tmp_path, tmp_path / "ILSVRC" / "Data" / "CLS-LOC"):
        found = find_images(root)
        assert list(found) == ["train", "val", "test"]
        assert [item.label for item in found["val"].items] == [GOLDFISH, TENCH]
        assert found["test"].items[0].label is None


def test_flat_validation_without_labels_says_which_file_is_needed(tmp_path: Path) -> None:
    write_ilsvrc_val(tmp_path)
    with pytest.raises(InvalidInputError, match=r"LOC_val_solution\.csv, or ILSVRC2012_validation_ground_truth\.txt"):
        find_images(tmp_path)
    (tmp_path / "ILSVRC2012_validation_ground_truth.txt").write_text("1\n1\n1\n")
    with pytest.raises(InvalidInputError, match=r"need WNIDs: expected the devkit's meta\.mat or map_clsloc\.txt, or"):
        find_images(tmp_path)


@pytest.mark.parametrize(
    ("truth", "synsets", "reason"),
    [
        ("3\n", f"{KIT_FOX}\n{TENCH}\n", "line 1 of .* is '3'; expected a class number from 1 to 2"),
        ("x\n", f"{KIT_FOX}\n", "line 1 of .* is 'x'"),
        ("1\n", "fox\n", "found 'fox'"),
        ("1\n", "\n", "it is empty"),
        ("1\n", f"{TENCH}\n{TENCH}\n", "appears twice"),
        ("1\n", f"{TENCH}\n{GOLDFISH}\n{KIT_FOX}\n", "by the alphabet.*labels would be wrong"),
    ],
)
def test_wrong_ground_truth_is_refused(tmp_path: Path, truth: str, synsets: str, reason: str) -> None:
    write_ilsvrc_val(tmp_path, 1)
    (tmp_path / "ILSVRC2012_validation_ground_truth.txt").write_text(truth)
    (tmp_path / "LOC_synset_mapping.txt").write_text(synsets)
    with pytest.raises(InvalidInputError, match=reason):
        find_images(tmp_path)


def test_the_devkits_matlab_file(tmp_path: Path) -> None:
    scipy_io = pytest.importorskip("scipy.io")
    kinds = [("ILSVRC2012_ID", object), ("WNID", object), ("words", object), ("num_children", object)]
    rows = [(2, TENCH, "tench", 0), (1, KIT_FOX, "kit fox", 0), (3, "n00001740", "entity", 2)]
    scipy_io.savemat(tmp_path / "meta.mat", {"synsets": np.array(rows, dtype=kinds)})
    write_ilsvrc_val(tmp_path, 2)
    (tmp_path / "ILSVRC2012_validation_ground_truth.txt").write_text("2\n1\n")
    assert [item.label for item in find_images(tmp_path)["val"].items] == [TENCH, KIT_FOX]
