from __future__ import annotations

import pytest

from tests.trainer.bench_figures import figures
from trainer.bench import rules
from trainer.bench.rules import advise

DECODE_IS = "Decoding is the bottleneck: 1,560 of the 1,610 images/s 2 cores can decode."
TINY = {
    "ops": (20_000.0, 60.0),
    "decode_random_crop(224)": (30_000.0, 12.0),
    "call": (40_000.0, 90.0),
    "read": (90_000.0, 9.0),
}
# What was measured, what the facts are -> stage, a part of the sentence, option.
CASES = {
    "photographs": ({}, {}, "decode", DECODE_IS, "ingest --policy resize --side-px 256"),
    "large photographs": (
        {},
        {"short_px": 1500.0},
        "decode",
        "34 times fewer pixels",
        "ingest --policy resize --side-px 256",
    ),
    "resized already": ({}, {"short_px": 256.0}, "decode", "3.9 times the bytes", "ingest --policy raw --side-px 256"),
    "resized to what is seen": ({}, {"short_px": 224.0}, "decode", "3 times", "ingest --policy raw --side-px 224"),
    "what can be kept": ({}, {"short_px": 224.0, "steady_ops": 2}, "decode", "takes 273 MB", "cache=memory"),
    "what cannot be kept": (
        *({}, {"short_px": 224.0, "steady_ops": 2, "free_bytes": 1_000_000_000}),
        *("decode", "--policy raw", "ingest --policy raw --side-px 224"),
    ),
    "pixels": ({}, {"policy": "raw"}, "decode", "Taking pixels out of the records is the bottleneck", ""),
    "one thread of two": ({}, {"threads": 1}, "prepare", "1 of 2 cores prepare images", "threads=0"),
    "heavy op of the device": (
        *({"ops": (900.0, 2200.0), "flip": (1_100.0, 1_500.0)}, {}),
        *("augment", "`flip` is the bottleneck: 1,500 of the 2,235 us", "device_ops=flip"),
    ),
    "heavy op of the host": (
        *({"ops": (900.0, 2200.0), "resize(224)": (1_100.0, 1_500.0)}, {}),
        *("augment", "`resize(224)` is the bottleneck: 1,500 of the 2,250 us", ""),
    ),
    "tiny images": (
        TINY,
        {"short_px": 32.0, "side_px": 32},
        "call",
        "one image at a time",
        "ingest --policy raw --side-px 32",
    ),
    "tiny pixels": (TINY, {"policy": "raw"}, "call", "one image at a time", "device_ops"),
    "parsing": (
        {"parse": (900.0, 900.0)},
        {},
        "parse",
        "Parsing is the bottleneck",
        "ingest --policy raw --side-px 256",
    ),
    "parsing one by one": ({"parse": (900.0, 900.0)}, {"parse_batch": 1}, "parse", "64 instead of 1", "parse_batch=64"),
    "parsing pixels": ({"parse": (900.0, 900.0)}, {"policy": "raw"}, "parse", "Parsing is the bottleneck", ""),
    "batches": ({"batch": (900.0, 300.0)}, {}, "batch", "bottleneck: 900 images/s, 135 MB/s", ""),
    "the copy": ({"transfer": (900.0, 3.0)}, {"device": "GPU:0"}, "transfer", "The copy to GPU:0", "batch_size=128"),
    "the model": (
        *({"small_cnn": (210.0, 9000.0)}, {"model": "small_cnn"}),
        *("step", "small_cnn trains on 210 images/s, the input pipeline delivers 1,560", ""),
    ),
    "memory": ({"read": (900.0, 60.0)}, {}, "read", "Reading is the bottleneck: 900 images/s, 45 MB/s", ""),
    "a disk, and the split fits": (
        {"read": (900.0, 60.0)},
        {"in_memory": False},
        "read",
        "it fits"[3:],
        "cache=memory",
    ),
    "a disk, and it does not": (
        *({"read": (900.0, 60.0)}, {"in_memory": False, "records": 9_000_000}),
        *("read", "`cache_dir` on a faster disk", "cache=disk"),
    ),
    "an object store": (
        *({"read": (900.0, 60.0)}, {"remote": True, "shards": 20, "in_memory": False}),
        *("read", "there are 20 shards", "readers=20"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_bottleneck_is_named_with_figures_and_the_option_to_change(case):
    costs, facts, stage, part, option = CASES[case]
    first = advise(figures(costs, **facts))[0]
    assert (first.stage, first.option) == (stage, option)
    assert part in str(first)
    assert str(first).endswith(".")
    assert "\n" not in str(first)


def test_the_sentence_of_photographs_is_complete():
    remedy = "Ingest with `--policy resize --side-px 256` to decode 2.1 times fewer pixels."
    assert [str(advice) for advice in advise(figures())] == [f"{DECODE_IS} {remedy}"]


def test_a_pipeline_that_leaves_out_what_the_limit_decodes_is_not_a_part_of_it():
    said = str(advise(figures({"pipeline": (2_105.0, 500.0)}))[0])
    assert said.startswith("Decoding is the bottleneck: 2,105 images/s; whole images, 2 cores decode 1,610. Ingest")


def test_an_op_that_is_not_the_heaviest_is_named_behind_the_bottleneck_when_it_is_dear():
    found = advise(figures({"flip": (2_000.0, 480.0)}))
    assert [(advice.stage, advice.option) for advice in found] == [
        ("decode", "ingest --policy resize --side-px 256"),
        ("augment", "device_ops=flip"),
    ]
    assert "`flip` is dear: 480 of the 1,215 us" in found[1].sentence


def test_a_model_that_is_faster_than_its_input_is_no_bottleneck():
    assert rules.step_bound(figures({"small_cnn": (5_000.0, 1.0)})) is None
    assert advise(figures({"small_cnn": (5_000.0, 1.0)}))[0].stage == "decode"


def test_behind_a_slow_model_nothing_else_is_advised():
    assert len(advise(figures({"small_cnn": (210.0, 9000.0)}))) == 1


def test_as_many_threads_as_cores_are_enough():
    assert rules.few_threads(figures(threads=2)) is None
    assert rules.few_threads(figures(threads=3)) is None


def test_there_is_always_a_sentence(monkeypatch):
    monkeypatch.setattr(rules, "RULES", ())
    assert [str(advice) for advice in advise(figures())] == [
        "No stage stands out: the pipeline delivers 1,560 images/s, 97% of the limit."
    ]
