"""The compiled loops of the bounded search; all else is in pyproject.toml.

Optional: without a C compiler the installation goes on, and torch does their work.
"""

from setuptools import Extension, setup

kernels = Extension(
    "actstore.search._kernels", ["actstore/search/kernels.c"], extra_compile_args=["-O3"], optional=True
)
setup(ext_modules=[kernels])
