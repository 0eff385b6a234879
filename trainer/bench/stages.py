"""Each stage of the input pipeline in isolation, with input from memory, and the pipeline from the shards to a stage.

In isolation, a stage can use all threads, and its input is cached. Its rate is the rate that the pipeline would have if
all other stages took no time. Ops are measured separately, without the fusion of consecutive ops.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import tensorflow as tf

from beam_jobs.dataset import record
from trainer.bench.bottleneck import BATCH, CALL, PARSE, READ
from trainer.bench.meter import Subject, dataset_subject
from trainer.input import windowed_reader
from trainer.input.parse import IMAGE_SEED, Features, parse
from trainer.input.plan import InputPlan, make_plan
from trainer.input.position import Host
from trainer.input.windowed_reader import FOREVER
from trainer.input_fn import batches, images, make_records_dataset, tf_options
from trainer.ops import IMAGE, OPS, Decode, DecodeRandomCrop, MixingOp, Op, apply_batch_ops, apply_ops
from trainer.ops.chain import RANDOM_FEATURES
from trainer.ops.tf_ops import without_autograph
from trainer.options import InputOptions

_MAX_NAME_LENGTH = 40  # characters of an op with its arguments in a table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """Dataset and options of a measurement.

    Attributes:
      path: directory of the dataset.
      split: name of the split.
      options: options of the input pipeline.
      plan: the `InputPlan` by which `make_dataset` builds this pipeline.
    """

    path: str
    split: str
    options: InputOptions
    plan: InputPlan

    @property
    def files(self) -> list[str]:
        """Paths of the shards."""
        return self.plan.dataset.shard_paths(self.plan.path, self.split)

    @property
    def record_bytes(self) -> float:
        """Mean size of a record, bytes."""
        split_info = self.plan.dataset.split(self.split)
        return split_info.bytes / split_info.records

    @property
    def is_raw(self) -> bool:
        """Whether the records contain pixels, which need no decoding."""
        return self.plan.dataset.options["pixels"]["policy"] == "raw"


def open_source(path: str, split: str, options: InputOptions) -> Source:
    """Opens a dataset.

    Raises:
      UsageError: the dataset or split does not exist, or the options do not fit the dataset.
      CorruptDataset: the dataset is damaged.
    """
    plan = make_plan(path, split, options, training=True, epochs=FOREVER)
    return Source(path=path, split=split, options=options, plan=plan)


def op_text(op: Op) -> str:
    """Returns an op as text for `parse_ops`, without arguments that have their default value."""
    # `reversed`, because `FlipVertical` is a subclass of `Flip` and follows it in `OPS`.
    name = next((name for name, op_class in reversed(OPS.items()) if isinstance(op, op_class)), "")
    if not name:  # the op that replaces `decode` if the records contain pixels
        return type(op).__name__
    arguments = []
    for index, field in enumerate(dataclasses.fields(OPS[name])):
        value = getattr(op, field.name)
        if value != field.default:
            arguments.append(repr(value) if index == 0 else f"{field.name}={value!r}")
    return f"{name}({', '.join(arguments)})" if arguments else name


def op_names(ops: Sequence[Op]) -> list[str]:
    """Returns the name of each op of a chain for tables; equal names are numbered."""
    names = [text if len(text) <= _MAX_NAME_LENGTH else f"{text.partition('(')[0]}(...)" for text in map(op_text, ops)]
    return [f"{name} #{names[:i].count(name) + 1}" if names.count(name) > 1 else name for i, name in enumerate(names)]


def unfuse_crop(ops: Sequence[Op]) -> tuple[Op, ...]:
    """Returns an equivalent chain that decodes complete images and then crops them."""
    if isinstance(ops[0], DecodeRandomCrop):
        return (Decode(), ops[0].on_pixels(), *ops[1:])
    return tuple(ops)


def first_mixing_op(ops: Sequence[Op]) -> int:
    """Returns the index of the first op that mixes several images; the length of the chain if there is none."""
    return next((index for index, op in enumerate(ops) if isinstance(op, MixingOp)), len(ops))


IMAGE_OPS, BATCH_OPS = "ops of images", "ops of batches"  # names of the subjects that run all ops together
_POOL_BYTES = 64e6  # size of the records or pixels that a stage reads: larger than the caches of the processor
_MIN_POOL_IMAGES, _MAX_POOL_IMAGES = 16, 512
_COUNT_BATCH = 64  # images per step of the Python iterator: one step for each image would take longer than the stage


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Records in memory, the input of the stages.

    Attributes:
      serialized: the first records of the split, in order.
      encoded: the encoded image of each record.
      pixels: mean number of pixels of an image.
      short_px: mean short side, pixels.
    """

    serialized: tuple[bytes, ...]
    encoded: tuple[bytes, ...]
    pixels: float
    short_px: float


