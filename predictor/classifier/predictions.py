"""What images are taken for, as people and machines read it: text, records, a table for a spreadsheet, a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from actstore.errors import InvalidInputError
from actstore.images.image_set import ImageItem
from actstore.storage.atomic_file import write_atomic
from predictor.classifier.presentation import counted, display, html_result, photo_card, write_sheet
from predictor.classifier.scoring import ranked
from predictor.classifier.unknown import UNKNOWN
from predictor.protocol.results import Table, to_csv

if TYPE_CHECKING:
    import pandas

    from predictor.classifier.activation_classifier import ActivationClassifier
    from predictor.classifier.classifier import FilePath

SHOWN = 3  # categories of an image in a table


@dataclass(frozen=True)
class Guess:
    """category: its own name. shown: what people read."""

    category: str
    shown: str
    probability: float


@dataclass(frozen=True)
class Prediction:
    """What an image is taken for.

    Attributes:
        image: the image's path, or the id of a row.
        top: the most probable categories, best first, each with `category`, `shown` and `probability`.
        is_unknown: nothing known fits, the first one neither.
    """

    image: str
    top: tuple[Guess, ...]
    is_unknown: bool = False

    @property
    def answer(self) -> str:
        return UNKNOWN if self.is_unknown else self.top[0].shown

    def to_json(self) -> dict[str, Any]:
        top = [
            {"category": guess.category, "display": guess.shown, "probability": guess.probability} for guess in self.top
        ]
        return {"image": self.image, "unknown": self.is_unknown, "top": top}


@dataclass(frozen=True)
class Adaptation:
    """What a classifier has learnt, and what was left out; it prints as a table.

    Attributes:
        learnt: for each category how many examples it was given.
        unreadable: for each image that was left out, the reason.
        warnings: what a reader must know, in sentences.
        read_seconds: how long reading the examples took.
        milliseconds: how long learning them took.
    """

    learnt: dict[str, int]
    unreadable: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    read_seconds: float = 0.0
    milliseconds: float = 0.0

    @property
    def examples(self) -> int:
        """The number of examples of all categories."""
        return sum(self.learnt.values())

    @property
    def summary(self) -> str:
        """What was learnt and how long it took, in a sentence."""
        return (
            f"learnt {counted(len(self.learnt), 'category', 'categories')} from {counted(self.examples, 'example')} "
            f"in {self.milliseconds:.1f} ms (reading took {self.read_seconds:.2f} s)"
        )

    def to_pandas(self) -> pandas.DataFrame:
        """Make a data frame with a row for each category."""
        import pandas

        return pandas.DataFrame(list(self.learnt.items()), columns=["category", "examples"])

    def to_markdown(self) -> str:
        """Give the table as Markdown."""
        return self._table().to_markdown()

    def __repr__(self) -> str:
        return "\n".join([self.summary, self._table().to_text(), *self.warnings])

    def _repr_html_(self) -> str:
        return html_result(self._table(), [self.summary], self.warnings)

    def _table(self) -> Table:
        return Table(["category", "examples"], [[name, f"{count:,}"] for name, count in self.learnt.items()])


@dataclass(frozen=True)
class Predictions:
    """A prediction for each image, in their order; it prints as a table.

    Attributes:
        predictions: for each image its most probable categories, and whether it is unknown.
        items: the images; empty where rows of a store were asked about.
        unreadable: for each image that was left out, the reason.
        warnings: what was left out, in sentences.

    Examples:
        >>> predictions = classifier.predict_store(store, split="val", rows=[0, 7])
        >>> [one.top[0].category for one in predictions]
        ['ant', 'bee']
    """

    predictions: tuple[Prediction, ...]
    items: tuple[ImageItem, ...] = ()
    unreadable: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.predictions)

    def __iter__(self) -> Iterator[Prediction]:
        return iter(self.predictions)

    def __getitem__(self, place: int) -> Prediction:
        return self.predictions[place]

    def to_json(self) -> list[dict[str, Any]]:
        """Give a dictionary for each image."""
        return [prediction.to_json() for prediction in self]

    def to_csv(self) -> str:
        """Give a line for each image: its answer, then category, name and probability of each guess."""
        records = [
            {key: f"{value:.6f}" if isinstance(value, float) else value for key, value in record.items()}
            for record in self._records()
        ]
        for record in records:
            del record["unknown"], record["category"]  # the answer says so, and the first guess
        return to_csv(records) if records else "image,answer\n"

    def to_pandas(self) -> pandas.DataFrame:
        """Make a data frame with a row for each image: its answer as it is shown, its category's own name, and of each
        guess both names and the probability."""
        import pandas

        return pandas.DataFrame(list(self._records()))

    def to_text(self, top: int = SHOWN) -> str:
        """Give a table as text.

        Args:
            top: how many categories to name for each image.
        """
        return self._table(top).to_text()

    def to_markdown(self, top: int = SHOWN) -> str:
        """Give a table as Markdown.

        Args:
            top: how many categories to name for each image.
        """
        return self._table(top).to_markdown()

    def write_csv(self, path: FilePath) -> None:
        """Write what `to_csv` gives to a file.

        Args:
            path: the file.
        """
        write_atomic(Path(path), self.to_csv().encode())

    def write_sheet(self, path: FilePath, source: str = "a classifier") -> None:
        """Write a page of thumbnails with their answers.

        Args:
            path: the HTML file.
            source: what classified the photos, in words.
        """
        cards = [
            photo_card(item, one.answer, one.top, "unknown" if one.is_unknown else "plain")
            for item, one in zip(self.items, self, strict=True)
        ]
        unknown = sum(one.is_unknown for one in self)
        about = f"{len(self):,} photos by {source}" + (f", {unknown:,} of them unknown" if unknown else "")
        write_sheet(Path(path), "What the photos show", about, [("", cards)], alike=(), confusion=None)

    def __repr__(self) -> str:
        return "\n".join([self.to_text(), *self.warnings])

    def _repr_html_(self) -> str:
        return html_result(self._table(SHOWN), after=self.warnings)

    def _records(self) -> Iterator[dict[str, Any]]:
        for one in self:
            record: dict[str, Any] = {"image": one.image, "answer": one.answer, "unknown": one.is_unknown}
            record["category"] = UNKNOWN if one.is_unknown else one.top[0].category
            for rank, guess in enumerate(one.top, 1):
                record[f"category_{rank}"], record[f"name_{rank}"] = guess.category, guess.shown
                record[f"probability_{rank}"] = guess.probability
            yield record

    def _table(self, top: int) -> Table:
        lines = []
        for one in self:
            first, others = f"{one.top[0].probability:.1%}", one.top[1:top]
            if one.is_unknown:
                first, others = "", one.top[:top]
            more = ", ".join(f"{guess.shown} {guess.probability:.1%}" for guess in others)
            lines.append([one.image, one.answer, first, more])
        count = 4 if any(line[3] for line in lines) else 3
        return Table(["image", "category", "", "or"][:count], [line[:count] for line in lines], count)


def predict_rows(
    classifier: ActivationClassifier, names: Sequence[str], activations: Tensor, top: int = 5, only_mine: bool = False
) -> list[Prediction]:
    """names: of the rows (n, dim). only_mine: among taught categories alone, whose probabilities then sum to 1."""
    if only_mine and not classifier.support:
        raise InvalidInputError("no category was taught to this classifier, so none is left with --only-mine")
    if top < 1:
        raise InvalidInputError(f"top must be at least 1, got {top}")
    scores = classifier.scores(activations)
    known = classifier.is_known(activations, only_mine).tolist()
    categories = list(classifier.categories)
    if only_mine:
        scores, categories = scores[:, len(classifier.base) :], categories[len(classifier.base) :]
    shown = [display(classifier, name) for name in categories]
    return [
        Prediction(name, tuple(Guess(categories[place], shown[place], share) for place, share in row), not is_known)
        for name, row, is_known in zip(names, ranked(scores, top), known, strict=True)
    ]
