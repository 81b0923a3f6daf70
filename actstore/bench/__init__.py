"""`actstore bench`: layouts and peers measured on the disk at hand.

Imports everything of `actstore`; nothing imports it but the command line.
"""
