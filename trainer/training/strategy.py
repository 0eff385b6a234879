"""Training on several devices or machines, by the option `strategy`: `default`, `mirrored`, `multi_worker` or `tpu`.

Every machine runs one input pipeline for all its replicas. `make_dataset` with its `host` delivers the part of each
global batch for this machine, and this module divides the part among the replicas, so the number of replicas does not
change the records of a step. `TF_CONFIG`, which lists the workers, is checked before TensorFlow reads it.
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
    """The position of this process among the workers.

    Attributes:
      host: index of this process, 0 for the chief, and number of workers.
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
      OptionError: a part of the value is missing or wrong; the message names the part.
    """
    tasks, task = _get_section(config, "cluster"), _get_section(config, "task")
    other_types = sorted(set(tasks) - set(_TASK_TYPES))
    if other_types:
        raise OptionError(
            f"cluster of {CLUSTER_VARIABLE} has {', '.join(other_types)}; multi_worker supports only chief and worker"
        )
    addresses = {kind: _check_addresses(kind, tasks[kind]) for kind in _TASK_TYPES if kind in tasks}
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


def _get_section(config: Any, name: str) -> Mapping[str, Any]:
    section = config.get(name) if isinstance(config, Mapping) else None
    if not isinstance(section, Mapping):
        raise OptionError(f"{CLUSTER_VARIABLE} has no {name}; set it to a value such as {CLUSTER_EXAMPLE}")
    return section


def _check_addresses(kind: str, values: Any) -> tuple[str, ...]:
    if not isinstance(values, list) or not values or (kind == "chief" and len(values) != 1):
        allowed = "a list of one address" if kind == "chief" else "a list of addresses"
        raise OptionError(
            f"cluster.{kind} of {CLUSTER_VARIABLE} is {values!r}; it must be {allowed}, such as 10.0.0.1:5000"
        )
    for value in values:
        match = re.fullmatch(r"\S+:(\d{1,5})", str(value))
        if not match or not 0 < int(match[1]) < 1 << 16:
            raise OptionError(
                f"cluster.{kind} of {CLUSTER_VARIABLE} has {value!r}; it must be NAME:PORT, such as 10.0.0.1:5000"
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
    """Returns a strategy; None for `default`, which uses one device.

    `mirrored` uses all GPUs, or without GPUs all logical CPU devices. `multi_worker` reads the environment variable
    `TF_CONFIG` and waits until all workers have started. For `multi_worker` and `tpu`, call this function before
    TensorFlow initialises its devices.

    Examples:
      >>> from trainer import make_strategy
      >>> make_strategy("mirrored").num_replicas_in_sync >= 1
      True
      >>> make_strategy("default") is None
      True

    Args:
      name: `default`, `mirrored`, `multi_worker` or `tpu`.
      memory_growth: whether TensorFlow allocates GPU memory when it is needed; otherwise it allocates nearly all now.

    Returns:
      the strategy, in whose scope `fit_job` builds the model; None for one device.

    Raises:
      OptionError: the name is unknown, `TF_CONFIG` is wrong, or there is no TPU.
    """
    # The environment variable takes precedence over TensorFlow's function, and the command line has set it before.
    os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = str(memory_growth).lower()
    if name == "default":
        return None
    if name == "mirrored":
        devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
        return tf.distribute.MirroredStrategy([device.name for device in devices])
    if name == "multi_worker":
        return _make_multi_worker(read_cluster())
    if name == "tpu":
        return _make_tpu()
    raise OptionError(unknown("strategy", name, STRATEGIES))


def scope(strategy: tf.distribute.Strategy | None) -> AbstractContextManager[Any]:
    """Returns the context manager in which a model must be built and compiled."""
    return strategy.scope() if strategy else nullcontext()


def strategy_host(strategy: tf.distribute.Strategy | None) -> Host:
    """Returns the index of this machine and the number of machines that read a split together."""
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return read_cluster().host
    return Host()


def first_host(strategy: tf.distribute.Strategy | None) -> Host:
    """Returns the host of the first input pipeline of this process, which may control several hosts (a TPU slice)."""
    if isinstance(strategy, tf.distribute.TPUStrategy):
        resolver = strategy.cluster_resolver
        # With a cluster, the pipelines run in processes on the TPU hosts, not in this process.
        is_remote = bool(resolver and resolver.cluster_spec().as_dict())
        return Host(count=int(strategy.extended.num_hosts), runs_python=not is_remote)
    return strategy_host(strategy)


def replicas(strategy: tf.distribute.Strategy | None) -> int:
    """Returns the number of replicas on all machines."""
    return int(strategy.num_replicas_in_sync) if strategy else 1


def strategy_name(strategy: tf.distribute.Strategy | None) -> str:
    """Returns the name by which `make_strategy` creates a strategy of this type."""
    types = {
        "multi_worker": tf.distribute.MultiWorkerMirroredStrategy,
        "mirrored": tf.distribute.MirroredStrategy,
        "tpu": tf.distribute.TPUStrategy,
    }
    return next((name for name, kind in types.items() if isinstance(strategy, kind)), "default")


def check_batch(strategy: tf.distribute.Strategy | None, batch_size: int) -> int:
    """Returns the batch size of one replica.

    Args:
      strategy: strategy whose replicas share the batch.
      batch_size: images per step, over all replicas.

    Raises:
      OptionError: the size is not divisible by the number of replicas; the message gives the nearest divisible sizes.
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


