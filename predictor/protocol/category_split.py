"""Which categories have much data (C_large), and which are to be learnt from a few examples (C_few)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
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
    source: ActivationStore | Iterable[str], novel: float = 0.1, validation: float = 0.0, seed: int | None = None
) -> CategorySplit:
    """Choose the base and novel categories of a store.

    Categories are taken in alphabetical order, as in the paper: the first are the base, then come those for validation
    and the novel ones.

    Args:
        source: a store, or names of classes.
        novel: share of novel categories.
        validation: share of categories to choose settings on.
        seed: draws the categories at random instead.

    Raises:
        InvalidInputError: the shares are above 1 together, or a name occurs twice.

    Examples:
        >>> predictor.split_categories(["ant", "bee", "cat", "dog"], novel=0.25)
        CategorySplit(3 base (ant … cat), 1 novel categories)
    """
    names = tuple(getattr(source, "classes", source))
    if not novel + validation <= 1:  # nor NaN
        raise InvalidInputError(f"shares must be at most 1 together, got {novel:g} and {validation:g}")
    if seed is not None:
        return seeded_split(names, seed, 1 - novel - validation, validation)
    split = alphabetical_split(names, 1 - novel)
    return split.hold_out(split.base[len(split.base) - round(len(names) * validation) :])


def alphabetical_split(names: Iterable[str], base_share: float = 0.9) -> CategorySplit:
    """The paper's: of 1000 classes in alphabetical order the first 900 are the base."""
    ordered = _distinct(names)
    count = _count(len(ordered), base_share, "base_share")
    return CategorySplit(ordered[:count], ordered[count:])


def seeded_split(
    names: Iterable[str], seed: int, base_share: float = 0.9, validation_share: float = 0.0
) -> CategorySplit:
    """Drawn at random; the order of the names does not matter, and each part is in alphabetical order."""
    ordered = _distinct(names)
    base = _count(len(ordered), base_share, "base_share")
    validation = _count(len(ordered), validation_share, "validation_share")
    if seed < 0 or base + validation > len(ordered):
        raise InvalidInputError(
            f"expected a seed of 0 or more and shares of at most 1 together, got seed {seed}, "
            f"base {base_share} and validation {validation_share}"
        )
    drawn = [ordered[place] for place in np.random.default_rng([seed]).permutation(len(ordered))]
    parts = (drawn[:base], drawn[base + validation :], drawn[base : base + validation])
    return CategorySplit(*(tuple(sorted(part)) for part in parts))


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


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    ordered = sorted(names)
    if not ordered:
        raise InvalidInputError("no class names to split")
    if double := next((name for name, after in pairwise(ordered) if name == after), None):
        raise InvalidInputError(f"class {double!r} is named twice; class names must be distinct")
    return tuple(ordered)


def _count(total: int, share: float, what: str) -> int:
    if not 0 <= share <= 1:
        raise InvalidInputError(f"{what} must be between 0 and 1, got {share}")
    return round(total * share)


def _parse_names(part: str, names: Any) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InvalidInputError(f"{part} must be a list of class names, got {names!r:.80}")
    parsed = tuple(names)
    if wrong := [name for name in parsed if not isinstance(name, str) or not name]:
        raise InvalidInputError(f"{part} must be a list of class names, got {wrong[0]!r:.80} in it")
    return parsed
