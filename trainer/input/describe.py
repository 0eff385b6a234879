"""What an input pipeline chose, in words: every buffer with its bytes, every choice with its reason."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from beam_jobs.common import strings
from beam_jobs.common.strings import plural
from beam_jobs.storage import is_remote
from trainer.input.cache import WHILE_FILLED
from trainer.input.order import Order
from trainer.input.plan import Choices, make_choices
from trainer.input.position import Host
from trainer.options import InputOptions


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
    kilobytes = choices.index.record_bytes / 1e3
    text = f"{len(choices.index):,} of {kilobytes:,.1f} kB in {plural(len(choices.index.files), 'file')}"
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
    megabytes = choices.batch_bytes / 1e6
    whole = f" of {choices.options.batch_size} over all hosts" if choices.host.count > 1 else ""
    return f"{choices.batch} images{whole}, uint8, {megabytes:,.1f} MB; {choices.options.prefetch_batches} kept ready"


def _memory(choices: Choices) -> str:
    parts = memory_bytes(choices)
    text = " + ".join(f"{name} {value / 1e6:,.0f}" for name, value in parts.items() if value)
    return f"at most {sum(parts.values()) / 1e6:,.0f} MB: {text}"
