"""Every stage of the input pipeline alone, fed from memory, and the pipeline from the shards up to a stage.

Alone, a stage has all threads to itself, and what it needs was made before and lies in a cache; so its rate says how
fast the pipeline would be if all else cost nothing. Ops are taken one by one, as spelled, without what makes them fast.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import tensorflow as tf

from beam_jobs.dataset import record
from trainer.bench.meter import Subject, of_dataset
from trainer.input import windowed_reader
from trainer.input.parse import DRAW, Features, parse
from trainer.input.plan import Choices, make_choices
from trainer.input.position import Host
from trainer.input.windowed_reader import FOREVER
from trainer.input_fn import batches, images, tf_options
from trainer.input_fn import parsed as parsed_records
from trainer.ops import IMAGE, OPS, Decode, DecodeRandomCrop, MixingOp, Op, apply_batch_ops, apply_ops
from trainer.ops.chain import DRAW_FEATURES
from trainer.ops.tf_ops import without_autograph
from trainer.options import InputOptions

_LONGEST = 40  # characters of an op in a table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """What is measured.

    Attributes:
      path: directory of the dataset.
      split: name of the split.
      options: how shards become batches.
      choices: what `make_dataset` decides for them.
    """

    path: str
    split: str
    options: InputOptions
    choices: Choices

    @property
    def files(self) -> list[str]:
        """Paths of the shards."""
        return self.choices.dataset.shard_paths(self.choices.path, self.split)

    @property
    def record_bytes(self) -> float:
        """Mean size of a record in its shard."""
        info = self.choices.dataset.split(self.split)
        return info.bytes / info.records

    @property
    def is_raw(self) -> bool:
        """Whether the records hold pixels, so that nothing is decoded."""
        return self.choices.dataset.options["pixels"]["policy"] == "raw"


def open_source(path: str, split: str, options: InputOptions) -> Source:
    """Looks at a dataset.

    Raises:
      UsageError: there is no such dataset or split, or the options do not fit.
      CorruptDataset: the dataset is damaged.
    """
    choices = make_choices(path, split, options, training=True, epochs=FOREVER)
    return Source(path=path, split=split, options=options, choices=choices)


def spell(op: Op) -> str:
    """Returns an op as `parse_ops` reads it, arguments that have their default left out."""
    found = next(((name, kind) for name, kind in OPS.items() if isinstance(op, kind)), None)
    if found is None:  # what stands for a decode where nothing is encoded
        return type(op).__name__
    words = []
    for place, field in enumerate(dataclasses.fields(found[1])):
        value = getattr(op, field.name)
        if value != field.default:
            words.append(repr(value) if place == 0 else f"{field.name}={value!r}")
    return f"{found[0]}({', '.join(words)})" if words else found[0]


def names_of(ops: Sequence[Op]) -> list[str]:
    """Returns how each op of a chain is called in the figures; one that comes twice is numbered."""
    spelled = [text if len(text) <= _LONGEST else f"{text.partition('(')[0]}(...)" for text in map(spell, ops)]
    return [
        f"{name} #{spelled[:place].count(name) + 1}" if spelled.count(name) > 1 else name
        for place, name in enumerate(spelled)
    ]


def unfused(ops: Sequence[Op]) -> tuple[Op, ...]:
    """Returns the chain that decodes whole images and crops them afterwards."""
    if isinstance(ops[0], DecodeRandomCrop):
        return (Decode(), ops[0].on_pixels(), *ops[1:])
    return tuple(ops)


def first_mixing(ops: Sequence[Op]) -> int:
    """Returns the place of the first op that takes several images at a time; the length of the chain if none does."""
    return next((place for place, op in enumerate(ops) if isinstance(op, MixingOp)), len(ops))


READ, PARSE, CALL, BATCH, IMAGE_OPS, BATCH_OPS = "read", "parse", "call", "batch", "ops of images", "ops of batches"
_POOL_BYTES = 64e6  # of records or pixels that a stage is fed from: larger than the caches of the processor
_POOL_IMAGES = (16, 512)  # at least and at most
_COUNTED = 64  # images counted at a time: counting one by one in Python would take longer than reading them


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Records kept in memory.

    Attributes:
      serialized: some records of the split, in order.
      encoded: the image in each of them.
      pixels: mean height x width.
      short_px: mean short side.
    """

    serialized: tuple[bytes, ...]
    encoded: tuple[bytes, ...]
    pixels: float
    short_px: float


