"""Compares Feedline's ingest with other tools, on the same files in the same run: `python -m benchmarks.peers`.

    script.py        base of the scripts of all peers: command line, files of a run, printed result
    peer_*.py        one peer each, run by the Python of its environment
    environments.py  makes those environments
    registry.py      the peers, and the kind of Feedline that each is compared with
    compare.py       runs them alternately and computes the slope of time over images

Every script prints one line of JSON: peer, images, seconds, version, note. To run one manually, start it in the root of
the project with the Python of its environment: `.benchmarks/NAME/bin/python -m benchmarks.peers.peer_NAME --help`. The
seconds exclude imports; the slope between two sizes excludes other start-up costs (pools, pipelines).
"""
