"""Which categories have much data (C_large), which are to be learnt from a few examples (C_few), and whether two names
mean the same one: by WordNet's id, by English name, by synonym. `014.Indigo_Bunting` of a folder is `n01537544` of a
network that was trained on ImageNet.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from actstore.errors import DamagedError, InvalidInputError, reason_of
from actstore.storage.atomic_file import FIELD, check_checksum, with_checksum, write_atomic

if TYPE_CHECKING:
    from actstore import ActivationStore

PARTS = ("base", "novel", "validation")


@dataclass(frozen=True, repr=False)
class CategorySplit:
    """Which categories are base and which are novel: disjoint sets of names, each in an order of its own.

    Attributes:
        base: the base categories (C_large), in the order of the classifier's rows.
        novel: the novel categories (C_few).
        validation: novel categories to choose settings on; the network sees neither these nor the novel ones.

    Raises:
        InvalidInputError: a name is in two parts, or there is no base category.

    Examples:
        >>> predictor.CategorySplit(base=("ant", "bee", "cat"), novel=("dog",))
        CategorySplit(3 base (ant … cat), 1 novel categories)
    """

    base: tuple[str, ...]
    novel: tuple[str, ...] = ()
    validation: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        seen: dict[str, str] = {}
        for part in PARTS:
            names = _parse_names(part, getattr(self, part))
            object.__setattr__(self, part, names)
            for name in names:
                if name in seen:
                    where = f"twice in {part}" if seen[name] == part else f"both in {seen[name]} and in {part}"
                    raise InvalidInputError(f"class {name!r} is {where}; a class belongs to one part, once")
                seen[name] = part
        if not self.base:
            raise InvalidInputError("a split needs at least one base class, got none")

    def require_known(self, names: Iterable[str], parts: Sequence[str] = PARTS) -> None:
        """Refuse the split if it names categories that are not at hand.

        Args:
            names: the categories at hand.
            parts: which parts must be among them: some of "base", "novel" and "validation".

        Raises:
            InvalidInputError: a category of these parts is missing.
        """
        known = set(names)
        for part in parts:
            unknown = [name for name in getattr(self, part) if name not in known]
            if unknown:
                more = f" and {len(unknown) - 1:,} more" if len(unknown) > 1 else ""
                raise InvalidInputError(
                    f"{part} class {unknown[0]!r}{more} of the split is not among the {len(known):,} classes at hand"
                    f"{f', such as {min(known)!r}' if known else ''}; choose the split that belongs to them"
                )

    def save(self, path: str | Path) -> None:
        """Write a JSON file that `read_split` reads back.

        Args:
            path: the file.

        Examples:
            >>> split.save("split.json")
            >>> predictor.read_split("split.json") == split
            True
        """
        write_atomic(Path(path), json.dumps(with_checksum(self.to_json()), indent=1, ensure_ascii=False).encode())

    def __repr__(self) -> str:
        held = f", {len(self.validation):,} validation" if self.validation else ""
        first = f"{self.base[0]} … {self.base[-1]}"
        return f"CategorySplit({len(self.base):,} base ({first}), {len(self.novel):,} novel{held} categories)"

    def hold_out(self, names: Iterable[str]) -> Self:
        """Turn base categories into validation categories.

        Args:
            names: base categories, such as the 16 that the usual split of mini-ImageNet validates on.

        Returns:
            Another split.

        Raises:
            InvalidInputError: a name is not a base category.

        Examples:
            >>> split.hold_out(["bee"]).validation
            ('bee',)
        """
        moved = tuple(names)
        if left := [name for name in moved if name not in set(self.base)]:
            raise InvalidInputError(f"only base classes can be held out for validation, {left[0]!r} is none")
        kept = tuple(name for name in self.base if name not in set(moved))
        return type(self)(kept, self.novel, self.validation + moved)

    def to_json(self) -> dict[str, list[str]]:
        """Give the names as lists, by part."""
        return {part: list(getattr(self, part)) for part in PARTS}

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Make a split of what `to_json` gives.

        Other keys are passed over, such as those of the published mini-ImageNet split.

        Args:
            data: a dictionary with lists `base`, `novel` and `validation`. `classes`, a list of all names, is checked
                if it is there.
        """
        if not isinstance(data, Mapping) or "base" not in data:
            found = f"keys {', '.join(map(str, data))}" if isinstance(data, Mapping) else type(data).__name__
            raise InvalidInputError(f"expected a JSON object with lists base, novel and validation, got {found}")
        split = cls(data["base"], data.get("novel", ()), data.get("validation", ()))
        if "classes" in data:
            split.require_known(_parse_names("classes", data["classes"]))
        return split


