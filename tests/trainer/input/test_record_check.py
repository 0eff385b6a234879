from __future__ import annotations

import pytest

from beam_jobs.dataset import record
from tests.make_images import jpeg
from trainer.input.corrupt_records import content_problem

IMAGE = jpeg()
SOUND = {
    record.FILENAME: ("bytes", [b"a.jpg"]),
    record.ENCODED: ("bytes", [IMAGE]),
    record.FORMAT: ("bytes", [b"jpeg"]),
    record.HEIGHT: ("int64", [60]),
    record.WIDTH: ("int64", [80]),
}
RAW = {**SOUND, record.ENCODED: ("bytes", [bytes(60 * 80 * 3)]), record.FORMAT: ("bytes", [b"raw"])}


def problem(values: dict, decode: bool = True) -> str:
    return content_problem(record.encode_example(values), "a.jpg", decode)


@pytest.mark.parametrize(
    ("values", "decode"), [(SOUND, True), (RAW, True), ({**SOUND, "extra/x": ("int64", [])}, False)]
)
def test_a_sound_record_has_no_problem(values, decode):
    assert problem(values, decode) == ""


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({**SOUND, record.FILENAME: ("bytes", [])}, "has no image/filename"),
        ({**SOUND, record.ENCODED: ("bytes", [])}, "has no image/encoded"),
        ({**SOUND, record.FILENAME: ("int64", [1])}, "does not have the record format: feature 'image/filename' "),
        ({**SOUND, record.FILENAME: ("bytes", [b"b.jpg"])}, "has the key b'b.jpg' instead"),
    ],
)
def test_what_training_could_not_use_is_named(values, said):
    assert problem(values, decode=False).startswith(said)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({**RAW, record.HEIGHT: ("int64", [])}, "has no image/height"),
        ({**RAW, record.WIDTH: ("int64", [79])}, "has 14400 bytes of pixels instead of 14220"),
        ({**RAW, record.WIDTH: ("int64", [-80])}, "has 14400 bytes of pixels instead of -14400"),
        ({**SOUND, record.ENCODED: ("bytes", [IMAGE[:-90]])}, "cannot be decoded: "),
    ],
)
def test_an_image_is_looked_at_only_when_it_is_decoded(values, said):
    assert problem(values, decode=False) == ""
    assert problem(values).startswith(said)


@pytest.mark.parametrize("payload", [b"\xff\xff", record.encode_example(SOUND) + b"\x0c and more"])
def test_bytes_that_are_no_record_are_named(payload):
    assert content_problem(payload, "a.jpg", decode=True) == "is not a tf.train.Example"
