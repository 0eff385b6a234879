"""A dataset made to trip each check and only it, and a sound one that passes all of them."""

from __future__ import annotations

import pytest

from components.dataset_gate.checks import Baseline, check_dataset
from components.dataset_gate.limits import GateLimits

# Every check is on.
STRICT = GateLimits(
    max_reject_ratio=0.01,
    near_leaks=True,
    require_all_classes=True,
    min_images_per_class=10,
    max_imbalance=2,
    min_side_px=32,
    max_drift_l_infinity=0.1,
    max_drift_jensen_shannon=0.1,
    max_skew_l_infinity=0.1,
    max_skew_jensen_shannon=0.1,
)
NAMES = ("check", "split", "feature", "value", "limit")
LOOSE = GateLimits()


def check(library, name, limits, baseline=""):
    earlier = Baseline(library.load(baseline), "span 1") if baseline else None
    return check_dataset(library.load(name), {}, limits, earlier)


@pytest.mark.parametrize(
    ("name", "limits"), [("sound", STRICT), ("sound, basic", LOOSE), ("columns", STRICT), ("copy in one split", STRICT)]
)
def test_a_sound_dataset_passes(library, name, limits):
    assert check(library, name, limits, "" if name == "columns" else "other").findings == ()


def test_a_row_says_what_was_measured_of_every_check_and_which_were_not_made(library):
    rows = {row.check: row for row in check(library, "sound", STRICT, "other").checks}
    assert {row.result for row in rows.values()} == {"passed"}
    assert (rows["rejects"].limit, rows["imbalance"].limit) == ("1.0%", "2 : 1")
    assert rows["small classes"].measured.endswith(" images (a)")
    assert rows["drift (jensen_shannon)"].measured.split(", ")[1].endswith((" in train", " in eval"))
    rows = {row.check: row for row in check(library, "copy", LOOSE).checks}
    assert (rows["leakage"].measured, rows["leakage"].result) == ("1 set", "exceeded")
    unmade = {name: row.measured for name, row in rows.items() if row.result == "not checked"}
    assert unmade.keys() == {
        *("rejects", "absent classes", "imbalance", "near leakage", "low resolution"),
        *("drift (l_infinity)", "drift (jensen_shannon)"),
    }
    assert unmade["drift (l_infinity)"] == "nothing to compare with"
    assert unmade["near leakage"] == "near_leaks is off; see the remarks for near duplicates of the ingest"
    (row,) = (row for row in check(library, "blank, basic", LOOSE).checks if row.check == "near leakage")
    assert row.measured == "near_leaks is off"
    rows = {row.check: row for row in check(library, "one class", LOOSE).checks}
    assert (rows["one class"].measured, rows["one class"].result) == ("1 class", "exceeded")


def test_images_that_the_search_for_near_leaks_leaves_out_are_a_note(library):
    note = "not compared with all others for near leaks"
    assert any(note in line for line in check(library, "blank, basic", GateLimits(near_leaks=True)).notes)
    assert not any(note in line for line in check(library, "blank", GateLimits(near_leaks=True)).notes)


TABLE = [
    (
        GateLimits(max_reject_ratio=0.02),
        "rejects",
        ("rejects", "all splits", "source", "2 images of 92 rejected, 2.2% (1 not_an_image, 1 empty_file)", "2.0%"),
    ),
    (
        GateLimits(near_leaks=True),  # a copy looks alike too, but is no near leak
        "copy",
        (
            *("leakage", "eval, train", "image content"),
            *("1 images shared between splits (such as 07.jpg in train and twin.jpg in eval)", "0"),
        ),
    ),
    (
        LOOSE,
        "group",
        (
            *("group leakage", "eval, train", "group"),
            *(
                "1 set of images shared between splits (such as group 'owner 8': 61.jpg in eval and 59.jpg in train)",
                "0",
            ),
        ),
    ),
    (
        LOOSE,
        "grouped look-alike",
        (
            *("group leakage", "eval, train", "group"),
            "1 set of images shared between splits (such as near duplicates: alike.jpg in eval and 07.jpg in train)",
            "0",
        ),
    ),
    (
        GateLimits(near_leaks=True),
        "look-alike",
        (
            *("near leakage", "eval, train", "image content"),
            "1 image similar to an image of an earlier split (such as 07.jpg in train and alike.jpg in eval)",
            "0, up to 3 bits apart",
        ),
    ),
    (LOOSE, "one class", ("one class", "all splits", "image/class/text", "only a", "at least two classes")),
    (
        LOOSE,
        "lost class",
        (*("missing classes", "all splits", "image/class/text", "no image of c"), "an image of every class"),
    ),
    (
        LOOSE,
        "unseen class",
        ("unseen classes", "eval", "image/class/text", "c, absent from train", "classes of the first split"),
    ),
    (
        GateLimits(require_all_classes=True),
        "rare class",
        ("absent classes", "eval", "image/class/text", "no image of c", "an image of every class of train"),
    ),
    (
        GateLimits(min_images_per_class=3),
        "rare class",
        ("small classes", "train", "image/class/text", "c with 2 images", "at least 3 images a class"),
    ),
    (
        GateLimits(max_imbalance=14.9),
        "rare class",
        ("imbalance", "train", "image/class/text", "15.0 : 1 (a with 30 images, c with 2)", "14.9 : 1"),
    ),
    *(
        (
            GateLimits(min_side_px=17, max_low_resolution_ratio=0.03),
            name,
            (
                *("low resolution", "train", "image/short_side"),
                *("under 17 px in 2 of 62 images (s0.jpg, s1.jpg), 3.2%", "3.0%"),
            ),
        )
        for name in ("small images", "small images, enlarged")
    ),
    (
        LOOSE,
        "blank",
        (
            *("blank images", "train", "image content"),
            *("constant or blank in 2 of 62 images (black.png, grey.png), 3.2%", "1.0%"),
        ),
    ),
]
JUST_ENOUGH = {
    "rejects": GateLimits(max_reject_ratio=2 / 92),
    "copy": GateLimits(max_leaks=1),
    "group": GateLimits(max_group_leaks=1),
    "look-alike": GateLimits(near_leaks=True, max_near_leaks=1),
    "lost class": GateLimits(allow_missing_classes=True),
    "unseen class": GateLimits(allow_missing_classes=True),
    "rare class": GateLimits(min_images_per_class=2, max_imbalance=15),
    "small images": GateLimits(min_side_px=16),
    "blank": GateLimits(max_blank_ratio=0.033),
    "blank, basic": LOOSE,
}


