from __future__ import annotations

import json
import math
import os
import re
from dataclasses import fields, replace

import pytest

from beam_jobs.common.settings import as_yaml
from beam_jobs.errors import OptionError
from beam_jobs.options import About, HttpOptions, ImageLimits, IngestOptions, PixelOptions, TableColumns, parse_splits

BASE = IngestOptions(source="photos", out="dataset")
SHAPES_THE_BYTES = {
    "source_kind": "csv",
    "columns": TableColumns(label="class"),
    "splits": {"train": 0.8, "eval": 0.2},
    "seed": 1,
    "shard_mb": 64.0,
    "shards": 3,
    "duplicates": "drop",
    "near_duplicates": "group",
    "near_distance": 5,
    "stratify": True,
    "pixels": PixelOptions(policy="resize"),
    "facts": "basic",
    "limits": ImageLimits(min_side_px=9),
}
MODES = ("overwrite", "append", "retry_rejects")  # of the work as well; each excludes the others
SHAPES_ONLY_THE_WORK = {
    "source": "elsewhere",
    "out": "elsewhere",
    "plan_memory_mb": 200,
    "spill_dir": "/spill",
    "threads": 3,
    "bucket_images": 7,
    "max_reject_ratio": 0.5,
    "unreadable": "reject",
    "float32_loss": "refuse",
    "split_conflicts": "refuse",
    "allow_buckets": ("s3://elsewhere",),
    "about": About(title="elsewhere"),
    "http": HttpOptions(timeout_s=99.0),  # a patient run takes up what a hasty one has examined
}


def test_every_option_is_in_one_of_the_two_tables_of_this_file():
    assert {field.name for field in fields(IngestOptions)} == {*SHAPES_THE_BYTES, *SHAPES_ONLY_THE_WORK, *MODES}


@pytest.mark.parametrize(("name", "value"), SHAPES_THE_BYTES.items())
def test_the_digest_follows_what_shapes_the_bytes(name, value):
    assert replace(BASE, **{name: value}).digest() != BASE.digest()


@pytest.mark.parametrize("mode", MODES)
def test_the_digest_ignores_what_shapes_only_the_work(mode):
    values = {**SHAPES_ONLY_THE_WORK, mode: True}
    changed = replace(BASE, **values)
    assert changed.digest() == BASE.digest()
    written = changed.to_json()
    assert {name: written[name] for name in values} == json.loads(json.dumps(values, default=vars))


def test_the_digest_follows_the_order_of_the_splits():
    forward = replace(BASE, splits={"train": 0.5, "eval": 0.5})
    assert forward.digest() != replace(BASE, splits={"eval": 0.5, "train": 0.5}).digest()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("source_kind", "rar", "'rar'; .* one of auto, folder, glob, csv, jsonl, parquet, coco, "),
        ("duplicates", "maybe", "'maybe'; .* one of keep, drop, report$"),
        ("near_duplicates", "keep", "'keep'; .* one of auto, off, report, group, drop$"),
        ("split_conflicts", "drop", "'drop'; .* one of report, refuse$"),
        ("facts", "none", "'none'; .* one of all, basic$"),
        ("unreadable", "skip", "'skip'; .* one of stop, reject$"),
        ("float32_loss", "keep", "'keep'; .* one of report, refuse$"),
        ("near_distance", -1, "-1; .* whole number from 0 to 8$"),
        ("near_distance", 9, "9; .* whole number from 0 to 8$"),
        ("seed", 1.5, "1.5; it must be a whole number$"),
        ("shard_mb", 0, "0; .* number of at least 0.001$"),
        ("shards", -1, "-1; .* whole number of at least 0$"),
        ("threads", -1, "-1; .* whole number of at least 0$"),
        ("bucket_images", 0, "0; .* whole number of at least 1$"),
        ("max_reject_ratio", 1.01, "1.01; it must be between 0 and 1$"),
        ("splits", {}, "empty; name at least one, as in train=1$"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name, value, message):
    with pytest.raises(OptionError, match=f"^{name} is {message}"):
        IngestOptions(**{"source": "photos", "out": "dataset", name: value})


@pytest.mark.parametrize("name", ["tr/ain", "prüf"])
def test_a_split_has_a_name_of_ascii_letters(name):
    with pytest.raises(OptionError, match=f"^split name '{name}' is not allowed"):
        replace(BASE, splits={name: 1.0})


@pytest.mark.parametrize("share", [0, float("nan"), "1"])
def test_a_split_has_a_share_above_0(share):
    with pytest.raises(
        OptionError, match=f"^splits.train is (the text )?{re.escape(as_yaml(share))}; it must be a number above 0$"
    ):
        replace(BASE, splits={"train": share})


def test_what_becomes_of_an_old_dataset_is_chosen_once():
    with pytest.raises(OptionError, match="^append and retry_rejects exclude one another; give one of them$"):
        replace(BASE, append=True, retry_rejects=True)


