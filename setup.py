"""The compiled loops of the bounded search, and of passes over float16 rows; all else is in pyproject.toml.

Optional: without a C compiler the installation goes on, and torch does their work. They know nothing of Python, so that
one wheel serves every version of it.
"""

import sysconfig
from pathlib import Path

from setuptools import Extension, setup

ONE_FOR_ALL = not sysconfig.get_config_var("Py_GIL_DISABLED")  # a Python without its lock takes no such wheels
SEARCH = Path("actstore/search")
kernels = Extension(
    "actstore.search._kernels",
    [str(path) for path in (SEARCH / "kernels.c", *sorted(SEARCH.glob("loops/*.c")))],
    depends=[str(path) for path in sorted(SEARCH.glob("loops/*.h"))],
    libraries=["m"],
    extra_compile_args=["-O3"],
    optional=True,
    py_limited_api=ONE_FOR_ALL,
)
halves = Extension(
    "actstore.compute._halves",
    ["actstore/compute/halves.c"],
    extra_compile_args=["-O3"],
    optional=True,
    py_limited_api=ONE_FOR_ALL,
)
setup(ext_modules=[kernels, halves], options={"bdist_wheel": {"py_limited_api": "cp311"}} if ONE_FOR_ALL else {})