def check_gpus(required: int) -> None:
    """Raises `OptionError` if TensorFlow finds fewer GPUs than required."""
    available = len(tf.config.list_physical_devices("GPU"))
    if available < required:
        raise OptionError(
            f"gpus is {required} and TensorFlow finds {plural(available, 'GPU')} here; use a machine and a container "
            "image with GPU support, or set gpus to 0 to train on the available devices"
        )


def describe(strategy: tf.distribute.Strategy | None, batch_size: int) -> str:
    """Returns one line with the number of replicas and the batch sizes of all hosts, of one host and of one replica.

    Raises:
      OptionError: see `check_batch`.
    """
    share, count, hosts = check_batch(strategy, batch_size), replicas(strategy), first_host(strategy).count
    return (
        f"strategy {strategy_name(strategy)}: global batch {batch_size}, per host {batch_size // hosts}, "
        f"per replica {share} (hosts {hosts}, replicas {count})"
    )


def prefetch(batches: tf.data.Dataset, count: int) -> tf.data.Dataset:
    """Returns a dataset that copies `count` batches ahead to the accelerator; unchanged for 0, or on a CPU."""
    if not count:  # as with other backends of Keras; listing devices initialises them, which those backends must do
        return batches
    accelerators = [device.name for device in tf.config.list_logical_devices() if device.device_type != "CPU"]
    return batches.apply(tf.data.experimental.prefetch_to_device(accelerators[0], count)) if accelerators else batches


def distribute(
    strategy: tf.distribute.Strategy | None, make: MakeBatches, prefetch_to_device: int = 0
) -> tf.data.Dataset | Distributed:
    """Builds the input of a training, for `fit.fit`.

    Args:
      strategy: strategy whose replicas share the batches.
      make: host -> the batches of that host, all of one size, such as `make_dataset(..., host=host)`. If this process
        controls several hosts, as with a TPU slice, it is called for each host.
      prefetch_to_device: number of batches that are copied to each device ahead of their step; 0 for the default of
        TensorFlow: one under a strategy, otherwise none.

    Returns:
      the dataset of this host; with a strategy, a `Distributed` with the distributed dataset.

    Raises:
      OptionError: the batch size of a host is not divisible by the number of its replicas.
    """
    if strategy is None:
        return prefetch(make(Host()), prefetch_to_device)
    specs = []

    def make_host_batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
        host = first_host(strategy)  # replaced below if this process makes the input of several hosts
        if strategy_host(strategy).count == 1 < context.num_input_pipelines:
            host = Host(index=context.input_pipeline_id, count=context.num_input_pipelines, runs_python=False)
        dataset = _divide_batches(make(host), replicas(strategy) // host.count)
        specs.append(dataset.element_spec)
        return dataset

    # TensorFlow builds one pipeline per host and passes its elements to the replicas in turn. With
    # `experimental_distribute_dataset` every host would read all records or only some files, which changes the steps.
    input_options = tf.distribute.InputOptions(experimental_per_replica_buffer_size=max(1, prefetch_to_device))
    batches = strategy.distribute_datasets_from_function(make_host_batches, input_options)
    return Distributed(batches=batches, element_spec=specs[0])


def _divide_batches(dataset: tf.data.Dataset, count: int) -> tf.data.Dataset:
    """Divides every batch into consecutive batches of equal size, one for each replica of this host."""
    if count == 1:
        return dataset
    size = next(iter(tf.nest.flatten(dataset.element_spec))).shape[0]
    if size is None or size % count:
        raise OptionError(f"the batch size of a host is {size}; it must be divisible by its {count} replicas")
    return dataset.rebatch(size // count, drop_remainder=True)


def _make_multi_worker(cluster: Cluster) -> tf.distribute.Strategy:
    try:
        return tf.distribute.MultiWorkerMirroredStrategy()
    except (RuntimeError, ValueError, tf.errors.OpError) as error:
        reason = str(error).splitlines()[0]
        raise OptionError(
            f"strategy is multi_worker and worker {cluster.host.index} of {cluster.host.count} at {cluster.address} "
            f"cannot start: {reason}; its port must be free, and nothing may use TensorFlow before make_strategy"
        ) from error


def _make_tpu() -> tf.distribute.Strategy:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
    except ValueError:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver("local")  # a TPU of this machine needs no name
    try:
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (RuntimeError, ValueError, tf.errors.OpError) as error:
        raise OptionError(
            "strategy is tpu and TensorFlow finds no TPU; set TPU_NAME to the name of yours, or run on a machine "
            f"that has one, with libtpu and tensorflow-tpu installed ({str(error).splitlines()[0][:100]})"
        ) from error
    return tf.distribute.TPUStrategy(resolver)
