"""Credentials of Google Cloud: whether there are any, asked once and with an end.

Without any, Google's library asks whether this is a machine of Google's, and Beam asks it five times and then goes on
without; the first request runs into a time-out of minutes that says nothing of credentials.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import google.auth
from google.auth.exceptions import GoogleAuthError

LOGIN = "gcloud auth application-default login"
REMEDY = f"make some with `{LOGIN}`, or name a key file in GOOGLE_APPLICATION_CREDENTIALS"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_LOGGER = logging.getLogger("google.auth")
_WAIT_S = 10.0  # Google's library asks its metadata server three times for three seconds


def missing() -> str:
    """Returns why there are no credentials here, in a line that ends with what to do; empty when there are some."""
    answers: list[Any] = []

    def look() -> None:
        level = _LOGGER.level
        _LOGGER.setLevel(logging.ERROR)  # or it warns that there is no metadata server
        try:
            answers.append(google.auth.default(scopes=[_SCOPE]))
        except GoogleAuthError as error:
            answers.append(error)
        finally:
            _LOGGER.setLevel(level)

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(_WAIT_S)
    if answers and not isinstance(answers[0], Exception):
        return ""
    reason = _reason(answers[0]) if answers else f" (no answer from the metadata server in {_WAIT_S:g} s)"
    return f"there are no Google Cloud credentials here{reason}; {REMEDY}"


def _reason(error: Exception) -> str:
    """Returns what is wrong with credentials that are named; that there are none at all needs no reason."""
    words = " ".join(str(error.args[0] if error.args else error).split())
    return "" if words.startswith("Your default credentials were not found") else f" ({words[:200]})"
