"""img2dataset, reading the images from a server on this machine.

One process per core with 32 threads each, `resize_mode=no` and `skip_reencode`: every image is decoded with OpenCV,
checked and hashed, and stored unchanged. EXIF is not read, as in Feedline. Shards are the units of work; the table is
divided into two shards per process, because the default of 10,000 images would leave all processes except one idle. The
time is that of its own clock, from the start of the first shard to the end of the last: its processes take seconds to
start, longer than their work here and in varying time.
"""

from __future__ import annotations

import json
import math
import os

from benchmarks.peers.script import Job, Script, Work, write_url_table

_THREADS = 32
_SHARDS_PER_PROCESS = 2
_MAX_IMAGES_PER_SHARD = 10_000  # the default of img2dataset
_OFFLINE = {"NO_ALBUMENTATIONS_UPDATE": "1", "WANDB_MODE": "disabled", "WANDB_ERROR_REPORTING": "false"}


def prepare(job: Job) -> Work:
    """See `Script`."""
    os.environ.update(_OFFLINE)  # before the import, and for its child processes
    import img2dataset

    table, images = write_url_table(job, "url"), len(job.files())
    processes = os.cpu_count() or 1

    def work() -> int:
        img2dataset.download(
            url_list=str(table),
            input_format="csv",
            url_col="url",
            save_additional_columns=["label", "filename"],
            output_folder=str(job.out),
            output_format="webdataset",
            resize_mode="no",
            skip_reencode=True,
            extract_exif=False,
            processes_count=processes,
            thread_count=_THREADS,
            number_sample_per_shard=min(_MAX_IMAGES_PER_SHARD, math.ceil(images / processes / _SHARDS_PER_PROCESS)),
        )
        return sum(shard["successes"] for shard in _shards(job))

    return work


def own_seconds(job: Job) -> float:
    """See `Script`."""
    shards = _shards(job)
    return max(shard["end_time"] for shard in shards) - min(shard["start_time"] for shard in shards)


def _shards(job: Job) -> list[dict]:
    return [json.loads(path.read_text()) for path in job.out.glob("*_stats.json")]


SCRIPT = Script(
    peer="img2dataset",
    distribution="img2dataset",
    prepare=prepare,
    note=f"URLs of a local server, a process a core, {_THREADS} threads each, tar; every image decoded with OpenCV",
    served=("",),
    own_seconds=own_seconds,
)

if __name__ == "__main__":
    SCRIPT.main()
