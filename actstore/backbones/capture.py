"""Reading activations out of a network while it runs, one vector per image and layer."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from actstore.backbones.transform import Transform
from actstore.errors import InvalidInputError, reason_of

DEFAULT_LAYER = "activations"  # what the classifier reads, or the output where there is no classifier


@contextmanager
def capture(module: nn.Module, layers: Iterable[str], head: str | None) -> Iterator[dict[str, Tensor]]:
    """A dict that a forward pass within the context fills: layer -> (n, dim) float32.

    layers: names as in `named_modules()`, or DEFAULT_LAYER: the input of the classifier `head`, or the
    module's output where head is None. Of a module that runs several times per pass the last output counts.
    """
    outputs: dict[str, Tensor] = {}
    handles = []
    try:
        for layer in layers:
            # both hooks are called with the module and its inputs, the second with the output as well
            read = partial(_read_last, outputs, layer)
            if layer == DEFAULT_LAYER and head is not None:
                handles.append(module.get_submodule(head).register_forward_pre_hook(read))
            else:
                target = module if layer == DEFAULT_LAYER else module.get_submodule(layer)
                handles.append(target.register_forward_hook(read))
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def _read_last(outputs: dict[str, Tensor], layer: str, module: nn.Module, inputs: Any, *output: Any) -> None:
    outputs[layer] = pool(output[0] if output else inputs[0], layer)


def pool(output: Any, layer: str) -> Tensor:
    """(n, dim), (n, tokens, dim) or (n, dim, height, width) -> (n, dim) float32.

    Always a copy, and taken at once: an in-place ReLU that follows would change what the layer gave.
    """
    if isinstance(output, Tensor) and output.ndim == 2:
        return output.to(torch.float32, copy=True)
    if isinstance(output, Tensor) and output.ndim in (3, 4):
        return output.mean(1 if output.ndim == 3 else (2, 3), dtype=torch.float32)
    raise InvalidInputError(
        f"layer {layer!r} must give a tensor of 2, 3 or 4 dimensions, got {_described(output)}; "
        "choose another with --layer"
    )


def _described(output: Any) -> str:
    return f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"


def parse_layers(module: nn.Module, layers: Iterable[str]) -> tuple[str, ...]:
    """Known and distinct layer names; DEFAULT_LAYER where none is named."""
    known = [name for name, _ in module.named_modules() if name]
    names = tuple(dict.fromkeys(layers)) or (DEFAULT_LAYER,)
    for layer in names:
        if layer != DEFAULT_LAYER and layer not in known:
            close = difflib.get_close_matches(layer, known, n=5, cutoff=0.3) or known[:5]
            raise InvalidInputError(f"no layer {layer!r} in this backbone; close: {', '.join(close) or 'none'}")
    return names


def measure_layers(
    module: nn.Module, layers: tuple[str, ...], head: str | None, transform: Transform, name: str
) -> dict[str, int]:
    """layer -> dim, found by a pass over two black images."""
    images = torch.zeros(2, 3, transform.crop, transform.crop)
    with torch.no_grad(), capture(module, layers, head) as outputs:
        try:
            output = module(images)
        except (RuntimeError, TypeError, IndexError) as error:
            shape, reason = tuple(images.shape), reason_of(error)
            raise InvalidInputError(f"{name} cannot read images of shape {shape}: {reason}") from error
    # the output of a user's network is taken as it is: a feature map may mean more than its average
    is_output_read = DEFAULT_LAYER in layers and head is None
    if is_output_read and (not isinstance(output, Tensor) or output.ndim != 2):
        raise InvalidInputError(
            f"the output of {name} must be (n, dim), got {_described(output)}; name a layer with --layer"
        )
    for layer in layers:
        if layer not in outputs:
            raise InvalidInputError(f"layer {layer!r} of {name} takes no part in a forward pass; choose another")
        if len(outputs[layer]) != len(images):
            raise InvalidInputError(
                f"layer {layer!r} of {name} gives {len(outputs[layer])} rows for {len(images)} images"
            )
    return {layer: outputs[layer].shape[1] for layer in layers}
