"""What categories are shown as: known lists, a user's own names, and files of names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from actstore.errors import InvalidInputError
from predictor.classifier.classifier import Classifier
from predictor.classifier.classifier_file import load_classifier, save_classifier
from predictor.classifier.presentation import display, displays, forget_display, read_displays, set_displays
from predictor.phi.network import Phi


@pytest.fixture
def classifier(make_phi: Callable[..., Phi]) -> Classifier:
    found = Classifier.from_means(make_phi(), ["n01440764", "n00000000", "cat"], torch.rand(3, 16))
    found.adapt("U+0041", torch.rand(2, 16))
    return found


def test_names_of_a_user_come_first_and_are_kept(classifier: Classifier, tmp_path: Path) -> None:
    assert displays(classifier) == {"n01440764": "tench", "U+0041": "A"}
    set_displays(classifier, {"n01440764": "Schleie", "cat": "my cat", "U+0041": "U+0041"})
    save_classifier(tmp_path / "c.safetensors", classifier)
    again = load_classifier(tmp_path / "c.safetensors")
    assert displays(again) == {"n01440764": "Schleie", "cat": "my cat"}
    assert again.categories == classifier.categories  # by which they are stored
    set_displays(again, {"n01440764": "", "cat": ""})
    assert displays(again) == {"n01440764": "tench"}


def test_renamed_and_removed(classifier: Classifier) -> None:
    forget_display(classifier, "U+0041")
    assert "display" not in classifier.about
    set_displays(classifier, {"U+0041": "first letter"})
    classifier.rename("U+0041", "a")
    forget_display(classifier, "U+0041", "a")
    assert display(classifier, "a") == "first letter"
    forget_display(classifier, "a")
    assert display(classifier, "a") == "a"


def test_all_or_none(classifier: Classifier) -> None:
    with pytest.raises(InvalidInputError, match="no category is named 'emu'"):
        set_displays(classifier, {"cat": "c", "emu": "e"})
    with pytest.raises(InvalidInputError, match="must be printable text"):
        set_displays(classifier, {"cat": "two\nlines"})
    assert "display" not in classifier.about


@pytest.mark.parametrize(
    "text",
    ["n1 red fox\nn2 cat\n", "\ufeffn1\tred fox\n\nn2\tcat", "n1,red fox\r\nn2, cat\r\n",
     '{"n1": "red fox", "n2": "cat"}'],
)  # fmt: skip
def test_files_of_names(tmp_path: Path, text: str) -> None:
    file = tmp_path / "names.txt"
    file.write_text(text, "utf-8", newline="")
    assert read_displays(file) == {"n1": "red fox", "n2": "cat"}


@pytest.mark.parametrize("mark", [" ", "\t", ",", ", "])
def test_names_with_commas_after_a_code(tmp_path: Path, mark: str) -> None:
    file = tmp_path / "names.txt"
    file.write_text(f"n01440764{mark}tench, Tinca tinca\nU+0041{mark}A, the first\n")
    assert read_displays(file) == {"n01440764": "tench, Tinca tinca", "U+0041": "A, the first"}


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"n1\n", "line 1: 'n1' has no display name"), (b"n1 a\nn1 b\n", "line 2: 'n1' is there twice"),
     (b"", "holds no names"), (b"{", "must be a JSON object"), (b'{"a": 3}', "values are all text"),
     (b"\xff\xfe\x00", "cannot be read as text")],
)  # fmt: skip
def test_bad_files_of_names(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "names.txt").write_bytes(content)
    with pytest.raises(InvalidInputError, match=message):
        read_displays(tmp_path / "names.txt")
    with pytest.raises(InvalidInputError, match="no file of names at"):
        read_displays(tmp_path / "absent.txt")
