"""Teaching by showing: a session folder, the network behind it, and the local page on which a person works with both.

Imports `classifier` and what stands above it; starlette and uvicorn are imported only here.
"""
