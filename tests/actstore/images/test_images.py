"""Every layout of images on disk, and every way in which one goes wrong."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from actstore.errors import InvalidInputError, StorageError, UnreadableImageError
from actstore.images.finding import ImageItem, ImageSet, find_images, read_bytes
from actstore.images.image_set import classes_train_lacks
from actstore.layout.image_ids import encode_ids

KIT_FOX, TENCH, GOLDFISH = "n02119789", "n01440764", "n01443537"


def picture(name: str) -> bytes:
    """A tiny image whose bytes are its own."""
    colour = tuple(np.frombuffer(name.encode("utf-8", "replace").ljust(3)[-3:], np.uint8).tolist())
    data = io.BytesIO()
    Image.new("RGB", (4, 4), colour).save(data, "PNG", pnginfo=None)
    return data.getvalue() + name.encode("utf-8", "replace")  # bytes after the end of a PNG are ignored


def write(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(name))
    return root


def write_tar(path: Path, members: dict[str, bytes] | Iterable[str], prefix: str = "") -> Path:
    contents = members if isinstance(members, dict) else {name: picture(name) for name in members}
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in contents.items():
            info = tarfile.TarInfo(prefix + name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def listed(images: ImageSet[ImageItem]) -> list[tuple[str, str | None]]:
    return [(item.id, item.label) for item in images.items]


def only(root: Path) -> ImageSet[ImageItem]:
    found = find_images(root)
    assert list(found) == ["train"]
    return found["train"]


# ---- folders


def test_class_folders_without_splits_are_train(tmp_path: Path) -> None:
    images = only(write(tmp_path, "b/2.JPG", "b/1.jpeg", "a/x.png", "a/sub/y.WebP", "a/z.bmp"))
    assert listed(images) == [
        ("a/sub/y.WebP", "a"), ("a/x.png", "a"), ("a/z.bmp", "a"), ("b/1.jpeg", "b"), ("b/2.JPG", "b"),
    ]  # fmt: skip
    assert images.classes == ["a", "b"]
    assert images.skipped == []


def test_train_and_val_folders(tmp_path: Path) -> None:
    root = write(tmp_path, "train/a/1.jpg", "train/b/1.jpg", "val/a/2.jpg", "README.md", "extra/a/3.jpg", "loose.tif")
    found = find_images(root)
    assert [name for name, _ in found["train"].skipped] == ["extra", "loose.tif"]
    assert {split: listed(images) for split, images in found.items()} == {
        "train": [("a/1.jpg", "a"), ("b/1.jpg", "b")],
        "val": [("a/2.jpg", "a")],
    }


def test_validation_is_another_name_of_val_but_not_beside_it(tmp_path: Path) -> None:
    assert list(find_images(write(tmp_path, "train/a/1.jpg", "validation/a/2.jpg"))) == ["train", "val"]
    with pytest.raises(InvalidInputError, match="'val' is there twice"):
        find_images(write(tmp_path, "val/a/2.jpg"))


def test_bytes_come_back_and_items_survive_a_worker_process(tmp_path: Path) -> None:
    for item in only(write(tmp_path, "a/1.jpg", "ü/很长.png")).items:
        copy = pickle.loads(pickle.dumps(item))
        assert copy == item
        assert read_bytes(copy) == picture(item.id)
        assert item.load().size == (4, 4)


def test_clutter_is_ignored_and_the_rest_is_named(tmp_path: Path) -> None:
    root = write(tmp_path, "a/1.jpg", "a/._1.jpg", "a/.hidden.png", "a/Thumbs.db", "a/.DS_Store", ".git/x.png",
                 "__MACOSX/a/1.jpg", "a/notes.txt", "loose.jpg", "README.md")  # fmt: skip
    (root / "empty").mkdir()
    images = only(root)
    assert listed(images) == [("a/1.jpg", "a")]
    assert dict(images.skipped) == {
        "a/notes.txt": "not an image by its ending '.txt'",
        "empty": "empty class folder",
        "loose.jpg": "not in a class folder",
        "README.md": "not an image by its ending '.md'",
    }


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    images = only(write(tmp_path, "2.jpg", "1.jpg"))
    assert listed(images) == [("1.jpg", None), ("2.jpg", None)]
    assert images.classes == []


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    root = write(tmp_path / "data", "a/1.jpg", "a/deep/2.jpg", "b/3.jpg")
    (root / "a" / "deep" / "up").symlink_to(root / "a")
    (root / "a" / "top").symlink_to(root)
    (root / "b" / "self.jpg").symlink_to("self.jpg")
    (root / "b" / "gone.jpg").symlink_to("nowhere.jpg")
    (root / "b" / "again").symlink_to(".")
    (root / "whole").symlink_to(root)
    (root / "c").symlink_to(root / "b")  # no circle: another name for a class
    images = only(root)
    assert [item.id for item in images.items] == ["a/1.jpg", "a/deep/2.jpg", "b/3.jpg", "c/3.jpg"]
    reasons = dict(images.skipped)
    assert set(reasons) == {
        "a/deep/up", "a/top", "b/self.jpg", "b/gone.jpg", "b/again", "whole", "c/self.jpg", "c/gone.jpg", "c/again",
    }  # fmt: skip
    assert all("symbolic link" in reason for reason in reasons.values())


def test_links_to_images_and_folders_elsewhere_are_followed(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere", "x/1.jpg")
    root = write(tmp_path / "data", "a/0.jpg")
    (root / "b").symlink_to(tmp_path / "elsewhere" / "x")
    (root / "a" / "1.jpg").symlink_to(tmp_path / "elsewhere" / "x" / "1.jpg")
    assert listed(only(root)) == [("a/0.jpg", "a"), ("a/1.jpg", "a"), ("b/1.jpg", "b")]


def test_names_that_cannot_be_ids_are_skipped_with_a_reason(tmp_path: Path) -> None:
    root = write(tmp_path, "a/1.jpg", "a/line\nbreak.jpg", "bad\x07class/1.jpg", "a/\x7f.png")
    Path(os.fsdecode(os.fsencode(root) + b"/a/\xff.jpg")).write_bytes(b"x")
    images = only(root)
    assert listed(images) == [("a/1.jpg", "a")]
    assert {name for name, _ in images.skipped} == {
        "a/line\\nbreak.jpg",
        "bad\\x07class",
        "a/\\x7f.png",
        "a/\\udcff.jpg",
    }
    assert all(reason and name.isprintable() for name, reason in images.skipped)


def test_unicode_and_very_long_names(tmp_path: Path) -> None:
    long = "長" * 80 + ".jpg"  # 244 bytes, near the limit of file systems
    images = only(write(tmp_path, f"κλάση/{long}", 'emoji 🦊/it\'s, "quoted".jpg'))
    assert {item.id for item in images.items} == {f"κλάση/{long}", 'emoji 🦊/it\'s, "quoted".jpg'}
    assert all(read_bytes(item) == picture(item.id) for item in images.items)


def test_classes_in_two_unicode_spellings_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "caf\u00e9/1.jpg", "cafe\u0301/2.jpg")
    if len(list(tmp_path.iterdir())) == 1:
        pytest.skip("this file system unifies Unicode spellings")
    with pytest.raises(InvalidInputError, match="Unicode spellings"):
        find_images(tmp_path)


@pytest.mark.parametrize("names", [(), ("notes.txt",), ("a/notes.txt",)])
def test_no_images_says_what_is_expected(tmp_path: Path, names: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInputError, match=r"no images in .*expected CLASS/\*\.jpg, train/CLASS"):
        find_images(write(tmp_path, *names))


def test_what_is_not_there_or_no_source(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no such file or folder"):
        find_images(tmp_path / "nowhere")
    write(tmp_path, "x.doc")
    with pytest.raises(InvalidInputError, match="is not a folder of images"):
        find_images(tmp_path / "x.doc")


def test_a_vanished_file_is_unreadable_and_a_failing_disk_is_fatal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = only(write(tmp_path, "a/1.jpg")).items[0]
    item.path.unlink()
    with pytest.raises(UnreadableImageError, match=r"^a/1.jpg: cannot be read: No such file"):
        read_bytes(item)

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "open", fail)
    with pytest.raises(StorageError, match="Input/output error"):
        read_bytes(item)


NAMES = st.text(st.characters(exclude_characters="/\x00", exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(st.lists(st.tuples(NAMES, NAMES), max_size=8))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_names_give_ids_that_a_store_accepts(
    tmp_path_factory: pytest.TempPathFactory, names: list[tuple[str, str]]
) -> None:
    root = tmp_path_factory.mktemp("any")
    write(root, "sure/1.jpg", *(f"c{first}/{second}.jpg" for first, second in names))
    try:
        images = only(root)
    except InvalidInputError as error:
        assert "Unicode spellings" in str(error)  # noqa: PT017
        return
    encode_ids([item.id for item in images.items])
    assert images.classes == sorted(images.classes)
    assert all(read_bytes(item) == picture(item.id) for item in images.items)
    assert [item.id for item in images.items] == sorted((i.id for i in images.items), key=lambda one: one.split("/"))


# ---- tars


def test_a_tar_of_class_folders_is_read_in_place(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "x.tar", ["./b/1.jpg", "./a/2.jpg", "./a/._2.jpg", "./a/notes.txt", "./loose.png"])
    images = only(tar)
    assert listed(images) == [("a/2.jpg", "a"), ("b/1.jpg", "b")]
    assert [read_bytes(item) for item in images.items] == [picture("./a/2.jpg"), picture("./b/1.jpg")]
    assert {name for name, _ in images.skipped} == {"a/notes.txt", "loose.png"}
    assert images.items[0].load().mode == "RGB"


@pytest.mark.parametrize("wrapper", ["", "dataset/"])
def test_a_tar_with_splits(tmp_path: Path, wrapper: str) -> None:
    tar = write_tar(tmp_path / "x.tar", ["train/a/1.jpg", "train/b/2.jpg", "val/a/3.jpg"], wrapper)
    found = find_images(tar)
    assert {split: listed(images) for split, images in found.items()} == {
        "train": [("a/1.jpg", "a"), ("b/2.jpg", "b")],
        "val": [("a/3.jpg", "a")],
    }


def test_one_folder_around_the_classes_of_a_tar_is_left_out(tmp_path: Path) -> None:
    assert only(write_tar(tmp_path / "x.tar", ["a/1.jpg", "b/2.jpg"], "dataset/")).classes == ["a", "b"]


def test_tars_per_split(tmp_path: Path) -> None:
    write_tar(tmp_path / "train.tar", ["a/1.jpg"])
    write_tar(tmp_path / "val.tar", ["a/2.jpg"])
    assert {split: listed(images) for split, images in find_images(tmp_path).items()} == {
        "train": [("a/1.jpg", "a")],
        "val": [("a/2.jpg", "a")],
    }


def test_webdataset_labels_lie_beside_the_images(tmp_path: Path) -> None:
    members = {
        "000.jpg": picture("0"), "000.cls": b"7\n", "001.png": picture("1"), "001.json": b'{"label": "fox"}',
        "002.jpg": picture("2"), "003.jpg": picture("3"), "003.json": b'{"width": 4}',
    }  # fmt: skip
    images = only(write_tar(tmp_path / "x.tar", members))
    assert listed(images) == [("000.jpg", "7"), ("001.png", "fox"), ("003.jpg", None)]
    assert images.classes == ["7", "fox"]
    assert images.skipped == [("002.jpg", "no 002.cls or .json beside it")]


def test_webdataset_shards_may_share_keys(tmp_path: Path) -> None:
    for shard in ("s-000", "s-001"):
        write_tar(tmp_path / f"{shard}.tar", {"0.jpg": picture(shard), "0.cls": b"fox"})
    images = only(tmp_path)
    assert listed(images) == [("s-000/0.jpg", "fox"), ("s-001/0.jpg", "fox")]
    assert [read_bytes(item) for item in images.items] == [picture("s-000"), picture("s-001")]


def test_odd_members_of_a_tar(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", ["a/1.jpg", "../out/2.jpg", "a/line\nbreak.jpg"])
    with tarfile.open(path, "a") as tar:
        for name, kind in (("a/hard.jpg", tarfile.LNKTYPE), ("a/soft.jpg", tarfile.SYMTYPE)):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = kind, "a/1.jpg"
            tar.addfile(link)
        folder = tarfile.TarInfo("empty")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
    images = only(path)
    assert [item.id for item in images.items] == ["a/1.jpg", "a/hard.jpg"]
    assert read_bytes(images.items[1]) == picture("a/1.jpg")
    assert {name for name, _ in images.skipped} == {"../out/2.jpg", "a/line\\nbreak.jpg", "a/soft.jpg", "empty"}


def test_a_member_twice_is_refused(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", ["a/1.jpg"])
    with tarfile.open(path, "a") as tar:
        tar.addfile(tarfile.TarInfo("a/1.jpg"))
    with pytest.raises(InvalidInputError, match=r"image id 'a/1\.jpg' appears twice; rename or remove"):
        find_images(path)


def test_damaged_and_compressed_tars(tmp_path: Path) -> None:
    whole = write_tar(tmp_path / "x.tar", [f"a/{number}.jpg" for number in range(30)]).read_bytes()
    for name, data, reason in (
        ("cut.tar", whole[:20_000], "damaged or truncated"),
        ("cut_in_data.tar", whole[:600], "damaged or truncated"),
        ("junk.tar", b"junk" * 1000, "damaged or truncated"),
        ("empty.tar", b"", "damaged or truncated"),
        ("x.tar.gz", b"\x1f\x8b" + whole, "compressed with gzip.*unpack it first"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InvalidInputError, match=reason):
            find_images(tmp_path / name)


def test_an_archive_that_shrank_is_noticed(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", ["a/1.jpg"])
    item = only(path).items[0]
    path.write_bytes(path.read_bytes()[:520])
    with pytest.raises(UnreadableImageError, match="ends inside of it, 8 of"):
        read_bytes(item)


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


# ---- lists

ROWS = [("b/1.jpg", "fox", "train"), ("a/2.jpg", "owl", "val"), ("a/3.jpg", "", ""), ("x\ny.jpg", "owl", "train"),
        ("../4.jpg", "owl", "train"), ("5.doc", "owl", "train")]  # fmt: skip


def write_list(path: Path, rows: list[tuple[str, str, str]]) -> Path:
    if path.suffix == ".parquet":
        columns = dict(zip(("path", "label", "split"), map(list, zip(*rows, strict=True)), strict=True))
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
    else:
        path.write_text("path,label,split\n" + "".join(f'"{a}",{b},{c}\n' for a, b, c in rows), encoding="utf-8-sig")
    return path


@pytest.mark.parametrize("name", ["list.csv", "list.parquet"])
def test_lists(tmp_path: Path, name: str) -> None:
    write(tmp_path, "b/1.jpg", "a/2.jpg", "a/3.jpg")
    found = find_images(write_list(tmp_path / name, ROWS))
    assert listed(found["train"]) == [("b/1.jpg", "fox"), ("a/3.jpg", None)]
    assert listed(found["val"]) == [("a/2.jpg", "owl")]
    assert {skipped for skipped, _ in found["train"].skipped} == {"x\\ny.jpg", "../4.jpg", "5.doc"}
    assert read_bytes(found["val"].items[0]) == picture("a/2.jpg")


def test_a_list_of_two_columns_and_absolute_paths(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere", "1.jpg")
    (tmp_path / "list.csv").write_text(f"path,label\n{tmp_path}/elsewhere/1.jpg,fox\n./elsewhere/1.jpg,fox\n")
    images = only(tmp_path / "list.csv")
    assert [item.id for item in images.items] == [f"{tmp_path}/elsewhere/1.jpg"[1:], "elsewhere/1.jpg"]
    assert {read_bytes(item) for item in images.items} == {picture("1.jpg")}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("file,label\n1.jpg,fox\n", "has columns file, label; expected a header path,label"),
        ("", "has columns none"),
        ("path,label\n1.jpg\n", "line 2 of .* does not have as many columns"),
        ("path,label\n1.jpg,fox,more\n", "line 2 of .* does not have as many columns"),
        ("path,label\n1.jpg,fox\n./1.jpg,owl\n", "image id '1.jpg' appears twice"),
        ("path,label\nnowhere.jpg,fox\n", "none of its first 1 images exist"),
        (f"path,label\n{'x' * 300}.jpg,fox\n", "none of its first 1 images exist"),
        ("path,label\n", "no images in"),
        ("path,label\n1.jpg,caf\u00e9\n2.jpg,cafe\u0301\n", "class .* Unicode spellings"),
    ],
)
def test_wrong_lists_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    write(tmp_path, "1.jpg", "2.jpg")
    (tmp_path / "list.csv").write_text(text)
    with pytest.raises(InvalidInputError, match=reason):
        find_images(tmp_path / "list.csv")


@pytest.mark.parametrize("name", ["list.csv", "list.parquet"])
def test_files_that_are_no_lists(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\xff\xfe\x00junk" * 10)
    with pytest.raises(InvalidInputError, match="is not a"):
        find_images(tmp_path / name)


# ---- Tiny-ImageNet


def tiny_imagenet(root: Path) -> Path:
    write(root, f"train/{TENCH}/images/{TENCH}_0.JPEG", f"train/{GOLDFISH}/images/{GOLDFISH}_0.JPEG",
          *(f"val/images/val_{number}.JPEG" for number in range(3)), "test/images/test_0.JPEG")  # fmt: skip
    (root / f"train/{TENCH}/{TENCH}_boxes.txt").write_text(f"{TENCH}_0.JPEG\t0\t10\t63\t58\n")
    (root / "val/val_annotations.txt").write_bytes(
        f"\ufeffval_0.JPEG\t{GOLDFISH}\t0\t32\t44\t62\r\nval_1.JPEG\t{TENCH}\t52\t55\t57\t59\r\n\r\n".encode()
    )
    (root / "wnids.txt").write_text(f"{TENCH}\n{GOLDFISH}\n")
    return root


@pytest.mark.parametrize("how", ["folder", "tar", "split tars"])
def test_tiny_imagenet_as_it_is_published(tmp_path: Path, how: str) -> None:
    root = tiny_imagenet(tmp_path / "tiny")
    if how == "tar":
        with tarfile.open(tmp_path / "tiny.tar", "w") as tar:
            tar.add(root, "tiny-imagenet-200")
        root = tmp_path / "tiny.tar"
    elif how == "split tars":
        for split in ("train", "val", "test"):
            with tarfile.open(tmp_path / f"{split}.tar", "w") as tar:
                for entry in sorted((root / split).iterdir()):
                    tar.add(entry, entry.name)
        root = tmp_path
        (tmp_path / "tiny").rename(tmp_path.parent / f"{tmp_path.name}-tiny")
    found = find_images(root)
    assert list(found) == ["train", "val", "test"]
    assert [one.classes for one in found.values()] == [[TENCH, GOLDFISH], [TENCH, GOLDFISH], []]
    assert listed(found["val"]) == [("images/val_0.JPEG", GOLDFISH), ("images/val_1.JPEG", TENCH)]
    assert found["val"].skipped == [("images/val_2.JPEG", "val_annotations.txt has no label for it")]
    assert listed(found["test"]) == [("images/test_0.JPEG", None)]
    assert read_bytes(found["val"].items[0]) == picture("val/images/val_0.JPEG")


def test_tiny_imagenet_without_or_with_wrong_annotations(tmp_path: Path) -> None:
    root = tiny_imagenet(tmp_path)
    annotations = root / "val/val_annotations.txt"
    for text, message in (
        ("val_0.JPEG n01\n", "line 1 of .*val_annotations.txt is 'val_0.JPEG n01'; expected a file name, a tab"),
        ("other.JPEG\tn01\n", "labels none of the 3 images, such as images/val_0.JPEG"),
    ):
        annotations.write_text(text)
        with pytest.raises(InvalidInputError, match=message):
            find_images(root)
    annotations.unlink()
    with pytest.raises(InvalidInputError, match="which is no class of train: expected val_annotations"):
        find_images(root)


def test_a_class_called_images_is_a_class(tmp_path: Path) -> None:
    found = find_images(write(tmp_path, "train/images/1.jpg", "train/b/1.jpg", "val/images/2.jpg"))
    assert listed(found["val"]) == [("images/2.jpg", "images")]
    assert only(write(tmp_path / "one", "images/1.jpg")).classes == ["images"]


def test_classes_that_train_lacks() -> None:
    assert classes_train_lacks({"train": ["a", "b"], "val": ["b", "z", "c"], "test": ["a"]}) == {"val": ["c", "z"]}
    assert classes_train_lacks({"val": ["a"]}) == classes_train_lacks({"train": [], "val": ["a"]}) == {}
