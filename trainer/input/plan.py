"""What `make_dataset` decides before it reads: one value with everything that was chosen."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from beam_jobs.dataset import manifest
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.errors import OptionError
from trainer.input import index as record_index
from trainer.input.cache import CacheChoice, choose_cache, on_disk
from trainer.input.columns_parse import columns_spec
from trainer.input.corrupt_records import excluded
from trainer.input.download import readable
from trainer.input.index import RecordIndex
from trainer.input.order import Order, make_order
from trainer.input.parse import base_spec
from trainer.input.position import Host
from trainer.input.stored_pixels import DecodeRaw, stored_ops
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
    index = record_index.load(path, dataset, split)
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
