"""A classifier that learns a category from its first example: from images, rows of a store, or activations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from numpy.typing import ArrayLike
from torch import Tensor

from actstore.errors import InvalidInputError
from predictor.classifier.activation_classifier import ActivationClassifier
from predictor.protocol.method import Aggregate

if TYPE_CHECKING:
    from actstore import ActivationStore, Split
    from actstore.backbones.loading import Backbone
    from actstore.storage.place import Place
    from predictor.classifier.base_rows import BaseLoss
    from predictor.classifier.checking import Check
    from predictor.classifier.export_images import Agreement
    from predictor.classifier.learning import Adaptation
    from predictor.classifier.predictions import Predictions
    from predictor.protocol.category_split import CategorySplit
    from predictor.training.trained_phi import TrainedPhi

    Store = str | Path | Place | ActivationStore

KEEPS_KNOWN = "beside_known"  # in `about`: the constant is fitted anew with all that is learnt, until one is chosen
SHOWN = 8  # categories that a classifier shows of itself
FilePath = str | Path
OnError = Literal["fail", "skip"]


class Classifier(ActivationClassifier):
    """Base categories with parameters of their own, and novel ones learnt from a few examples each.

    Make one with `from_backbone`, `from_phi` or `predictor.load_classifier`, teach it with `adapt_folder`,
    `adapt_images` or `adapt`, ask it with `predict_images` or `predict`.

    backbone, base_split, calibrations: what is at hand where it was made, and is not in its file: the network, rows of
    the base categories, and what calibration found for a number of examples, shots -> (aggregate, novel bias).
    """

    backbone: Backbone | None = None
    base_split: Split | None = None
    calibrations: Callable[[int], Mapping[int, tuple[Aggregate, float]]] | None = None

    @classmethod
    def from_backbone(
        cls, backbone: str | None = None, *, weights: FilePath | None = None, keep_known: bool = False,
        store: Store | None = None, categories: CategorySplit | FilePath | None = None, head: FilePath | None = None,
        split: str = "train", pretrained: bool = False, offline: bool = False, progress: bool | None = None,
    ) -> Classifier:  # fmt: skip
        """From a pretrained network, without phi; it knows nothing yet.

        backbone: such as "resnet50" or "efficientnet-lite0"; by default resnet50 if it is at hand or can be fetched,
        else efficientnet-lite0. weights: its file, where it brings none. keep_known: what the network knows is kept
        beside the new categories. pretrained: fetch its published weights; offline: fetch nothing.

        store: the own classifier of the network that made this store, for its base categories, which are then known;
        `categories` says which they are (by default the first 90% by name), `head` where the classifier lies, where it
        is not in the network.
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
        """From a phi that was trained, and the base categories of its store, which are known. What calibration found
        is applied to all that is learnt.

        phi: a folder of `train_phi`, or what it returned. store: by default the one that phi was trained on.
        """
        from predictor.classifier.starting import from_trained_phi

        return from_trained_phi(phi, store, split, progress)

    def adapt_all(
        self, examples: Mapping[str, ArrayLike | Tensor], extend: bool = False, aggregate: Aggregate | None = None
    ) -> None:
        """Learn many categories at once; they may have different numbers of examples. All or none are added.

        The constant between base and taught categories follows, as it was calibrated; see `calibrate`. aggregate: how
        a category's examples are combined, by default as calibrated.
        """
        super().adapt_all(examples, extend)
        self.balance(aggregate)

    def adapt_folder(
        self, folder: FilePath, *, extend: bool = False, aggregate: Aggregate | None = None,
        on_error: OnError = "fail", weights: FilePath | None = None, device: str = "auto",
        progress: bool | None = None,
    ) -> Adaptation:  # fmt: skip
        """Learn from FOLDER/CATEGORY/*.jpg, one to many images of each; returns what was learnt and what was left out.

        extend: add to categories that are there. on_error: what to do with an image that cannot be read. weights: of
        the network, where they have moved.
        """
        from predictor.classifier.learning import adapt_photos
        from predictor.classifier.photos import list_folder

        photos = list_folder(Path(folder))
        return adapt_photos(self, photos, extend, aggregate, on_error, weights, device, progress)

    def adapt_images(
        self, name: str, images: FilePath | Sequence[FilePath], *, extend: bool = False,
        aggregate: Aggregate | None = None, on_error: OnError = "fail", weights: FilePath | None = None,
        device: str = "auto", progress: bool | None = None,
    ) -> Adaptation:  # fmt: skip
        """Learn one category from image files, or from all images of a folder; otherwise as `adapt_folder`."""
        from predictor.classifier.learning import adapt_photos
        from predictor.classifier.photos import list_category

        photos = list_category(name, images)
        return adapt_photos(self, photos, extend, aggregate, on_error, weights, device, progress)

    def adapt_store(
        self, store: Store, *, split: str | None = None, classes: Sequence[str] | None = None,
        path_glob: str | None = None, rows: Any = None, extend: bool = False, aggregate: Aggregate | None = None,
    ) -> Adaptation:  # fmt: skip
        """Learn from labelled rows of a store of the same network; see `Split.query` for what chooses rows."""
        from predictor.classifier.learning import adapt_store

        return adapt_store(self, store, split, classes, path_glob, rows, extend, aggregate)

    def remove(self, name: str) -> None:
        """Forget a category that was taught, and what it was shown as."""
        from predictor.classifier.display_names import forget_display

        super().remove(name)
        forget_display(self, name)

    def rename(self, name: str, new: str) -> None:
        """It keeps its examples, and what it is shown as."""
        from predictor.classifier.display_names import forget_display

        super().rename(name, new)
        forget_display(self, name, new)

    def display_names(self) -> dict[str, str]:
        """Of every category that is shown otherwise than it is called, such as n01440764 as tench."""
        from predictor.classifier.display_names import displays

        return displays(self)

    def set_display_names(self, names: Mapping[str, str] | FilePath) -> None:
        """Category -> what it is shown as; nothing takes a display name away. A path: a file of such names."""
        from predictor.classifier.display_names import read_displays, set_displays

        set_displays(self, names if isinstance(names, Mapping) else read_displays(Path(names)))

    def predict_images(
        self, images: FilePath | Sequence[FilePath], *, top: int = 5, only_mine: bool = False,
        on_error: OnError = "skip", weights: FilePath | None = None, device: str = "auto",
        progress: bool | None = None,
    ) -> Predictions:  # fmt: skip
        """What image files, or all images of folders, are taken for: a category, or unknown, with probabilities.

        only_mine: among taught categories alone. on_error: an image that cannot be read is left out and named in the
        result, or is an error.
        """
        from predictor.classifier.predictions import predict_images

        return predict_images(self, images, top, only_mine, on_error, weights, device, progress)

    def predict_store(
        self, store: Store, *, split: str | None = None, classes: Sequence[str] | None = None,
        path_glob: str | None = None, rows: Any = None, top: int = 5, only_mine: bool = False,
    ) -> Predictions:  # fmt: skip
        """The same of rows of a store of the same network; see `Split.query` for what chooses rows."""
        from predictor.classifier.predictions import predict_store

        return predict_store(self, store, split, classes, path_glob, rows, top, only_mine)

    def check(self) -> Check:
        """Each example of what was taught, classified by the others: what goes wrong, and which categories look
        alike."""
        from predictor.classifier.checking import check_support

        return check_support(self)

    def check_folder(
        self, folder: FilePath, *, weights: FilePath | None = None, device: str = "auto", progress: bool | None = None
    ) -> Check:
        """The same of FOLDER/CATEGORY/*.jpg through this classifier's network: a check before anything is learnt.
        Images that cannot be read are left out."""
        from predictor.classifier.checking import check_photos
        from predictor.classifier.photos import list_folder

        return check_photos(self, list_folder(Path(folder)), weights, device, progress)

    def save(self, path: FilePath) -> None:
        """One file, which `predictor.load_classifier` opens."""
        from predictor.classifier.classifier_file import save_classifier

        save_classifier(path, self)

    def export_torch(self, path: FilePath) -> None:
        """A state dict for `nn.Linear(dim, rows)`, and a .json of the category names beside it."""
        from predictor.classifier.export import export_torch

        export_torch(self, Path(path))

    def export_onnx(
        self, path: FilePath, *, with_backbone: bool = False, check: FilePath | Sequence[FilePath] = (),
        weights: FilePath | None = None,
    ) -> float | Agreement:  # fmt: skip
        """An ONNX graph of activations, checked with onnxruntime; returns the largest difference of a score.

        with_backbone: a graph of images instead, which has the network inside; returns how far it agrees with this
        library on drawn images, or on those of `check`.
        """
        from predictor.classifier.export import export_onnx

        if with_backbone:
            from predictor.classifier.export_images import export_with_network

            return export_with_network(self, Path(path), check, weights)
        return export_onnx(self, Path(path))

    def calibrate(self, novel_bias: float, aggregate: Aggregate | None = None) -> None:
        """Choose the constant on the novel scores by hand, and how several examples of a category are put together:
        what is learnt later leaves it as it is."""
        self.set_constant(novel_bias, aggregate)
        self.calibrations = None
        self.about.pop(KEEPS_KNOWN, None)

    def balance(self, aggregate: Aggregate | None = None) -> None:
        """The constant as it was calibrated for so many examples, or beside what the network knows; else as it is."""
        from predictor.classifier.learning import balance

        balance(self, aggregate)

    @property
    def has_base_rows(self) -> bool:
        """Whether the store of the base categories is where it was, so that `limit_base_loss` finds it."""
        from predictor.classifier.base_rows import find_base_split

        return find_base_split(self) is not None

    def limit_base_loss(self, percent: float, store: Store | None = None, split: str = "train") -> BaseLoss:
        """Choose the highest constant with which the base categories lose at most so many points of their top-1.

        store: with rows of the base categories; by default the one that the classifier was made with."""
        from predictor.classifier.base_rows import limit_base_loss

        return limit_base_loss(self, percent, store, split)

    def __repr__(self) -> str:
        return f"<Classifier: {'; '.join(self._described())}>"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{escape(name)}</td><td>{len(rows):,}</td></tr>" for name, rows in self.support.items())
        table = f"<table><thead><tr><th>taught</th><th>examples</th></tr></thead><tbody>{rows}</tbody></table>"
        return f"<p><b>Classifier</b>: {escape('; '.join(self._described()))}</p>{table if self.support else ''}"

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
