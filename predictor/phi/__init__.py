"""phi of the paper: the network, how it recognises, its calibration, what it makes of channels.

Imports `protocol` and `actstore`.
"""
