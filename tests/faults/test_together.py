"""Two and three ingests into one output at once, compared with the same ones after each other; see `together`."""

from __future__ import annotations

import json
import sys
from collections import Counter

import pytest

from tests.faults.process import finish, start

pytestmark = pytest.mark.timeout(1500)

SEED = 23


def test_of_several_ingests_into_one_output_each_is_refused_or_comes_whole_after_another(fault, tries, tmp_path):
    text = "refused, or the same result as in sequence; readers see complete datasets; a rerun succeeds"
    row = fault("kills", "several ingests into one output at the same time, some of them killed", text)
    module = [sys.executable, "-W", "ignore", "-m", "tests.faults.together"]
    outcome = finish(start([*module, tmp_path / "together", SEED, tries(80, 6)]), 1200.0)
    assert outcome.code == 0, outcome.err[-2000:]
    found = json.loads(outcome.out)
    for one in found:
        row.tried(f"{one['about']}: {one['wrong']}", hang=None in one["codes"], wrong=bool(one["wrong"]))
    codes = Counter(code for one in found for code in one["codes"])
    sys.stdout.write(f"exit codes: {dict(codes)}\n")
    assert codes.keys() >= {0, 2}
