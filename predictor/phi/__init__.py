"""phi of the paper: the network, how it recognises, its calibration, what it makes of channels.

Imports `protocol` and `actstore`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actstore.lazy import lazily

if TYPE_CHECKING:
    from predictor.phi.network import PAPER, Phi, PhiSpec, analyse

__getattr__, __dir__ = lazily(__name__)
