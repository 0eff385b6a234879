"""Feedline itself, run as the peers are: a fresh process, the same files.

copy-basic   every image decoded and checked, the facts that shards need
copy-all     and channel statistics, the default
urls         as copy-basic, from a table of URLs of the same server that img2dataset reads
"""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path

from benchmarks.peers.script import Job, Script, Work, link_first, url_rows

_WARM_UP_IMAGES = 64
_REQUESTS_AT_A_TIME = 32  # as many as a process of img2dataset makes


def prepare(job: Job) -> Work:
    """See `Script`."""
    from beam_jobs import ingest
    from beam_jobs.options import HttpOptions, IngestOptions

    _start_decoders(job)
    served = job.kind == "urls"
    options = IngestOptions(
        source=str(_write_table(job) if served else job.source),
        out=str(job.out),
        facts="all" if job.kind == "copy-all" else "basic",
        http=HttpOptions(allow_private=True, per_host=_REQUESTS_AT_A_TIME),
    )

    def work() -> int:
        made = ingest.run(options)
        return sum(shard.records for split in made.splits.values() for shard in split.shards)

    return work


def _start_decoders(job: Job) -> None:
    """Ingests a few images: decoders take longer to start than thousands of images to write, and not always as long."""
    from beam_jobs import ingest
    from beam_jobs.options import IngestOptions

    with tempfile.TemporaryDirectory() as scratch:
        few = link_first(job.source, _WARM_UP_IMAGES, Path(scratch) / "few")
        ingest.run(IngestOptions(source=str(few), out=f"{scratch}/out", splits={"all": 1}))


def _write_table(job: Job) -> Path:
    path = job.out.parent / "urls.csv"
    with open(path, "w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("image", "label", "filename"))
        writer.writerows(url_rows(job))
    return path


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
