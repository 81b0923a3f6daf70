"""Measure layouts and peers on the disk at hand."""
