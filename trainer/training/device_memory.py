"""Memory that a training step needs on one device, computed from the graph of the model and the batch size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from beam_jobs import errors
from beam_jobs.errors import OptionError

ADAM_SLOTS = 2  # optimizer values per trained weight: Adam and AdamW store two moments
_DERIVED_FROM_OUTPUT = ("relu", "relu6", "sigmoid", "softmax", "tanh")  # the derivative needs only the output
_STORES_NOTHING = (  # layers whose derivative needs neither input nor output
    keras.layers.Add,
    keras.layers.AveragePooling2D,
    keras.layers.Concatenate,
    keras.layers.Cropping2D,
    keras.layers.Flatten,
    keras.layers.GlobalAveragePooling2D,
    keras.layers.Rescaling,
    keras.layers.Reshape,
    keras.layers.UpSampling2D,
    keras.layers.ZeroPadding2D,
)
_STORES_OUTPUT = (keras.layers.Dropout, keras.layers.ReLU, keras.layers.Softmax)
_STORES_BOTH = (keras.layers.GlobalMaxPooling2D, keras.layers.MaxPooling2D)


@dataclass(frozen=True, kw_only=True)
class DeviceBytes:
    """Bytes that a training step needs on one device, without the scratch space of the kernels.

    Attributes:
      parameters: all weights, including frozen ones.
      gradients: gradients of all trained weights.
      slots: state of the optimizer.
      activations: inputs and outputs of layers that the backward pass needs.
      input: images of one batch.
    """

    parameters: int
    gradients: int
    slots: int
    activations: int
    input: int

    @property
    def total(self) -> int:
        """Sum of all attributes."""
        return self.parameters + self.gradients + self.slots + self.activations + self.input


def device_bytes(model: keras.Model, batch_size: int, slots: int = ADAM_SLOTS) -> DeviceBytes:
    """Returns the memory that a training step of a model needs.

    Trained layers, and all layers after them, receive a gradient. For the backward pass, a layer with trained weights
    stores its inputs, an activation function its output, max pooling both. Sums, means, padding and layers with frozen
    weights store nothing. An unknown op counts as one that stores its inputs.

    Args:
      model: a graph of layers (functional or sequential), in which the layers that training freezes are frozen.
      batch_size: images per step on this device.
      slots: optimizer values per trained weight: 2 with Adam, 1 with momentum, 1 more for an average of the weights,
        1 more for gradient accumulation.

    Raises:
      OptionError: a number is out of range, or the model is not a graph of layers.
    """
    errors.check_whole("batch_size", batch_size, 1)
    errors.check_whole("slots", slots, 0)
    if not getattr(model, "inputs", None):
        raise OptionError(f"the memory of {model.name} cannot be counted, because it is not a graph of layers")
    trained_bytes = sum(_tensor_bytes(weight.shape, weight.dtype) for weight in model.trainable_weights)
    return DeviceBytes(
        parameters=sum(_tensor_bytes(weight.shape, weight.dtype) for weight in model.weights),
        gradients=trained_bytes,
        slots=trained_bytes * slots,
        activations=batch_size * sum(_bytes_per_image(tensor) for tensor in _Activations(model).tensors.values()),
        input=batch_size * sum(_bytes_per_image(tensor) for tensor in model.inputs),
    )


def memory_table(model: keras.Model, batch_sizes: Sequence[int], slots: int = ADAM_SLOTS) -> str:
    """Returns a table of `device_bytes` in MB (1e6 bytes), one line per batch size."""
    columns = ("parameters", "gradients", "slots", "activations", "input", "total")
    lines = ["batch size" + "".join(f"{name:>13}" for name in columns) + "   (MB)"]
    for size in batch_sizes:
        row = device_bytes(model, size, slots)
        lines.append(f"{size:>10}" + "".join(f"{getattr(row, name) / 1e6:13.1f}" for name in columns))
    return "\n".join(lines)


class _Activations:
    """Collects the tensors of a graph that the backward pass needs, each once, from the inputs to the outputs."""

    def __init__(self, model: keras.Model) -> None:
        self.tensors: dict[int, Any] = {}
        self._with_gradient: set[int] = set()  # ids of tensors that receive a gradient
        self._aliases: dict[int, Any] = {}  # id of an input or output of a nested model -> tensor of the outer graph
        self._walk(model)

    def _walk(self, model: keras.Model) -> None:
        for operation in getattr(model, "operations", model.layers):  # a sequential model has only layers
            if isinstance(operation, keras.layers.InputLayer):
                continue
            # A nested model overrides `input` and `output`; those of `Operation` return tensors of the outer graph.
            getters = (keras.Operation.input.fget, keras.Operation.output.fget)
            inputs, outputs = (keras.tree.flatten(getter(operation)) for getter in getters)
            if isinstance(operation, keras.Model):
                self._aliases.update(zip(map(id, operation.inputs), map(self._resolve_alias, inputs), strict=True))
                self._walk(operation)
                self._aliases.update(zip(map(id, outputs), map(self._resolve_alias, operation.outputs), strict=True))
                continue
            inputs = [self._resolve_alias(tensor) for tensor in inputs]
            is_trained = bool(getattr(operation, "trainable_weights", ()))
            if is_trained or any(id(tensor) in self._with_gradient for tensor in inputs):
                self._with_gradient.update(map(id, outputs))
                tensors = _select_activations(operation, is_trained, inputs, outputs)
                self.tensors.update((id(tensor), tensor) for tensor in tensors)

    def _resolve_alias(self, tensor: Any) -> Any:
        while id(tensor) in self._aliases:
            tensor = self._aliases[id(tensor)]
        return tensor


def _select_activations(operation: Any, is_trained: bool, inputs: list[Any], outputs: list[Any]) -> list[Any]:
    """Returns the inputs and outputs of an operation that its backward pass needs."""
    activation_name = getattr(getattr(operation, "activation", None), "__name__", "linear")
    if isinstance(operation, keras.layers.Activation):
        return outputs if activation_name in _DERIVED_FROM_OUTPUT else inputs
    tensors = []
    if is_trained or isinstance(operation, _STORES_BOTH):
        tensors += inputs
    if activation_name != "linear" or isinstance(operation, _STORES_BOTH + _STORES_OUTPUT):
        tensors += outputs
    is_known_op = bool(getattr(operation, "weights", ())) or isinstance(operation, _STORES_NOTHING)
    return tensors if tensors or is_known_op else inputs


def _bytes_per_image(tensor: Any) -> int:
    return _tensor_bytes([size or 1 for size in tensor.shape[1:]], tensor.dtype)  # an unknown size counts as 1


def _tensor_bytes(shape: Iterable[int], dtype: str) -> int:
    bits = "".join(letter for letter in str(dtype) if letter.isdigit())
    return math.prod(shape) * (int(bits) // 8 if bits else 1)  # the name `bool` has no digits
