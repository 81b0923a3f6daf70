"""Is a set of examples good? Each one classified by the others: what goes wrong, and which categories look alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from actstore.errors import InvalidInputError
from actstore.images.image_set import ImageItem
from predictor.classifier.classifier import Classifier
from predictor.classifier.photos import Photos, list_folder, network_of, read_photos
from predictor.classifier.predictions import Guess
from predictor.classifier.presentation import Card, display, html_result, photo_card, write_sheet
from predictor.classifier.scoring import leave_one_out, ranked
from predictor.classifier.starting import background_of
from predictor.protocol.results import Table

if TYPE_CHECKING:
    import pandas

    from predictor.classifier.classifier import FilePath

PAIRS, WRONG = 3, 20  # that the text names


@dataclass(frozen=True)
class Checked:
    """One example: category is what it is, guesses what the others take it for; example: its place in the category.
    is_unknown: it is so unlike the others that it would be called unknown."""

    category: str
    example: int
    guesses: tuple[Guess, ...]
    is_unknown: bool = False

    @property
    def is_right(self) -> bool:
        return self.guesses[0].category == self.category


@dataclass(frozen=True)
class Alike:
    """share: the probability that images of either have for the other one, on average. mistaken: images of one that
    were taken for the other."""

    one: str
    other: str
    share: float
    mistaken: int


@dataclass(frozen=True)
class Check:
    """How well the examples of each category are recognised when they are classified by the other examples.

    Attributes:
        names: the categories that could be checked.
        examples: the result for every example.
        confusion: (names, names + 1) examples by what they are and what they were taken for; the last column counts
            every other category.
        alike: all pairs of categories, the most alike first.
        single: categories with one example, which cannot be checked.
        shown: for each category the name that people read.
        images: the images of each category, in the order of its examples.
        warnings: what was left out, in sentences.
    """

    names: tuple[str, ...]
    examples: tuple[Checked, ...]
    confusion: NDArray[np.int64]
    alike: tuple[Alike, ...]
    single: tuple[str, ...]
    shown: Mapping[str, str] = field(default_factory=dict)
    images: Mapping[str, Sequence[ImageItem]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def accuracy(self) -> float:
        """The share of examples that are taken for their own category."""
        return sum(example.is_right for example in self.examples) / len(self.examples)

    @property
    def wrong(self) -> list[Checked]:
        """The examples that are taken for another category, the surest mistakes first."""
        mistakes = [example for example in self.examples if not example.is_right]
        return sorted(mistakes, key=lambda example: -example.guesses[0].probability)

    @property
    def summary(self) -> str:
        """The accuracy, in a sentence."""
        count = len(self.examples)
        right = count - len(self.wrong)
        text = f"{right:,} of {count:,} photos are taken for their category by the others ({self.accuracy:.1%})"
        unknown = sum(example.is_unknown for example in self.examples)
        return text + (f"; {unknown:,} would be called unknown" if unknown else "")

    def image_of(self, example: Checked) -> str:
        """Name the image of an example.

        Args:
            example: one of `examples`.
        """
        images = self.images.get(example.category)
        if images is None:
            return f"{example.category}, example {example.example + 1}"
        return images[example.example].path.as_posix()

    def to_json(self) -> dict[str, Any]:
        """Give everything as a dictionary that JSON can hold."""
        return {
            "accuracy": self.accuracy, "images": len(self.examples), "categories": list(self.names),
            "confusion": self.confusion.tolist(), "wrong": [self._record(example) for example in self.wrong],
            "single": list(self.single), "alike": [asdict(pair) for pair in self.alike],
        }  # fmt: skip

    def to_pandas(self) -> pandas.DataFrame:
        """Make a data frame with a row for each example: what it is, and what it was taken for."""
        import pandas

        return pandas.DataFrame([self._record(example) for example in self.examples])

    def to_text(self) -> str:
        """Give the accuracy, the confusion and the mistakes as text."""
        wrong = self.wrong
        lines = [self.summary, "", self._table().to_text()]
        if wrong:
            firsts = [(one, one.guesses[0]) for one in wrong[:WRONG]]
            rows = [[self.image_of(one), self._shown(one.category), first.shown, f"{first.probability:.1%}"]
                    for one, first in firsts]  # fmt: skip
            lines += ["", Table(["goes wrong", "is", "taken for", ""], rows, 4).to_text()]
            if len(wrong) > WRONG:
                lines.append(f"and {len(wrong) - WRONG:,} more: --json has them all")
        lines += ["", *self._alike_lines()]
        if self.single:
            lines.append(f"not checked, as they have one photo: {', '.join(self.single)}")
        return "\n".join(lines)

    def to_markdown(self) -> str:
        """Give the table of categories as Markdown: photos, how many are right, and what the others are taken for."""
        return self._table().to_markdown()

    def write_sheet(self, path: FilePath, title: str = "Check") -> None:
        """Write a page of thumbnails, mistakes first.

        Args:
            path: the HTML file.
            title: heading of the page.
        """
        shown, counts = self._columns(), self.confusion.tolist()
        used = len(shown) if any(row[-1] for row in counts) else len(shown) - 1
        rows = [(name, row[:used]) for name, row in zip(shown, counts, strict=False)]
        right = [example for example in self.examples if example.is_right]
        parts = {"Taken for another category": self.wrong, "Taken for their own": right}
        sections = [(f"{name}: {len(part)}", [self._card(one) for one in part]) for name, part in parts.items()]
        about = f"{len(self.examples):,} photos, each classified by the others: {self.accuracy:.1%} right"
        write_sheet(Path(path), title, about, sections, alike=self._alike_lines(),
                    confusion={"columns": shown[:used], "rows": rows})  # fmt: skip

    def __repr__(self) -> str:
        return "\n".join([self.to_text(), *self.warnings])

    def _repr_html_(self) -> str:
        return html_result(self._table(), [self.summary], [*self._alike_lines(), *self.warnings])

    def _record(self, example: Checked) -> dict[str, Any]:
        first = example.guesses[0]
        return {"image": self.image_of(example), "category": example.category, "taken_for": first.category,
                "probability": first.probability, "unknown": example.is_unknown}  # fmt: skip

    def _shown(self, category: str) -> str:
        return self.shown.get(category, category)

    def _columns(self) -> list[str]:
        """Of the confusion."""
        return [*map(self._shown, self.names), "another"]

    def _table(self) -> Table:
        shown, lines = self._columns(), []
        for place, row in enumerate(self.confusion.tolist()):
            others = sorted((count, shown[other]) for other, count in enumerate(row) if count and other != place)[::-1]
            taken = ", ".join(f"{name} {count}" for count, name in others)
            lines.append([shown[place], str(sum(row)), str(row[place]), taken])
        return Table(["category", "photos", "right", "taken for"], lines, 4)

    def _alike_lines(self) -> list[str]:
        return [
            f"look alike: {self._shown(pair.one)} and {self._shown(pair.other)} "
            f"({pair.mistaken} mistaken, {pair.share:.1%} of the probability)"
            for pair in self.alike[:PAIRS]
        ]

    def _card(self, example: Checked) -> Card:
        note = self._shown(example.category)
        if not example.is_right:
            note += f", taken for {example.guesses[0].shown}"
        if example.is_unknown:
            note += ", would be called unknown"
        image = self.images[example.category][example.example]
        return photo_card(image, note, example.guesses, "right" if example.is_right else "wrong", example.category)


def check_folder(
    folder: FilePath, backbone: str | None = None, *, weights: FilePath | None = None, pretrained: bool = False,
    offline: bool = False, device: str = "auto", progress: bool | None = None,
) -> Check:  # fmt: skip
    """Classify each photo of a folder by the other photos, before anything is taught.

    Photos that cannot be read are left out. The network is chosen as in `Classifier.from_backbone`.

    Args:
        folder: a folder with a folder of images for each category.
        backbone: name of the network, such as "resnet50".
        weights: its file.
        pretrained: fetch the published weights of the named network.
        offline: fetch nothing.
        device: "cpu", "cuda", "cuda:1" or "auto".
        progress: None shows a bar on a terminal and in a notebook, False none, True logs a line every 20 seconds.

    Returns:
        Which photos are mistaken, and which categories look alike.
    """
    photos = list_folder(Path(folder))  # before a network is loaded, or even fetched
    made = Classifier.from_backbone(
        backbone, weights=weights, pretrained=pretrained, offline=offline, progress=progress
    )
    return check_photos(made, photos, weights, device, progress)


def check_photos(
    classifier: Classifier, photos: Photos, weights: FilePath | None, device: str, progress: bool | None
) -> Check:
    """By a classifier of these categories alone, with the network of the one given."""
    read = read_photos(classifier, photos, "skip", weights, device, progress)
    background = background_of(network_of(classifier, weights))
    learner = Classifier.alone(classifier.dim, background, about={"network": classifier.about.get("network", {})})
    support = read.by_label()
    learner.adapt_all({name: rows for name, (rows, _) in support.items()})
    return check_support(learner, images={name: items for name, (_, items) in support.items()}, warnings=read.warnings)


def check_support(
    classifier: Classifier, top: int = 5, images: Mapping[str, Sequence[ImageItem]] | None = None,
    warnings: Sequence[str] = (),
) -> Check:  # fmt: skip
    """Leave-one-out over what the classifier was taught, among all that it knows."""
    categories = classifier.categories
    if len(categories) < 2:
        raise InvalidInputError(
            f"a check compares categories, but there is only {', '.join(categories) or 'none'}; give at least two"
        )
    held = leave_one_out(classifier)
    if not len(held.category):
        raise InvalidInputError("every category has one image, so none can be left out; give at least two of one")
    shown = {name: display(classifier, name) for name in categories}
    lowest = -math.inf if classifier.threshold is None else classifier.threshold
    examples = tuple(
        Checked(categories[own], example,
                tuple(Guess(categories[place], shown[categories[place]], share) for place, share in row),
                familiarity < lowest)
        for own, example, row, familiarity in zip(
            held.category.tolist(), held.example.tolist(), ranked(held.scores, top),
            torch.cat(classifier.left_out_familiarity()).tolist(), strict=True
        )
    )  # fmt: skip
    names = tuple(name for name, rows in classifier.support.items() if len(rows) > 1)
    single = tuple(name for name in classifier.support if name not in names)
    confusion = _confusion(names, examples)
    shares = held.scores.softmax(1).numpy()[:, [categories.index(name) for name in names]]  # (examples, names)
    alike = _pairs(names, examples, confusion, shares)
    return Check(names, examples, confusion, alike, single, shown, images or {}, list(warnings))


def _confusion(names: Sequence[str], examples: Sequence[Checked]) -> NDArray[np.int64]:
    place = {name: number for number, name in enumerate(names)}
    counts = np.zeros((len(names), len(names) + 1), np.int64)
    for example in examples:
        counts[place[example.category], place.get(example.guesses[0].category, len(names))] += 1
    return counts


def _pairs(
    names: Sequence[str], examples: Sequence[Checked], counts: NDArray[np.int64], shares: NDArray[np.float32]
) -> tuple[Alike, ...]:
    own = np.array([example.category for example in examples])
    mean = np.stack([shares[own == name].mean(0) for name in names])  # (names, names)
    pairs = [
        Alike(names[a], names[b], float((mean[a, b] + mean[b, a]) / 2), int(counts[a, b] + counts[b, a]))
        for a in range(len(names))
        for b in range(a + 1, len(names))
    ]
    return tuple(sorted(pairs, key=lambda pair: (-pair.mistaken, -pair.share)))
