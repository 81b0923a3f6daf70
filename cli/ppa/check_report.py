"""What `ppa check` tells: as JSON, as text, and as a page of thumbnails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from actstore.images.image_set import ImageItem
from cli.group import table
from predictor.classifier.checking import Check, Checked
from predictor.classifier.classifier import Classifier
from predictor.classifier.display_names import display
from predictor.report.html import listing
from predictor.report.photo_sheet import Card, Standing, confusion_html, photo_card, write_sheet

PAIRS, WRONG = 3, 20  # that the text names


@dataclass(frozen=True)
class CheckReport:
    """images: of a category's examples in their order; a classifier's own examples have none."""

    check: Check
    learner: Classifier
    images: Mapping[str, Sequence[ImageItem]]

    def to_json(self) -> dict[str, Any]:
        check = self.check
        wrong = [
            {"image": self._image(example), "category": example.category, "taken_for": example.guesses[0].category,
             "probability": example.guesses[0].probability}
            for example in check.wrong
        ]  # fmt: skip
        return {
            "accuracy": check.accuracy, "images": len(check.examples), "categories": list(check.names),
            "confusion": check.confusion.tolist(), "wrong": wrong, "single": list(check.single),
            "alike": [asdict(pair) for pair in check.alike],
        }  # fmt: skip

    def to_text(self) -> str:
        count, wrong = len(self.check.examples), self.check.wrong
        lines = [
            f"{count - len(wrong):,} of {count:,} photos are taken for their category by the others "
            f"({self.check.accuracy:.1%})",
            "",
            table(["category", "photos", "right", "taken for"], self._category_lines()),
        ]
        if wrong:
            rows = [[self._image(example), self._shown(example.category), example.guesses[0].shown,
                     f"{example.guesses[0].probability:.1%}"] for example in wrong[:WRONG]]  # fmt: skip
            lines += ["", table(["goes wrong", "is", "taken for", ""], rows)]
            if len(wrong) > WRONG:
                lines.append(f"and {len(wrong) - WRONG:,} more: --json has them all")
        lines += ["", *self._alike_lines()]
        if self.check.single:
            lines.append(f"not checked, as they have one photo: {', '.join(self.check.single)}")
        return "\n".join(lines)

    def write_sheet(self, path: Path, title: str) -> None:
        check, counts = self.check, self.check.confusion.tolist()
        shown = self._columns()
        used = len(shown) if any(row[-1] for row in counts) else len(shown) - 1
        confusion = confusion_html(shown[:-1], shown[:used], [row[:used] for row in counts])
        right = [example for example in check.examples if example.is_right]
        sections = [
            (f"Taken for another category: {len(check.wrong)}", [self._card(example) for example in check.wrong]),
            (f"Taken for their own: {len(right)}", [self._card(example) for example in right]),
        ]
        about = f"{len(check.examples):,} photos, each classified by the others: {check.accuracy:.1%} right"
        write_sheet(path, title, about, sections, listing(self._alike_lines()) + confusion)

    def _shown(self, category: str) -> str:
        return display(self.learner, category)

    def _columns(self) -> list[str]:
        """Of the confusion."""
        return [*map(self._shown, self.check.names), "another"]

    def _image(self, example: Checked) -> str:
        images = self.images.get(example.category)
        if images is None:
            return f"{example.category}, example {example.example + 1}"
        return images[example.example].path.as_posix()

    def _category_lines(self) -> list[list[Any]]:
        shown, lines = self._columns(), []
        for place, row in enumerate(self.check.confusion.tolist()):
            others = sorted((count, shown[other]) for other, count in enumerate(row) if count and other != place)[::-1]
            lines.append([shown[place], sum(row), row[place], ", ".join(f"{name} {count}" for count, name in others)])
        return lines

    def _alike_lines(self) -> list[str]:
        return [
            f"look alike: {self._shown(pair.one)} and {self._shown(pair.other)} "
            f"({pair.mistaken} mistaken, {pair.share:.1%} of the probability)"
            for pair in self.check.alike[:PAIRS]
        ]

    def _card(self, example: Checked) -> Card:
        note = self._shown(example.category)
        if not example.is_right:
            note += f", taken for {example.guesses[0].shown}"
        standing: Standing = "right" if example.is_right else "wrong"
        image = self.images[example.category][example.example]
        return photo_card(image, note, example.guesses, standing, example.category)
