"""Every row of the table of hostile files, through the decoder and the ops of the trainer."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from beam_jobs.dataset import record
from beam_jobs.errors import BadImage
from beam_jobs.images import process
from beam_jobs.options import ImageLimits, PixelOptions
from beam_jobs.rejects import RejectReason
from tests.beam_jobs.hostile_rows import ACCEPTED, NORMALISED, REJECTED, SECTIONS
from tests.make_images import pixels_of
from trainer.ops import IMAGE, apply_ops, parse_ops

LIMITS = ImageLimits()
SIDE = 12  # smaller than any image of the table
POLICIES = {
    "copy": PixelOptions(),
    "resize": PixelOptions(policy="resize", side_px=SIDE),
    "raw": PixelOptions(policy="raw", side_px=SIDE),
}
ROWS = {f"{section}: {row.name}": row for section, rows in SECTIONS.items() for row in rows}
KEPT = {name: row for name, row in ROWS.items() if row.outcome != REJECTED}
LOST = {name: row for name, row in ROWS.items() if row.outcome == REJECTED}
# Of each way to make an image smaller, files that reach its decoders and its normalisation by different branches.
SMALLER = [
    ("JPEG: progressive", "resize"),
    ("JPEG: grey", "raw"),
    ("JPEG: YCCK, inverted, with Adobe's marker", "resize"),
    ("JPEG: EXIF orientation 6", "raw"),
    ("PNG: palette of 2 bits", "resize"),
    ("PNG: grey of 16 bits with tRNS", "raw"),
    ("PNG: alpha of 16 bits", "resize"),
    ("PNG: APNG of 3 frames", "raw"),
    ("GIF: transparency", "resize"),
    ("BMP: run-length (RLE8)", "raw"),
    ("TIFF: LAB", "resize"),
    ("TIFF: grey of 12 bits", "raw"),
    ("TIFF: EXIF orientation 6", "resize"),
    ("WebP: alpha", "raw"),
]
DOCS = (Path(__file__).parents[3] / "docs" / "images.md").read_text(encoding="utf-8")
EVAL, TRAIN = parse_ops("decode|resize_short(16)|center_crop(16)"), parse_ops("decode_random_crop(16)")

# Hostile files once took a minute or gigabytes. The longest row takes a second.
pytestmark = pytest.mark.timeout(60)


@tf.function(input_signature=[tf.TensorSpec([], tf.string), tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.int64)])
def trainer(encoded: tf.Tensor, height: tf.Tensor, width: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """What evaluation and training see of a record."""
    features = {IMAGE: encoded, record.HEIGHT: height, record.WIDTH: width}
    seed = tf.constant([7, 7], tf.int32)
    return apply_ops(EVAL, features, seed)[IMAGE], apply_ops(TRAIN, features, seed)[IMAGE]


@pytest.mark.parametrize(("name", "policy"), [*((name, "copy") for name in KEPT), *SMALLER])
def test_a_file_that_can_be_used_trains(name: str, policy: str):
    row = KEPT[name]
    data = row.make()
    encoded, facts = process.examine(data, LIMITS, POLICIES[policy])
    changed = {"copy": "", "resize": "resized", "raw": "raw"}[policy]
    assert facts.normalised == "+".join(filter(None, (row.reason, changed)))
    assert (encoded is data) == (row.outcome == ACCEPTED and policy == "copy")
    pixels = pixels_of(encoded, facts)
    assert pixels.shape == (facts.height, facts.width, 3)
    if facts.format != "raw":
        for seen in trainer(encoded, facts.height, facts.width):
            assert seen.shape == (16, 16, 3)
    if row.shows is not None:
        shown = row.shows if row.shows.ndim == 3 else row.shows[..., None]
        assert (facts.source_height, facts.source_width) == shown.shape[:2]
        if policy == "copy":
            assert np.abs(pixels.astype(float) - shown).mean() < 6  # of 255, at half the chroma


@pytest.mark.parametrize(("name", "policy"), zip(LOST, itertools.cycle(POLICIES), strict=False))
def test_a_file_that_cannot_be_used_is_rejected_for_one_reason(name: str, policy: str):
    with pytest.raises(BadImage) as caught:
        process.examine(LOST[name].make(), LIMITS, POLICIES[policy])
    assert caught.value.reason.value == LOST[name].reason
    assert caught.value.detail
    # The detail goes into rejects.parquet, which must not differ between two runs over the same files.
    assert "object at 0x" not in caught.value.detail


def damaged(data: bytes, random: np.random.Generator) -> bytes:
    changed = bytearray(data)
    for _ in range(random.integers(1, 6)):
        # Half of the damage goes where the headers are.
        place = int(random.integers(min(200, len(data)) if random.random() < 0.5 else len(data)))
        if random.random() < 0.4:
            changed[place] ^= 1 << random.integers(8)
        else:
            piece = random.choice([b"\xff\xff", b"\x00\x00\x00\x00", random.bytes(4)])
            changed[place : place + len(piece)] = piece[: len(data) - place]
    return bytes(changed[: int(random.integers(1, len(data)))] if random.random() < 0.1 else changed)


@pytest.mark.parametrize(("section", "policy"), zip(list(SECTIONS)[1:], itertools.cycle(POLICIES), strict=False))
@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_no_damage_gets_past_the_examination(section: str, policy: str):
    random = np.random.default_rng(len(section))
    limits = ImageLimits(max_pixels=1_000_000, max_side_px=4000)
    files = [data for row in SECTIONS[section] if row.outcome != REJECTED and len(data := row.make()) < 40_000]
    kept = 0
    for number in range(150):
        try:
            encoded, facts = process.examine(damaged(files[number % len(files)], random), limits, POLICIES[policy])
        except BadImage:
            continue
        assert pixels_of(encoded, facts).shape == (facts.height, facts.width, 3)
        if facts.format != "raw":
            trainer(encoded, facts.height, facts.width)
        kept += 1
    assert 5 < kept < 145


def documented(heading: str) -> list[tuple[str, ...]]:
    """Returns the cells of the table under a heading of the documentation, without the marks of code."""
    section = re.search(rf"^#+ {heading}$(.*?)(?=^#|\Z)", DOCS, re.DOTALL | re.MULTILINE)[1]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [tuple(cell.strip().replace("`", "") for cell in line.strip("|").split("|")) for line in lines]


def test_the_documentation_has_the_same_table():
    tested = {section: [(row.name, row.outcome, row.reason) for row in rows] for section, rows in SECTIONS.items()}
    assert {section: [cells[:3] for cells in documented(section)] for section in SECTIONS} == tested


def test_the_documentation_lists_every_reason_to_reject():
    assert sorted(cells[0] for cells in documented("Rejected")) == sorted(reason.value for reason in RejectReason)


def test_the_documentation_lists_every_reason_to_normalise():
    normalised = {reason for row in ROWS.values() if row.outcome == NORMALISED for reason in row.reason.split("+")}
    assert sorted(cells[0] for cells in documented("Normalised")) == sorted(normalised | {"resized", "raw"})
