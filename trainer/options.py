"""Options of the input pipeline and of training, checked when they are made; JSON is their only door from TFX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated

from annotated_types import Ge, Lt
from pydantic.dataclasses import dataclass

from beam_jobs.common.settings import STRICT, Count, NotNegative, OneOf, Options, Positive, Share
from beam_jobs.common.system import cores
from beam_jobs.errors import OptionError
from beam_jobs.storage import is_remote
from trainer.input.eval_chain import eval_chain
from trainer.training.options import TrainOptions

AUTO_OPS = ""
UNIFORM = "uniform"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class InputOptions(Options):
    """How shards become batches.

    What decides the order is `seed`, `shuffle`, `shuffle_mb`, `lanes` and `balance`; everything else changes speed and
    memory alone, or what becomes of a record once it is read.

    Examples:
      >>> from trainer import InputOptions
      >>> options = InputOptions(image_side_px=96, batch_size=32, train_ops="decode_random_crop(96, min_area=0.3)|flip")
      >>> options.eval_spec
      'decode|resize_short(110)|center_crop(96)'

    Attributes:
      image_side_px: height and width of the images the model sees.
      batch_size: images per step, over all hosts and replicas.
      train_ops: ops of training, such as `decode_random_crop(224)|flip`; empty takes that with `image_side_px`.
      eval_ops: ops of evaluation and serving, never random; empty takes the geometry of `train_ops` without its chance.
      device_ops: ops of training that run on the device, on whole batches, such as `flip|mixup(0.2)`; empty for none.
      seed: decides the order and every random draw, together with the epoch and the key of the record.
      shuffle: `window` reads runs of neighbours and mixes them in a window of `shuffle_mb`; `global` mixes the whole
        split and reads records one by one; `none` keeps the order of the shards.
      shuffle_mb: memory of the shuffle window in MB (1e6 bytes) of serialised records, over all hosts.
      lanes: parts every pass is cut into; the number of hosts must divide it. It is what keeps the order the same on
        another number of hosts.
      balance: class -> share of the records of an epoch, or `uniform` for the same share each; empty keeps the split.
      cache: `memory` or `disk` keep what the first ops made, as far as they are not random; `auto` decides by size
        and free memory; `none` reads the shards every epoch.
      cache_mb: the most that `auto` keeps in memory, in MB; 0 means a quarter of what is free.
      cache_dir: directory of the disk cache.
      columns: user columns to deliver, without `extra/`.
      columns_form: `ragged`, or `dense`: padded with zeros to the longest of the batch.
      targets: what else to deliver of each image: `boxes`, `mask`.
      pad_batches: fill up the last batch of evaluation and add `valid`, so that all batches have one shape.
      max_corrupt_records: damaged records that training may leave out; one more is an error, which names them.
      service: address of a tf.data service that runs the pipeline, such as `grpc://host:5000`; empty runs it here.
      ordered: keep the order; without it, whichever image is ready first comes first, which hides slow reads and gives
        up exact repetition.
      autotune: let tf.data choose how many threads a stage gets and how much it buffers, within `shuffle_mb` more.
      readers: shards in an object store, or files of a stream, read at a time; bounds open files and read buffers.
        Shards on a local disk are read one after the other.
      threads: threads for parsing and image ops; 0 means one per core.
      parse_batch: records parsed by one op. Parsing 64 at a time and taking them apart again costs half of
        parsing one by one (`benchmarks.micro`).
      prefetch_batches: finished batches kept ready; each holds batch_size x side^2 x 3 bytes.

    Raises:
      OptionError: a value is out of range; the message names it and what is allowed.
    """

    image_side_px: Positive = 224
    batch_size: Positive = 64
    train_ops: str = AUTO_OPS
    eval_ops: str = AUTO_OPS
    device_ops: str = ""
    seed: Annotated[int, Ge(0), Lt(1 << 32)] = 0  # what Keras and NumPy take
    shuffle: Annotated[str, OneOf(("window", "global", "none"))] = "window"
    shuffle_mb: NotNegative = 64.0
    lanes: Positive = 8
    balance: Annotated[str, OneOf(("", UNIFORM))] | Mapping[str, Share] = ""
    cache: Annotated[str, OneOf(("auto", "memory", "disk", "none"))] = "auto"
    cache_mb: NotNegative = 0.0
    cache_dir: str = ""
    columns: tuple[str, ...] = ()
    columns_form: Annotated[str, OneOf(("ragged", "dense"))] = "ragged"
    targets: tuple[Annotated[str, OneOf(("boxes", "mask"))], ...] = ()
    pad_batches: bool = False
    max_corrupt_records: Count = 0
    service: str = ""
    ordered: bool = True
    autotune: bool = False
    readers: Positive = 8
    threads: Count = 0
    parse_batch: Positive = 64
    prefetch_batches: Positive = 2

    def __post_init__(self) -> None:
        self._check_cache()
        _check_balance(self.balance)

    def _check_cache(self) -> None:
        if is_remote(self.cache_dir):
            raise OptionError(f"cache_dir is {self.cache_dir!r}; it must be a directory of this machine")
        if self.cache == "disk" and not self.cache_dir:
            raise OptionError("cache is disk and cache_dir is empty; name a directory for it")
        if self.cache_dir and self.cache != "disk":
            raise OptionError(f"cache_dir is {self.cache_dir!r} and cache is {self.cache}; set cache to disk to use it")
        if self.cache_mb and self.cache != "auto":
            raise OptionError(f"cache_mb is {self.cache_mb:g} and cache is {self.cache}; it is the limit of auto alone")
        if self.service and self.cache in ("memory", "disk"):
            raise OptionError(f"cache is {self.cache} and a service is named, which keeps nothing; set cache to none")

    @property
    def batches_held(self) -> int:
        """Batches in memory at a time: those kept ready, the one that is being filled and the one in training."""
        return self.prefetch_batches + 2

    @property
    def thread_count(self) -> int:
        """Threads for parsing and image ops, at least 1."""
        return self.threads or cores()

    @property
    def parallel_calls(self) -> int:
        """Calls of a stage at a time; -1, which is `tf.data.AUTOTUNE`, leaves it to tf.data."""
        return -1 if self.autotune else self.thread_count

    @property
    def train_spec(self) -> str:
        """The ops of training, spelled out."""
        return self.train_ops or f"decode_random_crop({self.image_side_px})|flip"

    @property
    def eval_spec(self) -> str:
        """The ops of evaluation and serving, spelled out."""
        return self.eval_ops or eval_chain(self.train_spec, self.image_side_px)


def _check_balance(balance: str | Mapping[str, float]) -> None:
    if isinstance(balance, str):
        return
    if not balance:
        raise OptionError("balance is {}; it must be uniform, or class: share")
    if abs(sum(balance.values()) - 1) > 1e-3:
        raise OptionError(f"the shares of balance add up to {sum(balance.values()):g}; they must add up to 1")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TrainerConfig(Options):
    """All options of the Trainer component; they cross TFX as JSON.

    Examples:
      >>> from trainer import InputOptions, TrainerConfig, TrainOptions
      >>> config = TrainerConfig(input=InputOptions(image_side_px=64), train=TrainOptions(epochs=5))
      >>> TrainerConfig.from_json(config.to_json()) == config
      True

    Attributes:
      input: options of the input pipeline.
      train: options of training.
    """

    input: InputOptions = field(default_factory=InputOptions)
    train: TrainOptions = field(default_factory=TrainOptions)
