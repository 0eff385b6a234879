"""Feedline, run like the peers: a new process, the same files.

copy-basic   decodes and checks every image, and computes the facts that shards need
copy-all     also computes channel statistics, the default
urls         as copy-basic, from a table of URLs of the server that img2dataset reads
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.peers.script import Job, Script, Work, link_first, write_url_table

_WARM_UP_IMAGES = 64
_CONCURRENT_REQUESTS = 32  # as in a process of img2dataset


def prepare(job: Job) -> Work:
    """See `Script`."""
    from beam_jobs import ingest
    from beam_jobs.options import HttpOptions, IngestOptions

    _start_decoders(job)
    is_served = job.kind == "urls"
    options = IngestOptions(
        source=str(write_url_table(job, "image") if is_served else job.source),
        out=str(job.out),
        facts="all" if job.kind == "copy-all" else "basic",
        http=HttpOptions(allow_private=True, per_host=_CONCURRENT_REQUESTS),
    )

    def work() -> int:
        manifest = ingest.run(options)
        return sum(shard.records for split in manifest.splits.values() for shard in split.shards)

    return work


def _start_decoders(job: Job) -> None:
    """Ingests a few images, because decoders start slowly and in varying time."""
    from beam_jobs import ingest
    from beam_jobs.options import IngestOptions

    with tempfile.TemporaryDirectory() as scratch:
        few = link_first(job.source, _WARM_UP_IMAGES, Path(scratch) / "few")
        ingest.run(IngestOptions(source=str(few), out=f"{scratch}/out", splits={"all": 1}))


SCRIPT = Script(
    peer="feedline",
    distribution="feedline",
    prepare=prepare,
    note="ingest into TFRecord, policy copy; every image decoded with tf.io.decode_jpeg, hashed, split and indexed",
    served=("urls",),
    kinds=("copy-basic", "copy-all", "urls"),
)

if __name__ == "__main__":
    SCRIPT.main()
