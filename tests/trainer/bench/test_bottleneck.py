from __future__ import annotations

import pytest

from tests.trainer.bench_figures import figures
from trainer.bench.bottleneck import find_bottleneck

DECODE_IS = "Decoding is the bottleneck: 1,560 of the 1,610 images/s that 2 cores can decode."
TINY = {
    "ops": (20_000.0, 60.0),
    "decode_random_crop(224)": (30_000.0, 12.0),
    "call": (40_000.0, 90.0),
    "read": (90_000.0, 9.0),
}
PARSING, READING = {"parse": (900.0, 900.0)}, {"read": (900.0, 60.0)}
# What was measured, what the facts are -> stage, a part of the sentence, option.
CASES = {
    "photographs": (
        *(
            {},
            {},
            "decode",
            f"{DECODE_IS} Ingest with `--policy resize --side-px 256` to decode 2.1 times fewer pixels.",
        ),
        "ingest --policy resize --side-px 256",
    ),
    "resized already": ({}, {"short_px": 256.0}, "decode", "3.9 times the bytes", "ingest --policy raw --side-px 256"),
    "more than the limit decodes": (
        *({"pipeline": (2_105.0, 500.0)}, {}, "decode"),
        *("Decoding is the bottleneck: 1,700 images/s alone, 2,105 all", "ingest --policy resize --side-px 256"),
    ),
    "pixels": ({}, {"policy": "raw"}, "decode", "Extracting pixels from the records is the bottleneck", ""),
    "one thread of two": ({}, {"threads": 1}, "decode", "1 of 2 cores prepare images", "threads=0"),
    "more threads than cores": ({}, {"threads": 3}, "decode", DECODE_IS, "ingest --policy resize --side-px 256"),
    "heavy op of the device": (
        *({"ops": (900.0, 2200.0), "flip": (1_100.0, 1_500.0)}, {}),
        *("augment", "`flip` is the bottleneck: 1,100 images/s alone, 1,560 all together. Move it", "device_ops=flip"),
    ),
    "heavy op of the host": (
        *({"ops": (900.0, 2200.0), "resize(224)": (1_100.0, 1_500.0)}, {}),
        *("augment", "`resize(224)` is the bottleneck: 1,100 images/s", "train_ops"),
    ),
    "tiny images": (
        *(TINY, {"short_px": 32.0, "side_px": 32}, "call"),
        *("one image at a time", "ingest --policy raw --side-px 32"),
    ),
    "tiny pixels": (TINY, {"policy": "raw"}, "call", "one image at a time", "device_ops"),
    "parsing": (PARSING, {}, "parse", "Parsing is the bottleneck", "ingest --policy raw --side-px 256"),
    "parsing one by one": (PARSING, {"parse_batch": 1}, "parse", "64 instead of 1", "parse_batch=64"),
    "batches": (
        *({"batch": (900.0, 300.0)}, {}, "batch"),
        *("Copying images into batches is the bottleneck: 900 images/s", "image_side_px"),
    ),
    "the copy": ({"transfer": (900.0, 3.0)}, {"device": "GPU:0"}, "transfer", "The copy to GPU:0", "batch_size"),
    "the model": (
        *({"small_cnn": (210.0, 9000.0)}, {"model": "small_cnn"}),
        *("step", "small_cnn trains on 210 images/s, the input pipeline delivers 1,560", ""),
    ),
    "a faster model": (
        *({"small_cnn": (1_600.0, 1.0)}, {}, "decode", DECODE_IS),
        "ingest --policy resize --side-px 256",
    ),
    "memory": (READING, {}, "read", "Reading is the bottleneck: 900 images/s", ""),
    "a disk": (READING, {"in_memory": False}, "read", "Set `cache` to memory", "cache=memory"),
    "an object store": (
        *(READING, {"remote": True, "shards": 20, "in_memory": False}),
        *("read", "there are 20 shards", "readers=20"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_bottleneck_is_named_with_figures_and_the_option_to_change(case):
    costs, facts, stage, part, option = CASES[case]
    found = find_bottleneck(figures(costs, **facts))
    assert (found.stage, found.option) == (stage, option)
    assert part in found.sentence
    assert found.sentence.endswith(".")
    assert "\n" not in found.sentence
