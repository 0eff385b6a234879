"""Training on several devices or machines behind one option: `default`, `mirrored`, `multi_worker`, `tpu`.

Every machine runs one input pipeline for all its replicas. `make_dataset(host=...)` hands it its part of every global
batch, which is cut here into one piece a replica, so a step sees the same records whatever the number of replicas.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

import tensorflow as tf

from beam_jobs.common.strings import unknown
from beam_jobs.errors import OptionError
from trainer.input.position import Host
from trainer.training.cluster import Cluster, cluster_of_environment

Make: TypeAlias = Callable[[Host], tf.data.Dataset]
STRATEGIES = ("default", "mirrored", "multi_worker", "tpu")


@dataclass(frozen=True, kw_only=True)
class Distributed:
    """The batches of this machine, as a strategy takes them.

    Attributes:
      batches: an element is one batch a local replica.
      element_spec: of the batch of one replica.
    """

    batches: tf.distribute.DistributedDataset
    element_spec: Any


def make_strategy(name: str) -> tf.distribute.Strategy | None:
    """Returns a strategy; None for `default`, one device.

    `mirrored` takes all GPUs, or without one all logical CPU devices. `multi_worker` reads the environment variable
    `TF_CONFIG` and waits until all workers are there. `multi_worker` and `tpu` must come before anything else makes
    TensorFlow look at its devices.

    Examples:
      >>> from trainer import make_strategy
      >>> make_strategy("mirrored").num_replicas_in_sync >= 1
      True
      >>> make_strategy("default") is None
      True

    Args:
      name: `default`, `mirrored`, `multi_worker` or `tpu`.

    Returns:
      the strategy, in whose scope `fit_job` builds the model; None for one device.

    Raises:
      OptionError: there is no such strategy, `TF_CONFIG` is wrong, or there is no TPU.
    """
    if name == "default":
        return None
    if name == "mirrored":
        devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
        return tf.distribute.MirroredStrategy([device.name for device in devices])
    if name == "multi_worker":
        return _multi_worker(cluster_of_environment())
    if name == "tpu":
        return _tpu()
    raise OptionError(unknown("strategy", name, STRATEGIES))


def scope(strategy: tf.distribute.Strategy | None) -> AbstractContextManager[Any]:
    """Returns the context in which a model must be built and compiled."""
    return strategy.scope() if strategy else nullcontext()


def host_of(strategy: tf.distribute.Strategy | None) -> Host:
    """Returns which of the machines that read a split together this one is."""
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return cluster_of_environment().host
    return Host()


def replicas(strategy: tf.distribute.Strategy | None) -> int:
    """Returns the replicas on all machines."""
    return int(strategy.num_replicas_in_sync) if strategy else 1


def name_of(strategy: tf.distribute.Strategy | None) -> str:
    """Returns the name that `make_strategy` takes."""
    kinds = {
        "multi_worker": tf.distribute.MultiWorkerMirroredStrategy,
        "mirrored": tf.distribute.MirroredStrategy,
        "tpu": tf.distribute.TPUStrategy,
    }
    return next((name for name, kind in kinds.items() if isinstance(strategy, kind)), "default")


def check_batch(strategy: tf.distribute.Strategy | None, batch_size: int) -> int:
    """Returns the images of one replica.

    Args:
      strategy: who shares the batch.
      batch_size: images per step, over all replicas.

    Raises:
      OptionError: the replicas cannot share it equally; the message names the nearest sizes they can.
    """
    return share_batch(batch_size, replicas(strategy))


def share_batch(batch_size: int, count: int) -> int:
    """Returns the images of each of `count` replicas.

    Raises:
      OptionError: see `check_batch`.
    """
    share, over = divmod(batch_size, count)
    if not over and share:
        return share
    near = [size for size in (share * count, (share + 1) * count) if size]
    raise OptionError(
        f"batch_size is {batch_size}; {count} replicas must be able to share it equally; "
        f"the nearest {'sizes are' if len(near) > 1 else 'size is'} {' and '.join(map(str, near))}"
    )


def describe(strategy: tf.distribute.Strategy | None, batch_size: int) -> str:
    """Returns one line: how many replicas there are and which part of a step each of them sees.

    Raises:
      OptionError: the replicas cannot share the batch equally.
    """
    share, count, hosts = check_batch(strategy, batch_size), replicas(strategy), host_of(strategy).count
    return (
        f"strategy {name_of(strategy)}: global batch {batch_size}, per host {batch_size // hosts}, per replica {share} "
        f"(hosts {hosts}, replicas {count})"
    )


def distribute(strategy: tf.distribute.Strategy | None, make: Make) -> tf.data.Dataset | Distributed:
    """Builds the input of a training, for `fit.fit`.

    Args:
      strategy: who shares the batches.
      make: host -> the batches of that host, such as `make_dataset(..., host=host)` and `map`s of your own; all
        batches are of one size.

    Returns:
      without a strategy the dataset, otherwise its distributed form.

    Raises:
      OptionError: the replicas of this host cannot share its batches equally.
    """
    host = host_of(strategy)
    dataset = make(host)
    if strategy is None:
        return dataset
    dataset = _pieces(dataset, replicas(strategy) // host.count)
    # One pipeline a host, each of whose elements goes to the next replica. `experimental_distribute_dataset` would read
    # everything on every host, or split by files, and then a step would see other records.
    batches = strategy.distribute_datasets_from_function(lambda _: dataset)
    return Distributed(batches=batches, element_spec=dataset.element_spec)


def _pieces(dataset: tf.data.Dataset, count: int) -> tf.data.Dataset:
    """Cuts every batch into consecutive batches of the same size, one for each replica of this host."""
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
            f"cannot start: {reason}; its port must be free, and nothing may use TensorFlow before the strategy is made"
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
