from __future__ import annotations

import pickle

import pytest

from beam_jobs import errors
from beam_jobs.errors import BadImage, RejectReason

EXIT_CODES = {
    "FeedlineError": 1,
    "UsageError": 2,
    "OptionError": 2,
    "SourceError": 2,
    "DiskError": 1,
    "Unreadable": 1,
    "DataError": 3,
    "TooManyRejects": 3,
    "EmptySplit": 3,
    "SplitConflict": 3,
    "Float32Loss": 3,
    "SourceChanged": 3,
    "DatasetChanged": 3,
    "CorruptDataset": 3,
    "GateFailed": 3,
    "TrainingDiverged": 3,
}


@pytest.mark.parametrize(("name", "code"), EXIT_CODES.items())
def test_every_error_is_a_feedline_error_with_its_exit_code(name, code):
    error = getattr(errors, name)
    assert issubclass(error, errors.FeedlineError)
    assert error.exit_code == code
    assert str(error("the whole explanation")) == "the whole explanation"


def test_every_error_of_the_tree_is_in_the_table():
    def below(kind):
        return {kind.__name__}.union(*map(below, kind.__subclasses__()))

    assert {name for name in below(errors.FeedlineError) if hasattr(errors, name)} == set(EXIT_CODES)


def test_a_bad_image_is_not_a_feedline_error():
    assert not issubclass(BadImage, errors.FeedlineError)


def test_a_bad_image_survives_pickling():
    bad = pickle.loads(pickle.dumps(BadImage(RejectReason.TOO_SMALL, "7x60 pixels; min_side_px is 8")))
    assert (bad.reason, bad.detail) == (RejectReason.TOO_SMALL, "7x60 pixels; min_side_px is 8")
    assert str(bad) == "too_small: 7x60 pixels; min_side_px is 8"


def test_reject_reasons_are_the_ones_that_are_on_disk():
    assert [reason.value for reason in RejectReason] == [
        "no_label",
        "bad_annotation",
        "bad_mask",
        "unknown_split",
        "name_not_utf8",
        "duplicate_key",
        "bad_member",
        "not_a_file",
        "outside_root",
        "unreadable",
        "not_fetched",
        "address_refused",
        "empty_file",
        "too_many_bytes",
        "not_an_image",
        "bad_header",
        "too_small",
        "too_large",
        "bad_aspect",
        "forged_size",
        "unknown_range",
        "undecodable",
        "too_slow",
        "decoder_crashed",
    ]


def test_errors_that_are_the_cause_of_each_other_come_once():
    first, second = OSError("gone"), ValueError("bad")
    first.__context__, second.__cause__ = second, first
    assert list(errors.chain(first)) == [first, second]
    assert list(errors.chain(second)) == [second, first]
    assert list(errors.chain(None)) == []
