"""Conditions on columns: `area > 0.5 and source in (web, print)`, read by a parser of their own, never as code.

Imports `layout` and what stands above it.
"""
