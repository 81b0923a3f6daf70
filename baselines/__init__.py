"""One baseline per file, each with its citation on top."""
