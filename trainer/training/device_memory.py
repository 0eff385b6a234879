"""Memory of a training step on one device, counted from the graph of the model, by batch size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from beam_jobs import errors
from beam_jobs.errors import OptionError

ADAM_SLOTS = 2  # Adam and AdamW store both moments
_DERIVED_FROM_OUTPUT = ("relu", "relu6", "sigmoid", "softmax", "tanh")  # the derivative needs no input
_KEEPS_NOTHING = (
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
_KEEPS_OUTPUT = (keras.layers.Dropout, keras.layers.ReLU, keras.layers.Softmax)
_KEEPS_BOTH = (keras.layers.GlobalMaxPooling2D, keras.layers.MaxPooling2D)


@dataclass(frozen=True, kw_only=True)
class DeviceBytes:
    """Bytes that a training step needs on one device, without the scratch space of the kernels.

    Attributes:
      parameters: all weights, frozen ones included.
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
        """Their sum."""
        return self.parameters + self.gradients + self.slots + self.activations + self.input


def device_bytes(model: keras.Model, batch_size: int, slots: int = ADAM_SLOTS) -> DeviceBytes:
    """Counts the memory of a training step of a model.

    Layers that are trained, or follow a trained layer, receive a gradient. Of those, a layer with trained weights keeps
    its inputs, an activation its output, a maximum both; sums, means, padding and layers with frozen weights keep
    nothing. An unknown op is counted as one that keeps its inputs.

    Args:
      model: a graph of layers (functional or sequential), frozen as it will be trained.
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
    trained = sum(_bytes(weight.shape, weight.dtype) for weight in model.trainable_weights)
    return DeviceBytes(
        parameters=sum(_bytes(weight.shape, weight.dtype) for weight in model.weights),
        gradients=trained,
        slots=trained * slots,
        activations=batch_size * sum(_image_bytes(tensor) for tensor in _Activations(model).tensors.values()),
        input=batch_size * sum(_image_bytes(tensor) for tensor in model.inputs),
    )


def memory_table(model: keras.Model, batch_sizes: Sequence[int], slots: int = ADAM_SLOTS) -> str:
    """Returns a table of `device_bytes` in MB (1e6 bytes), one line per batch size."""
    columns = ("parameters", "gradients", "slots", "activations", "input", "total")
    lines = ["batch size" + "".join(f"{name:>13}" for name in columns) + "   (MB)"]
    for size in batch_sizes:
        counts = device_bytes(model, size, slots)
        lines.append(f"{size:>10}" + "".join(f"{getattr(counts, name) / 1e6:13.1f}" for name in columns))
    return "\n".join(lines)


class _Activations:
    """Walks a graph from its inputs and collects the tensors that the backward pass needs, each once."""

    def __init__(self, model: keras.Model) -> None:
        self.tensors: dict[int, Any] = {}
        self._with_gradient: set[int] = set()  # ids of tensors that receive a gradient
        self._aliases: dict[int, Any] = {}  # id of an input or output of a nested model -> tensor of the outer graph
        self._walk(model)

    def _walk(self, model: keras.Model) -> None:
        for operation in getattr(model, "operations", model.layers):  # a sequential model has only layers
            if isinstance(operation, keras.layers.InputLayer):
                continue
            # A nested model overrides `input` and `output` with its own; these are the tensors of the outer graph.
            ends = (keras.Operation.input, keras.Operation.output)
            inputs, outputs = (keras.tree.flatten(end.fget(operation)) for end in ends)
            if isinstance(operation, keras.Model):
                self._aliases.update(zip(map(id, operation.inputs), map(self._resolve, inputs), strict=True))
                self._walk(operation)
                self._aliases.update(zip(map(id, outputs), map(self._resolve, operation.outputs), strict=True))
                continue
            inputs = [self._resolve(tensor) for tensor in inputs]
            trained = bool(getattr(operation, "trainable_weights", ()))
            if trained or any(id(tensor) in self._with_gradient for tensor in inputs):
                self._with_gradient.update(map(id, outputs))
                tensors = _select_activations(operation, trained, inputs, outputs)
                self.tensors.update((id(tensor), tensor) for tensor in tensors)

    def _resolve(self, tensor: Any) -> Any:
        while id(tensor) in self._aliases:
            tensor = self._aliases[id(tensor)]
        return tensor


def _select_activations(operation: Any, trained: bool, inputs: list[Any], outputs: list[Any]) -> list[Any]:
    activation = getattr(getattr(operation, "activation", None), "__name__", "linear")
    if isinstance(operation, keras.layers.Activation):
        return outputs if activation in _DERIVED_FROM_OUTPUT else inputs
    tensors = []
    if trained or isinstance(operation, _KEEPS_BOTH):
        tensors += inputs
    if activation != "linear" or isinstance(operation, _KEEPS_BOTH + _KEEPS_OUTPUT):
        tensors += outputs
    is_known = bool(getattr(operation, "weights", ())) or isinstance(operation, _KEEPS_NOTHING)
    return tensors if tensors or is_known else inputs


def _image_bytes(tensor: Any) -> int:
    return _bytes([size or 1 for size in tensor.shape[1:]], tensor.dtype)


def _bytes(shape: Iterable[int], dtype: str) -> int:
    bits = "".join(letter for letter in str(dtype) if letter.isdigit())
    return math.prod(shape) * (int(bits) // 8 if bits else 1)  # bool has no digits
