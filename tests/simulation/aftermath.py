"""What must hold of what commands have left, also when it is used, repaired and written to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import actstore
from actstore.errors import ActstoreError, DamagedError, IncompleteError
from actstore.upkeep.verify import verify_store
from tests.simulation.case import Case, Finding, wrong_statistics
from tests.simulation.commands import Command, repair, write
from tests.simulation.rows import CLASSES, K, Possible, Rows, queries, read_rows, wrong_neighbours
from tests.simulation.scheduler import Actor


class Aftermath(Case):
    """It looks at files and objects and at how each command has ended, and at nothing else: see `further_split`, too,
    and `Oracle`, which remembers what was found."""

    _is_mended = False

    def findings(self) -> Iterator[Finding]:
        yield from self._store("")
        yield from self._outputs()
        yield from self._healthy("afterwards")
        if self.has_crash:
            yield from self._repeated()
            yield from self._healthy("after the repetition")
        yield from self._own_files()
        if self.state.is_damaged:
            yield from self._mended()
        yield from self._further()

    def _store(self, when: str) -> Iterator[Finding]:
        """Every committed row is there as it was, and none that was refused."""
        names = {*self.state.splits, *(name for command in self.scenario.commands for name in command.adds)}
        for split in sorted(names):
            blocks = [(command, actor) for command, actor in self.pairs if split in command.adds]
            required = [actor.name for _, actor in blocks if actor.succeeded]
            allowed = [actor.name for _, actor in blocks if actor.killed]
            if not required and split not in self.state.splits:
                continue
            replaced = any(command.replaces and actor.stops for command, actor in self.pairs)
            if split not in self.state.splits and len(required) > 1:
                required = required[:1]  # the same import twice: its rows are there once
            try:
                rows = read_rows(self._open()[split])
            except ActstoreError as error:
                if self._is_mended or not (self.state.is_damaged and isinstance(error, DamagedError)):
                    yield Finding(f"committed rows cannot be read{when}", f"{type(error).__name__}: {error}")
                continue
            except Exception as error:  # noqa: BLE001 - reported as what it is
                yield Finding(f"bare {type(error).__name__} of read{when}", str(error))
                continue
            said = self.possible(split).explain(rows, [] if replaced else required, [*allowed, *required])
            if said is not None:
                yield Finding(self._lost(rows, split, blocks) + when, f"{split}: {said}")
        yield from self._classes(when)

    def _open(self) -> actstore.ActivationStore:
        """Damaged rows are refused only where that is asked for."""
        return actstore.open(self.world.store, checked=self.state.is_damaged)

    def _lost(self, rows: Rows, split: str, blocks: Sequence[tuple[Command, Actor]]) -> str:
        base = self.state.splits.get(split)
        is_longer = base is not None and len(rows) >= len(base)
        if base is not None and self.state.is_damaged and is_longer and rows.pick(range(len(base))).difference(base):
            return "damage is read as sound"
        if any(actor.error is not None and set(command.adds[split].ids) & set(rows.ids) for command, actor in blocks):
            return "refused rows are there"
        return "committed rows are lost or changed"

    def _classes(self, when: str) -> Iterator[Finding]:
        if any(command.replaces for command in self.scenario.commands) or not self.state.splits:
            return
        try:
            found = actstore.open(self.world.store).classes
        except ActstoreError:
            return  # said above
        wanted = {name for command, actor in self.pairs if actor.succeeded for name in command.classes}
        if found[: len(CLASSES)] != CLASSES or not wanted <= set(found) or len(set(found)) != len(found):
            yield Finding(f"class names are lost{when}", f"{found}, expected also {sorted(wanted)}")

    def _own_files(self) -> Iterator[Finding]:
        """What a killed command was moving is where it was once it was repeated."""
        for name in self.state.own:
            path = self.world.folder / name
            if not path.exists() or path.read_bytes() != self.state.files[name]:
                yield Finding("a file of the user is gone", name)

    def _repeated(self) -> Iterator[Finding]:
        """What was killed is run again, as a user does; then its rows are there, once."""
        for command, actor in self.pairs:
            if not actor.killed or command.replaces:
                continue
            if any(self._has(split, rows) for split, rows in command.adds.items()):
                continue  # killed after its commit
            error = _error_of(lambda run=command.run: run(self.world))  # type: ignore[misc]
            if error is None:
                actor.killed = False
                continue
            yield from self.refusal(f"{command.name} repeated", error)
            if command.adds and not self.state.is_damaged and not self._is_taken(error):
                yield Finding(f"{command.name} cannot be repeated", f"{type(error).__name__}: {error}")
        yield from self._store(" after the repetition")

    def _mended(self) -> Iterator[Finding]:
        """All that was damaged can be read again from its source: two more repairs leave every row as it was."""
        for _ in range(2):
            error = _error_of(lambda: repair().run(self.world))
            if error is not None:
                yield from self.refusal("another repair", error)
        self._is_mended = not self.has_crash
        yield from self._store(" after another repair")

    def _is_taken(self, error: BaseException) -> bool:
        """Another command's unfinished rows are in the way, or the split is there by now: the user has to choose."""
        return sum(bool(command.adds) for command in self.scenario.commands) > 1 and isinstance(error, ActstoreError)

    def _has(self, split: str, rows: Rows) -> bool:
        try:
            return rows.ids[0] in set(actstore.open(self.world.store)[split].ids)
        except (ActstoreError, OSError):
            return False

    def _outputs(self) -> Iterator[Finding]:
        """Stores that commands have made of this one."""
        for command, actor in self.pairs:
            if actor.succeeded and command.check is not None:
                yield from self._checked(command)
            elif actor.succeeded and command.gives == "copied":
                yield from self._copied()
            elif actor.succeeded and command.gives == "selected":
                yield from self._made(command, "train", _dogs)
            elif actor.succeeded and command.gives == "whole":
                for split in self.state.splits:
                    yield from self._made(command, split, lambda rows: rows)

    def _checked(self, command: Command) -> Iterator[Finding]:
        assert command.check is not None
        try:
            said = command.check(self.world)
        except Exception as error:  # noqa: BLE001 - what cannot be read is as bad
            said = f"{type(error).__name__}: {error}"
        if said is not None:
            yield Finding(f"{command.name} left something else", said)

    def _made(self, command: Command, split: str, choose: Callable[[Rows], Rows]) -> Iterator[Finding]:
        states = tuple(choose(state) for _, state in self.possible(split).each())
        try:
            rows = read_rows(actstore.open(self.world.place(command.out))[split])
        except ActstoreError as error:
            yield Finding(f"{command.name} made nothing that can be read", str(error))
            return
        if (said := Possible(states, {}).explain(rows)) is not None:
            yield Finding(f"{command.name} made other rows", said)

    def _copied(self) -> Iterator[Finding]:
        for split in self.state.splits:
            try:
                rows = read_rows(actstore.open(self.world.copied("store.zarr"))[split])
            except ActstoreError:
                continue  # a mixture may be refused
            except Exception as error:  # noqa: BLE001 - reported as what it is
                yield Finding(f"bare {type(error).__name__} of read of a copy", str(error))
                continue
            if (said := self.possible(split).explain(rows)) is not None:
                yield Finding("a copy reads wrong", f"{split}: {said}")

    def _healthy(self, when: str) -> Iterator[Finding]:
        """A store that nobody damaged has no faults; means and searches are those of its rows."""
        if "train" not in self.state.splits and not any(
            "train" in command.adds and actor.succeeded for command, actor in self.pairs
        ):
            return
        try:
            store = self._open()
            faults = [] if self.state.is_damaged else verify_store(store)
            if faults:
                yield Finding(f"faults {when} that nobody made", str(faults[0]))
            split = store["train"]
            rows = read_rows(split)
            if len(rows) >= K:
                found = split.search(queries(), K)
                if (said := wrong_neighbours(*found, rows)) is not None:
                    yield Finding(f"search {when} is wrong", said)
            if any(command.name == "means" for command in self.scenario.commands):
                said = wrong_statistics(split.statistics(), rows)
                if said is not None:
                    yield Finding(f"means {when} are wrong", said)
        except ActstoreError as error:
            if not self.state.is_damaged:
                yield Finding(f"cannot be used {when}", f"{type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001 - reported as what it is
            yield Finding(f"bare {type(error).__name__} {when}", str(error))

    def _further(self) -> Iterator[Finding]:
        """One more append works, where nothing unfinished is in the way."""
        if any(actor.killed for actor in self.simulation.actors):
            return
        if (split := self.further_split()) is not None:
            before = _error_of(lambda: read_rows(actstore.open(self.world.store)[split]))
            more = write("z", 5, split)
            error = _error_of(lambda: more.run(self.world))
            if isinstance(error, IncompleteError) and any(actor.error for actor in self.simulation.actors):
                again = write("z", 5, split, restart=True)  # what was refused may have left something unfinished
                error = _error_of(lambda: again.run(self.world))
            if error is not None:
                if not isinstance(error, ActstoreError) or not self.state.is_damaged:
                    yield Finding("a further append fails", f"{type(error).__name__}: {error}")
                return
            if before is None:
                rows = read_rows(actstore.open(self.world.store)[split])
                if (said := rows.pick(range(len(rows) - 5, len(rows))).difference(more.adds[split])) is not None:
                    yield Finding("a further append is not what was written", said)

    def further_split(self) -> str | None:
        """Now this one, now that."""
        names = list(self.state.splits)
        return names[len(self.simulation.steps) % len(names)] if names else None


def _error_of(call: Callable[[], Any]) -> Exception | None:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - judged by the caller
        return error
    return None


def _dogs(rows: Rows) -> Rows:
    return rows.pick([row for row, name in enumerate(rows.classes) if name == "dog"])
