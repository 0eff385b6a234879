from __future__ import annotations

import io

import pytest
import yaml

from beam_jobs.common import yaml_text

LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
MERGED = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 40))
CHAIN = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 100))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LAUGHS, "with its aliases it has more than 100,000 values"),
        (MERGED, "with its aliases it has more than 100,000 values"),
        (CHAIN, "it is nested more than 64 deep"),
        ("[" * 65 + "]" * 65, "it is nested more than 64 deep"),
        ("[" * 100_000, "it is nested more than 64 deep"),
        ("a: &a [*a]", "it contains an alias of itself"),
        ("a" * ((1 << 20) + 1), "it has more than 1,048,576 characters"),
    ],
    ids=["laughs", "merges", "chain", "deep", "very deep", "itself", "long"],
)
def test_what_grows_beyond_the_limits_is_refused(text, message):
    for form in (text, io.StringIO(text)):
        with pytest.raises(yaml.YAMLError, match=message):
            yaml_text.parse(form)


def test_aliases_mean_what_they_name():
    text = "a: &a {x: 1}\nb: *a\nc: {<<: *a, y: 2}\n"
    assert yaml_text.parse(text) == {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1, "y": 2}}
    assert yaml_text.parse("[" * 64 + "]" * 64)


def test_a_value_is_one_line_whatever_is_in_it():
    value = {"a\nb": ["x\ny", "\x1b", "plain"]}
    line = yaml_text.one_line(value)
    assert "\n" not in line
    assert yaml_text.parse(line) == value
