from __future__ import annotations

import re

import pytest

from beam_jobs.errors import OptionError
from components.evaluation.results import EvaluateOptions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_accuracy": 1.2}, "min_accuracy is 1.2; it must be between 0 and 1"),
        ({"max_drop": -0.1}, "max_drop is -0.1; it must be between 0 and 1 or null"),
        ({"slice_by": "camera"}, "slice_by is the text 'camera'; it must be a list of texts, as [a, b]"),
        ({"slice_by": ("a", "b", "a")}, "slice_by is ['a', 'b', 'a']; it names a column twice"),
        (
            {"slice_by": ("extra/camera",)},
            "slice_by names 'extra/camera'; columns are named as in ingest.columns.extra: camera",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(options, message):
    with pytest.raises(OptionError, match=f"^{re.escape(message)}$"):
        EvaluateOptions(**options)


def test_a_column_that_the_images_do_not_have_is_refused():
    options = EvaluateOptions(slice_by=("camera", "lense"))
    options.check(["camera", "lense", "iso"])
    with pytest.raises(OptionError, match="^evaluate.slice_by: there is no user column 'lense'; did you mean lens?"):
        options.check(["camera", "lens"])
    with pytest.raises(OptionError, match=r"the images have none; name it in ingest.columns.extra: \[camera\]$"):
        options.check([])
