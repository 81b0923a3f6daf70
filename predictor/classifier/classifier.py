"""A classifier that learns a category from its first example: from images, rows of a store, or activations."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from actstore.errors import InvalidInputError
from predictor.classifier.activation_classifier import ActivationClassifier
from predictor.classifier.photos import Photos, list_category, list_folder, list_images, read_photos, read_rows
from predictor.classifier.predictions import Adaptation, Predictions, predict_rows
from predictor.classifier.presentation import displays, read_displays, set_displays
from predictor.protocol.category_split import known_already
from predictor.protocol.method import Aggregate
from predictor.protocol.results import Table

if TYPE_CHECKING:
    from actstore import ActivationStore, Split
    from actstore.backbones.loading import Backbone
    from actstore.storage.place import Place
    from predictor.classifier.checking import Check
    from predictor.classifier.export import Agreement
    from predictor.classifier.starting import BaseLoss
    from predictor.protocol.category_split import CategorySplit
    from predictor.training.trained_phi import TrainedPhi

    Store = str | Path | Place | ActivationStore

FilePath = str | Path
OnError = Literal["fail", "skip"]
LOOK_ALIKES = (
    "`unknown` is for photos of something else; what looks like a category, such as another bird among birds, is "
    "mostly taken for it: teach such look-alikes as categories of their own"
)
SHOWN = 8  # categories that a classifier shows of itself


class Classifier(ActivationClassifier):
    """A classifier that learns new categories from a few examples each, without training.

    Make one with `from_backbone`, `from_phi` or `predictor.load_classifier`. Teach it with `adapt_folder`,
    `adapt_images` or `adapt`, and ask it with `predict_images` or `predict`.

    Attributes:
        backbone: the network, once it is loaded; it is not part of the file.
        base_split: rows of the base categories, where they are at hand.
        calibrations: a function from the number of examples to what calibration found: shots -> (aggregate, constant).

    Examples:
        >>> classifier.adapt("dog", train.of_class("dog")[:3])
        >>> classifier.categories
        ('ant', 'bee', 'cat', 'dog')
        >>> [answers[0][0] for answers in classifier.predict(val[:2])]
        ['ant', 'ant']
    """

    backbone: Backbone | None = None
    base_split: Split | None = None

    @classmethod
    def from_backbone(
        cls, backbone: str | None = None, *, weights: FilePath | None = None, keep_known: bool = False,
        store: Store | None = None, categories: CategorySplit | FilePath | None = None, head: FilePath | None = None,
        split: str = "train", pretrained: bool = False, offline: bool = False, progress: bool | None = None,
    ) -> Classifier:  # fmt: skip
        """Make a classifier of a pretrained network, without phi.

        With a store it knows the base categories of that store, by the network's own classifier; otherwise it knows
        nothing until it is taught.

        Args:
            backbone: a name such as "resnet50" or "efficientnet-lite0"; by default resnet50 where its weights are at
                hand or can be fetched, else efficientnet-lite0, which is installed.
            weights: the file of its weights.
            keep_known: keep the categories that the network knows, together with those to come.
            store: a store that the network made.
            categories: base and novel categories of the store, or their file; by default the first 90% of the names
                are the base.
            head: the file of the network's own classifier, where it is not inside of the network.
            split: the split of the store that has the base rows.
            pretrained: fetch the published weights of the named network.
            offline: fetch nothing.
            progress: None shows a bar on a terminal and in a notebook, False none, True logs a line every 20 seconds.

        Raises:
            InvalidInputError: weights are not found, or arguments exclude each other.

        Examples:
            >>> classifier = predictor.Classifier.from_backbone("efficientnet-lite0", offline=True)
            >>> classifier.dim, classifier.categories
            (1280, ())
        """
        from predictor.classifier.starting import from_network, from_own_classifier

        if store is not None:
            if backbone is not None or weights is not None or keep_known:
                raise InvalidInputError("a store names its own network: leave backbone, weights and keep_known out")
            return from_own_classifier(store, categories, head, split, progress)
        if categories is not None or head is not None:
            raise InvalidInputError("categories and head belong to a store")
        return from_network(backbone, weights, keep_known, pretrained, offline, progress)

    @classmethod
    def from_phi(
        cls, phi: FilePath | TrainedPhi, *, store: Store | None = None, split: str = "train",
        progress: bool | None = None,
    ) -> Classifier:  # fmt: skip
        """Make a classifier of a trained phi; it knows the base categories that phi was trained with.

        What calibration found on these rows is applied to all that is taught.

        Args:
            phi: a folder of `train_phi`, or what `train_phi` returned.
            store: by default the store that phi was trained on.
            split: the split of the store that has the base rows.
            progress: None shows a bar on a terminal and in a notebook, False none, True logs a line every 20 seconds.

        Examples:
            >>> predictor.Classifier.from_phi("phi1").categories
            ('ant', 'bee', 'cat')
        """
        from predictor.classifier.starting import from_trained_phi

        return from_trained_phi(phi, store, split, progress)

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
            progress: None shows a bar on a terminal and in a notebook, False none, True logs a line every 20 seconds.

        Returns:
            What was learnt, and what was left out.

        Raises:
            InvalidInputError: a category exists already, or none of its images can be read.
        """
        photos = list_folder(Path(folder), on_error)
        return self._adapt_photos(photos, extend, aggregate, on_error, weights, device, progress)

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
            progress: None shows a bar on a terminal and in a notebook, False none, True logs a line every 20 seconds.

        Returns:
            What was learnt, and what was left out.
        """
        photos = list_category(name, images)
        return self._adapt_photos(photos, extend, aggregate, on_error, weights, device, progress)

    def _adapt_photos(
        self, photos: Photos, extend: bool, aggregate: Aggregate | None, on_error: str, weights: FilePath | None,
        device: str, progress: bool | None,
    ) -> Adaptation:  # fmt: skip
        began = time.perf_counter()
        self._require_new(dict.fromkeys(item.label or "" for item in photos.items), extend)
        read = read_photos(self, photos, on_error, weights, device, progress)
        support = {name: rows for name, (rows, _) in read.by_label().items()}
        lost = list(dict.fromkeys(item.label for item in photos.items if item.label not in support))
        if lost and not support:
            raise InvalidInputError(f"category {lost[0]!r} has no example left: none of its images could be read")
        said = [*read.warnings, *(f"left out: category {name!r}, as none of its images could be read" for name in lost)]
        return self._learn(support, extend, aggregate, began, read.unreadable, said)

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
        said += known_already(self.base, list(examples))
        learnt = {name: len(rows) for name, rows in examples.items()}
        return Adaptation(learnt, dict(unreadable or {}), said, read - began, took)

    def display_names(self) -> dict[str, str]:
        """Give the names that people are shown instead of the category's own, such as tench for n01440764."""
        return displays(self)

    def set_display_names(self, names: Mapping[str, str] | FilePath) -> None:
        """Set the names that people are shown.

        Args:
            names: for each category its name to show, or a file of such names.
        """
        set_displays(self, names if isinstance(names, Mapping) else read_displays(Path(names)))

    def predict_images(
        self, images: FilePath | Sequence[FilePath], *, top: int = 5, only_mine: bool = False,
        on_error: OnError = "skip", weights: FilePath | None = None, device: str = "auto",
        progress: bool | None = None,
    ) -> Predictions:  # fmt: skip
        """Name the category of images, or say that it is unknown.

        Args:
            images: image files, or folders, all of whose images are taken.
            top: how many categories to name for each image.
            only_mine: choose among taught categories alone.
            on_error: "skip" images that cannot be read and name them in the result, or "fail".
            weights: the file of the network's weights, where it has moved.
            device: "cpu", "cuda", "cuda:1" or "auto".
            progress: None shows a bar on a terminal and in a notebook, False none, True logs a line every 20 seconds.

        Returns:
            A prediction with probabilities for each image.

        Raises:
            InvalidInputError: no image can be read, or the classifier knows no category yet.
        """
        photos = list_images(images, on_error)
        if not photos.items:
            raise InvalidInputError("no image is named")
        read = read_photos(self, photos, on_error, weights, device, progress)
        if not read.items:
            count = len(photos.items)
            first, reason = next(iter(read.unreadable.items()))
            what = "the image cannot" if count == 1 else f"none of the {count:,} images can"
            raise InvalidInputError(f"{what} be read: {first}: {reason}")
        names = [item.path.as_posix() for item in read.items]
        predictions = predict_rows(self, names, read.rows, top, only_mine)
        return Predictions(tuple(predictions), tuple(read.items), read.unreadable, read.warnings)

    def predict_store(
        self, store: Store, *, split: str | None = None, classes: Sequence[str] | None = None,
        path_glob: str | None = None, rows: Any = None, top: int = 5, only_mine: bool = False,
    ) -> Predictions:  # fmt: skip
        """Name the category of rows of a store that the same network made.

        Args:
            store: the store, or its path.
            split: name of the split, by default its only one.
            classes: names of classes; this and the next two choose rows as in `Split.query`.
            path_glob: a shell pattern for ids.
            rows: row numbers, a slice, a mask or a file.
            top: how many categories to name for each row.
            only_mine: choose among taught categories alone.

        Returns:
            A prediction with probabilities for each row.

        Examples:
            >>> len(classifier.predict_store(store, split="val", classes=["ant"]))
            5
        """
        opened, numbers, activations = read_rows(self, store, split, classes, path_glob, rows)
        names = [opened.ids[int(row)] for row in numbers]
        return Predictions(tuple(predict_rows(self, names, activations, top, only_mine)))

    def check(self) -> Check:
        """Classify each example of the taught categories by the other examples.

        Returns:
            Which examples are mistaken, and which categories look alike.

        Examples:
            >>> classifier.adapt_all({"dog": train.of_class("dog"), "eel": -train.of_class("ant")})
            >>> classifier.check().names
            ('dog', 'eel')
        """
        from predictor.classifier.checking import check_support

        return check_support(self)

    def check_folder(
        self, folder: FilePath, *, weights: FilePath | None = None, device: str = "auto", progress: bool | None = None
    ) -> Check:
        """Classify each photo of a folder by the other photos, before anything is taught.

        The photos go through this classifier's network. Photos that cannot be read are left out.

        Args:
            folder: a folder with a folder of images for each category.
            weights: the file of the network's weights, where it has moved.
            device: "cpu", "cuda", "cuda:1" or "auto".
            progress: None shows a bar on a terminal and in a notebook, False none, True logs a line every 20 seconds.

        Returns:
            Which photos are mistaken, and which categories look alike.
        """
        from predictor.classifier.checking import check_photos

        return check_photos(self, list_folder(Path(folder)), weights, device, progress)

    def save(self, path: FilePath) -> None:
        """Write the classifier with its examples to one file, which `predictor.load_classifier` opens.

        Args:
            path: the file, such as "classifier.safetensors".
        """
        from predictor.classifier.classifier_file import save_classifier

        save_classifier(path, self)

    def export_torch(self, path: FilePath) -> None:
        """Write a state dict for `nn.Linear(dim, rows)`.

        The names of the categories go to a .json file of the same name.

        Args:
            path: the file, such as "classifier.pt".
        """
        from predictor.classifier.export import export_torch

        self._require_categories()
        export_torch(self, Path(path))

    def export_onnx(
        self, path: FilePath, *, with_backbone: bool = False, check: FilePath | Sequence[FilePath] = (),
        weights: FilePath | None = None,
    ) -> float | Agreement:  # fmt: skip
        """Write an ONNX graph, and run it once to see that it gives the same answers.

        Its input is `activations` (n, dim) in float32, its outputs are `scores` and `probabilities` (n, categories).
        With the network it is `image` (height, width, 3) in uint8, RGB and of any size. Then there are also `names`,
        `top_probabilities` and `places` (1, 5) of the best five, and `familiarity` and `known` (1,) where the
        classifier has a threshold. The order of categories is in a .json file of the same name.

        Args:
            path: the file.
            with_backbone: put the network into the graph, so that it takes images instead of activations.
            check: images to compare answers on, with the network; without any, drawn images are used.
            weights: the file of the network's weights, where it has moved.

        Returns:
            The largest difference of a score; with the network an `Agreement` on images.
        """
        from predictor.classifier.export import export_onnx, export_with_network

        self._require_categories()
        if with_backbone:
            return export_with_network(self, Path(path), check, weights)
        if check:
            raise InvalidInputError("images are compared on a graph that reads them: say with_backbone=True")
        return export_onnx(self, Path(path))

    @property
    def has_base_rows(self) -> bool:
        """Whether the store of the base categories is where it was, so that `limit_base_loss` finds it."""
        from predictor.classifier.starting import find_base_split

        return find_base_split(self) is not None

    def limit_base_loss(self, percent: float, store: Store | None = None, split: str = "train") -> BaseLoss:
        """Choose the highest constant with which the base categories lose no more than a given part of their accuracy.

        Args:
            percent: points of top-1 accuracy that may be lost.
            store: a store with rows of the base categories, by default the one that the classifier was made with.
            split: the split of the store that has these rows.

        Returns:
            What the base categories lose, and what the constant is.
        """
        from predictor.classifier.starting import limit_base_loss

        return limit_base_loss(self, percent, store, split)

    def __repr__(self) -> str:
        return f"<Classifier: {'; '.join(self._described())}>"

    def _repr_html_(self) -> str:
        table = Table(
            ["taught", "examples"], [[name, f"{len(rows):,}"] for name, rows in self.support.items()]
        ).to_html()
        return f"<p><b>Classifier</b>: {escape('; '.join(self._described()))}</p>{table * bool(self.support)}"

    def _described(self) -> list[str]:
        """What it knows, its network, and where unknown begins."""
        taught = [f"{name} ({len(rows):,})" for name, rows in list(self.support.items())[:SHOWN]]
        more = len(self.support) - len(taught)
        parts = [f"{len(self.support):,} taught" + (f": {', '.join(taught)}" if taught else "") + ", …" * (more > 0)]
        parts += [f"{len(self.base):,} base categories"] if self.base else []
        network = self.about.get("network", {}).get("backbone")
        parts.append(f"{network or 'activations'} of dim {self.dim:,}")
        if self.categories and self.threshold is not None:
            parts.append(f"unknown below a familiarity of {self.threshold:.3f}")
        return parts
