from __future__ import annotations

import json
import re

import pytest

from beam_jobs.errors import OptionError
from trainer.input.columns import TransformOptions, Vocabulary, Zscore, parse_column


@pytest.mark.parametrize(("spec", "op"), [(" zscore() ", Zscore()), ("vocabulary(100, oov=4)", Vocabulary(100, 4))])
def test_an_op_is_spelled_as_it_is_called(spec, op):
    assert parse_column("price", spec) == op


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("bucketize(8)", "there is no op 'bucketize'; did you mean bucketise?"),
        ("bucketise", "'bucketise' does not fit; bucketise takes buckets"),
        ("scale(1)", "'scale(1)' does not fit; scale takes no argument"),
        ("bucketise(1)", "buckets of bucketise is 1; it must be a whole number of at least 2"),
        ("vocabulary(0)", "top of vocabulary is 0; it must be a whole number of at least 1"),
        ("vocabulary(10, 0)", "oov of vocabulary is 0; it must be a whole number of at least 1"),
        ("", "is ''; it must be one of scale, zscore"),
        ("hashed(open('x'))", "is \"hashed(open('x'))\"; it must be one of scale, zscore"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_name_of_the_column(spec, message):
    with pytest.raises(OptionError, match="^transform.columns.price:? " + re.escape(message)):
        TransformOptions(columns={"price": spec})


def test_an_op_is_text():
    with pytest.raises(OptionError, match="^columns.price is nothing; it must be a text$"):
        TransformOptions(columns={"price": None})


def test_options_survive_json_in_any_order():
    options = TransformOptions(columns={"price": "scale", "city": "vocabulary(100)"})
    again = TransformOptions.from_json(json.loads(json.dumps(options.to_json())))
    assert again == options
    assert list(again.ops()) == ["city", "price"]
    turned = TransformOptions(columns={"city": "vocabulary(100)", "price": "scale"})
    assert json.dumps(turned.to_json()) == json.dumps(options.to_json())
    assert TransformOptions.from_json({}) == TransformOptions()


def test_a_column_that_the_images_do_not_have_is_refused():
    options = TransformOptions(columns={"prize": "scale"})
    options.check(["prize"])
    with pytest.raises(OptionError, match="^transform.columns: there is no user column 'prize'; did you mean price?"):
        options.check(["price", "city"])
