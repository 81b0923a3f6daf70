"""Where images come from: class folders, tars, lists, ILSVRC's layout, drawn glyphs; and how they are decoded.

Imports `tables` and what stands above it. What others may use is in `__all__`.
"""

from __future__ import annotations

from actstore.images.glyphs import write_glyphs
from actstore.images.image_set import classes_train_lacks, lacks_text
from actstore.images.opening import open_images

__all__ = ["classes_train_lacks", "lacks_text", "open_images", "write_glyphs"]
