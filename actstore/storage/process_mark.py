"""Which process wrote something, for others that wonder whether it still runs; on its own machine they can tell."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path


def own_mark() -> str:
    """Machine, process number, and when the process began, as numbers are given out again; "" where systems tell none
    of it."""
    began = _began("self")
    return f"{machine}:{os.getpid()}:{began}" if (machine := _machine()) and began else ""


def is_gone(mark: str) -> bool:
    """Whether a process of this machine has ended. Of one elsewhere nothing is known: no."""
    machine, _, process = mark.partition(":")
    number, _, began = process.partition(":")
    return bool(machine) and machine == _machine() and number.isdecimal() and _began(number) != began


@cache
def _machine() -> str:
    """Of one start of a machine and one container on it, as process numbers are; a hash, since buckets are shared."""
    try:
        started = Path("/proc/sys/kernel/random/boot_id").read_text()
        return hashlib.sha256(f"{started} {Path('/proc/self/ns/pid').readlink()}".encode()).hexdigest()[:16]
    except OSError:
        return ""


def _began(process: str) -> str:
    """Clock ticks after the machine's start; "" where there is no such process."""
    try:
        facts = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return ""
    state, *others = facts.rpartition(")")[2].split()  # a name in parentheses may hold anything
    return "" if state in "ZX" else others[18]  # a zombie runs no more
