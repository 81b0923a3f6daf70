"""A classifier learns: from activations, images or rows of a store; and it keeps the balance between known and taught
categories."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_high
from typing import TYPE_CHECKING, Any, Literal

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from actstore.errors import InvalidInputError
from actstore.spec import is_unicode
from predictor.classifier.activation_classifier import ActivationClassifier, require_aggregate
from predictor.classifier.presentation import counted, forget_display, html_result
from predictor.classifier.scoring import bias_beside_known, parse_examples
from predictor.classifier.unknown import refuse_reserved
from predictor.protocol.calibration import nearest_shots
from predictor.protocol.method import Aggregate
from predictor.protocol.results import Table

if TYPE_CHECKING:
    import pandas

    from actstore import ActivationStore
    from actstore.backbones.loading import Backbone
    from actstore.storage.place import Place
    from predictor.classifier.photos import Photos

    Store = str | Path | Place | ActivationStore

FilePath = str | Path
OnError = Literal["fail", "skip"]
KEEPS_KNOWN = "beside_known"  # in `about`: the constant is fitted anew with all that is learnt, until one is chosen
LOOK_ALIKES = (
    "`unknown` is for photos of something else; what looks like a category, such as another bird among birds, is "
    "mostly taken for it: teach such look-alikes as categories of their own"
)


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


class LearningClassifier(ActivationClassifier):
    """A classifier that learns new categories, forgets and renames them.

    Attributes:
        backbone: the network, once it is loaded; it is not part of the file.
        calibrations: a function from the number of examples to what calibration found: shots -> (aggregate, constant).
    """

    backbone: Backbone | None = None
    calibrations: Callable[[int], Mapping[int, tuple[Aggregate, float]]] | None = None

    def adapt(self, name: str, activations: ArrayLike | Tensor, extend: bool = False) -> None:
        """Learn a category from activations of its examples.

        Args:
            name: the category.
            activations: (n, dim), or (dim,) for a single example.
            extend: add examples to a category that exists.

        Raises:
            InvalidInputError: the category exists already, or activations have another length.

        Examples:
            >>> classifier.adapt("dog", train.of_class("dog")[0])
            >>> classifier.adapt("dog", train.of_class("dog")[1:3], extend=True)
        """
        self.adapt_all({name: activations}, extend)

    def adapt_all(
        self, examples: Mapping[str, ArrayLike | Tensor], extend: bool = False, aggregate: Aggregate | None = None
    ) -> None:
        """Learn several categories at once; either all of them are added or none.

        The constant between base and taught categories follows what was calibrated; see `calibrate`.

        Args:
            examples: for each category its activations (n, dim); the numbers of examples may differ.
            extend: add examples to categories that exist.
            aggregate: how examples are combined, "max" or "mean"; by default as calibrated.

        Raises:
            InvalidInputError: a category exists already, or activations have another length.

        Examples:
            >>> classifier.adapt_all({"dog": train.of_class("dog"), "eel": val[:1]})
            >>> classifier.categories
            ('ant', 'bee', 'cat', 'dog', 'eel')
        """
        require_aggregate(aggregate)
        for name in examples:
            if isinstance(name, str) and name not in self.support:
                refuse_reserved(name)
        self.restore(examples, extend)
        self.balance(aggregate)

    def adapt_folder(
        self, folder: FilePath, *, extend: bool = False, aggregate: Aggregate | None = None,
        on_error: OnError = "fail", weights: FilePath | None = None, device: str = "auto",
        progress: bool | None = None,
    ) -> Adaptation:  # fmt: skip
        """Learn categories from a folder of images.

        Args:
            folder: a folder with a folder of images for each category; one image is enough.
            extend: add examples to categories that exist.
            aggregate: how examples are combined, "max" or "mean"; by default as calibrated.
            on_error: "fail" or "skip" an image that cannot be read.
            weights: the file of the network's weights, where it has moved.
            device: "cpu", "cuda", "cuda:1" or "auto".
            progress: None shows a bar on a terminal and in a notebook, False none, True also prints lines into a log.

        Returns:
            What was learnt, and what was left out.

        Raises:
            InvalidInputError: a category exists already, or none of its images can be read.
        """
        from predictor.classifier.photos import list_folder

        return self._adapt_photos(list_folder(Path(folder)), extend, aggregate, on_error, weights, device, progress)

    def adapt_images(
        self, name: str, images: FilePath | Sequence[FilePath], *, extend: bool = False,
        aggregate: Aggregate | None = None, on_error: OnError = "fail", weights: FilePath | None = None,
        device: str = "auto", progress: bool | None = None,
    ) -> Adaptation:  # fmt: skip
        """Learn one category from image files, or from all images of a folder; otherwise as `adapt_folder`.

        Args:
            name: the category.
            images: image files, or a folder.
            extend: add examples to a category that exists.
            aggregate: how examples are combined, "max" or "mean"; by default as calibrated.
            on_error: "fail" or "skip" an image that cannot be read.
            weights: the file of the network's weights, where it has moved.
            device: "cpu", "cuda", "cuda:1" or "auto".
            progress: None shows a bar on a terminal and in a notebook, False none, True also prints lines into a log.

        Returns:
            What was learnt, and what was left out.
        """
        from predictor.classifier.photos import list_category

        photos = list_category(name, images)
        return self._adapt_photos(photos, extend, aggregate, on_error, weights, device, progress)

    def _adapt_photos(
        self, photos: Photos, extend: bool, aggregate: Aggregate | None, on_error: str, weights: FilePath | None,
        device: str, progress: bool | None,
    ) -> Adaptation:  # fmt: skip
        from predictor.classifier.photos import read_photos

        began = time.perf_counter()
        read = read_photos(self, photos, on_error, weights, device, progress)
        support = {name: rows for name, (rows, _) in read.by_label().items()}
        if lost := [item.label for item in photos.items if item.label not in support]:
            raise InvalidInputError(f"category {lost[0]!r} has no example left: none of its images could be read")
        return self._learn(support, extend, aggregate, began, read.unreadable, read.warnings)

    def adapt_store(
        self, store: Store, *, split: str | None = None, classes: Sequence[str] | None = None,
        path_glob: str | None = None, rows: Any = None, extend: bool = False, aggregate: Aggregate | None = None,
    ) -> Adaptation:  # fmt: skip
        """Learn categories from labelled rows of a store that the same network made.

        Args:
            store: the store, or its path.
            split: name of the split, by default its only one.
            classes: names of classes; this and the next two choose rows as in `Split.query`.
            path_glob: a shell pattern for ids.
            rows: row numbers, a slice, a mask or a file.
            extend: add examples to categories that exist.
            aggregate: how examples are combined, "max" or "mean"; by default as calibrated.

        Returns:
            What was learnt.

        Raises:
            InvalidInputError: no row is chosen, a row has no label, or the rows are of another network.

        Examples:
            >>> classifier.adapt_store(store, split="train", classes=["dog"]).learnt
            {'dog': 10}
        """
        from predictor.classifier.photos import read_rows

        began = time.perf_counter()
        opened, numbers, values = read_rows(self, store, split, classes, path_glob, rows)
        labels = opened.labels[numbers]
        if not len(numbers) or (labels < 0).any():
            what = "no row" if not len(numbers) else "a row without a label"
            raise InvalidInputError(f"the examples chosen from {opened.path} hold {what}; choose labelled rows")
        examples = {opened.classes[label]: values[labels == label] for label in sorted(set(labels.tolist()))}
        return self._learn(examples, extend, aggregate, began)

    def _learn(
        self, examples: Mapping[str, Tensor], extend: bool, aggregate: Aggregate | None, began: float,
        unreadable: Mapping[str, str] | None = None, warnings: Sequence[str] = (),
    ) -> Adaptation:  # fmt: skip
        read = time.perf_counter()
        self.adapt_all(examples, extend, aggregate)
        _ = self.rows  # predicted here, so that the time says what learning costs
        took, said, names = 1e3 * (time.perf_counter() - read), list(warnings), self.categories
        if len(names) == 1:
            said.append(f"{names[0]!r} is the only category: an image is that or unknown; teach others to tell it from")
        if self.threshold is not None:
            said.append(LOOK_ALIKES)
        learnt = {name: len(rows) for name, rows in examples.items()}
        return Adaptation(learnt, dict(unreadable or {}), said, read - began, took)

    def remove(self, name: str) -> None:
        """Forget a category that was taught.

        Args:
            name: the category.

        Raises:
            InvalidInputError: it was not taught.
        """
        self._require_novel(name)
        del self.support[name]
        forget_display(self, name)
        self._forget_rows()

    def rename(self, name: str, new: str) -> None:
        """Give a taught category another name; it keeps its examples and the name that people are shown.

        Args:
            name: the category.
            new: its new name.

        Raises:
            InvalidInputError: it was not taught, or the new name is taken.
        """
        self._require_novel(name)
        if not isinstance(new, str) or not new or new in self.categories:
            raise InvalidInputError(f"cannot rename {name!r}: {new!r} is taken or no name")
        if not is_unicode(new):
            raise InvalidInputError(f"cannot rename {name!r}: {new!r} is not valid Unicode text")
        refuse_reserved(new)
        self.support = {new if key == name else key: rows for key, rows in self.support.items()}
        forget_display(self, name, new)

    def calibrate(self, novel_bias: float, aggregate: Aggregate | None = None) -> None:
        """Choose the constant on the novel scores by hand; what is taught later leaves it as it is.

        Args:
            novel_bias: the constant.
            aggregate: how examples are combined, "max" or "mean"; by default as before.
        """
        self.set_constant(novel_bias, aggregate)
        self.calibrations = None
        self.about.pop(KEEPS_KNOWN, None)

    def balance(self, aggregate: Aggregate | None = None) -> None:
        """Set the constant as it was calibrated for the present number of examples, or beside what the network knows.

        Without a calibration the constant stays as it is.

        Args:
            aggregate: how examples are combined, "max" or "mean"; by default as calibrated.
        """
        shots = self.typical_shots()
        fits = {} if self.calibrations is None else self.calibrations(shots)
        if fits:
            found, bias = fits[nearest_shots(fits, shots)]
            self.set_constant(bias, aggregate or found)
        elif aggregate is not None:
            self.set_constant(self.novel_bias, aggregate)
        if self.about.get(KEEPS_KNOWN) and self.support:
            self.set_constant(bias_beside_known(self))

    def typical_shots(self) -> int:
        """Give the median number of examples of the taught categories, or 1 where there is none."""
        return median_high(map(len, self.support.values())) if self.support else 1

    def restore(self, examples: Mapping[str, ArrayLike | Tensor], extend: bool = False) -> None:
        """Learn categories as they are in a file, whose names are not checked again.

        Args:
            examples: for each category its activations (n, dim).
            extend: add examples to categories that exist.
        """
        parsed = {name: parse_examples(name, given, self.dim) for name, given in examples.items()}
        for name in parsed:
            if name in self.base:
                raise InvalidInputError(f"{name!r} is a base category already; give the new category another name")
            if name in self.support and not extend:
                raise InvalidInputError(
                    f"category {name!r} exists already; extend it with more examples, remove it first, or choose "
                    "another name"
                )
        for name, rows in parsed.items():
            known = self.support.get(name)
            self.support[name] = rows if known is None else torch.cat([known, rows])
        self._forget_rows()

    def _require_novel(self, name: str) -> None:
        if name in self.base:
            raise InvalidInputError(f"{name!r} is a base category; only categories that were added can be changed")
        if name not in self.support:
            known = ", ".join(list(self.support)[:5]) or "none was added yet"
            raise InvalidInputError(f"no added category is named {name!r}; there are: {known}")
