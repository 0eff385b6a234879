"""What `make_dataset` decides before it reads: one value with everything that was chosen.

`describe` says it in words: every buffer with its bytes, every choice with its reason.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from beam_jobs.common import strings
from beam_jobs.common.strings import plural, size
from beam_jobs.dataset import manifest
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.errors import OptionError
from beam_jobs.storage import is_remote
from trainer.input.cache import WHILE_FILLED, CacheChoice, choose_cache, on_disk
from trainer.input.corrupt_records import excluded
from trainer.input.download import readable
from trainer.input.order import Order, RecordIndex, load_index, make_order
from trainer.input.parse import DecodeRaw, base_spec, columns_spec, stored_ops
from trainer.input.position import Host
from trainer.input.windowed_reader import Place
from trainer.ops import OPS, MixingOp, Op, bind_statistics, outputs, parse_ops, split_position
from trainer.options import InputOptions


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Everything that is known before the first record is read.

    Attributes:
      dataset: the dataset.
      path: directory its shards are read from: where it lies, or the copy of it here.
      options: how shards become batches.
      training: whether to shuffle and augment.
      host: which part is read here.
      index: the records this host may read, in the files they are read from.
      order: how they follow each other.
      whole_ops: what is done to an image altogether.
      image_ops: the part of it that runs image by image, from what a record, or the cache, holds.
      batch_ops: the part that runs on batches.
      cache: what is kept from the first pass.
      spec: what `tf.io.parse_example` has to know.
      total: records of the split, over all hosts.
      left_out: damaged records that are left out.
    """

    dataset: Manifest
    path: str
    options: InputOptions
    training: bool
    host: Host
    index: RecordIndex
    order: Order
    whole_ops: tuple[Op, ...]
    image_ops: tuple[Op, ...]
    batch_ops: tuple[Any, ...]
    cache: CacheChoice
    spec: Mapping[str, Any]
    total: int
    left_out: int

    @property
    def batch(self) -> int:
        """Images in a batch of this host, at most; evaluation need not share them equally."""
        return -(-self.options.batch_size // self.host.count)

    @property
    def mixing_lanes(self) -> int:
        """Lanes in a batch of this host: images are mixed inside of each, because no number of hosts takes it apart.

        One, which is the whole batch, where lanes would hold one image each; several hosts are refused there.
        """
        each, over = divmod(self.options.batch_size, self.options.lanes)
        return self.options.lanes // self.host.count if each > 1 and not over else 1

    @property
    def batch_bytes(self) -> int:
        """Bytes of the images of a batch, uint8."""
        return int(self.batch * self.options.image_side_px**2 * 3)

    @property
    def crops(self) -> int:
        """Images that one record becomes."""
        return outputs(self.whole_ops)

    @property
    def group(self) -> int:
        """Records of this host whose crops are spread among each other.

        Over all hosts they are a multiple of `lanes`, so that it is the same records on any number of hosts: as many
        as the shuffle budget holds, 64 or one a lane.
        """
        if self.crops == 1:
            return 1
        image_bytes = self.crops * self.options.image_side_px**2 * 3
        lanes = self.options.lanes
        return int(max(1, min(64, self.options.shuffle_mb * 1e6 // image_bytes) // lanes)) * lanes // self.host.count

    @property
    def epoch_images(self) -> int:
        """Images of one pass, over all hosts."""
        return (self.order.records if self.training else self.total) * self.crops

    @property
    def local_images(self) -> int:
        """Images of one pass that `order` speaks of: over all hosts, but of evaluation those of this host."""
        return self.order.records * self.crops

    @property
    def vectorised(self) -> bool:
        """Whether no op runs on one image at a time: the stored or kept pixels are what the model sees."""
        return all(isinstance(op, DecodeRaw) for op in self.image_ops)

    @property
    def served(self) -> bool:
        """Whether a tf.data service runs the pipeline. Evaluation is exact, so it reads here."""
        return self.training and bool(self.options.service)

    @property
    def first_salt(self) -> int:
        """Place of the first of `image_ops` in the whole chain: what a cache has done keeps the draws behind it."""
        return len(self.whole_ops) - len(self.batch_ops) - len(self.image_ops)

    @property
    def batch_salt(self) -> int:
        """Place of the first of `batch_ops` in the whole chain."""
        return len(self.whole_ops) - len(self.batch_ops)


def make_choices(
    path: str, split: str, options: InputOptions, training: bool, epochs: int = 1, host: Host | None = None
) -> Choices:
    """Reads the manifest and the table of a dataset and decides everything.

    Raises:
      UsageError: there is no such dataset or split, or the options do not fit it.
      CorruptDataset: the dataset is damaged.
    """
    host = host or Host()
    ops = parse_ops(options.train_spec) if training else evaluation_ops(options)
    if training:
        _check_host(options, host, ops)
    dataset = manifest.load(path)
    path = readable(path, dataset, split, options)
    index = load_index(path, dataset, split)
    ops = _bound(stored_ops(ops, dataset, index.size), dataset)
    left_out = excluded(path, split, options.max_corrupt_records) if options.max_corrupt_records else frozenset()
    index = index.without(left_out) if left_out else index
    total = len(index)
    order = make_order(index, dataset.labels, options, training)
    # The crops of one image are not yet apart while ops run on it, so all of them do.
    batched = len(ops) if outputs(ops) > 1 else split_position(ops, bool(options.targets))
    mine = index if training else index.part(host)
    reads_here = options if training else dataclasses.replace(options, service="")
    cache = choose_cache(reads_here, ops[:batched], mine, once=training and epochs == 1)
    if cache.kind == "disk":
        identity = json.dumps([dataset.digest, split, sorted(left_out)])
        index = on_disk(index, ops[: cache.ops], identity, options.cache_dir, options.thread_count)
    if not training:
        index = index.part(host)
        order = dataclasses.replace(order, records=len(index))
    return Choices(
        dataset=dataset,
        path=path,
        options=options,
        training=training,
        host=host,
        index=index,
        order=order,
        whole_ops=ops,
        image_ops=_image_ops(ops[:batched], cache),
        batch_ops=ops[batched:],
        cache=cache,
        spec={**base_spec(dataset), **columns_spec(dataset, path, options)},
        total=total,
        left_out=len(left_out),
    )


def evaluation_ops(options: InputOptions) -> tuple[Op, ...]:
    """Returns the ops of evaluation and serving.

    Raises:
      OptionError: they are wrong, or one of them is random.
    """
    ops = parse_ops(options.eval_spec)
    for op in ops:
        if op.random:
            name = next(name for name, kind in OPS.items() if isinstance(op, kind))
            raise OptionError(f"eval_ops {options.eval_spec!r} holds {name}, which is random; evaluation must not be")
    return ops


def records_before(choices: Choices, images: Place) -> tuple[Place, Place]:
    """Returns where to start reading, for a place in the images of all hosts.

    Returns:
      place in the records, and how many images of this host to leave out after that. The crops of a
      group of records are delivered together, so a group that was begun is read again.
    """
    if choices.crops == 1:
        return images, 0
    host, group = choices.host, choices.group * choices.host.count
    begun, delivered = images // (group * choices.crops), images % (group * choices.crops)
    crops, records = delivered // group, delivered % group  # over all hosts: each crop of all records follows
    mine = -(-(records - host.index) // host.count)  # the hosts take turns
    return begun * group, crops * choices.group + mine


def records_until(choices: Choices, images: Place) -> Place:
    """Returns where to end reading, in records: all of the group that the image before some place belongs to."""
    if choices.crops == 1:
        return images
    group = choices.group * choices.host.count
    return -(-images // (group * choices.crops)) * group


def _bound(ops: tuple[Op, ...], dataset: Manifest) -> tuple[Op, ...]:
    return bind_statistics(ops, dataset.channels.mean_rgb, dataset.channels.std_rgb) if dataset.channels else ops


def _image_ops(ops: tuple[Op, ...], cache: CacheChoice) -> tuple[Op, ...]:
    if cache.kind == "none" or not cache.size:
        return ops
    # A file holds pixels as bytes, memory holds them as they are.
    return (*([DecodeRaw(*cache.size)] if cache.kind == "disk" else []), *ops[cache.ops :])


def _check_host(options: InputOptions, host: Host, ops: tuple[Op, ...]) -> None:
    if options.batch_size % host.count:
        raise OptionError(f"batch_size is {options.batch_size}; {host.count} hosts must be able to share it equally")
    if host.count == 1:
        return
    if options.lanes % host.count:
        raise OptionError(f"lanes is {options.lanes}; {host.count} hosts must be able to share them equally")
    if options.batch_size % options.lanes:
        raise OptionError(
            f"batch_size is {options.batch_size}; with several hosts lanes, {options.lanes}, must divide it"
        )
    if options.batch_size == options.lanes and any(isinstance(op, MixingOp) for op in ops):
        raise OptionError(
            f"batch_size and lanes are {options.lanes}; to mix images on several hosts batch_size must be "
            f"{2 * options.lanes} or more, or lanes less"
        )


def describe(
    path: str, split: str, options: InputOptions, training: bool, epochs: int = 1, host: Host | None = None
) -> str:
    """Returns what `make_dataset` with the same arguments chose, and why; a line a stage.

    Examples:
      >>> from trainer import InputOptions, describe_input
      >>> print(describe_input("dataset", "train", InputOptions(image_side_px=32, batch_size=8), training=True))
      records  ...
      batch    8 images, uint8, 0.0 MB; 2 kept ready
      memory   at most ...

    Args:
      path: directory of a published dataset.
      split: name of the split.
      options: how shards become batches.
      training: whether it is the input of training.
      epochs: passes over the split, or `FOREVER`; what is read once is not cached.
      host: which part to read; all of it when None.

    Returns:
      lines of text: records, order, reading, cache, images, device, batch and memory in MB (1e6 bytes).

    Raises:
      UsageError: there is no such dataset or split, or the options do not fit it.
      CorruptDataset: the dataset is damaged.
    """
    choices = make_choices(path, split, options, training, epochs, host)
    lines = [
        ("records", _records(choices)),
        ("order", _order(choices)),
        ("reading", _reading(choices)),
        ("cache", f"{choices.cache.kind}: {choices.cache.reason}"),
        ("images", f"{_ops(choices)} on {options.thread_count} threads"),
        ("device", options.device_ops or "normalisation only"),
        ("batch", _batch(choices)),
        ("memory", _memory(choices)),
    ]
    return strings.lines(f"{name:<8} {text}" for name, text in lines)


def memory_bytes(choices: Choices) -> dict[str, float]:
    """Returns the most that each buffer holds, in bytes.

    `windows`: serialised records, one window being taken apart and one being read; `parsed`: records on their way
    through parsing, one batch a thread and one more; `images`: decoded images on their way into a batch; `batches`:
    finished ones, the one that is being filled and the one that training holds; `cache`: what is kept, twice, as it is
    while it is filled; `index`: where the records lie, and the order of an epoch.
    """
    options = choices.options
    image = options.image_side_px**2 * 3
    decoded = choices.index.size[0] * choices.index.size[1] * 3 if choices.index.size else 4 * image
    window = min(options.shuffle_mb * 1e6, 2 * choices.index.record_bytes * len(choices.index))
    return {
        "windows": 0.0 if choices.cache.kind == "memory" else window,
        "parsed": (options.thread_count + 1) * options.parse_batch * choices.index.record_bytes,
        "images": options.thread_count * (decoded + image * choices.crops) + choices.group * choices.crops * image,
        "batches": options.batches_held * choices.batch_bytes,
        "index": 64.0 * len(choices.index),  # 20 bytes, once more in the graph, and the order with what makes it
        "cache": float(WHILE_FILLED * choices.cache.bytes) if choices.cache.kind == "memory" else 0.0,
    }


def mixing(order: Order) -> tuple[float, float]:
    """Measures how well an order mixes.

    Returns:
      how far a record moves from one epoch to the next, and how far apart two neighbours of a shard come, both on
      average and as a share of the epoch. 1/3 is what independent random places give.
    """
    first, second = (np.argsort(order.epoch(tf.constant(epoch, tf.int64))[0].numpy()) for epoch in (0, 1))
    moved = np.abs(first - second).mean()
    apart = np.abs(np.diff(first)).mean() if order.records > 1 else 0.0
    return float(moved / order.records), float(apart / order.records)


def _records(choices: Choices) -> str:
    index = choices.index
    text = f"{len(index):,} of {size(index.record_bytes)} in {plural(len(index.files), 'file')}"
    part = f", host {choices.host.index} of {choices.host.count}" if choices.host.count > 1 else ""
    left_out = f", {choices.left_out} damaged ones left out" if choices.left_out else ""
    return text + part + left_out


def _order(choices: Choices) -> str:
    order = choices.order
    if order.quota:
        counts = ", ".join(f"{choices.dataset.labels[label]} {count:,}" for label, count in order.quota.items())
        return f"balanced: {counts} of {order.records:,} an epoch; records are read one by one"
    if order.kind == "none":
        return "as in the shards"
    moved, apart = mixing(order)
    moves = f"a record moves by {moved:.0%} of the epoch from one to the next (33% is a perfect shuffle)"
    ends = f"{apart * order.records:,.0f} records apart ({order.records / 3:,.0f})"
    moves = f"{moves}, two neighbours of a shard end up {ends}"
    if order.kind == "global":
        return f"all records mixed, read one by one; {moves}"
    runs = order.window_positions // order.run
    return f"windows of {order.window_positions:,} records from {runs:,} runs of {order.run:,}; {moves}"


def _reading(choices: Choices) -> str:
    if is_remote(choices.index.files[0]):
        return f"{choices.options.readers} runs at a time, because every request waits"
    return "one run after the other, because local files answer at once"


def _ops(choices: Choices) -> str:
    spec = choices.options.train_spec if choices.training else choices.options.eval_spec
    if choices.vectorised:
        return f"{spec}, done before: whole batches at once"
    return spec


def _batch(choices: Choices) -> str:
    whole = f" of {choices.options.batch_size} over all hosts" if choices.host.count > 1 else ""
    kept = f"{choices.options.prefetch_batches} kept ready"
    return f"{choices.batch} images{whole}, uint8, {size(choices.batch_bytes)}; {kept}"


def _memory(choices: Choices) -> str:
    parts = memory_bytes(choices)
    text = " + ".join(f"{name} {value / 1e6:,.0f}" for name, value in parts.items() if value)
    return f"at most {sum(parts.values()) / 1e6:,.0f} MB: {text}"
