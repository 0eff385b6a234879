"""Names of exported images: safe anywhere, and never the same for two keys."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_jobs.export.options import MAX_CHARACTERS, safe_name

SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*(/[A-Za-z0-9_][A-Za-z0-9_-]*)*")


@pytest.mark.parametrize(
    ("key", "name"), [("cat/1.jpg", "cat/1"), ("cat/1.png", "cat/1_png"), ("deep/er/a-b_c.jpeg", "deep/er/a-b_c_jpeg")]
)
def test_a_plain_key_keeps_its_path(key, name):
    assert safe_name(key) == name


@pytest.mark.parametrize(
    "key",
    [
        "../../etc/passwd",
        "C:\\windows\\x.jpg",
        "a//b.jpg",
        "-rf.jpg",
        "no ending",
        "con/1.jpg",
        "line\nbreak.jpg",
        "写真/1.jpg",
        "/",
        "x" * 300 + ".jpg",
        "1.JPG",
    ],
)
def test_any_other_key_becomes_what_is_harmless_of_it_and_a_hash(key):
    name = safe_name(key)
    assert re.search(r"-[0-9a-f]{16}$", name)
    assert SAFE.fullmatch(name)
    assert "/" not in name
    assert len(name) <= MAX_CHARACTERS


def test_names_that_look_like_those_of_other_rules_are_not_taken_for_them():
    victim = safe_name("../x.jpg")
    rivals = [
        "../x.jpg",
        f"{victim}.jpg",
        "cat/1.png",
        "cat/1_png.jpg",
        "cat/1.jpeg",
        "cat/1_jpeg.jpg",
        "cat/1",
        "cat/1.jpg",
    ]
    assert len({safe_name(key) for key in rivals}) == len(rivals)


_PIECES = st.sampled_from(
    ["a", "b", "_png", "_jpeg", ".png", ".jpg", ".jpeg", "/", "..", "-", "-0123456789abcdef", " ", "é"]
)


@given(st.sets(st.lists(_PIECES, min_size=1, max_size=6).map("".join), min_size=2, max_size=40))
def test_no_two_keys_share_a_name(keys):
    names = {safe_name(key) for key in keys}
    assert len(names) == len(keys)
    assert all(SAFE.fullmatch(name) for name in names)
