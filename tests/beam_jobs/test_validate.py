from __future__ import annotations

import math
import re

import pytest

from beam_jobs import errors
from beam_jobs.errors import OptionError

REFUSED = [
    (lambda: errors.check_choice("kind", "x", ("a", "b")), "kind is 'x'; it must be one of a, b"),
    (lambda: errors.check_whole("n", 2.0), "n is 2.0; it must be a whole number"),
    (lambda: errors.check_whole("n", True), "n is True; it must be a whole number"),
    (lambda: errors.check_whole("n", 0, 1), "n is 0; it must be a whole number of at least 1"),
    (lambda: errors.check_at_least("x", "1", 0), "x is '1'; it must be a number of at least 0"),
    (lambda: errors.check_at_least("x", math.inf, 0), "x is inf; it must be a number of at least 0"),
    (lambda: errors.check_at_least("x", 0.5, 1), "x is 0.5; it must be a number of at least 1"),
    (lambda: errors.check_above("x", 0, 0), "x is 0; it must be a number above 0"),
    (lambda: errors.check_above("x", math.inf, 0), "x is inf; it must be a number above 0"),
]


@pytest.mark.parametrize(("check", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_a_value_that_is_not_allowed_is_named(check, message):
    with pytest.raises(OptionError, match=f"^{re.escape(message)}$"):
        check()


def test_edges_are_allowed():
    errors.check_choice("kind", "b", ("a", "b"))
    errors.check_whole("n", -3)
    errors.check_whole("n", 1, 1)
    errors.check_at_least("x", 1, 1.0)
    errors.check_above("x", 1e-300, 0)
