"""TFDS: a builder over the files, read with `as_dataset` and augmented with TensorFlow, everything on AUTOTUNE.

With the kind `plain`, TFDS decodes the image; with `skip`, only the crop of the encoded image is decoded, as in the
performance guide of TFDS.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.input_peers.script import AREA, ASPECT, BATCH, CIFAR_MEAN, CIFAR_STD, TASKS, Job, Script

_SHUFFLE_RECORDS = 1000


def write(job: Job) -> None:
    """Writes the unchanged files to TFRecord shards."""
    _builder(job).download_and_prepare()


def batches(job: Job) -> Iterator[Any]:
    """Yields arrays of images, infinitely."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    skip = job.kind == "skip"
    if skip and job.task != "photos":
        raise SystemExit("only a JPEG can be decoded in part; run the task with the kind plain")
    decoders = {"image": tfds.decode.SkipDecoding()} if skip else None
    # The automatic cache would keep the decoded images of a small dataset in memory.
    read_config = tfds.ReadConfig(try_autocache=False)
    stream = _builder(job).as_dataset(split="train", shuffle_files=True, decoders=decoders, read_config=read_config)
    stream = stream.repeat().shuffle(_SHUFFLE_RECORDS)
    stream = stream.map(_op(job.task, skip), num_parallel_calls=tf.data.AUTOTUNE)
    stream = stream.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    for images in stream:
        yield images.numpy()


@functools.cache  # a builder can register its name only once
def _builder(job: Job) -> Any:
    import tensorflow_datasets as tfds

    files, labels = job.files(), job.labels()

    class Images(tfds.core.GeneratorBasedBuilder):
        """Class folders of images."""

        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> tfds.core.DatasetInfo:
            features = {"image": tfds.features.Image(), "label": tfds.features.ClassLabel(names=list(labels))}
            return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager: Any) -> dict[str, Iterator]:
            return {"train": self._generate_examples()}

        def _generate_examples(self) -> Iterator[tuple[str, dict[str, str]]]:
            for path in files:
                yield str(path), {"image": str(path), "label": path.parent.name}

    return Images(data_dir=str(job.data), file_format="tfrecord")


def _op(task: str, skip: bool) -> Callable[[dict[str, Any]], Any]:
    import tensorflow as tf

    side = TASKS[task].side_px

    def photos(row: dict[str, tf.Tensor]) -> tf.Tensor:
        shape = tf.io.extract_jpeg_shape(row["image"]) if skip else tf.shape(row["image"])
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            shape,
            tf.zeros([1, 0, 4]),
            min_object_covered=0.0,
            aspect_ratio_range=ASPECT,
            area_range=AREA,
            max_attempts=10,
            use_image_if_no_bounding_boxes=True,
        )
        window = tf.concat([begin[:2], size[:2]], 0)
        crop = tf.io.decode_and_crop_jpeg(row["image"], window, 3) if skip else tf.slice(row["image"], begin, size)
        return tf.image.random_flip_left_right(tf.cast(tf.image.resize(crop, [side, side]), tf.uint8))

    def cifar(row: dict[str, tf.Tensor]) -> tf.Tensor:
        image = tf.pad(row["image"], [[4, 4], [4, 4], [0, 0]], mode="REFLECT")
        image = tf.image.random_flip_left_right(tf.image.random_crop(image, [side, side, 3]))
        image = (tf.cast(image, tf.float32) / 255 - CIFAR_MEAN) / CIFAR_STD
        corner = tf.random.uniform([2, 1], maxval=side - 8 + 1, dtype=tf.int32)
        inside = (tf.range(side)[None] >= corner) & (tf.range(side)[None] < corner + 8)
        return tf.where((inside[0][:, None] & inside[1][None])[..., None], 0.0, image)

    return {"photos": photos, "cifar": cifar}[task]


SCRIPT = Script(
    peer="tfds",
    distribution="tensorflow-datasets",
    open=dict.fromkeys(TASKS, batches),
    note="as_dataset, window of 1,000 records, AUTOTUNE; plain: whole decode, then crop; skip: decode_and_crop_jpeg",
    write=write,
    kinds=("plain", "skip"),
)

if __name__ == "__main__":
    SCRIPT.main()
