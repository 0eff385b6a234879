"""Feedline's input pipeline beside what others offer, on the same files in the same run; see `README.md`.

    script.py    what the script of every peer shares: command line, warm-up, clock, the check of a batch
    peer_*.py    one peer each, run by the Python of its own environment
    registry.py  which peers there are
    compare.py   runs them in turns

Environments and runs are those of `benchmarks.peers`. Every script prints one line of JSON: peer, images, seconds,
version, note.
"""
