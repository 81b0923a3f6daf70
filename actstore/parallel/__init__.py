"""Work on several processes or machines: a dask.distributed cluster, the processes of torchrun, signals.

Imports nothing below the store itself.
"""
