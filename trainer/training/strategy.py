"""Training on several devices or machines behind one option: `default`, `mirrored`, `multi_worker`, `tpu`.

Every machine runs one input pipeline for all its replicas. `make_dataset(host=...)` delivers its part of every global
batch, and this module divides that part among the replicas, so that the records of a step do not depend on the number
of replicas. The environment variable `TF_CONFIG`, which lists the workers, is checked before TensorFlow reads it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

import tensorflow as tf

from beam_jobs.common.strings import plural, unknown
from beam_jobs.errors import OptionError
from trainer.input.position import Host

CLUSTER_VARIABLE = "TF_CONFIG"
CLUSTER_EXAMPLE = '{"cluster": {"worker": ["10.0.0.1:5000", "10.0.0.2:5000"]}, "task": {"type": "worker", "index": 0}}'
_TASK_TYPES = ("chief", "worker")  # in the order in which TensorFlow numbers them


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The place of this process among the workers.

    Attributes:
      host: index of this process, where 0 is the chief, and number of workers.
      address: address of this process, `name:port`.
    """

    host: Host
    address: str


def read_cluster() -> Cluster:
    """Returns the cluster of the environment variable `TF_CONFIG`.

    Raises:
      OptionError: the variable is missing or wrong.
    """
    text = os.environ.get(CLUSTER_VARIABLE, "")
    if not text:
        raise OptionError(
            f"strategy is multi_worker and the environment variable {CLUSTER_VARIABLE} is not set; "
            f"set {CLUSTER_EXAMPLE}"
        )
    try:
        return parse_cluster(json.loads(text))
    except json.JSONDecodeError as error:
        raise OptionError(
            f"{CLUSTER_VARIABLE} is not JSON: {error}; set it to a value such as {CLUSTER_EXAMPLE}"
        ) from error


def parse_cluster(config: Any) -> Cluster:
    """Returns the cluster of the decoded `TF_CONFIG`.

    Raises:
      OptionError: a part is missing or wrong; the message names it.
    """
    tasks, task = _part(config, "cluster"), _part(config, "task")
    other_types = sorted(set(tasks) - set(_TASK_TYPES))
    if other_types:
        raise OptionError(
            f"cluster of {CLUSTER_VARIABLE} holds {', '.join(other_types)}; multi_worker takes chief and worker only"
        )
    addresses = {kind: _addresses(kind, tasks[kind]) for kind in _TASK_TYPES if kind in tasks}
    all_addresses = [address for kind in _TASK_TYPES for address in addresses.get(kind, ())]
    for address in all_addresses:
        if all_addresses.count(address) > 1:
            raise OptionError(
                f"cluster of {CLUSTER_VARIABLE} names {address} twice; every worker needs a different address"
            )
    kind, index = task.get("type"), task.get("index")
    if kind not in addresses:
        raise OptionError(
            f"task.type of {CLUSTER_VARIABLE} is {kind!r}; it must be one of {', '.join(addresses) or 'worker'}"
        )
    count = len(addresses[kind])
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < count:
        raise OptionError(
            f"task.index of {CLUSTER_VARIABLE} is {index!r}; the cluster has {plural(count, 'task')} of type {kind}, "
            f"so it must be 0 to {count - 1}"
        )
    first_index = len(addresses.get("chief", ())) if kind == "worker" else 0
    return Cluster(host=Host(index=first_index + index, count=len(all_addresses)), address=addresses[kind][index])


def _part(config: Any, name: str) -> Mapping[str, Any]:
    part = config.get(name) if isinstance(config, Mapping) else None
    if not isinstance(part, Mapping):
        raise OptionError(f"{CLUSTER_VARIABLE} has no {name}; set it to a value such as {CLUSTER_EXAMPLE}")
    return part


def _addresses(kind: str, values: Any) -> tuple[str, ...]:
    if not isinstance(values, list) or not values or (kind == "chief" and len(values) != 1):
        allowed = "a list of one address" if kind == "chief" else "a list of addresses"
        raise OptionError(
            f"cluster.{kind} of {CLUSTER_VARIABLE} is {values!r}; it must be {allowed}, such as 10.0.0.1:5000"
        )
    for value in values:
        match = re.fullmatch(r"\S+:(\d{1,5})", str(value))
        if not match or not 0 < int(match[1]) < 1 << 16:
            raise OptionError(
                f"cluster.{kind} of {CLUSTER_VARIABLE} holds {value!r}; it must be NAME:PORT, such as 10.0.0.1:5000"
            )
    return tuple(values)