@pytest.mark.parametrize(("limits", "name", "expected"), TABLE, ids=[f"{row[2][0]} of {row[1]}" for row in TABLE])
def test_a_fault_is_found_and_nothing_else(library, limits, name, expected):
    (finding,) = check(library, name, limits).findings
    assert tuple(getattr(finding, key) for key in NAMES) == expected
    no_limit = finding.check == "one class"  # nothing can allow it
    assert no_limit or "gate." in finding.remedy or "split column" in finding.remedy


@pytest.mark.parametrize("name", JUST_ENOUGH)
def test_the_same_fault_passes_at_its_limit(library, name):
    assert check(library, name, JUST_ENOUGH[name]).findings == ()


# Dataset -> the features that differ, and where they do.
SKEWED = [
    ("camera in eval", {"extra/camera"}, "l_infinity (q: train 0.0%, eval 100.0%)"),
    ("year in eval", {"extra/year"}, "jensen_shannon (median: train 2003, eval 2093)"),
    ("one class in eval", {"image/class/text"}, "l_infinity (a: train 50.0%, eval 100.0%)"),
    ("png eval", {"image/format", "image/bytes"}, "l_infinity (jpeg: train 100.0%, eval 0.0%)"),
    ("wide eval", {"image/aspect_ratio"}, "jensen_shannon (median: train 1, eval 2)"),
]


@pytest.mark.parametrize(("name", "features", "words"), SKEWED, ids=[row[0] for row in SKEWED])
def test_splits_that_differ_in_a_feature_are_skewed_in_it_alone(library, name, features, words):
    limits = GateLimits(max_skew_l_infinity=0.1, max_skew_jensen_shannon=0.15)
    found = check(library, name, limits).findings
    assert {(finding.check, finding.split) for finding in found} == {("skew", "eval")}
    assert {finding.feature for finding in found} == features
    assert words in " ".join(finding.value for finding in found)
    assert all("away from train by" in finding.value for finding in found)
    off = GateLimits(max_skew_l_infinity=1, max_skew_jensen_shannon=1)
    assert check(library, name, off).findings == ()
    alone = {feature.removeprefix("image/") if "class" not in feature else "class": 1 for feature in features}
    assert check(library, name, GateLimits(skew_limits=alone)).findings == ()


def test_a_brighter_eval_split_is_skewed_by_default(library):
    found = check(library, "bright eval", LOOSE).findings
    assert {finding.check for finding in found} == {"skew"}
    assert "image/brightness" in {finding.feature for finding in found}


def test_drift_is_measured_in_every_split_and_stops_only_when_a_limit_is_set(library):
    free = check(library, "bright", LOOSE, "sound")
    assert free.findings == ()
    drift = {(one.split, one.feature): one for one in free.comparisons if one.kind == "drift"}
    assert {split for split, _ in drift} == {"train", "eval"}
    assert drift["train", "image/brightness"].value > 0.6
    assert drift["train", "image/brightness"].limit == 1
    assert drift["train", "image/class/text"].value == 0
    found = check(library, "bright", GateLimits(drift_limits={"brightness": 0.2}), "sound").findings
    assert [(finding.check, finding.split, finding.feature) for finding in found] == [
        ("drift", "train", "image/brightness"),
        ("drift", "eval", "image/brightness"),
    ]
    assert "away from span 1 by jensen_shannon (median: span 1 " in found[0].value
    assert ", this dataset " in found[0].value
    assert "gate.drift_limits of brightness" in found[0].remedy


def test_a_column_that_vanished_has_drifted(library):
    limits = GateLimits(drift_limits={"extra/camera": 0.1, "extra/year": 0.1})
    found = check(library, "sound", limits, "columns").findings
    assert {(finding.check, finding.feature) for finding in found} == {
        ("drift", "extra/camera"),
        ("drift", "extra/year"),
    }
    assert "(missing): span 1 0.0%, this dataset 100.0%" in found[0].value
    assert "this dataset none)" in found[1].value


def test_what_could_not_be_checked_is_said(library):
    assert check(library, "sound", LOOSE).notes == ()
    basic = check(library, "sound, basic", LOOSE, "sound")
    assert basic.notes == (
        "brightness and channels were not compared: the ingest ran with facts=basic",
        "blank images were not checked: the ingest ran with facts=basic",
    )
    assert not [one for one in basic.comparisons if one.feature in ("image/brightness", "image/mean_red")]
    assert check(library, "sound", LOOSE, "sound, basic").notes == (
        "drift of brightness and channels was not measured: span 1 was written with facts=basic",
    )
