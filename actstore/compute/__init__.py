"""Arithmetic on rows at memory speed: conversions of fp16, devices, threads and memory that is used again.

Imports `actstore.errors` alone.
"""