MakeBatches: TypeAlias = Callable[[Host], tf.data.Dataset]
STRATEGIES = ("default", "mirrored", "multi_worker", "tpu")


@dataclass(frozen=True, kw_only=True)
class Distributed:
    """The batches of this machine under a strategy.

    Attributes:
      batches: distributed dataset; an element has one batch for each local replica.
      element_spec: type specification of the batch of one replica.
    """

    batches: tf.distribute.DistributedDataset
    element_spec: Any


def make_strategy(name: str, memory_growth: bool = True) -> tf.distribute.Strategy | None:
    """Returns a strategy; None for `default`, one device.

    `mirrored` takes all GPUs, or without one all logical CPU devices. `multi_worker` reads the environment variable
    `TF_CONFIG` and waits until all workers have started. Call it for `multi_worker` and `tpu` before TensorFlow
    initialises its devices.

    Examples:
      >>> from trainer import make_strategy
      >>> make_strategy("mirrored").num_replicas_in_sync >= 1
      True
      >>> make_strategy("default") is None
      True

    Args:
      name: `default`, `mirrored`, `multi_worker` or `tpu`.
      memory_growth: whether TensorFlow allocates the memory of GPUs as it is needed, or nearly all of it now.

    Returns:
      the strategy, in whose scope `fit_job` builds the model; None for one device.

    Raises:
      OptionError: the name is unknown, `TF_CONFIG` is wrong, or there is no TPU.
    """
    # The variable takes precedence over the function of TensorFlow, and the command line sets it.
    os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = str(memory_growth).lower()
    if name == "default":
        return None
    if name == "mirrored":
        devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
        return tf.distribute.MirroredStrategy([device.name for device in devices])
    if name == "multi_worker":
        return _multi_worker(read_cluster())
    if name == "tpu":
        return _tpu()
    raise OptionError(unknown("strategy", name, STRATEGIES))


def scope(strategy: tf.distribute.Strategy | None) -> AbstractContextManager[Any]:
    """Returns the context in which a model must be built and compiled."""
    return strategy.scope() if strategy else nullcontext()


def strategy_host(strategy: tf.distribute.Strategy | None) -> Host:
    """Returns the index of this machine and the number of machines that read a split together."""
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return read_cluster().host
    return Host()


def first_host(strategy: tf.distribute.Strategy | None) -> Host:
    """Returns the host of the first pipeline of this process, which controls several if it has a slice of TPUs."""
    if isinstance(strategy, tf.distribute.TPUStrategy):
        resolver = strategy.cluster_resolver
        # Its pipelines run in processes of TPU hosts, and not in this one.
        is_elsewhere = bool(resolver and resolver.cluster_spec().as_dict())
        return Host(count=int(strategy.extended.num_hosts), runs_python=not is_elsewhere)
    return strategy_host(strategy)


def replicas(strategy: tf.distribute.Strategy | None) -> int:
    """Returns the number of replicas on all machines."""
    return int(strategy.num_replicas_in_sync) if strategy else 1


def strategy_name(strategy: tf.distribute.Strategy | None) -> str:
    """Returns the name of a strategy for `make_strategy`."""
    kinds = {
        "multi_worker": tf.distribute.MultiWorkerMirroredStrategy,
        "mirrored": tf.distribute.MirroredStrategy,
        "tpu": tf.distribute.TPUStrategy,
    }
    return next((name for name, kind in kinds.items() if isinstance(strategy, kind)), "default")


def check_batch(strategy: tf.distribute.Strategy | None, batch_size: int) -> int:
    """Returns the batch size of one replica.

    Args:
      strategy: strategy whose replicas share the batch.
      batch_size: images per step, over all replicas.

    Raises:
      OptionError: the size is not divisible by the number of replicas; the message names the nearest ones that are.
    """
    count = replicas(strategy)
    share, remainder = divmod(batch_size, count)
    if not remainder and share:
        return share
    nearest = [size for size in (share * count, (share + 1) * count) if size]
    raise OptionError(
        f"batch_size {batch_size} is not divisible by the {count} replicas; "
        f"the nearest {'sizes are' if len(nearest) > 1 else 'size is'} {' and '.join(map(str, nearest))}"
    )


