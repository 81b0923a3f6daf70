"""Where bytes lie: a folder, a bucket of object storage, a local cache of a bucket; atomic writes, checksums and locks.

Imports `actstore.errors` alone.
"""
