"""LitData's `optimize`: the files unchanged in its chunks, by one worker process for each core.

With the kind `checked` its workers decode every image whole, with OpenCV.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from benchmarks.peers.script import Job, Script, Work, class_indices, decode_with_opencv


def sample(item: tuple[str, int]) -> dict[str, Any]:
    """Returns the sample of a path and a class."""
    path, label = item
    return {"image": Path(path).read_bytes(), "class": label}


def checked_sample(item: tuple[str, int]) -> dict[str, Any]:
    """Returns the sample of an image that can be decoded."""
    made = sample(item)
    decode_with_opencv(Path(item[0]), made["image"])
    return made


def prepare(job: Job) -> Work:
    """See `Script`."""
    import litdata

    files = job.files()
    labels = class_indices(files)
    inputs = [(str(path), labels[path.parent.name]) for path in files]

    def work() -> int:
        litdata.optimize(
            fn=checked_sample if job.kind == "checked" else sample,
            inputs=inputs,
            output_dir=str(job.out),
            chunk_bytes="64MB",
            num_workers=os.cpu_count(),
        )
        return len(litdata.StreamingDataset(str(job.out)))

    return work


SCRIPT = Script(
    peer="litdata",
    distribution="litdata",
    prepare=prepare,
    note="optimize into chunks, a worker for each core; every image decoded whole with OpenCV if the kind is checked",
    kinds=("plain", "checked"),
)

if __name__ == "__main__":
    SCRIPT.main()