def load_pool(source: Source) -> Pool:
    """Reads the first records of a split, about 64 MB at most."""
    count = int(min(_MAX_POOL_IMAGES, max(_MIN_POOL_IMAGES, _POOL_BYTES / source.record_bytes)))
    serialized = tuple(tf.data.TFRecordDataset(source.files).take(count).as_numpy_iterator())
    parsed = tf.io.parse_example(list(serialized), record.feature_spec((record.ENCODED, record.HEIGHT, record.WIDTH)))
    height, width = (tf.cast(parsed[name], tf.float32) for name in (record.HEIGHT, record.WIDTH))
    return Pool(
        serialized=serialized,
        encoded=tuple(parsed[record.ENCODED].numpy()),
        pixels=float(tf.reduce_mean(height * width)),
        short_px=float(tf.reduce_mean(tf.minimum(height, width))),
    )


@dataclass(frozen=True, kw_only=True)
class Stages:
    """The stages of the pipeline of one source, built from the functions of `make_dataset`.

    Attributes:
      source: dataset and options.
      pool: records in memory, the input of the stages.
    """

    source: Source
    pool: Pool

    @without_autograph
    def isolated_subjects(self) -> list[Subject]:
        """Returns subjects for read, parse, a map without ops, each op, all ops together, batch, each op on batches."""
        plan, count = self.source.plan, len(self.pool.serialized)
        records = tf.data.Dataset.from_tensor_slices(list(self.pool.serialized)).cache()
        rows = self.parse(records).cache()
        windows = windowed_reader.plan_windows(plan.order, 0, windowed_reader.ENDLESS, Host())
        read = windowed_reader.read_windows(windows, plan.index, plan.options, is_fetched=plan.uses_remote_reader)
        subjects = [
            self._subject(READ, read.map(lambda _, places, seed_epochs: (places, seed_epochs))),
            self._subject(
                PARSE, self._count_batches(self.parse(records.repeat()).map(lambda row: row[IMAGE_SEED])), count
            ),
        ]
        if not plan.vectorised:
            subjects.append(self._subject(CALL, self.run(rows.repeat(), ()), count))
        image_count = self._pixel_pool_images()
        for index, name in enumerate(op_names(plan.image_ops)):
            inputs = self.prepare(self._pixel_pool(rows), plan.image_ops[:index]).cache().repeat()
            outputs = self.run(inputs, plan.image_ops[index : index + 1], index)
            subjects.append(self._subject(name, outputs, image_count))
        subjects.append(self._subject(IMAGE_OPS, self.run(rows.repeat(), plan.image_ops), count))
        image_batches = self.batch(self.prepare(self._pixel_pool(rows), plan.image_ops).cache().repeat())
        subjects.append(dataset_subject(BATCH, self._with_options(image_batches.map(_get_image)), image_count))
        return [*subjects, *self._batch_op_subjects(image_batches)]

    @without_autograph
    def cumulative_subjects(self) -> list[Subject]:
        """Returns subjects of three pipelines from the shards: up to parse, to the first and to the last image op."""
        ops = self.source.plan.image_ops
        rows = make_records_dataset(self.source.plan)
        if not self.source.plan.vectorised:
            rows = rows.unbatch()
        names = op_names(ops)
        streams = {
            PARSE: self._count_batches(rows.map(lambda row: row[IMAGE_SEED])),
            names[0]: self.run(rows, ops[:1]),
            names[-1]: self.run(rows, ops),
        }
        return [self._subject(f"up to {name}", stream) for name, stream in streams.items()]

    def parse(self, stream: tf.data.Dataset) -> tf.data.Dataset:
        """Parses records in batches of `parse_batch`; unbatches them if ops run on single images."""
        plan, options = self.source.plan, self.source.options
        parse_batch = partial(parse, spec=plan.spec, dataset=plan.dataset, seed=options.seed)
        batches = tf.data.Dataset.zip((stream.batch(options.parse_batch), tf.data.Dataset.counter()))
        rows = batches.map(
            lambda serialized, number: parse_batch(serialized, tf.fill(tf.shape(serialized), number)),
            options.thread_count,
            deterministic=True,
        )
        return rows if plan.vectorised else rows.unbatch()

    def prepare(self, rows: tf.data.Dataset, ops: Sequence[Op]) -> tf.data.Dataset:
        """Applies the first ops of the chain to every image, on all threads."""
        salt = self.source.plan.first_salt  # index of the first of these ops in the complete chain

        def apply(row: Features) -> Features:
            return {**row, **apply_ops(ops, row, row[IMAGE_SEED], salt)}

        return rows.map(apply, self.source.options.thread_count, deterministic=True)

    def run(self, rows: tf.data.Dataset, ops: Sequence[Op], index: int = 0) -> tf.data.Dataset:
        """Applies ops and returns only one byte of each image, so that no time is spent on copying images.

        Args:
          rows: dataset of single images, or of batches if the ops take batches.
          ops: consecutive ops of the chain.
          index: index of the first of these ops in `plan.image_ops`.
        """
        salt = self.source.plan.first_salt + index

        def first_byte(row: Features, row_number: tf.Tensor) -> tf.Tensor:
            # With the number in the seed, random ops change a repeated row differently.
            image_seed = tf.stack([row[IMAGE_SEED][..., 0], tf.ones_like(row[IMAGE_SEED][..., 1]) * row_number], -1)
            features = {name: value for name, value in row.items() if name not in RANDOM_FEATURES}
            image = apply_ops(ops, features, image_seed, salt)[IMAGE]
            if image.dtype == tf.string:
                return tf.strings.length(image)
            return image[:, 0, 0, 0] if self.source.plan.vectorised else tf.reshape(image, [-1])[0]

        stream = tf.data.Dataset.zip((rows, tf.data.Dataset.counter(dtype=tf.int32)))
        return self._count_batches(stream.map(first_byte, self.source.options.thread_count, deterministic=True))

    def batch(self, rows: tf.data.Dataset) -> tf.data.Dataset:
        """Makes batches of images and their image seeds, which the ops on batches need."""
        plan = self.source.plan
        if plan.crops > 1:
            rows = rows.map(lambda row: {**row, IMAGE_SEED: tf.repeat(row[IMAGE_SEED][None], plan.crops, 0)})
        rows = rows.map(lambda row: {name: row[name] for name in (IMAGE_SEED, IMAGE)})
        if plan.vectorised:
            return rows.rebatch(plan.batch, drop_remainder=True)
        rows = rows.unbatch() if plan.crops > 1 else rows
        return rows.batch(plan.batch, drop_remainder=True)

    def _batch_op_subjects(self, image_batches: tf.data.Dataset) -> list[Subject]:
        """Returns subjects for the ops on batches, each separately and all together, with batches from memory."""
        plan = self.source.plan
        ops, names = plan.batch_ops, op_names(plan.all_ops)
        batch_pool = image_batches.take(max(1, self._pixel_pool_images() // plan.batch)).cache()
        subjects = []
        for index, _ in enumerate(ops):
            inputs = self._apply_batch_ops(batch_pool, ops[:index], 0).cache() if index else batch_pool
            outputs = self._apply_batch_ops(inputs.repeat(), ops[index : index + 1], index).map(_get_image)
            name = names[len(names) - len(ops) + index]
            subjects.append(dataset_subject(name, self._with_options(outputs), plan.batch))
        if ops:
            outputs = self._apply_batch_ops(batch_pool.repeat(), ops, 0).map(_get_image)
            subjects.append(dataset_subject(BATCH_OPS, self._with_options(outputs)))
        return subjects

    def _apply_batch_ops(self, image_batches: tf.data.Dataset, ops: Sequence[Op], index: int) -> tf.data.Dataset:
        salt = self.source.plan.batch_salt + index

        def apply(row: Features) -> Features:
            return {**row, IMAGE: apply_batch_ops(ops, row[IMAGE], row[IMAGE_SEED], salt)}

        return image_batches.map(apply, self.source.options.thread_count, deterministic=True)

    def _pixel_pool(self, rows: tf.data.Dataset) -> tf.data.Dataset:
        """Returns the first rows, whose decoded images take about 64 MB."""
        images_per_row = self.source.options.parse_batch if self.source.plan.vectorised else 1
        return rows.take(max(1, self._pixel_pool_images() // images_per_row))

    def _pixel_pool_images(self) -> int:
        """Returns the number of decoded images that take about 64 MB, within the limits of a pool."""
        pixels = max(self.pool.pixels, self.source.plan.crops * self.source.options.image_side_px**2)
        return int(min(len(self.pool.serialized), max(_MIN_POOL_IMAGES, _POOL_BYTES / (3 * pixels))))

    def _count_batches(self, stream: tf.data.Dataset) -> tf.data.Dataset:
        """Returns a stream of batches, because a subject counts the rows of each element."""
        return stream if self.source.plan.vectorised else stream.batch(_COUNT_BATCH)

    def _subject(self, name: str, stream: tf.data.Dataset, warm_images: int = 1) -> Subject:
        return dataset_subject(name, self._with_options(stream), warm_images, self.source.plan.crops)

    def _with_options(self, stream: tf.data.Dataset) -> tf.data.Dataset:
        return stream.with_options(tf_options(self.source.options, self.source.plan.waiting_threads))


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Changes to `make_dataset` for which it has no options.

    Attributes:
      floats: whether batches are float32 instead of uint8.
      prefetch: whether the pipeline prefetches batches.
      shuffle_images: decoded images in the buffer of a shuffle after the ops; 0 to shuffle records before the ops.
    """

    floats: bool = False
    prefetch: bool = True
    shuffle_images: int = 0


def assemble(source: Source, variant: Variant) -> tf.data.Dataset:
    """Returns an endless dataset of (features, label): `make_dataset` for single images, with the changes."""
    plan = source.plan
    if variant.shuffle_images:
        unshuffled = dataclasses.replace(source.options, shuffle="none")
        plan = open_source(source.path, source.split, unshuffled).plan
    stream = images(plan, 0)
    if variant.shuffle_images:
        stream = stream.shuffle(variant.shuffle_images, seed=0)
    # Ops on batches need uint8 images, so the conversion to floats follows them.
    if variant.floats and not plan.batch_ops:
        stream = stream.map(_convert_to_floats, source.options.thread_count, deterministic=True)
    stream = batches(stream, plan)
    if variant.floats and plan.batch_ops:
        stream = stream.map(_convert_to_floats, source.options.thread_count, deterministic=True)
    if variant.prefetch:
        stream = stream.prefetch(source.options.prefetch_batches)
    return stream.with_options(tf_options(source.options, plan.waiting_threads))


def _convert_to_floats(features: Features, label: tf.Tensor) -> tuple[Features, tf.Tensor]:
    return {**features, IMAGE: tf.image.convert_image_dtype(features[IMAGE], tf.float32)}, label


def _get_image(row: Features) -> tf.Tensor:
    return row[IMAGE]