def load_pool(source: Source) -> Pool:
    """Reads the first records of a split, up to some 64 MB."""
    few, many = _POOL_IMAGES
    count = int(min(many, max(few, _POOL_BYTES / source.record_bytes)))
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
    """The stages of one source, built from the pieces of `make_dataset`.

    Attributes:
      source: what is measured.
      pool: what stages are fed from.
    """

    source: Source
    pool: Pool

    @without_autograph
    def alone(self) -> list[Subject]:
        """Returns read, parse, the call of a map that does nothing, each op, all ops, batch, each op of batches."""
        choices, count = self.source.choices, len(self.pool.serialized)
        kept = tf.data.Dataset.from_tensor_slices(list(self.pool.serialized)).cache()
        rows = self.parse(kept).cache()
        read = windowed_reader.read_windows(self._plan(), choices.index, self.source.options)
        subjects = [
            self._subject(READ, read.map(lambda _, places, draws: (places, draws))),
            self._subject(PARSE, self._counted(self.parse(kept.repeat()).map(lambda row: row[DRAW])), count),
        ]
        if not choices.vectorised:
            subjects.append(self._subject(CALL, self.run(rows.repeat(), ()), count))
        for place, name in enumerate(names_of(choices.image_ops)):
            ready = self.prepare(self._some(rows), choices.image_ops[:place]).cache().repeat()
            subjects.append(
                self._subject(name, self.run(ready, choices.image_ops[place : place + 1], place), self._few())
            )
        subjects.append(self._subject(IMAGE_OPS, self.run(rows.repeat(), choices.image_ops), count))
        made = self.batch(self.prepare(self._some(rows), choices.image_ops).cache().repeat())
        subjects.append(of_dataset(BATCH, self._with_options(made.map(_image_of)), self._few()))
        return [*subjects, *self._on_batches(made)]

    @without_autograph
    def together(self) -> dict[str, Subject]:
        """Returns the name of a stage -> the pipeline from the shards up to it, as far as it ends before batches."""
        ops = self.source.choices.image_ops
        rows = parsed_records(self.source.choices)
        if not self.source.choices.vectorised:
            rows = rows.unbatch()
        names = names_of(ops)
        so_far = {
            PARSE: self._counted(rows.map(lambda row: row[DRAW])),
            names[0]: self.run(rows, ops[:1]),
            names[-1]: self.run(rows, ops),
        }
        return {name: self._subject(f"up to {name}", stream) for name, stream in so_far.items()}

    def parse(self, stream: tf.data.Dataset) -> tf.data.Dataset:
        """Parses `parse_batch` records by one op; takes them apart again where ops run on single images."""
        choices, options = self.source.choices, self.source.options
        parse_batch = partial(parse, spec=choices.spec, dataset=choices.dataset, seed=options.seed)
        batches = tf.data.Dataset.zip((stream.batch(options.parse_batch), tf.data.Dataset.counter()))
        rows = batches.map(
            lambda serialized, turn: parse_batch(serialized, tf.fill(tf.shape(serialized), turn)),
            options.thread_count,
            deterministic=True,
        )
        return rows if choices.vectorised else rows.unbatch()

    def prepare(self, rows: tf.data.Dataset, ops: Sequence[Op]) -> tf.data.Dataset:
        """Runs the first ops on every image, on all threads."""
        salt = self.source.choices.first_salt

        def one(row: Features) -> Features:
            return {**row, **apply_ops(ops, row, row[DRAW], salt)}

        return rows.map(one, self.source.options.thread_count, deterministic=True)

    def run(self, rows: tf.data.Dataset, ops: Sequence[Op], place: int = 0) -> tf.data.Dataset:
        """Runs ops and keeps one byte of each image: enough that all of it is made, too little to cost anything.

        Args:
          rows: of one image each, or of a batch where the ops take batches.
          ops: some ops of the chain.
          place: of the first of them in the chain.
        """
        salt = self.source.choices.first_salt + place
        per_image = not self.source.choices.vectorised

        def one(row: Features, turn: tf.Tensor) -> tf.Tensor:
            # A row that comes again must not give the same image again.
            draw = tf.stack([row[DRAW][..., 0], tf.ones_like(row[DRAW][..., 1]) * turn], -1)
            kept = {name: value for name, value in row.items() if name not in DRAW_FEATURES}
            image = apply_ops(ops, kept, draw, salt)[IMAGE]
            if image.dtype == tf.string:
                return tf.strings.length(image)
            return tf.reshape(image, [-1])[0] if per_image else image[:, 0, 0, 0]

        turns = tf.data.Dataset.counter(dtype=tf.int32)
        stream = tf.data.Dataset.zip((rows, turns))
        return self._counted(stream.map(one, self.source.options.thread_count, deterministic=True))

    def batch(self, rows: tf.data.Dataset) -> tf.data.Dataset:
        """Puts the images, with what the ops of batches need, into batches."""
        choices = self.source.choices
        if choices.crops > 1:
            rows = rows.map(lambda row: {**row, DRAW: tf.repeat(row[DRAW][None], choices.crops, 0)})
        rows = rows.map(lambda row: {name: row[name] for name in (DRAW, IMAGE)})
        if choices.vectorised:
            return rows.rebatch(choices.batch, drop_remainder=True)
        rows = rows.unbatch() if choices.crops > 1 else rows
        return rows.batch(choices.batch, drop_remainder=True)

    def _on_batches(self, made: tf.data.Dataset) -> list[Subject]:
        """Returns the ops of batches one by one and together, fed from a pool of batches."""
        choices = self.source.choices
        ops, names = choices.batch_ops, names_of(choices.all_ops)
        kept = made.take(max(1, self._few() // choices.batch)).cache()
        subjects = []
        for place, _ in enumerate(ops):
            ready = self._finish(kept, ops[:place], 0).cache() if place else kept
            stage = self._finish(ready.repeat(), ops[place : place + 1], place)
            name = names[len(names) - len(ops) + place]
            subjects.append(of_dataset(name, self._with_options(stage.map(_image_of)), choices.batch))
        if ops:
            whole = self._finish(kept.repeat(), ops, 0).map(_image_of)
            subjects.append(of_dataset(BATCH_OPS, self._with_options(whole)))
        return subjects

    def _finish(self, made: tf.data.Dataset, ops: Sequence[Op], place: int) -> tf.data.Dataset:
        salt = self.source.choices.batch_salt + place

        def finish(row: Features) -> Features:
            return {**row, IMAGE: apply_batch_ops(ops, row[IMAGE], row[DRAW], salt)}

        return made.map(finish, self.source.options.thread_count, deterministic=True)

    def _plan(self) -> tf.data.Dataset:
        return windowed_reader.plan_windows(self.source.choices.order, 0, windowed_reader.ENDLESS, Host())

    def _some(self, rows: tf.data.Dataset) -> tf.data.Dataset:
        """Returns so many rows that their pixels fit a pool."""
        rows_each = self.source.options.parse_batch if self.source.choices.vectorised else 1
        return rows.take(max(1, self._few() // rows_each))

    def _few(self) -> int:
        pixels = max(self.pool.pixels, self.source.choices.crops * self.source.options.image_side_px**2)
        return int(min(len(self.pool.serialized), max(_POOL_IMAGES[0], _POOL_BYTES / (3 * pixels))))

    def _counted(self, stream: tf.data.Dataset) -> tf.data.Dataset:
        return stream if self.source.choices.vectorised else stream.batch(_COUNTED)

    def _subject(self, name: str, stream: tf.data.Dataset, warm_images: int = 1) -> Subject:
        return of_dataset(name, self._with_options(stream), warm_images, self.source.choices.crops)

    def _with_options(self, stream: tf.data.Dataset) -> tf.data.Dataset:
        return stream.with_options(tf_options(self.source.options))


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Choices of `make_dataset` that are no option of it.

    Attributes:
      floats: batches are float32 instead of uint8.
      prefetch: whether batches are made ahead.
      shuffled: decoded images that a shuffle behind the ops holds; 0 for the window of records before them.
    """

    floats: bool = False
    prefetch: bool = True
    shuffled: int = 0


def assembled(source: Source, variant: Variant) -> tf.data.Dataset:
    """Returns `make_dataset` in its pieces, image by image: endless, of (features, label)."""
    choices = source.choices
    if variant.shuffled:
        in_order = dataclasses.replace(source.options, shuffle="none")
        choices = open_source(source.path, source.split, in_order).choices
    stream = images(choices, 0)
    if variant.shuffled:
        stream = stream.shuffle(variant.shuffled, seed=0)
    # Ops of batches take what they get; floats only come after them.
    if variant.floats and not choices.batch_ops:
        stream = stream.map(_floats, source.options.thread_count, deterministic=True)
    stream = batches(stream, choices)
    if variant.floats and choices.batch_ops:
        stream = stream.map(_floats, source.options.thread_count, deterministic=True)
    if variant.prefetch:
        stream = stream.prefetch(source.options.prefetch_batches)
    return stream.with_options(tf_options(source.options))


def _floats(features: Features, label: tf.Tensor) -> tuple[Features, tf.Tensor]:
    return {**features, IMAGE: tf.image.convert_image_dtype(features[IMAGE], tf.float32)}, label


def _image_of(row: Features) -> tf.Tensor:
    return row[IMAGE]
