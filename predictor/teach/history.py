"""The states that a session went through, so that every action can be undone and redone."""

from __future__ import annotations

from dataclasses import dataclass, field

from predictor.teach.actions import Action
from predictor.teach.refusal import RefusalError
from predictor.teach.state import State


@dataclass
class History:
    """done and undone: (what was done, the state before it), the newest last. States share what did not change."""

    state: State = field(default_factory=State)
    done: list[tuple[str, State]] = field(default_factory=list)
    undone: list[tuple[str, State]] = field(default_factory=list)

    def act(self, action: Action) -> None:
        after = action.apply(self.state)
        self.done.append((action.said, self.state))
        self.undone.clear()
        self._go_to(after)

    def undo(self) -> str:
        """Returns what was undone."""
        if not self.done:
            raise RefusalError(409, "there is nothing to undo")
        said, before = self.done.pop()
        self.undone.append((said, self.state))
        self._go_to(before)
        return said

    def redo(self) -> str:
        if not self.undone:
            raise RefusalError(409, "there is nothing to redo")
        said, after = self.undone.pop()
        self.done.append((said, self.state))
        self._go_to(after)
        return said

    def _go_to(self, state: State) -> None:
        """A state that is put away keeps no tables: those of thousands would fill the memory."""
        self.state.forget_tables()
        self.state = state

    @property
    def next_undo(self) -> str | None:
        return self.done[-1][0] if self.done else None

    @property
    def next_redo(self) -> str | None:
        return self.undone[-1][0] if self.undone else None
