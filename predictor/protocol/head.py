"""The classifier of the base categories, w_large^pt: read from where a training left it, put into a split's order."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from actstore.backbones.loading import Backbone
from actstore.backbones.weights import read_weights
from actstore.errors import InvalidInputError
from actstore.split import Split
from actstore.storage.tensor_file import save_tensors

# a network's file, a published EfficientNet's, or a file of the head alone
NAMES = (("fc.weight", "fc.bias"), ("_fc.weight", "_fc.bias"), ("weight", "bias"))


@dataclass(frozen=True)
class Head:
    """The last layer of a network, which scores the base categories.

    Attributes:
        weight: (classes, dim) in float32.
        bias: (classes,) in float32.
        classes: the name of each row, or None where they are not known.

    Raises:
        InvalidInputError: shapes do not fit together, or a value is not finite.

    Examples:
        >>> head = predictor.Head(torch.eye(3, 8), torch.zeros(3), ("ant", "bee", "cat"))
        >>> head.scores(torch.ones(5, 8)).shape
        torch.Size([5, 3])
    """

    weight: Tensor
    bias: Tensor
    classes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        rows = len(self.weight)
        if self.weight.ndim != 2 or self.bias.shape != (rows,):
            raise InvalidInputError(
                "a head must have a weight (n_class, dim) and a bias (n_class,), "
                f"got {tuple(self.weight.shape)} and {tuple(self.bias.shape)}"
            )
        if self.classes is not None and len(self.classes) != rows:
            raise InvalidInputError(f"a head of {rows} rows must name {rows} classes, got {len(self.classes)}")
        if not (torch.isfinite(self.weight).all() and torch.isfinite(self.bias).all()):
            raise InvalidInputError("the head's weights hold a NaN or an infinity; train it again")

    @property
    def dim(self) -> int:
        """The number of values in an activation."""
        return self.weight.shape[1]

    def scores(self, queries: Tensor) -> Tensor:
        """Score activations for every class.

        Args:
            queries: (n, dim).

        Returns:
            (n, classes).
        """
        return torch.addmm(self.bias.to(queries), queries, self.weight.to(queries).T)


def read_head(path: str | Path) -> Head:
    """Read the last layer of a network from a file.

    Args:
        path: weights of a network, a .safetensors file with `weight` and `bias`, or an .npz with `fc_weight` and
            `fc_bias` (and `classes`; with `base` too, those are the names of its rows).

    Raises:
        InvalidInputError: the file holds no such layer.
    """
    path = Path(path)
    found = _read_npz(path) if path.suffix == ".npz" else _read_network(path)
    try:
        return Head(*found)
    except InvalidInputError as error:
        raise InvalidInputError(f"{path}: {error}") from None


Parts = tuple[Tensor, Tensor, tuple[str, ...] | None]  # of a head


def _read_network(path: Path) -> Parts:
    weights = read_weights(path)
    for weight, bias in NAMES:
        if (matrix := weights.tensors.get(weight)) is not None and matrix.ndim == 2:
            return matrix.float(), weights.tensors.get(bias, torch.zeros(len(matrix))).float(), weights.classes
    raise InvalidInputError(f"{path} holds no classifier: expected fc.weight or weight, of shape (n_class, dim)")


def _read_npz(path: Path) -> Parts:
    if not path.is_file():
        raise InvalidInputError(f"no head file at {path}")
    try:
        # reads only the arrays it is asked for; numpy would not close what is no archive
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            if missing := [name for name in ("fc_weight", "fc_bias") if name not in file.files]:
                raise InvalidInputError(f"{path} has no array {missing[0]!r}; it has {', '.join(file.files)}")
            weight, bias = (torch.from_numpy(file[name].astype(np.float32)) for name in ("fc_weight", "fc_bias"))
            names = [str(name) for name in file["classes"]] if "classes" in file.files else None
            base = file["base"].tolist() if "base" in file.files else None
    except InvalidInputError:
        raise
    except (OSError, ValueError, EOFError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise InvalidInputError(f"{path} is damaged or no .npz file of numbers") from error
    if names is not None and base is not None:
        if any(not 0 <= place < len(names) for place in base):
            raise InvalidInputError(f"`base` of {path} must be places in its {len(names)} classes")
        names = [names[place] for place in base]
    return weight, bias, None if names is None else tuple(names)


def head_of(backbone: Backbone) -> Head:
    """The classifier inside of a network that was loaded, with the names of what it was trained on where they are
    known."""
    layer = None if backbone.head is None else backbone.module.get_submodule(backbone.head)
    if not isinstance(layer, nn.Linear):
        raise InvalidInputError(
            f"{backbone.name} has no linear classifier of its own whose categories could be kept; leave them out"
        )
    weight, bias = layer.weight.detach(), layer.bias
    return Head(weight, torch.zeros(len(weight)) if bias is None else bias.detach(), backbone.trained_classes)


def read_own_head(train: Split, base: Sequence[str], path: str | Path | None = None) -> Head:
    """Read the network's own classifier of the base categories, in their order.

    Args:
        train: a split that the network made.
        base: the base categories.
        path: the file of the classifier; by default it is taken from the network that the store names.

    Raises:
        InvalidInputError: the store names no network, or the classifier lacks a category.
    """
    from actstore.extraction.forward import load_recorded, network_of

    record = network_of(train)
    if path is None and not record.get("backbone"):
        raise InvalidInputError(
            f"{train.store_path} names no network whose classifier could be taken: say where it is with --head"
        )
    head = head_of(load_recorded(record)) if path is None else read_head(Path(path))
    return head_for(head, base, train.dim)


def write_head(path: Path, head: Head) -> None:
    """A .safetensors file that `read_head` reads back."""
    metadata = {} if head.classes is None else {"classes": json.dumps(list(head.classes), ensure_ascii=False)}
    save_tensors(path, {"weight": head.weight, "bias": head.bias}, metadata)


def head_for(head: Head, base: Sequence[str], dim: int) -> Head:
    """The rows of the base categories, in their order. A head without names is taken to be in that order already."""
    if head.dim != dim:
        raise InvalidInputError(f"the head reads activations of dim {head.dim}, the store's have {dim}; choose another")
    if head.classes is None:
        if len(head.weight) != len(base):
            raise InvalidInputError(
                f"the head has {len(head.weight)} rows without names, the split {len(base)} base classes; "
                "they must be the same"
            )
        return Head(head.weight, head.bias, tuple(base))
    place = {name: row for row, name in enumerate(head.classes)}
    if missing := [name for name in base if name not in place]:
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise InvalidInputError(
            f"the head has no row for base class {missing[0]!r}{more}; choose the head that was trained on this split"
        )
    rows = torch.tensor([place[name] for name in base])
    return Head(head.weight[rows], head.bias[rows], tuple(base))
