"""Image files that are copies of each other."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence

from actstore.errors import UnreadableImageError
from actstore.images.image_set import ImageItem, read_bytes


def same_bytes(items: Sequence[ImageItem]) -> list[list[ImageItem]]:
    """Groups of two and more with the same bytes, in order. Files that cannot be read or are empty are in none: why
    is said when they are decoded."""
    by_size: dict[int, list[ImageItem]] = defaultdict(list)
    for item in items:
        by_size[_size(item)].append(item)
    groups: dict[tuple[int, str], list[ImageItem]] = defaultdict(list)
    for size, alike in by_size.items():
        if size > 0 and len(alike) > 1:  # only these are read
            for item in alike:
                try:
                    groups[size, hashlib.sha256(read_bytes(item)).hexdigest()].append(item)
                except UnreadableImageError:
                    continue
    order = {item: place for place, item in enumerate(items)}
    found = [group for group in groups.values() if len(group) > 1]
    return sorted(found, key=lambda group: order[group[0]])


def _size(item: ImageItem) -> int:
    try:
        return item.path.stat().st_size if item.offset < 0 else item.size
    except OSError:
        return 0
