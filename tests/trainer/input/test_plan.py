from __future__ import annotations

import re

import pytest

from beam_jobs.errors import OptionError
from tests.trainer.batches import options
from trainer.input.checks import check_memory
from trainer.input.mixture import make_mixture
from trainer.input.plan import make_plan
from trainer.input_fn import make_dataset


@pytest.mark.parametrize(("training", "kind"), [(True, "none"), (False, "memory")])
def test_one_pass_of_training_keeps_nothing_but_evaluation_comes_again(noise, training, kind):
    spec = {"train_ops": "decode|resize(8)", "eval_ops": "decode|resize(8)"}
    plan = make_plan(str(noise), "train", options(cache="auto", cache_mb=5, **spec), training, epochs=1)
    assert plan.cache.kind == kind


def test_batches_that_no_memory_holds_are_refused_with_what_fits(noise):
    huge = options(batch_size=900_000_000)
    with pytest.raises(OptionError, match=r"batch_size is 900000000: 4 batches of .* GB .* at most \d+ "):
        make_dataset(str(noise), "train", huge, training=True)
    with pytest.raises(OptionError, match="at most"):
        make_mixture({str(noise): 1.0}, "train", huge)
    fits = [_most(huge, value_bytes) for value_bytes in (4, 1)]
    assert fits[1] == pytest.approx(4 * fits[0], rel=0.3)
    check_memory(huge, fits[0] // 2, value_bytes=4)


def _most(asked, value_bytes: int) -> int:
    with pytest.raises(OptionError) as refused:
        check_memory(asked, asked.batch_size, value_bytes)
    return int(re.search(r"at most (\d+)", str(refused.value))[1])
