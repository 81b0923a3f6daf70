"""A map of rows: every row a point on a plane, near those it is like, on one HTML page that needs no network.

making.py       `actstore.map`: which rows, their exact neighbours, positions by UMAP or PCA, and the `Map` to save
packing.py      what points can be coloured by; all of it and the images of rows as bytes and text inside of the page,
                which is in page/

Imports the store, analysis and images.
"""

from __future__ import annotations

from actstore.maps.making import DEFAULT_POINTS, METHODS, MOST_POINTS, Map, map
from actstore.maps.packing import DEFAULT_THUMBNAILS, require_scale

__all__ = ["DEFAULT_POINTS", "DEFAULT_THUMBNAILS", "METHODS", "MOST_POINTS", "Map", "map", "require_scale"]
