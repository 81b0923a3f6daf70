"""Bad input of every command: one clear line, a non-zero exit code, no traceback, and nothing of the user's changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli import bad_arrays, bad_outputs, bad_reading, bad_recognition
from tests.cli.bad_world import Bad, Case, make_world

LISTS = (bad_arrays, bad_reading, bad_recognition, bad_outputs)
CASES: list[Case] = [
    case for module in LISTS for name, cases in vars(module).items() if isinstance(cases, list) for case in cases
]


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory, world: Path, make_activations: Any) -> Iterator[Bad]:
    import torch

    folder, threads = tmp_path_factory.mktemp("bad"), torch.get_num_threads()
    torch.set_num_threads(1)
    make_world(folder, world, make_activations)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("ACTSTORE", raising=False)
        yield Bad(folder)
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("command", "said"), CASES, ids=[command for command, _ in CASES])
def test_one_clear_line_and_nothing_lost(bad: Bad, command: str, said: str) -> None:
    bad(command, said)


def test_the_list_is_long_and_covers_every_command() -> None:
    from cli.actstore import main as actstore_main
    from cli.ppa import main as ppa_main

    commands = {command for command, _ in CASES}
    assert len(commands) == len(CASES) >= 200
    for tool, group in (("actstore", actstore_main), ("ppa", ppa_main)):
        for name in group.commands:
            assert any(f"{command} ".startswith(f"{tool} {name} ") for command in commands), f"{tool} {name}"
