"""Two files or folders change places in one step, where the system can do that: neither name is ever without one."""

from __future__ import annotations

import ctypes
import errno
import os
from functools import cache
from pathlib import Path
from typing import Any

_HERE = -100  # AT_FDCWD
_EXCHANGE = 2  # RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS
_UNABLE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def exchange(first: Path, second: Path) -> bool:
    """Whether they have changed places; False where this file system cannot do it, and nothing has changed."""
    rename = _rename()
    if rename is None or rename(os.fsencode(first), os.fsencode(second)) == 0:
        return rename is not None
    code = ctypes.get_errno()
    if code in _UNABLE:
        return False
    raise OSError(code, os.strerror(code), str(first), None, str(second))


@cache
def _rename() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "renameat2"):
        libc.renameat2.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
        return lambda first, second: libc.renameat2(_HERE, first, _HERE, second, _EXCHANGE)
    if hasattr(libc, "renamex_np"):
        libc.renamex_np.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint]
        return lambda first, second: libc.renamex_np(first, second, _EXCHANGE)
    return None
