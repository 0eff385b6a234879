"""Faults of Python code that TensorFlow runs, as one line; the text of an exception would contain a traceback."""

from __future__ import annotations

from collections import deque

import tensorflow as tf

_PLAIN = {**dict.fromkeys(range(32), "?"), 127: "?", ord("'"): "`", ord('"'): "`", ord("\\"): "/"}
_causes: deque[tuple[str, BaseException]] = deque(maxlen=16)


def remember(failure: BaseException, cause: BaseException | None = None) -> str:
    """Returns the text of a failure for `raise_fault`, and remembers its cause, by default itself, for `cause_of`."""
    # An assertion of TensorFlow escapes quotes, backslashes, control characters and what is not ASCII.
    text = (
        " ".join(str(failure).split()).translate(_PLAIN).encode("ascii", "replace").decode() or type(failure).__name__
    )
    _causes.append((text, cause or failure))
    return text


def raise_fault(fault: tf.Tensor) -> tf.Operation:
    """Returns an operation that raises `InvalidArgumentError` with a text, string, if it is not empty."""
    return tf.debugging.Assert(tf.equal(fault, ""), [fault])


def cause_of(error: BaseException) -> BaseException | None:
    """Returns the exception of a source or a store that ended a dataset; None if the error has another cause.

    Example:
      except tf.errors.OpError as error:
          raise cause_of(error) or error

    Args:
      error: error of TensorFlow.
    """
    return next((cause for text, cause in reversed(_causes) if text in str(error)), None)
