"""TFX's stock ExampleGen write path: files -> `tf.train.Example` -> `WriteSplit`, on Beam's in-process runner.

`WriteSplit` is a transform of TFX that serialises, reshuffles and writes gzip TFRecord files. TFX has no reader of
image files, so the previous step is that of a custom ExampleGen: make an Example of a file, its label and its name.

Feedline does more: here no image is decoded or checked unless the kind is `checked`, no facts are computed, there is
one split instead of two by hash, no fixed order and no manifest. The work of the executor around the pipeline (metadata
store, driver, publisher) is excluded, too; all of this favours the peer.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.peers.script import Job, Script, Work, class_indices

if TYPE_CHECKING:
    import tensorflow as tf

BEAM_ARGS = ("--runner=FnApiRunner", "--direct_running_mode=in_memory")


def prepare(job: Job) -> Work:
    """See `Script`."""
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions
    from tfx.components.example_gen import write_split
    from tfx.proto import example_gen_pb2

    files = job.files()
    labels = class_indices(files)
    pairs = [(str(path), labels[path.parent.name]) for path in files]

    def work() -> int:
        with beam.Pipeline(options=PipelineOptions(list(BEAM_ARGS))) as pipeline:
            (
                pipeline
                | "Files" >> beam.Create(pairs)
                | "ReadExample" >> beam.MapTuple(read_example, check=job.kind == "checked")
                | "WriteSplit"
                >> write_split.WriteSplit(str(job.out / "Split-train"), example_gen_pb2.FILE_FORMAT_UNSPECIFIED)
            )
        counters = pipeline.result.metrics().query()["counters"]
        return sum(counter.committed for counter in counters if counter.key.metric.name == "num_instances")

    return work


def read_example(path: str, label: int, check: bool = False) -> tf.train.Example:
    """Returns an Example of the encoded bytes, the label and the name of a file; `check` decodes the image."""
    import tensorflow as tf

    def text(value: bytes) -> tf.train.Feature:
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

    encoded = Path(path).read_bytes()
    if check:
        tf.io.decode_jpeg(encoded, channels=3)
    features = {
        "image/encoded": text(encoded),
        "image/filename": text(path.encode()),
        "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features))


SCRIPT = Script(
    peer="tfx",
    distribution="tfx",
    prepare=prepare,
    note="WriteSplit on FnApiRunner in memory, gzip TFRecord; nothing is decoded unless the kind is checked",
    kinds=("plain", "checked"),
)

if __name__ == "__main__":
    SCRIPT.main()
