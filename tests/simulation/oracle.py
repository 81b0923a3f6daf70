"""What must hold when commands have met, whatever their order, and whichever of them was killed."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from tests.simulation.aftermath import Aftermath
from tests.simulation.case import Case, Finding, wrong_statistics
from tests.simulation.commands import Command
from tests.simulation.rows import wrong_neighbours
from tests.simulation.scheduler import Actor

Verdicts = dict[Hashable, tuple[Finding, ...]]  # of what commands have left


class Oracle(Case):
    """Judges what each command has returned or refused, and what they have left.

    Many orders leave the same files: what was found in them is remembered, with all that it depends on."""

    def judge(self, verdicts: Verdicts) -> Iterator[Finding]:
        if self.simulation.hung:
            yield Finding("hang", "no command went on")
            return
        if self.simulation.deadlocked:
            yield Finding("deadlock", "every command waits for a lock that another holds")
            return
        for command, actor in self.pairs:
            yield from self._outcome(command, actor)
        yield from self._some_finished()
        aftermath = Aftermath(self.scenario, self.state, self.world, self.simulation)
        left = self._left(aftermath.further_split())
        if left not in verdicts:
            verdicts[left] = tuple(aftermath.findings())
        yield from verdicts[left]

    def _left(self, further_split: str | None) -> Hashable:
        """All that the aftermath depends on: every file and object, and how each command has ended."""
        ends = tuple((actor.killed, actor.error is None, actor.stops > 0) for actor in self.simulation.actors)
        return self.scenario.name, ends, further_split, self.world.digest()

    def _outcome(self, command: Command, actor: Actor) -> Iterator[Finding]:
        """Of a command that ended: a refusal in one line, or a result that was true while it ran."""
        if actor.error is not None:
            yield from self.refusal(command.name, actor.error)
        elif actor.succeeded:
            check = getattr(self, f"_is_{command.gives}", None)
            if check is not None:
                yield from check(command, actor)

    def _some_finished(self) -> Iterator[Finding]:
        """Of commands that change a store, where none was killed, at least one does."""
        changing = [actor for command, actor in self.pairs if not command.only_reads]
        if changing and not self.has_crash and not self.state.is_damaged and all(actor.error for actor in changing):
            yield Finding("no command has finished", " | ".join(str(actor.error) for actor in changing))

    def _during(self, split: str, reader: Actor) -> tuple[list[str], list[str]]:
        """Blocks that must be in what this reader saw, and those that may."""
        adding = [actor for command, actor in self.pairs if split in command.adds]
        before = [actor.name for actor in adding if actor.succeeded and actor.ended < reader.began]
        return before, [actor.name for actor in adding if actor.began <= reader.ended]

    def _is_read(self, command: Command, actor: Actor) -> Iterator[Finding]:
        required, allowed = self._during(command.split, actor)
        if (said := self.possible(command.split).explain(actor.result, required, allowed)) is not None:
            yield Finding("read of no state", said)

    def _is_search(self, command: Command, actor: Actor) -> Iterator[Finding]:
        states = self.possible("train").each(*self._during("train", actor))
        said = [wrong_neighbours(*actor.result, state) for _, state in states]
        if None not in said:
            yield Finding("search is wrong", str(said[0]))

    def _is_statistics(self, command: Command, actor: Actor) -> Iterator[Finding]:
        states = self.possible("train").each(*self._during("train", actor))
        said = [wrong_statistics(actor.result, state) for _, state in states]
        if None not in said:
            yield Finding("means are wrong", str(said[0]))

    def _is_faults(self, command: Command, actor: Actor) -> Iterator[Finding]:
        if actor.result and not self.state.is_damaged:
            yield Finding("false fault", str(actor.result[0]))
