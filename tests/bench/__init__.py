"""Benchmarks behind the README's figures. `make bench` runs them; each also runs alone."""
