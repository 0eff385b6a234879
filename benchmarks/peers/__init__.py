"""Feedline's ingest beside what others offer, on the same files in the same run: `python -m benchmarks.peers`.

    script.py        what the script of every peer shares: command line, files of a run, the line it prints
    peer_*.py        one peer each, run by the Python of its own environment
    environments.py  makes those environments
    registry.py      which peers there are and what of Feedline stands beside each
    compare.py       runs them in turns and takes the slope of time over images

Every script prints one line of JSON: peer, images, seconds, version, note. By hand one is run from the root of the
project by the Python of its environment: `.benchmarks/NAME/bin/python -m benchmarks.peers.peer_NAME --help`. Seconds
are those of the work, without imports; what is left of start-up (pools, pipelines) falls out of the slope between two
sizes.
"""
