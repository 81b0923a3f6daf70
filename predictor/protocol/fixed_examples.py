"""Examples that a file lists, as published lists of few-shot class-incremental learning do, in place of drawn ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from actstore.errors import InvalidInputError
from actstore.split import Split
from predictor.protocol.rows import rows_of


def read_examples(path: Path, train: Split, novel: Sequence[str], shots: int) -> tuple[tuple[int, ...], ...]:
    """Of each novel category the rows of its first `shots` images in the file.

    path: of a text file with the path of an image in each line, whatever follows a comma left out. Images are known by
    their file names and the folders that hold them, or, if that finds none, by their file names alone, wherever they
    lay; lines of images that are of no novel category, such as those of the base, are passed over.
    """
    rows, places = rows_of(train, novel)
    known: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row, place in zip(rows.tolist(), places.tolist(), strict=True):
        for name in dict.fromkeys(last_parts(train.ids[row], parts) for parts in (1, 2)):
            known[name].append((row, place))
    shown: dict[int, list[int]] = defaultdict(list)
    names = read_names(path)
    parts = 2 if any("/" in (last := last_parts(name, 2)) and last in known for name in names) else 1
    for name in names:
        found = known.get(last_parts(name, parts), [])
        if len(found) > 1:
            raise InvalidInputError(
                f"{path} names {name}, and {train.path} has {len(found)} images of that name; give their folders too"
            )
        for row, place in found:
            if row not in shown[place]:
                shown[place].append(row)
    for place, category in enumerate(novel):
        if len(shown[place]) < shots:
            raise InvalidInputError(
                f"{path} must list {shots} images of {category!r} that are in {train.path}, it lists "
                f"{len(shown[place])}; add some, or ask for fewer --shots"
            )
    return tuple(tuple(shown[place][:shots]) for place in range(len(novel)))


def read_names(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{path} must be a text file with a path in each line: {error}") from error
    return [line.partition(",")[0].strip() for line in lines if line.strip()]


def last_parts(path: str, count: int) -> str:
    return "/".join(path.replace("\\", "/").split("/")[-count:])