def split_categories(
    source: ActivationStore | Iterable[str] | str | Path,
    novel: float = 0.1,
    validation: float = 0.0,
    seed: int | None = None,
) -> CategorySplit:
    """Choose the base and novel categories of a store.

    Categories are taken in alphabetical order, as in the paper: the first are the base, then come those for validation
    and the novel ones.

    Args:
        source: a store, its path, or names of classes.
        novel: share of novel categories.
        validation: share of categories to choose settings on.
        seed: draws the categories at random instead.

    Raises:
        InvalidInputError: the shares are above 1 together, or a name occurs twice.

    Examples:
        >>> predictor.split_categories(["ant", "bee", "cat", "dog"], novel=0.25)
        CategorySplit(3 base (ant … cat), 1 novel categories)
    """
    if isinstance(source, str | PathLike):
        import actstore

        source = actstore.open(source)
    ordered = sorted(getattr(source, "classes", source))
    if not ordered:
        raise InvalidInputError("no class names to split")
    if double := next((name for name, after in pairwise(ordered) if name == after), None):
        raise InvalidInputError(f"class {double!r} is named twice; class names must be distinct")
    if not all(0 <= share <= 1 for share in (novel, validation, novel + validation)):  # nor NaN
        raise InvalidInputError(
            f"shares must be between 0 and 1, and at most 1 together, got {novel:g} and {validation:g}"
        )
    count, held = len(ordered), round(len(ordered) * validation)
    base = max(0, round(count * (1 - novel)) - held)
    if seed is not None:
        if seed < 0:
            raise InvalidInputError(f"expected a seed of 0 or more, got {seed}")
        base = round(count * (1 - novel - validation))
        ordered = [ordered[place] for place in np.random.default_rng([seed]).permutation(count)]
    parts = ordered[:base], ordered[base + held :], ordered[base : base + held]
    return CategorySplit(*(tuple(sorted(part)) for part in parts))


def alphabetical_split(names: Iterable[str], base_share: float = 0.9) -> CategorySplit:
    """The paper's: of 1000 classes in alphabetical order the first 900 are the base."""
    return split_categories(names, 1 - base_share)


