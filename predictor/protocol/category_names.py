"""Whether two class names mean the same category: by WordNet's id, by English name, by synonym.

`014.Indigo_Bunting` of a folder is `n01537544` of a network that was trained on ImageNet.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache

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
    "persian cat": "persian", "pickup":
    "pickup truck, crew cab, extended cab, regular cab, club cab, supercab", "police van": "paddy wagon", "ptarmigan": "grouse ptarmigan",
    "ruddy turnstone": "turnstone ruddy", "scotch terrier": "scottish terrier", "siamese cat": "siamese",
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
