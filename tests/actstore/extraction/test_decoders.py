"""The threads that decode images: all of them begin, or none stays behind."""

from __future__ import annotations

import threading

import pytest
import torch

from actstore.extraction.forward import _decoders


def test_a_thread_that_cannot_be_started_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    start, threads = threading.Thread.start, torch.get_num_threads()
    begun: list[threading.Thread] = []

    def start_two(thread: threading.Thread) -> None:
        if len(begun) == 2:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_two)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        _decoders(4)
    for thread in begun:
        thread.join(60)
        assert not thread.is_alive()
    assert len(begun) == 2
    assert torch.get_num_threads() == threads
