"""Compares Feedline's input pipeline with other tools, on the same files in the same run; see `README.md`.

    script.py    base of the scripts of all peers: command line, warm-up, clock, check of a batch
    peer_*.py    one peer each, run by the Python of its environment
    registry.py  the peers
    compare.py   runs them alternately

Environments and runs are those of `benchmarks.peers`. Every script prints one line of JSON: peer, images, seconds,
version, note.
"""
