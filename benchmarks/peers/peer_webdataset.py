"""WebDataset's ShardWriter, with the decode check of Feedline: every image is decoded by `tf.io.decode_jpeg`.

One process and one loop, as in its documentation; tar shards of at most 3 GB, its default. Its environment has the same
TensorFlow as Feedline's, so that both decode with the same code.
"""

from __future__ import annotations

from benchmarks.peers.script import Job, Script, Work, class_indices


def prepare(job: Job) -> Work:
    """See `Script`."""
    import tensorflow as tf
    import webdataset as wds

    files = job.files()
    labels = class_indices(files)

    def work() -> int:
        with wds.ShardWriter(str(job.out / "shard-%06d.tar"), verbose=0) as sink:
            for path in files:
                encoded = path.read_bytes()
                tf.io.decode_jpeg(encoded, channels=3)  # raises an error for invalid images
                key = path.relative_to(job.source).with_suffix("").as_posix()
                sink.write({"__key__": key, "jpg": encoded, "cls": labels[path.parent.name]})
        return sink.total

    return work


SCRIPT = Script(
    peer="webdataset",
    distribution="webdataset",
    prepare=prepare,
    note="ShardWriter in one process, tar; every image decoded with tf.io.decode_jpeg",
)

if __name__ == "__main__":
    SCRIPT.main()
