"""Images through a network into a store, here or on a cluster; the network that made a store, for new images.

Imports `backbones`, `images` and what stands above them. What others may use is in `__all__`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actstore.lazy import lazily

if TYPE_CHECKING:
    from actstore.extraction.forward import embed_images
    from actstore.extraction.from_images import choose_network, load_network

__all__ = ["choose_network", "embed_images", "load_network"]

# Loaded on first use: from_images builds stores, which needs zarr.
__getattr__, __dir__ = lazily(__name__)
