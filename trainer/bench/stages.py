"""Each stage of the input pipeline in isolation, with input from memory, and the pipeline from the shards to a stage.

In isolation, a stage has all threads, and its input is in a cache; its rate is that of the pipeline if all other stages
took no time. Ops are measured one by one, without the fusion of neighbouring ops.
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

_MAX_NAME_LENGTH = 40  # characters of an op in a table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """Dataset and options of a measurement.

    Attributes:
      path: directory of the dataset.
      split: name of the split.
      options: options of the input pipeline.
      plan: plan of `make_dataset` for dataset and options.
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
        info = self.plan.dataset.split(self.split)
        return info.bytes / info.records

    @property
    def is_raw(self) -> bool:
        """Whether the records hold pixels, which need no decode."""
        return self.plan.dataset.options["pixels"]["policy"] == "raw"


def open_source(path: str, split: str, options: InputOptions) -> Source:
    """Opens a dataset.

    Raises:
      UsageError: the dataset or split does not exist, or the options do not fit.
      CorruptDataset: the dataset is damaged.
    """
    plan = make_plan(path, split, options, training=True, epochs=FOREVER)
    return Source(path=path, split=split, options=options, plan=plan)


def spell(op: Op) -> str:
    """Returns an op as `parse_ops` reads it, without the arguments that have their default."""
    # `flip_vertical` extends `flip`, and stands after it in the table.
    name = next((name for name, kind in reversed(OPS.items()) if isinstance(op, kind)), "")
    if not name:  # the op that replaces a decode where the records hold pixels
        return type(op).__name__
    arguments = []
    for index, field in enumerate(dataclasses.fields(OPS[name])):
        value = getattr(op, field.name)
        if value != field.default:
            arguments.append(repr(value) if index == 0 else f"{field.name}={value!r}")
    return f"{name}({', '.join(arguments)})" if arguments else name


def op_names(ops: Sequence[Op]) -> list[str]:
    """Returns the name of each op of a chain in the figures; repeated names are numbered."""
    names = [text if len(text) <= _MAX_NAME_LENGTH else f"{text.partition('(')[0]}(...)" for text in map(spell, ops)]
    return [f"{name} #{names[:i].count(name) + 1}" if names.count(name) > 1 else name for i, name in enumerate(names)]


def unfuse_crop(ops: Sequence[Op]) -> tuple[Op, ...]:
    """Returns an equivalent chain that decodes complete images and crops them afterwards."""
    if isinstance(ops[0], DecodeRandomCrop):
        return (Decode(), ops[0].on_pixels(), *ops[1:])
    return tuple(ops)


def first_mixing_op(ops: Sequence[Op]) -> int:
    """Returns the index of the first op that mixes several images; the length of the chain if there is none."""
    return next((index for index, op in enumerate(ops) if isinstance(op, MixingOp)), len(ops))


