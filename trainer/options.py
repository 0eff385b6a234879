"""Options of the input pipeline and of training, checked when they are made; JSON is their only door from TFX.

The ops of evaluation follow from those of training: the same geometry without the chance.
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
_WITH_MOMENTUM = ("sgd", "rmsprop")
_PROFILED_STEPS = 200  # what the profiler records stays in memory until the window ends


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TrainOptions(Options):
    """How a model is trained.

    Examples:
      >>> from trainer import TrainOptions
      >>> TrainOptions(model="resnet20", epochs=60, optimizer="sgd", learning_rate=0.1, nesterov=True).schedule
      'cosine'
      >>> TrainOptions(label_smoothing=1.5)
      Traceback (most recent call last):
      beam_jobs.errors.OptionError: label_smoothing is 1.5; it must be from 0 to below 1

    Attributes:
      model: name in `models.MODELS`, or the dotted path of a function of yours.
      weights: where a model of the table starts: empty for random, a file, or what that model knows by name.
      frozen: leave the pretrained base as it is and train the classifier alone.
      unfreeze_epoch: first epoch that trains a frozen base too; 0 for never.
      unfreeze_layers: how many layers of the base that is, from its end; 0 for all.
      unfreeze_factor: what the learning rate is multiplied by from then on.
      epochs: passes over the training split.
      optimizer: `adamw` (which without weight decay is Adam), `sgd`, `rmsprop`, `lion` or `lamb`.
      learning_rate: peak, reached at the end of the warm-up.
      momentum: of `sgd` and `rmsprop`, 0 to below 1.
      nesterov: whether the momentum of `sgd` is Nesterov's.
      schedule: what follows the warm-up: `cosine` or `linear` to zero, `step` by `step_factor` every `step_epochs`, or
        `constant`.
      warmup_epochs: length of the linear warm-up from zero; 0 for none.
      step_epochs: epochs between two drops of the schedule `step`.
      step_factor: what each drop multiplies the rate by.
      weight_decay: decoupled from the gradient, for every optimizer.
      clip_norm: largest norm of the whole gradient; 0 does not clip.
      label_smoothing: share of the target spread over all classes, 0 to below 1.
      class_weights: class -> weight of its images in the loss, `balanced` for the inverse of its frequency, or empty.
      accumulate_steps: batches whose gradients are averaged into one update.
      ema: share of the running average of the weights that every update keeps, such as 0.999; 0 for no average. The
        average is what is evaluated and exported.
      monitor: figure of the history that early stopping and `keep` look at; one with `loss` in its name is to fall.
      patience: epochs without an improvement after which training stops; 0 never stops early.
      min_delta: what counts as an improvement.
      keep: export the weights of the `last` epoch or of the `best` one by `monitor`. The best of many epochs looks
        better on the split that chose it than it is.
      choose_by: compare `value`s, or the `lower_bound` of the interval of the evaluation.
      per_class: also record recall and precision of every class.
      mixed_precision: compute in `float16` or `bfloat16`, with float32 weights; `none` stays with float32.
      jit: compile the step with XLA: `always`, `never`, or `auto`, which does where the model supports it.
      steps_per_execution: steps run at a time without a return to Python; worth it where a step takes under 10 ms.
      deterministic: only ops with reproducible results, so that the same training gives the same weights to the bit;
        slower on a GPU.
      strategy: `default` for one device, `mirrored` for all devices here, `multi_worker` for several machines, `tpu`.
      checkpoint_steps: steps between checkpoints within an epoch; 0 writes them at the end of epochs alone.
      profile_steps: window of steps to profile, such as `10-20`, counted from 0 at the start of the training; empty for
        none.

    Raises:
      OptionError: a value is out of range; the message names it and what is allowed.
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
    checkpoint_steps: Count = 0
    profile_steps: str = ""

    def __post_init__(self) -> None:
        if not self.class_weights and self.class_weights != "":
            raise OptionError("class_weights is {}; it must be balanced, or class: weight")
        _ = self.profile_window
        self._check_together()

    @property
    def profile_window(self) -> tuple[int, int] | None:
        """First step of the profile and the one after its last; None without a profile."""
        if not self.profile_steps:
            return None
        match = re.fullmatch(r"(\d+)-(\d+)", str(self.profile_steps))
        if not match or not 0 < int(match[2]) - int(match[1]) <= _PROFILED_STEPS:
            raise OptionError(
                f"profile_steps is {self.profile_steps!r}; it must be FIRST-END, such as 10-20, "
                f"of at most {_PROFILED_STEPS} steps"
            )
        return int(match[1]), int(match[2])

    def _check_together(self) -> None:
        if self.unfreeze_epoch and not self.frozen:
            raise OptionError(
                f"unfreeze_epoch is {self.unfreeze_epoch} and frozen is off; there is nothing to unfreeze"
            )
        if self.unfreeze_epoch >= self.epochs:
            raise OptionError(f"unfreeze_epoch is {self.unfreeze_epoch}; of {self.epochs} epochs it must be below that")
        if self.accumulate_steps > 1 and self.strategy != "default":
            raise OptionError(
                f"accumulate_steps is {self.accumulate_steps} and strategy is {self.strategy}; Keras cannot do both: "
                "take more replicas, or the default strategy"
            )
        if self.choose_by == "lower_bound" and not self.monitor.startswith("val_"):
            raise OptionError(
                f"choose_by is lower_bound and monitor is {self.monitor}; only figures of val_ have bounds"
            )
        if self.nesterov and self.optimizer != "sgd":
            raise OptionError(f"nesterov is for the optimizer sgd; it is {self.optimizer}")
        if self.nesterov and not self.momentum:
            raise OptionError("nesterov is on and momentum is 0; give a momentum such as 0.9")
        if self.optimizer not in _WITH_MOMENTUM and self.momentum != TrainOptions.momentum:
            raise OptionError(f"momentum is for the optimizers {' and '.join(_WITH_MOMENTUM)}; it is {self.optimizer}")


