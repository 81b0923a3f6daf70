"""Files of torch.save, read without running code."""

from __future__ import annotations

import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import torch

from actstore.errors import InvalidInputError

# Whatever a file that is no checkpoint makes torch.load stumble over.
DAMAGE = (RuntimeError, EOFError, ValueError, KeyError, IndexError, TypeError, AttributeError, AssertionError)


def read_torch_file(path: Path, advice: str, mapped: bool = False) -> Any:
    """What a file holds, on the CPU; anything but tensors and plain containers is refused.

    mapped: leave tensors in the file until they are touched, where its format allows that.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about the pickle's protocol; what matters is raised
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped and _is_zip(path))
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL (\w+\.[\w.]+)", str(error))
        what = f"the object {found[1]!r}" if found else "something else, or is damaged"
        raise InvalidInputError(f"{path} must hold tensors only, but holds {what}; {advice}") from error
    except DAMAGE as error:
        raise InvalidInputError(
            f"{path} is damaged or no file of torch.save ({type(error).__name__}); {advice}"
        ) from error


def _is_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"