IMAGE_OPS, BATCH_OPS = "ops of images", "ops of batches"
_POOL_BYTES = 64e6  # of records or pixels as input of a stage: larger than the caches of the processor
_MIN_POOL_IMAGES, _MAX_POOL_IMAGES = 16, 512
_COUNT_BATCH = 64  # images per Python step: a step per image would take longer than the stage


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Records in memory.

    Attributes:
      serialized: the first records of the split, in order.
      encoded: the encoded image of each record.
      pixels: mean height x width, pixels.
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
      pool: input of the stages.
    """

    source: Source
    pool: Pool

    @without_autograph
    def isolated_subjects(self) -> list[Subject]:
        """Returns read, parse, the call of a map without ops, each op, all ops, batch, each op of batches."""
        plan, count = self.source.plan, len(self.pool.serialized)
        records = tf.data.Dataset.from_tensor_slices(list(self.pool.serialized)).cache()
        rows = self.parse(records).cache()
        windows = windowed_reader.plan_windows(plan.order, 0, windowed_reader.ENDLESS, Host())
        read = windowed_reader.read_windows(windows, plan.index, self.source.options, fetches=plan.fetches)
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
        """Returns the pipelines from the shards to parse, to the first and to the last op of images."""
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
        """Parses `parse_batch` records per op; unbatches them if ops run on single images."""
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
        """Runs the first ops of the chain on every image, on all threads."""
        salt = self.source.plan.first_salt

        def apply(row: Features) -> Features:
            return {**row, **apply_ops(ops, row, row[IMAGE_SEED], salt)}

        return rows.map(apply, self.source.options.thread_count, deterministic=True)

    def run(self, rows: tf.data.Dataset, ops: Sequence[Op], index: int = 0) -> tf.data.Dataset:
        """Runs ops and returns one byte of each image: TensorFlow computes the image, and its copy takes no time.

        Args:
          rows: dataset of single images, or of batches if the ops take batches.
          ops: consecutive ops of the chain.
          index: index of the first one in the chain.
        """
        salt = self.source.plan.first_salt + index
        per_image = not self.source.plan.vectorised

        def first_byte(row: Features, number: tf.Tensor) -> tf.Tensor:
            # Repetitions of a row must result in other images.
            image_seed = tf.stack([row[IMAGE_SEED][..., 0], tf.ones_like(row[IMAGE_SEED][..., 1]) * number], -1)
            features = {name: value for name, value in row.items() if name not in RANDOM_FEATURES}
            image = apply_ops(ops, features, image_seed, salt)[IMAGE]
            if image.dtype == tf.string:
                return tf.strings.length(image)
            return tf.reshape(image, [-1])[0] if per_image else image[:, 0, 0, 0]

        stream = tf.data.Dataset.zip((rows, tf.data.Dataset.counter(dtype=tf.int32)))
        return self._count_batches(stream.map(first_byte, self.source.options.thread_count, deterministic=True))

    def batch(self, rows: tf.data.Dataset) -> tf.data.Dataset:
        """Makes batches of the images and their seeds, which the ops of batches need."""
        plan = self.source.plan
        if plan.crops > 1:
            rows = rows.map(lambda row: {**row, IMAGE_SEED: tf.repeat(row[IMAGE_SEED][None], plan.crops, 0)})
        rows = rows.map(lambda row: {name: row[name] for name in (IMAGE_SEED, IMAGE)})
        if plan.vectorised:
            return rows.rebatch(plan.batch, drop_remainder=True)
        rows = rows.unbatch() if plan.crops > 1 else rows
        return rows.batch(plan.batch, drop_remainder=True)

    def _batch_op_subjects(self, image_batches: tf.data.Dataset) -> list[Subject]:
        """Returns the ops of batches one by one and all together, with input from a pool of batches."""
        plan = self.source.plan
        ops, names = plan.batch_ops, op_names(plan.all_ops)
        pool = image_batches.take(max(1, self._pixel_pool_images() // plan.batch)).cache()
        subjects = []
        for index, _ in enumerate(ops):
            inputs = self._apply_batch_ops(pool, ops[:index], 0).cache() if index else pool
            outputs = self._apply_batch_ops(inputs.repeat(), ops[index : index + 1], index).map(_get_image)
            name = names[len(names) - len(ops) + index]
            subjects.append(dataset_subject(name, self._with_options(outputs), plan.batch))
        if ops:
            outputs = self._apply_batch_ops(pool.repeat(), ops, 0).map(_get_image)
            subjects.append(dataset_subject(BATCH_OPS, self._with_options(outputs)))
        return subjects

    def _apply_batch_ops(self, image_batches: tf.data.Dataset, ops: Sequence[Op], index: int) -> tf.data.Dataset:
        salt = self.source.plan.batch_salt + index

        def apply(row: Features) -> Features:
            return {**row, IMAGE: apply_batch_ops(ops, row[IMAGE], row[IMAGE_SEED], salt)}

        return image_batches.map(apply, self.source.options.thread_count, deterministic=True)

    def _pixel_pool(self, rows: tf.data.Dataset) -> tf.data.Dataset:
        """Returns the first rows, whose decoded images are a pool of about 64 MB."""
        images_per_row = self.source.options.parse_batch if self.source.plan.vectorised else 1
        return rows.take(max(1, self._pixel_pool_images() // images_per_row))

    def _pixel_pool_images(self) -> int:
        pixels = max(self.pool.pixels, self.source.plan.crops * self.source.options.image_side_px**2)
        return int(min(len(self.pool.serialized), max(_MIN_POOL_IMAGES, _POOL_BYTES / (3 * pixels))))

    def _count_batches(self, stream: tf.data.Dataset) -> tf.data.Dataset:
        return stream if self.source.plan.vectorised else stream.batch(_COUNT_BATCH)

    def _subject(self, name: str, stream: tf.data.Dataset, warm_images: int = 1) -> Subject:
        return dataset_subject(name, self._with_options(stream), warm_images, self.source.plan.crops)

    def _with_options(self, stream: tf.data.Dataset) -> tf.data.Dataset:
        return stream.with_options(tf_options(self.source.options, self.source.plan.waiting_threads))


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Changes to `make_dataset` that are not options.

    Attributes:
      floats: whether batches are float32 instead of uint8.
      prefetch: whether the pipeline prefetches batches.
      shuffle_images: window of a shuffle of decoded images after the ops; 0 for the shuffle of records before them.
    """

    floats: bool = False
    prefetch: bool = True
    shuffle_images: int = 0


def assemble(source: Source, variant: Variant) -> tf.data.Dataset:
    """Returns a variant of `make_dataset` that processes single images, an endless dataset of (features, label)."""
    plan = source.plan
    if variant.shuffle_images:
        unshuffled = dataclasses.replace(source.options, shuffle="none")
        plan = open_source(source.path, source.split, unshuffled).plan
    stream = images(plan, 0)
    if variant.shuffle_images:
        stream = stream.shuffle(variant.shuffle_images, seed=0)
    # Ops of batches take uint8 images, so the conversion follows them.
    if variant.floats and not plan.batch_ops:
        stream = stream.map(_to_floats, source.options.thread_count, deterministic=True)
    stream = batches(stream, plan)
    if variant.floats and plan.batch_ops:
        stream = stream.map(_to_floats, source.options.thread_count, deterministic=True)
    if variant.prefetch:
        stream = stream.prefetch(source.options.prefetch_batches)
    return stream.with_options(tf_options(source.options, plan.waiting_threads))


def _to_floats(features: Features, label: tf.Tensor) -> tuple[Features, tf.Tensor]:
    return {**features, IMAGE: tf.image.convert_image_dtype(features[IMAGE], tf.float32)}, label


def _get_image(row: Features) -> tf.Tensor:
    return row[IMAGE]
