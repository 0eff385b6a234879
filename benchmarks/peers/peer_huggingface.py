"""Hugging Face `datasets`: ImageFolder into Parquet, which holds the files unchanged, as its `push_to_hub` makes it.

With the kind `checked` a process for each core decodes every image whole, with Pillow.
"""

from __future__ import annotations

import os
from typing import Any

from benchmarks.peers.script import Job, Script, Work


def decode(sample: dict[str, Any]) -> None:
    """Decodes the image of a sample."""
    sample["image"].load()


def prepare(job: Job) -> Work:
    """See `Script`."""
    import datasets
    from datasets.table import embed_table_storage

    datasets.disable_progress_bars()
    cores = os.cpu_count()

    def work() -> int:
        cache = str(job.out.parent / "cache")
        dataset = datasets.load_dataset("imagefolder", data_dir=str(job.source), split="train", cache_dir=cache)
        if job.kind == "checked":
            dataset.map(decode, num_proc=cores)
        embedded = dataset.with_format("arrow").map(embed_table_storage, batched=True, batch_size=100, num_proc=cores)
        embedded.to_parquet(str(job.out / "train.parquet"))
        return len(dataset)

    return work


SCRIPT = Script(
    peer="huggingface",
    distribution="datasets",
    prepare=prepare,
    note="ImageFolder, to_parquet; every image decoded whole with Pillow, on all cores, if the kind is checked",
    kinds=("plain", "checked"),
)

if __name__ == "__main__":
    SCRIPT.main()