def check_gpus(wanted: int) -> None:
    """Raises `OptionError` if TensorFlow finds fewer GPUs than are wanted."""
    found = len(tf.config.list_physical_devices("GPU"))
    if found < wanted:
        raise OptionError(
            f"gpus is {wanted} and TensorFlow finds {plural(found, 'GPU')} here; run on a machine and in an image that "
            "have them, or set gpus to 0 to train on what there is"
        )


def describe(strategy: tf.distribute.Strategy | None, batch_size: int) -> str:
    """Returns one line with the number of replicas and the batch size of all hosts, of one, and of a replica.

    Raises:
      OptionError: see `check_batch`.
    """
    share, count, hosts = check_batch(strategy, batch_size), replicas(strategy), first_host(strategy).count
    return (
        f"strategy {strategy_name(strategy)}: global batch {batch_size}, per host {batch_size // hosts}, "
        f"per replica {share} (hosts {hosts}, replicas {count})"
    )


def prefetch(batches: tf.data.Dataset, count: int) -> tf.data.Dataset:
    """Returns batches of which `count` are copied to the accelerator ahead; unchanged for 0, and without one."""
    if not count:  # listing the devices would initialise them, beside another backend of Keras
        return batches
    accelerators = [one.name for one in tf.config.list_logical_devices() if one.device_type != "CPU"]
    return batches.apply(tf.data.experimental.prefetch_to_device(accelerators[0], count)) if accelerators else batches


def distribute(
    strategy: tf.distribute.Strategy | None, make: MakeBatches, prefetch_to_device: int = 0
) -> tf.data.Dataset | Distributed:
    """Builds the input of a training, for `fit.fit`.

    Args:
      strategy: strategy whose replicas share the batches.
      make: host -> the batches of that host, all of one size, such as `make_dataset(..., host=host)`. A strategy that
        controls several hosts from this process, as of a slice of TPUs, gets the batches of each.
      prefetch_to_device: number of batches that are copied to each device of a strategy ahead of their step; 0 for
        TensorFlow's default, one.

    Returns:
      the dataset of this host; with a strategy, its distributed form.

    Raises:
      OptionError: the batch size of a host is not divisible by the number of its replicas.
    """
    if strategy is None:
        return prefetch(make(Host()), prefetch_to_device)
    specs = []

    def make_part(context: tf.distribute.InputContext) -> tf.data.Dataset:
        host = first_host(strategy)
        if strategy_host(strategy).count == 1 < context.num_input_pipelines:
            host = Host(index=context.input_pipeline_id, count=context.num_input_pipelines, runs_python=False)
        dataset = _divide_batches(make(host), replicas(strategy) // host.count)
        specs.append(dataset.element_spec)
        return dataset

    # This takes one pipeline per host and passes its elements to the replicas in turn. With
    # `experimental_distribute_dataset` every host would read all records, or shard by file, which changes the steps.
    ahead = tf.distribute.InputOptions(experimental_per_replica_buffer_size=max(1, prefetch_to_device))
    batches = strategy.distribute_datasets_from_function(make_part, ahead)
    return Distributed(batches=batches, element_spec=specs[0])


def _divide_batches(dataset: tf.data.Dataset, count: int) -> tf.data.Dataset:
    """Divides every batch into consecutive batches of the same size, one for each replica of this host."""
    if count == 1:
        return dataset
    size = next(iter(tf.nest.flatten(dataset.element_spec))).shape[0]
    if size is None or size % count:
        raise OptionError(f"the batches of a host hold {size} images; its {count} replicas must share them equally")
    return dataset.rebatch(size // count, drop_remainder=True)


def _multi_worker(cluster: Cluster) -> tf.distribute.Strategy:
    try:
        return tf.distribute.MultiWorkerMirroredStrategy()
    except (RuntimeError, ValueError, tf.errors.OpError) as error:
        reason = str(error).splitlines()[0]
        raise OptionError(
            f"strategy is multi_worker and worker {cluster.host.index} of {cluster.host.count} at {cluster.address} "
            f"cannot start: {reason}; its port must be free, and nothing may use TensorFlow before make_strategy"
        ) from error


def _tpu() -> tf.distribute.Strategy:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
    except ValueError:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver("local")  # a TPU of this machine has no name
    try:
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (RuntimeError, ValueError, tf.errors.OpError) as error:
        raise OptionError(
            "strategy is tpu and TensorFlow finds no TPU; set TPU_NAME to the name of yours, or run on a machine "
            f"that has one, with libtpu and tensorflow-tpu installed ({str(error).splitlines()[0][:100]})"
        ) from error
    return tf.distribute.TPUStrategy(resolver)
