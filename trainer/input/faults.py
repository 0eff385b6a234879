"""Faults of Python code that TensorFlow runs, as text of one line; an exception would add a traceback to the text."""

from __future__ import annotations

from collections import deque

import tensorflow as tf

_REPLACEMENTS = {**dict.fromkeys(range(32), "?"), 127: "?", ord("'"): "`", ord('"'): "`", ord("\\"): "/"}
_causes: deque[tuple[str, BaseException]] = deque(maxlen=16)  # text of a fault -> its exception


def register_fault(failure: BaseException, cause: BaseException | None = None) -> str:
    """Returns the text of a failure for `raise_fault`, and stores its cause, by default the failure itself."""
    # An assertion of TensorFlow escapes quotes, backslashes, control characters and non-ASCII characters.
    text = " ".join(str(failure).split()).translate(_REPLACEMENTS).encode("ascii", "replace").decode()
    text = text or type(failure).__name__
    _causes.append((text, cause or failure))
    return text


def raise_fault(fault: tf.Tensor) -> tf.Operation:
    """Returns an operation that raises `InvalidArgumentError` with the text `fault`, a string, if it is not empty."""
    return tf.debugging.Assert(tf.equal(fault, ""), [fault])


def cause_of(error: BaseException) -> BaseException | None:
    """Returns the exception of a source or a store that caused an error; None if the error has another cause.

    Example:
      except tf.errors.OpError as error:
          raise cause_of(error) or error

    Args:
      error: error of TensorFlow.
    """
    return next((cause for text, cause in reversed(_causes) if text in str(error)), None)
