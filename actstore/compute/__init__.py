"""The machine: conversions of fp16 at memory speed, threads, devices, timing, signals, clusters of several machines.

Imports `actstore.errors` alone. What others may use is in `__all__`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actstore.lazy import lazily

if TYPE_CHECKING:
    from actstore.compute.cluster import Cluster, connect
    from actstore.compute.device import parse_device
    from actstore.compute.process import Result
    from actstore.compute.tensors import reuse_freed_memory

__all__ = ["Cluster", "Result", "connect", "parse_device", "reuse_freed_memory"]

__getattr__, __dir__ = lazily(__name__)
