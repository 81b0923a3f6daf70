"""A map of rows: every row a point on a plane, near those it is like, on one HTML page that needs no network.

making.py       `actstore.map`: which rows, their exact neighbours, and the `Map` that is saved, as a page or as Parquet
layout.py       positions by UMAP on the graph of neighbours, or by PCA
colouring.py    what points can be coloured by: classes and columns, as codes or numbers; colours that differ
thumbnails.py   images of rows in sheets, as the page shows them
packing.py      all of it as bytes and text inside of the page; the page itself is in page/

Imports the store, analysis and images.
"""

from __future__ import annotations

from actstore.maps.colouring import require_scale
from actstore.maps.layout import METHODS
from actstore.maps.making import DEFAULT_POINTS, MOST_POINTS, Map, map
from actstore.maps.thumbnails import DEFAULT_THUMBNAILS

__all__ = ["DEFAULT_POINTS", "DEFAULT_THUMBNAILS", "METHODS", "MOST_POINTS", "Map", "map", "require_scale"]
