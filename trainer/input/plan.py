"""The plan of an input pipeline: all decisions before the first record is read, and their description as text."""

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
from trainer.input.cache import FILL_FACTOR, CacheChoice, choose_cache, write_on_disk
from trainer.input.corrupt_records import find_excluded
from trainer.input.download import ensure_readable
from trainer.input.index import RecordIndex, load_index
from trainer.input.order import Order, make_order
from trainer.input.parse import DecodeRaw, adapt_ops_to_records, base_spec, columns_spec
from trainer.input.position import Host
from trainer.input.windowed_reader import Index, needs_remote_reader
from trainer.ops import OPS, MixingOp, Op, bind_statistics, first_batch_op, outputs, parse_ops
from trainer.options import InputOptions


@dataclass(frozen=True, kw_only=True)
class InputPlan:
    """All decisions about an input pipeline before it reads the first record.

    Attributes:
      dataset: manifest of the dataset.
      path: directory of the shards: the dataset or a local copy of it.
      options: options of the pipeline.
      training: whether to shuffle and augment.
      host: host whose part is read.
      index: the records that this host may read, in the shards or the disk cache.
      order: order of these records in an epoch.
      all_ops: the complete chain of ops on an image.
      image_ops: the ops that run image by image, on parsed records or cached images.
      batch_ops: the ops that run on batches.
      cache: decision about the cache.
      spec: argument of `tf.io.parse_example`.
      total: number of records of the split, over all hosts.
      excluded_count: number of damaged records that are left out.
    """

    dataset: Manifest
    path: str
    options: InputOptions
    training: bool
    host: Host
    index: RecordIndex
    order: Order
    all_ops: tuple[Op, ...]
    image_ops: tuple[Op, ...]
    batch_ops: tuple[Any, ...]
    cache: CacheChoice
    spec: Mapping[str, Any]
    total: int
    excluded_count: int

    @property
    def batch(self) -> int:
        """Maximum number of images in a batch of this host; in evaluation, hosts may have fewer."""
        return -(-self.options.batch_size // self.host.count)

    @property
    def mixing_stride(self) -> int:
        """The `stride` of `MixingOp`: the number of lanes of this host, so that images mix inside a lane.

        A lane is never split over hosts. The stride is 1, so that images mix in the complete batch, if lanes have fewer
        than two images or different numbers of them in a batch; `_check_host` then allows only one host.
        """
        images, remainder = divmod(self.options.batch_size, self.options.lanes)
        return self.options.lanes // self.host.count if images > 1 and not remainder else 1

    @property
    def batch_bytes(self) -> int:
        """Bytes of the uint8 images of a batch."""
        return int(self.batch * self.options.image_side_px**2 * 3)

    @property
    def crops(self) -> int:
        """Number of images per record."""
        return outputs(self.all_ops)

    @property
    def group(self) -> int:
        """Number of records of this host whose crops are interleaved.

        Over all hosts it is a multiple of `lanes`, so the records of a group are the same for any number of hosts. The
        crops of a group fit `shuffle_mb`; a group has at most 64 records, but at least one per lane.
        """
        if self.crops == 1:
            return 1
        image_bytes = self.crops * self.options.image_side_px**2 * 3
        lanes = self.options.lanes
        return int(max(1, min(64, self.options.shuffle_mb * 1e6 // image_bytes) // lanes)) * lanes // self.host.count

    @property
    def epoch_images(self) -> int:
        """Number of images in one pass, over all hosts."""
        return (self.order.records if self.training else self.total) * self.crops

    @property
    def local_images(self) -> int:
        """Number of images in one pass of `order`: over all hosts in training, of this host in evaluation."""
        return self.order.records * self.crops

    @property
    def vectorised(self) -> bool:
        """Whether no op runs on one image at a time, so that records are processed in batches."""
        return all(isinstance(op, DecodeRaw) for op in self.image_ops)

    @property
    def uses_data_service(self) -> bool:
        """Whether a tf.data service runs the pipeline; it may repeat records, so evaluation does not use it."""
        return self.training and bool(self.options.service)

    @property
    def uses_remote_reader(self) -> bool:
        """Whether `remote_reader` reads the shards; workers of a tf.data service cannot run Python code."""
        return needs_remote_reader(self.index) and self.host.runs_python and not self.uses_data_service

    @property
    def threads(self) -> int:
        """Threads for parsing and image ops; one more with `remote_reader`, whose Python code delays the others."""
        return self.options.thread_count + self.uses_remote_reader

    @property
    def waiting_threads(self) -> int:
        """Number of threads of tf.data in addition to `options.thread_count`; most of them wait for a store."""
        return self.options.readers + 1 if self.uses_remote_reader else 0

    @property
    def first_salt(self) -> int:
        """Salt of the first of `image_ops`: its index in the complete chain, so a cache changes no random numbers."""
        return len(self.all_ops) - len(self.batch_ops) - len(self.image_ops)

    @property
    def batch_salt(self) -> int:
        """Salt of the random numbers of the first of `batch_ops`: its index in the complete chain."""
        return len(self.all_ops) - len(self.batch_ops)


def make_plan(
    path: str, split: str, options: InputOptions, training: bool, epochs: int = 1, host: Host | None = None
) -> InputPlan:
    """Reads the manifest and the image table of a dataset, and returns the plan of its input pipeline.

    Raises:
      UsageError: there is no such dataset or split, or the options do not fit it.
      CorruptDataset: the dataset is damaged.
    """
    host = host or Host()
    ops = parse_ops(options.train_spec) if training else evaluation_ops(options)
    if training:
        _check_host(options, host, ops)
    dataset = manifest.load(path)
    path = ensure_readable(path, dataset, split, options)
    index = load_index(path, dataset, split)
    ops = adapt_ops_to_records(ops, dataset, index.size)
    if dataset.channels:
        ops = bind_statistics(ops, dataset.channels.mean_rgb, dataset.channels.std_rgb)
    excluded = find_excluded(path, split, options.max_corrupt_records) if options.max_corrupt_records else frozenset()
    index = index.exclude(excluded) if excluded else index
    total = len(index)
    order = make_order(index, dataset.labels, options, training)
    # Several crops of an image are separated only after the last op, so no op runs on batches.
    batch_start = len(ops) if outputs(ops) > 1 else first_batch_op(ops, bool(options.targets))
    index_to_cache = index if training else index.host_part(host)
    local_options = options if training else dataclasses.replace(options, service="")  # not for evaluation
    cache = choose_cache(local_options, ops[:batch_start], index_to_cache, single_pass=training and epochs == 1)
    if cache.kind == "disk":
        identity = json.dumps([dataset.digest, split, sorted(excluded)])
        index = write_on_disk(index, ops[: cache.ops], identity, options.cache_dir, options.thread_count)
    if not training:
        index = index.host_part(host)
        order = dataclasses.replace(order, records=len(index))
    return InputPlan(
        dataset=dataset,
        path=path,
        options=options,
        training=training,
        host=host,
        index=index,
        order=order,
        all_ops=ops,
        image_ops=_remaining_image_ops(ops[:batch_start], cache),
        batch_ops=ops[batch_start:],
        cache=cache,
        spec={**base_spec(dataset), **columns_spec(dataset, path, options)},
        total=total,
        excluded_count=len(excluded),
    )


def evaluation_ops(options: InputOptions) -> tuple[Op, ...]:
    """Returns the ops of evaluation and serving.

    Raises:
      OptionError: an op is unknown or random.
    """
    ops = parse_ops(options.eval_spec)
    for op in ops:
        if op.random:
            name = next(name for name, kind in OPS.items() if isinstance(op, kind))
            raise OptionError(f"eval_ops {options.eval_spec!r} contain {name}, which is random; remove it")
    return ops


def find_first_record(plan: InputPlan, images: Index) -> tuple[Index, Index]:
    """Returns the record at which reading continues after all hosts together have delivered `images` images.

    Returns:
      position of the first record, and number of images of this host to skip from there. The crops of a group of
      records are delivered together, so a partly delivered group is read again.
    """
    if plan.crops == 1:
        return images, 0
    host, group_records = plan.host, plan.group * plan.host.count
    groups, group_images = images // (group_records * plan.crops), images % (group_records * plan.crops)
    crop_index, record_index = group_images // group_records, group_images % group_records  # in the group
    host_records = -(-(record_index - host.index) // host.count)  # records go to the hosts in turn
    return groups * group_records, crop_index * plan.group + host_records


def find_last_record(plan: InputPlan, images: Index) -> Index:
    """Returns the position after the last record that the first `images` images need: the end of a group."""
    if plan.crops == 1:
        return images
    group_records = plan.group * plan.host.count
    return -(-images // (group_records * plan.crops)) * group_records


def _remaining_image_ops(ops: tuple[Op, ...], cache: CacheChoice) -> tuple[Op, ...]:
    if cache.kind == "none" or not cache.size:
        return ops
    # A disk cache holds pixels as bytes, a cache in memory as tensors.
    return (*([DecodeRaw(*cache.size)] if cache.kind == "disk" else []), *ops[cache.ops :])


def _check_host(options: InputOptions, host: Host, ops: tuple[Op, ...]) -> None:
    if options.batch_size % host.count:
        raise OptionError(f"batch_size is {options.batch_size}; the number of hosts, {host.count}, must divide it")
    if host.count == 1:
        return
    if options.lanes % host.count:
        raise OptionError(f"lanes is {options.lanes}; the number of hosts, {host.count}, must divide it")
    if options.batch_size % options.lanes:
        raise OptionError(
            f"batch_size is {options.batch_size}; with several hosts it must be a multiple of lanes, {options.lanes}"
        )
    if options.batch_size == options.lanes and any(isinstance(op, MixingOp) for op in ops):
        raise OptionError(
            f"batch_size and lanes are {options.lanes}; to mix images on several hosts batch_size must be "
            f"{2 * options.lanes} or more, or lanes must be smaller"
        )


def describe(
    path: str, split: str, options: InputOptions, training: bool, epochs: int = 1, host: Host | None = None
) -> str:
    """Describes the pipeline that `make_dataset` builds for these arguments, with reasons, one line per stage.

    Examples:
      >>> from trainer import InputOptions, describe_input
      >>> print(describe_input("dataset", "train", InputOptions(image_side_px=32, batch_size=8), training=True))
      records  ...
      batch    8 images, uint8, 24.6 kB; 2 buffered
      memory   at most ...

    Args:
      path: directory of a published dataset.
      split: name of the split.
      options: options of the pipeline.
      training: whether the pipeline is for training.
      epochs: passes over the split, or `FOREVER`; a single pass is not cached.
      host: host whose part is read; None for the complete split.

    Returns:
      lines of text: records, order, reading, cache, images, device, batch and memory in MB (1e6 bytes).

    Raises:
      UsageError: there is no such dataset or split, or the options do not fit it.
      CorruptDataset: the dataset is damaged.
    """
    plan = make_plan(path, split, options, training, epochs, host)
    ops = plan.options.train_spec if plan.training else plan.options.eval_spec
    ops += ", in batches" if plan.vectorised else ""
    lines = [
        ("records", _describe_records(plan)),
        ("order", _describe_order(plan)),
        ("reading", _describe_reading(plan)),
        ("cache", f"{plan.cache.kind}: {plan.cache.reason}"),
        ("images", f"{ops} on {plan.threads} threads"),
        ("device", options.device_ops or "normalisation only"),
        ("batch", _describe_batch(plan)),
        ("memory", _describe_memory(plan)),
    ]
    return strings.lines(f"{name:<8} {text}" for name, text in lines)


def memory_bytes(plan: InputPlan) -> dict[str, float]:
    """Returns the maximum size of each buffer, in bytes.

    `windows`: two windows of serialised records, one being delivered and one being read; `parsed`: parsed records, one
    batch per thread and one more; `images`: decoded images that are not yet in a batch; `batches`: finished batches,
    the one being filled and the one in training; `cache`: twice the cached images, because loading copies them;
    `index`: offsets of the records and the order of an epoch.
    """
    options = plan.options
    image_bytes = options.image_side_px**2 * 3
    decoded_bytes = plan.index.size[0] * plan.index.size[1] * 3 if plan.index.size else 4 * image_bytes  # an estimate
    windows_bytes = min(options.shuffle_mb * 1e6, 2 * plan.index.record_bytes * len(plan.index))
    return {
        "windows": 0.0 if plan.cache.kind == "memory" else windows_bytes,
        "parsed": (plan.threads + 1) * options.parse_batch * plan.index.record_bytes,
        "images": plan.threads * (decoded_bytes + image_bytes * plan.crops) + plan.group * plan.crops * image_bytes,
        "batches": options.batches_held * plan.batch_bytes,
        "index": 64.0 * len(plan.index),  # 20 bytes, their copy in the graph, the order and intermediate results
        "cache": float(FILL_FACTOR * plan.cache.bytes) if plan.cache.kind == "memory" else 0.0,
    }


def measure_shuffle(order: Order) -> tuple[float, float]:
    """Measures how well an order shuffles.

    Returns:
      mean distance between the positions of a record in two epochs, and between the positions of two records that are
      neighbours in a shard, both as fractions of an epoch. A perfect shuffle gives 1/3.
    """
    record_numbers = (order.compute_epoch(tf.constant(epoch, tf.int64))[0].numpy() for epoch in (0, 1))
    positions, next_positions = map(np.argsort, record_numbers)
    epoch_distance = np.abs(positions - next_positions).mean()
    neighbour_distance = np.abs(np.diff(positions)).mean() if order.records > 1 else 0.0
    return float(epoch_distance / order.records), float(neighbour_distance / order.records)


def _describe_records(plan: InputPlan) -> str:
    index = plan.index
    text = f"{len(index):,} of {size(index.record_bytes)} in {plural(len(index.files), 'file')}"
    host_text = f", host {plan.host.index} of {plan.host.count}" if plan.host.count > 1 else ""
    excluded_text = f", {plan.excluded_count} damaged records left out" if plan.excluded_count else ""
    return text + host_text + excluded_text


def _describe_order(plan: InputPlan) -> str:
    order = plan.order
    if order.quota:
        counts = ", ".join(f"{plan.dataset.labels[label]} {count:,}" for label, count in order.quota.items())
        return f"balanced: {counts} of {order.records:,} an epoch; records are read one by one"
    if order.kind == "none":
        return "the order of the shards"
    epoch_distance, neighbour_distance = measure_shuffle(order)
    movement = f"a record moves by {epoch_distance:.0%} of an epoch between epochs (perfect shuffle: 33%)"
    distance = f"{neighbour_distance * order.records:,.0f} records apart (perfect: {order.records / 3:,.0f})"
    movement = f"{movement}, neighbours in a shard are {distance}"
    if order.kind == "global":
        return f"all records shuffled together, read one by one; {movement}"
    runs = order.window_positions // order.run
    return f"windows of {order.window_positions:,} records from {runs:,} runs of {order.run:,}; {movement}"


def _describe_reading(plan: InputPlan) -> str:
    if is_remote(plan.index.files[0]):
        return f"{plan.options.readers} runs at a time, because every request has latency"
    return "one run at a time, because local files have no latency"


def _describe_batch(plan: InputPlan) -> str:
    total = f" of {plan.options.batch_size} over all hosts" if plan.host.count > 1 else ""
    return f"{plan.batch} images{total}, uint8, {size(plan.batch_bytes)}; {plan.options.prefetch_batches} buffered"


def _describe_memory(plan: InputPlan) -> str:
    parts = memory_bytes(plan)
    text = " + ".join(f"{name} {value / 1e6:,.0f}" for name, value in parts.items() if value)
    return f"at most {sum(parts.values()) / 1e6:,.0f} MB: {text}"
