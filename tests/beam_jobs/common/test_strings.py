from __future__ import annotations

import json
import logging

import pytest

from beam_jobs.common import strings


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ("op", "crops", iter(["resize", "crop"])),
            "there is no op 'crops'; did you mean crop? known are resize, crop",
        ),
        (("op", "zzz", ["resize", "crop"]), "there is no op 'zzz'; known are resize, crop"),
        (
            ("setting", "epoch", ["epochs", "epsilon", *(f"other_{number}" for number in range(30))], "train."),
            "there is no setting 'train.epoch'; did you mean epochs?",
        ),
        (("key", 3, ["seed"], "train."), "there is no key 'train.3'; known are seed"),
    ],
    ids=["alike", "unlike", "of many", "a number"],
)
def test_an_unknown_name_is_answered_with_the_known_ones(arguments, line):
    assert strings.unknown(*arguments) == line


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("Zürich, 猫 👩‍👧", "Zürich, 猫 👩‍👧"),
        ("\x9b31mred", "\\x9b31mred"),
        ("\x1b]0;title\x07sound\rbroken\x7f\x08", "\\x1b]0;title\\x07sound\\x0dbroken\\x7f\\x08"),
        ("\u2028\u061c\udcff", "\\u2028\\u061c\\udcff"),
        (7, "7"),
    ],
)
def test_controls_are_made_visible_and_the_rest_is_left(value, shown):
    assert strings.printable(value) == strings.line(value) == shown


def test_only_a_text_keeps_its_lines():
    assert strings.printable("a\n\tb") == "a\n\tb"
    assert strings.line("a\n\tb") == "a\\x0a\\x09b"
    assert strings.lines(["a\n\tb", 7]) == "a\\x0a\\x09b\n7"


def test_json_means_what_it_meant():
    value = {"\x1b[2J\x9b": ["\x7f\u202e\u2028", "猫", "\udcff", 1]}
    printed = strings.to_json(value)
    assert json.loads(printed) == value
    assert printed == strings.printable(printed)
    assert "猫" in printed
    printed.encode()


def test_a_log_shows_names_without_their_controls():
    record = logging.LogRecord("x", logging.INFO, "x.py", 1, "read %s\nend", ("\x1b[2Ja.png",), None)
    assert strings.LogFormatter("%(levelname)s %(message)s").format(record) == "INFO read \\x1b[2Ja.png\n  end"


def test_counts_have_their_noun():
    assert [strings.plural(count, "image") for count in (0, 1, 1234)] == ["0 images", "1 image", "1,234 images"]
    assert strings.plural(2, "class", "classes") == "2 classes"
    assert [strings.size(count) for count in (1, 812, 52_400, 7e9)] == ["1 byte", "812 bytes", "52.4 kB", "7.0 GB"]


def test_of_many_names_the_first_are_told():
    assert strings.name_list(["cat", "dog"]) == "2: cat, dog"
    assert strings.name_list([str(number) for number in range(1200)], most=2) == "1,200: 0, 1 and 1,198 more"
