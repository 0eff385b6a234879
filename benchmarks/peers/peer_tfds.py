"""A TFDS builder over class folders, writing TFRecord shards.

`tfds.features.Image` copies files unread if it gets their paths, so nothing is decoded or checked, unless the kind is
`checked`: then the generator decodes each file with `tf.io.decode_jpeg`, as Feedline does. The builder shuffles by a
hash of the key, counts records and bytes, and writes `dataset_info.json`, as for every dataset; nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.peers.script import Job, Script, Work, class_indices


def prepare(job: Job) -> Work:
    """See `Script`."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    files = job.files()

    class Photographs(tfds.core.GeneratorBasedBuilder):
        """Class folders of images."""

        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> tfds.core.DatasetInfo:
            features = {
                "image": tfds.features.Image(),
                "label": tfds.features.ClassLabel(names=list(class_indices(files))),
                "filename": tfds.features.Text(),
            }
            return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager: Any) -> dict[str, Iterator]:
            return {"train": self._generate_examples()}

        def _generate_examples(self) -> Iterator[tuple[str, dict[str, str]]]:
            for path in files:
                name = str(path.relative_to(job.source))
                if job.kind == "checked":
                    tf.io.decode_jpeg(path.read_bytes(), channels=3)
                yield name, {"image": str(path), "label": path.parent.name, "filename": name}

    def work() -> int:
        builder = Photographs(data_dir=str(job.out), file_format="tfrecord")
        builder.download_and_prepare(download_config=tfds.download.DownloadConfig(try_download_gcs=False))
        return builder.info.splits["train"].num_examples

    return work


SCRIPT = Script(
    peer="tfds",
    distribution="tensorflow-datasets",
    prepare=prepare,
    note="GeneratorBasedBuilder, features.Image from paths, TFRecord; nothing is decoded unless the kind is checked",
    kinds=("plain", "checked"),
)

if __name__ == "__main__":
    SCRIPT.main()
