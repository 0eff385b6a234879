from __future__ import annotations

import pytest

from components.dataset_report import shown


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("cat", "cat"),
        ("a\nb\x1b[2J", "a\\x0ab\\x1b[2J"),
        ("gpj.\u202efile", "gpj.\\u202efile"),
        ("x" * 50 + "y" * 50, "xxxxxxxxxx…yyyyyyyyy"),
    ],
)
def test_a_name_is_one_short_line(value, expected):
    assert shown.text(value, 20) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("cat/1.jpg", "cat/1.jpg"),
        ("/home/joe/photos/cat/1.jpg", "…/cat/1.jpg"),
        (r"C:\Users\joe\cat\1.jpg", "…/cat/1.jpg"),
        ("file:///home/joe/cat/1.jpg", "…/cat/1.jpg"),
        ("/m/01g317", "/m/01g317"),
        ("~joe/1.png", "…/1.png"),
        ("https://example.org/a/b/c.jpg", "https://example.org/a/b/c.jpg"),
    ],
)
def test_an_absolute_path_keeps_its_last_two_parts(value, expected):
    assert shown.short_path(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("such as /home/joe/p/a/0.png in train and b/1.png in eval", "such as …/a/0.png in train and b/1.png in eval"),
        ("mask '/home/joe/m.png': no such file", "mask '…/m.png': no such file"),
        ("1/2 of them, and/or 3", "1/2 of them, and/or 3"),
        ("see https://example.org/home/joe/x", "see https://example.org/home/joe/x"),
    ],
)
def test_a_path_inside_a_sentence_does_not_tell_whose_it_is(value, expected):
    assert shown.text(value) == expected


@pytest.mark.parametrize(("value", "expected"), [(12345, "12,345"), (0.00213, "0.00213"), (54321.6, "54,322")])
def test_numbers_have_the_digits_a_reader_wants(value, expected):
    assert shown.number(value) == expected
