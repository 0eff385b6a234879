"""Options of the input pipeline and of training, which are checked on creation and passed through TFX as JSON.

By default, the ops of evaluation are derived from those of training: the same geometry without randomness.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated

from annotated_types import Ge, Lt
from pydantic.dataclasses import dataclass

from beam_jobs.common.settings import STRICT, AboveZero, BelowOne, Count, NotNegative, OneOf, Options, Positive, Share
from beam_jobs.common.system import cores
from beam_jobs.errors import OptionError
from beam_jobs.storage import is_remote

BALANCED = "balanced"
_MOMENTUM_OPTIMIZERS = ("sgd", "rmsprop")
_MAX_PROFILE_STEPS = 200  # the profiler keeps its records in memory until the window ends


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TrainOptions(Options):
    """Options of training.

    Examples:
      >>> from trainer import TrainOptions
      >>> TrainOptions(model="resnet20", epochs=60, optimizer="sgd", learning_rate=0.1, nesterov=True).schedule
      'cosine'
      >>> TrainOptions(label_smoothing=1.5)
      Traceback (most recent call last):
      beam_jobs.errors.OptionError: label_smoothing is 1.5; it must be from 0 to below 1

    Attributes:
      model: name in `models.MODELS` or `keras.applications`, or the dotted path of a user's function.
      weights: initial weights: empty for random, a file, or `imagenet` for a model of `keras.applications`.
      frozen: train only the classifier, and keep the weights of the pretrained base.
      unfreeze_epoch: first epoch that also trains a frozen base; 0 for never.
      unfreeze_layers: number of layers of the base to unfreeze, from its end; 0 for all.
      unfreeze_factor: factor of the learning rate after unfreezing.
      epochs: passes over the training split.
      optimizer: `adamw` (which without weight decay is Adam), `sgd`, `rmsprop`, `lion` or `lamb`.
      learning_rate: maximum learning rate, at the end of the warm-up.
      momentum: momentum of `sgd` and `rmsprop`, 0 to below 1.
      nesterov: whether `sgd` uses Nesterov momentum.
      schedule: learning rate after the warm-up: `cosine` or `linear` to zero, `step` by `step_factor` every
        `step_epochs`, or `constant`.
      warmup_epochs: epochs of linear warm-up from zero; 0 for none.
      step_epochs: epochs between two steps of the schedule `step`.
      step_factor: factor of the learning rate at each step.
      weight_decay: weight decay, decoupled from the gradient for every optimizer.
      clip_norm: maximum norm of the global gradient; 0 for no clipping.
      label_smoothing: fraction of the target that is spread over all classes, 0 to below 1.
      class_weights: class -> weight in the loss, `balanced` for the inverse class frequency, empty for equal weights.
      accumulate_steps: number of batches whose gradients are averaged for one update.
      ema: decay of the exponential moving average of the weights, such as 0.999; 0 for no average. The averaged weights
        are evaluated and exported.
      monitor: figure of the history for early stopping and `keep`; a figure with `loss` in its name is minimised.
      patience: epochs without an improvement after which training stops; 0 never stops early.
      min_delta: minimum change of the figure that is an improvement.
      keep: export the weights of the `last` epoch or of the `best` one by `monitor`. The best figure of many epochs
        is biased upwards on the split by which the epoch was chosen.
      choose_by: compare epochs by the `value` of `monitor`, or by the `lower_bound` of its confidence interval.
      per_class: also record recall and precision of every class.
      mixed_precision: compute in `float16` or `bfloat16`, with float32 weights; `none` for float32.
      jit: compile the step with XLA: `always`, `never`, or `auto` for models that support it.
      steps_per_execution: steps per call from Python; useful if a step takes less than 10 ms.
      deterministic: use only deterministic ops, so that the same training gives exactly the same weights; slower on a
        GPU.
      strategy: `default` for one device, `mirrored` for all devices of the machine, `multi_worker` for several
        machines, `tpu`.
      gpus: number of GPUs that each machine must have; if TensorFlow finds fewer, training does not start. With 0 the
        number is not checked, so that a training may run on the CPU.
      memory_growth: allocate GPU memory as it is needed; if off, TensorFlow allocates nearly all of it at the start,
        which avoids fragmentation.
      prefetch_to_device: number of batches that are copied to the memory of each GPU or TPU ahead of their step; 0 is
        the default of TensorFlow: none for one device, one under a strategy. Without an accelerator and a strategy the
        option has no effect.
      checkpoint_steps: steps between checkpoints within an epoch; 0 writes them only at the end of epochs.
      profile_steps: window of steps to profile, such as `10-20`, counted from 0 at the start of the training; empty for
        none.

    Raises:
      OptionError: a value is out of range; the message names the value and the allowed ones.
    """

    model: str = "small_cnn"
    weights: str = ""
    frozen: bool = False
    unfreeze_epoch: Count = 0
    unfreeze_layers: Count = 0
    unfreeze_factor: AboveZero = 0.1
    epochs: Positive = 10
    optimizer: Annotated[str, OneOf(("adamw", "sgd", "rmsprop", "lion", "lamb"))] = "adamw"
    learning_rate: AboveZero = 2e-3
    momentum: BelowOne = 0.9
    nesterov: bool = False
    schedule: Annotated[str, OneOf(("cosine", "linear", "step", "constant"))] = "cosine"
    warmup_epochs: NotNegative = 1.0
    step_epochs: Positive = 30
    step_factor: AboveZero = 0.1
    weight_decay: NotNegative = 1e-4
    clip_norm: NotNegative = 0.0
    label_smoothing: BelowOne = 0.0
    class_weights: Annotated[str, OneOf(("", BALANCED))] | Mapping[str, NotNegative] = ""
    accumulate_steps: Positive = 1
    ema: BelowOne = 0.0
    monitor: str = "val_accuracy"
    patience: Count = 0
    min_delta: NotNegative = 0.0
    keep: Annotated[str, OneOf(("last", "best"))] = "last"
    choose_by: Annotated[str, OneOf(("value", "lower_bound"))] = "value"
    per_class: bool = False
    mixed_precision: Annotated[str, OneOf(("none", "float16", "bfloat16"))] = "none"
    jit: Annotated[str, OneOf(("auto", "always", "never"))] = "auto"
    steps_per_execution: Positive = 1
    deterministic: bool = False
    strategy: Annotated[str, OneOf(("default", "mirrored", "multi_worker", "tpu"))] = "default"
    gpus: Count = 0
    memory_growth: bool = True
    prefetch_to_device: Count = 0
    checkpoint_steps: Count = 0
    profile_steps: str = ""

    def __post_init__(self) -> None:
        if not self.class_weights and self.class_weights != "":
            raise OptionError("class_weights is {}; it must be the word balanced, or a mapping of class to weight")
        _ = self.profile_window  # raises OptionError for an invalid text
        self._check_combinations()

    @property
    def profile_window(self) -> tuple[int, int] | None:
        """First step of the profile and the step after its last; None without a profile."""
        if not self.profile_steps:
            return None
        match = re.fullmatch(r"(\d+)-(\d+)", str(self.profile_steps))
        if not match or not 0 < int(match[2]) - int(match[1]) <= _MAX_PROFILE_STEPS:
            raise OptionError(
                f"profile_steps is {self.profile_steps!r}; it must be FIRST-END, such as 10-20, "
                f"of at most {_MAX_PROFILE_STEPS} steps"
            )
        return int(match[1]), int(match[2])

    def _check_combinations(self) -> None:
        if self.unfreeze_epoch and not self.frozen:
            raise OptionError(
                f"unfreeze_epoch is {self.unfreeze_epoch} and frozen is off; there is nothing to unfreeze"
            )
        if self.unfreeze_epoch >= self.epochs:
            raise OptionError(f"unfreeze_epoch is {self.unfreeze_epoch}; it must be below epochs, {self.epochs}")
        if self.accumulate_steps > 1 and self.strategy != "default":
            raise OptionError(
                f"accumulate_steps is {self.accumulate_steps} and strategy is {self.strategy}; Keras cannot do both; "
                "use more replicas, or the default strategy"
            )
        if self.choose_by == "lower_bound" and not self.monitor.startswith("val_"):
            raise OptionError(
                f"choose_by is lower_bound and monitor is {self.monitor}; only figures named val_... have bounds"
            )
        if self.nesterov and self.optimizer != "sgd":
            raise OptionError(f"nesterov is for the optimizer sgd; optimizer is {self.optimizer}")
        if self.nesterov and not self.momentum:
            raise OptionError("nesterov is on and momentum is 0; set a momentum such as 0.9")
        if self.optimizer not in _MOMENTUM_OPTIMIZERS and self.momentum != TrainOptions.momentum:
            raise OptionError(f"momentum is for {' and '.join(_MOMENTUM_OPTIMIZERS)}; optimizer is {self.optimizer}")


_CALL = re.compile(r"\s*(\w+)\s*(?:\((.*)\))?\s*")
_SIDE = re.compile(r"(?:^|\bside\s*=)\s*(\d+)")  # the argument `side`, first or by name
_COUNTED_SIDE = re.compile(r"(?:^[^,]+,|\bside\s*=)\s*(\d+)")  # the same of an op whose first argument is `count`
_METHOD = re.compile(r"\bmethod\s*=\s*(['\"]\w+['\"])")
_DETERMINISTIC_OPS = ("decode", "resize", "resize_short", "center_crop", "pad_reflect", "normalize")
_FIXED_SIZE_OPS = ("resize", "center_crop")
_MARGIN = 256 / 224  # the usual ratio of the resized short side to the side of the centre crop


def eval_chain(train_ops: str, side_px: int) -> str:
    """Returns the ops of evaluation that correspond to ops of training.

    A random crop becomes a centre crop; a crop of random size becomes a resize with the usual margin, 256 : 224, and a
    centre crop. Other random ops, such as flips and colours, are removed. If no op sets the size, a resize to the size
    of the model is added, which does not change images of that size.

    Args:
      train_ops: chain of training.
      side_px: height and width of the images for the model, in pixels.
    """
    chain: list[str] = []
    for part in train_ops.split("|"):
        match = _CALL.fullmatch(part)
        chain += _remove_randomness(match[1], match[2] or "") if match else []
    if not any(op.partition("(")[0] in _FIXED_SIZE_OPS for op in chain):
        position = len(chain) - (bool(chain) and chain[-1].startswith("normalize"))
        chain.insert(position, f"resize({side_px})")
    return "|".join(chain)


def _remove_randomness(name: str, arguments: str) -> list[str]:
    """Returns the ops of evaluation for one op of training."""
    if name in _DETERMINISTIC_OPS:
        return [f"{name}({arguments})" if arguments else name]
    side_match = (_COUNTED_SIDE if name == "multi_crop" else _SIDE).search(arguments)
    if not side_match:
        return []
    crop = f"center_crop({side_match[1]})"
    if name in ("random_crop", "multi_crop"):
        return [crop]
    if name in ("decode_random_crop", "random_crop_resize"):
        method = _METHOD.search(arguments)
        resize = f"resize_short({round(int(side_match[1]) * _MARGIN)}{f', method={method[1]}' if method else ''})"
        return [*(["decode"] if name == "decode_random_crop" else []), resize, crop]
    return []


AUTO_OPS = ""  # the default chain, see `InputOptions`


@dataclass(frozen=True, kw_only=True, config=STRICT)
class InputOptions(Options):
    """Options of the input pipeline.

    Only `seed`, `shuffle`, `shuffle_mb`, `lanes` and `balance`, and whether the dataset is in a store, determine the
    order; the other options change speed, memory or the processing of records.

    Examples:
      >>> from trainer import InputOptions
      >>> options = InputOptions(image_side_px=96, batch_size=32, train_ops="decode_random_crop(96, min_area=0.3)|flip")
      >>> options.eval_spec
      'decode|resize_short(110)|center_crop(96)'

    Attributes:
      image_side_px: height and width of the images for the model, in pixels.
      batch_size: images per step, over all hosts and replicas.
      train_ops: ops of training; empty for `decode_random_crop(SIDE)|flip` with `image_side_px`.
      eval_ops: ops of evaluation and serving, none of them random; empty to derive them from `train_ops`.
      device_ops: ops of training that run on the device, on batches, such as `flip|mixup(0.2)`; empty for none.
      seed: seed of the order and of all random numbers, together with the epoch and the key of the record.
      shuffle: `window` reads runs of consecutive records and shuffles them in a window of `shuffle_mb`; `global`
        shuffles the complete split and reads records one by one; `none` keeps the order of the shards.
      shuffle_mb: memory of the shuffle window in MB (1e6 bytes) of serialised records, over all hosts.
      lanes: number of lanes, a multiple of the number of hosts. Lanes are the partitions of a pass that hosts share:
        record p of a pass belongs to lane p mod `lanes`. With the same number, the order is the same for any number of
        hosts.
      balance: class -> fraction of the records of an epoch, or `uniform` for equal fractions; empty for no balancing.
      cache: `memory` or `disk` cache the result of the ops before the first random op; `auto` decides by size and free
        memory; `none` reads the shards every epoch.
      cache_mb: maximum size of a cache that `auto` chooses, in MB (1e6 bytes); 0 for a quarter of the free memory.
      cache_dir: directory of the disk cache.
      columns: user columns to deliver, without `extra/`.
      columns_form: `ragged`, or `dense`: padded with zeros to the longest row of the batch.
      targets: other features of each image to deliver: `boxes`, `mask`.
      pad_batches: pad the last batch of evaluation and add the feature `valid`, so that all batches have one shape. The
        validation of a training is always padded.
      max_corrupt_records: maximum number of damaged records that training leaves out; more are an error.
      service: address of a tf.data service that runs the pipeline, such as `grpc://host:5000`; empty for no service.
      ordered: keep the order; if off, images are delivered as soon as they are ready, which hides slow reads but is not
        reproducible.
      autotune: let tf.data choose threads and buffers of each stage, with up to `shuffle_mb` of additional memory.
      readers: number of runs of records in an object store, or files of a stream, that are read in parallel. It limits
        open files and read buffers. Shards on a local disk are read sequentially.
      threads: threads for parsing and image ops; 0 for one per core.
      parse_batch: records per parse op. Parsing 64 at a time takes half of the time of parsing one by one
        (`benchmarks.micro`).
      prefetch_batches: finished batches to buffer; each has batch_size x side^2 x 3 bytes.

    Raises:
      OptionError: a value is out of range; the message names the value and the allowed ones.
    """

    image_side_px: Positive = 224
    batch_size: Positive = 64
    train_ops: str = AUTO_OPS
    eval_ops: str = AUTO_OPS
    device_ops: str = ""
    seed: Annotated[int, Ge(0), Lt(1 << 32)] = 0  # the range of Keras and NumPy
    shuffle: Annotated[str, OneOf(("window", "global", "none"))] = "window"
    shuffle_mb: NotNegative = 64.0
    lanes: Positive = 8
    balance: Annotated[str, OneOf(("", "uniform"))] | Mapping[str, Share] = ""
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
            raise OptionError(f"cache_dir is {self.cache_dir!r}; it must be a local directory")
        if self.cache == "disk" and not self.cache_dir:
            raise OptionError("cache is disk and cache_dir is empty; name a directory for it")
        if self.cache_dir and self.cache != "disk":
            raise OptionError(f"cache_dir is {self.cache_dir!r} and cache is {self.cache}; set cache to disk to use it")
        if self.cache_mb and self.cache != "auto":
            raise OptionError(f"cache_mb is {self.cache_mb:g} and cache is {self.cache}; it is only for cache auto")
        if self.service and self.cache in ("memory", "disk"):
            raise OptionError(f"cache is {self.cache} and service is set, which has no cache; set cache to none")

    @property
    def batches_held(self) -> int:
        """Number of batches in memory: the buffered ones, the one being filled and the one in training."""
        return self.prefetch_batches + 2

    @property
    def thread_count(self) -> int:
        """Threads for parsing and image ops, at least 1."""
        return self.threads or cores()

    @property
    def train_spec(self) -> str:
        """The ops of training, with the default resolved."""
        return self.train_ops or f"decode_random_crop({self.image_side_px})|flip"

    @property
    def eval_spec(self) -> str:
        """The ops of evaluation and serving, with the default resolved."""
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
    """All options of the Trainer component, which TFX passes as JSON.

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