_CALL = re.compile(r"\s*(\w+)\s*(?:\((.*)\))?\s*")
_SIDE = re.compile(r"(?:^|\bside\s*=)\s*(\d+)")
_COUNTED_SIDE = re.compile(r"(?:^[^,]+,|\bside\s*=)\s*(\d+)")
_METHOD = re.compile(r"\bmethod\s*=\s*(['\"]\w+['\"])")
_SAME = ("decode", "resize", "resize_short", "center_crop", "pad_reflect", "normalize")
_FIXES_SIZE = ("resize", "center_crop")
_MARGIN = 256 / 224  # the customary margin around the crop


def eval_chain(train_ops: str, side_px: int) -> str:
    """Returns the ops of evaluation for ops of training.

    A random crop becomes the crop of the middle; one of a random size becomes a resize that leaves the customary
    margin, 256 : 224, and the crop of the middle. Ops that only add chance, such as flips and colours, are left out.
    Where no op sets the size, a resize to that of the model does, which leaves images of that size as they are.

    Args:
      train_ops: the chain of training.
      side_px: height and width of the images that the model sees.
    """
    chain: list[str] = []
    for part in train_ops.split("|"):
        match = _CALL.fullmatch(part)
        chain += _steady(match[1], match[2] or "") if match else []
    if not any(op.partition("(")[0] in _FIXES_SIZE for op in chain):
        last = len(chain) - (bool(chain) and chain[-1].startswith("normalize"))
        chain.insert(last, f"resize({side_px})")
    return "|".join(chain)


def _steady(name: str, arguments: str) -> list[str]:
    """Returns what stands for an op of training in evaluation."""
    if name in _SAME:
        return [f"{name}({arguments})" if arguments else name]
    side = (_COUNTED_SIDE if name == "multi_crop" else _SIDE).search(arguments)
    if not side:
        return []
    crop = f"center_crop({side[1]})"
    if name in ("random_crop", "multi_crop"):
        return [crop]
    if name in ("decode_random_crop", "random_crop_resize"):
        method = _METHOD.search(arguments)
        short = f"resize_short({round(int(side[1]) * _MARGIN)}{f', method={method[1]}' if method else ''})"
        return [*(["decode"] if name == "decode_random_crop" else []), short, crop]
    return []


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
