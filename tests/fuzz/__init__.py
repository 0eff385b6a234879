"""Fuzz targets: what parses bytes of others, fed with anything. Each may raise nothing but the product's own errors.

`python -m tests.fuzz.headers --seconds 600` searches, guided by coverage (atheris); `make fuzz` runs all targets in
turn. What reached something new is kept, small, in `corpus/`; `tests/faults/test_fuzz.py` replays it without atheris.
"""