@pytest.mark.parametrize(
    ("kind", "name", "value", "message"),
    [
        (PixelOptions, "policy", "crop", "^policy is 'crop'; it must be one of copy, resize, raw$"),
        (PixelOptions, "fit", "long", "^fit is 'long'; it must be one of short, inside$"),
        (PixelOptions, "side_px", 0, "^side_px is 0; it must be a whole number of at least 1$"),
        (PixelOptions, "quality", 0, "^quality is 0; it must be a whole number from 1 to 100$"),
        (PixelOptions, "quality", 101, "^quality is 101; it must be a whole number from 1 to 100$"),
        (HttpOptions, "timeout_s", 0, "^timeout_s is 0;"),
        (HttpOptions, "retries", -1, "^retries is -1; it must be a whole number of at least 0$"),
        (HttpOptions, "per_host", 0, "^per_host is 0; it must be a whole number of at least 1$"),
        (ImageLimits, "max_pixels", 0, "^max_pixels is 0; it must be a whole number from 1 to 178956970$"),
        (ImageLimits, "max_pixels", 200_000_000, "^max_pixels is 200000000; it must be a whole number from 1 to 178"),
        (ImageLimits, "max_bytes", 5.5e7, r"^max_bytes is 55000000\.0; it must be a whole number of at least 1$"),
        (ImageLimits, "max_side_px", True, "^max_side_px is true; it must be a whole number of at least 1$"),
        (ImageLimits, "min_side_px", None, "^min_side_px is nothing; it must be a whole number of at least 1$"),
        (ImageLimits, "max_aspect", math.nan, "^max_aspect is .nan; it must be a number of at least 1$"),
        (ImageLimits, "max_seconds", "8", "^max_seconds is the text '8'; it must be a number of at least 1$"),
        (ImageLimits, "mask_classes", -1, "^mask_classes is -1; it must be a whole number from 0 to 256$"),
        (ImageLimits, "mask_classes", 257, "^mask_classes is 257; it must be a whole number from 0 to 256$"),
        (ImageLimits, "mask_ignore", -2, "^mask_ignore is -2; it must be a whole number from -1 to 255$"),
        (ImageLimits, "mask_ignore", 256, "^mask_ignore is 256; it must be a whole number from -1 to 255$"),
        (TableColumns, "max_value_bytes", 0, "^max_value_bytes is 0; "),
        (TableColumns, "max_value_bytes", (16 << 20) + 1, "^max_value_bytes is 16777217; "),
        (TableColumns, "image", "", "^the image column is ''; name a column of the table$"),
        (TableColumns, "label_separator", "", "^the label_separator column is ''; name a column of the table$"),
    ],
)
def test_a_nested_value_out_of_range_is_refused_by_name(kind, name, value, message):
    with pytest.raises(OptionError, match=message):
        kind(**{name: value})


def test_named_columns_are_those_asked_for():
    columns = TableColumns(image="path", key="id", group="patient", split="fold", extra=("age", "sex"))
    named = {"image": "path", "label": "label", "key": "id", "group": "patient", "split": "fold"}
    assert columns.named() == {**named, "extra age": "age", "extra sex": "sex"}
    assert TableColumns(label="").named() == {"image": "image"}
    several = TableColumns(labels="classes", mask="mask", weight="weight").named()
    assert several == {"image": "image", "labels": "classes", "mask": "mask", "weight": "weight"}


def test_json_takes_every_option_there_and_back():
    columns = TableColumns(label="class", extra=("age", "sex"))
    changed = replace(BASE, **{**SHAPES_THE_BYTES, **SHAPES_ONLY_THE_WORK, "columns": columns, "append": True})
    again = IngestOptions.from_json(json.loads(json.dumps(changed.to_json())))
    assert again == changed
    assert again.digest() == changed.digest()
    assert list(again.splits) == list(changed.splits)


def test_threads_default_to_the_cores():
    assert BASE.thread_count == os.cpu_count()
    assert replace(BASE, threads=3).thread_count == 3


@pytest.mark.parametrize(
    ("text", "shares"), [("eval:1, train:9", {"eval": 1.0, "train": 9.0}), ("all=1", {"all": 1.0})]
)
def test_splits_are_read_from_text(text, shares):
    assert list(parse_splits(text).items()) == list(shares.items())


@pytest.mark.parametrize(
    ("policy", "facts", "images", "expected"),
    [
        ("auto", "all", 10_000_000, "report"),
        ("auto", "all", 10_000_001, "off"),
        ("auto", "basic", 5, "off"),
        ("report", "basic", 10_000_001, "report"),
    ],
)
def test_near_duplicates_are_looked_for_while_the_search_is_cheap(policy, facts, images, expected):
    options = IngestOptions(source="photos", out="out", near_duplicates=policy, facts=facts)
    assert options.resolve(images).near_duplicates == expected


@pytest.mark.parametrize("text", ["", "train", "train=x", "train=0.9,"])
def test_text_that_is_not_splits_is_refused(text):
    with pytest.raises(OptionError, match=r"write it as train=0.9,eval=0.1$") as caught:
        parse_splits(text)
    assert repr(text) in str(caught.value)


def test_a_split_named_twice_is_refused():
    with pytest.raises(OptionError, match="train"):
        parse_splits("train=0.5,train=0.5")


def test_a_cell_may_have_16_mebibytes():
    assert TableColumns(max_value_bytes=16 << 20).max_value_bytes == 16 << 20


def test_raw_images_have_a_largest_side():
    assert PixelOptions(policy="raw", side_px=4096).side_px == 4096
    with pytest.raises(OptionError, match="^side_px is 4097; its maximum is 4096"):
        PixelOptions(policy="raw", side_px=4097)
    assert PixelOptions(policy="resize", side_px=9000).side_px == 9000