def read_split(path: str | Path) -> CategorySplit:
    """Read base and novel categories from a JSON file.

    Args:
        path: a file that `CategorySplit.save` wrote, or the published split of mini-ImageNet.

    Raises:
        InvalidInputError: there is no such file, or it is not a split.
        DamagedError: the file does not match its checksum.
    """
    path = Path(path)
    try:
        data = json.loads(path.read_text("utf-8-sig"))
    except FileNotFoundError:
        raise InvalidInputError(f"no split file at {path}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"{path} must be a JSON file of class names: {reason_of(error)}") from error
    try:
        data = check_checksum(data) if isinstance(data, Mapping) else data
    except ValueError as error:
        raise DamagedError(
            f"{path} is damaged, or was edited ({error}); make it again with `ppa split`, or take its line "
            f"{FIELD!r} out if its names are as you want them"
        ) from error
    try:
        return CategorySplit.from_json(data)
    except InvalidInputError as error:
        raise InvalidInputError(f"{path}: {error}") from None


def as_categories(given: Any) -> CategorySplit:
    """A split, or the file of one."""
    if isinstance(given, str | PathLike):
        return read_split(Path(given))
    if not isinstance(given, CategorySplit):
        raise InvalidInputError(
            f"base and novel categories must be a CategorySplit or its file, got {type(given).__name__}; make one with "
            "predictor.split_categories(store) or predictor.CategorySplit(base, novel)"
        )
    return given


def _parse_names(part: str, names: Any) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InvalidInputError(f"{part} must be a list of class names, got {names!r:.80}")
    parsed = tuple(names)
    if wrong := [name for name in parsed if not isinstance(name, str) or not name]:
        raise InvalidInputError(f"{part} must be a list of class names, got {wrong[0]!r:.80} in it")
    return parsed


WNID = re.compile(r"n\d{8}")
# ImageNet's name -> others for the same category, as common data sets write them
SYNONYMS = {
    "african elephant": "elephant", "airliner": "airplane, aeroplane", "american staffordshire terrier": "pit bull",
    "ambulance": "ambulance car", "basset": "basset hound", "beach wagon": "wagon, station wagon, estate car",
    "bee": "honeybee", "brambling": "bramblefinch",
    "broccoli": "broccoli floret", "cab": "taxi, taxicab", "cellular telephone": "cell phone, mobile phone, smartphone",
    "chain saw": "chainsaw", "cock": "rooster", "computer keyboard": "keyboard", "electric guitar": "guitar electric",
    "egyptian cat": "egyptian mau", "european gallinule": "purple swamphen", "french bulldog": "frenchie",
    "german short haired pointer": "german shorthaired", "giant panda": "panda", "great white shark": "white shark",
    "great pyrenees": "pyrenean mountain dog", "hen": "chicken", "house finch": "linnet",
    "indigo bunting": "indigo bird, indigo finch", "japanese spaniel": "japanese chin", "jeep": "landrover",
    "jersey": "t shirt, tee shirt", "junco": "snowbird", "laptop": "laptop computer, notebook computer",
    "lesser panda": "red panda", "minivan": "mini van", "moped": "scooter", "mountain bike": "bicycle",
    "persian cat": "persian", "pickup": "pickup truck, crew cab, extended cab, regular cab, club cab, supercab",
    "police van": "paddy wagon", "ptarmigan": "grouse ptarmigan", "ruddy turnstone": "turnstone ruddy",
    "scotch terrier": "scottish terrier", "siamese cat": "siamese",
    "soft coated wheaten terrier": "wheaten terrier", "sports car": "sportscar", "staffordshire bullterrier":
    "staffordshire bull terrier", "tabby": "tabby cat", "timber wolf": "grey wolf, gray wolf",
    "trolleybus": "trolley bus", "warplane": "fighter jet, military plane", "water ouzel": "dipper",
}  # fmt: skip


@dataclass(frozen=True)
class Compared:
    """same: category -> the trained one that it is. kinds: category -> the trained one that its name says it is a kind
    of, as a blue jay is a jay. unknown: those whose names are of another vocabulary than the network's."""

    same: dict[str, str]
    kinds: dict[str, str]
    unknown: tuple[str, ...]


def compare_names(names: Sequence[str], trained: Sequence[str], vocabulary: Collection[str]) -> Compared:
    """Categories with those that a network was trained on. vocabulary: all classes of the store; where the network's
    are among them, both use the same words, and a name that is not there is another category."""
    is_shared = not trained or not set(trained).isdisjoint(vocabulary)
    has_wnids = any(WNID.fullmatch(name) for name in trained)
    known = {english: name for name in trained for english in reversed(english_names(name))}
    same, kinds, unknown = dict[str, str](), dict[str, str](), list[str]()
    exact = set(trained)
    for name in names:
        meant = [known[english] for english in english_names(name) if english in known]
        if name in exact or meant:
            same[name] = name if name in exact else meant[0]
        elif is_shared or (has_wnids and WNID.fullmatch(name)):
            continue
        elif (wider := _wider(name, known)) is not None:
            kinds[name] = known[wider]
        else:
            unknown.append(name)
    return Compared(same, kinds, tuple(unknown))


def known_already(known: Sequence[str], taught: Iterable[str]) -> list[str]:
    """A line for each taught category that means one of these in plain English."""
    by_english = {english: name for name in known for english in english_names(name)}
    found = {name: by_english[english] for name in taught for english in english_names(name) if english in by_english}
    return [
        f"WARNING: {name!r} seems to be known already, as {other!r}: both compete for its photos"
        for name, other in found.items()
        if name != other
    ]


@cache
def english_names(name: str) -> tuple[str, ...]:
    """In lower case without numbers before it, underscores or hyphens, and with its synonyms."""
    from actstore.backbones.network import imagenet_names

    words = _plain(imagenet_names().get(name, name))
    others = [_plain(other) for other in SYNONYMS.get(words, "").split(",") if other]
    return (words, *others)


def _plain(name: str) -> str:
    text = re.sub(r"^\d+[\W_]+", "", name.lower()).replace("'", "")
    return " ".join(re.sub(r"[\W_]+", " ", text).split())


def _wider(name: str, known: Collection[str]) -> str | None:
    """The name of a known category that this name ends with, but for a year, as that of a car: the longest."""
    words = re.sub(r" (19|20)\d\d$", "", english_names(name)[0]).split()
    return next((end for first in range(1, len(words)) if (end := " ".join(words[first:])) in known), None)
