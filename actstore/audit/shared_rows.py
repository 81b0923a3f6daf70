"""Which rows two splits share, by the findings of an audit: each of these names only the first of several copies."""

from __future__ import annotations

from actstore.audit.outcome import Audit, Finding

_Place = tuple[str, int]  # split, row


def shared_rows(audit: Audit, one: str, other: str) -> dict[int, list[int]]:
    """Rows of split `one` -> all rows of the other split that are copies or near copies of it, ascending."""
    copies, near = _pairs(audit.of_kind("copy")), _pairs(audit.of_kind("near-copy"))
    groups = _groups(copies, {place for pair in [*copies, *near] for place in pair})
    found: dict[int, set[int]] = {}
    linked = [(group, group) for group in {id(group): group for group in groups.values()}.values()]
    linked += [(groups[place], groups[twin]) for pair in near for place, twin in (pair, pair[::-1])]
    for here, there in linked:
        twins = {row for split, row in there if split == other}
        for split, row in here:
            if split == one and twins:
                found.setdefault(row, set()).update(twins)
    return {row: sorted(found[row]) for row in sorted(found)}


def _pairs(findings: list[Finding]) -> list[tuple[_Place, _Place]]:
    return [((one.split, one.row), (one.other_split, one.other_row)) for one in findings]


def _groups(copies: list[tuple[_Place, _Place]], places: set[_Place]) -> dict[_Place, list[_Place]]:
    """Every place -> all that are copies of one another, itself among them; the same list for each of these."""
    groups = {place: [place] for place in places}
    for pair in copies:
        less, more = sorted((groups[place] for place in pair), key=len)
        if less is not more:
            more += less
            groups.update(dict.fromkeys(less, more))
    return groups
