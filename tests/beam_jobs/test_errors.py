from __future__ import annotations

import pickle

from beam_jobs import errors
from beam_jobs.errors import BadImage
from beam_jobs.rejects import RejectReason


def test_every_error_of_the_tree_has_its_exit_code():
    def below(kind):
        return {kind.__name__: kind.exit_code, **{n: c for sub in kind.__subclasses__() for n, c in below(sub).items()}}

    found = {name: code for name, code in below(errors.FeedlineError).items() if hasattr(errors, name)}
    assert {code: {name for name in found if found[name] == code} for code in (1, 2, 3)} == {
        1: {"FeedlineError", "DiskError", "Unreadable"},
        2: {"UsageError", "OptionError", "SourceError"},
        3: {"DataError", "TooManyRejects", "EmptySplit", "SplitConflict", "Float32Loss", "SourceChanged"}
        | {"DatasetChanged", "CorruptDataset", "GateFailed", "TrainingDiverged"},
    }
    assert len(found) == 16


def test_a_bad_image_is_no_feedline_error_and_survives_pickling():
    bad = pickle.loads(pickle.dumps(BadImage(RejectReason.TOO_SMALL, "7x60 pixels; min_side_px is 8")))
    assert not isinstance(bad, errors.FeedlineError)
    assert (bad.reason, bad.detail) == (RejectReason.TOO_SMALL, "7x60 pixels; min_side_px is 8")
    assert str(bad) == "too_small: 7x60 pixels; min_side_px is 8"


def test_reject_reasons_are_the_ones_that_are_on_disk():
    assert " ".join(reason.value for reason in RejectReason) == (
        "no_label bad_annotation bad_mask unknown_split name_not_utf8 duplicate_key bad_member not_a_file outside_root "
        "unreadable not_fetched address_refused opted_out empty_file too_many_bytes not_an_image bad_header too_small "
        "too_large bad_aspect forged_size unknown_range undecodable too_slow decoder_crashed"
    )


def test_errors_that_are_the_cause_of_each_other_come_once():
    first, second = OSError("gone"), ValueError("bad")
    first.__context__, second.__cause__ = second, first
    assert list(errors.chain(first)) == [first, second]
    assert list(errors.chain(second)) == [second, first]
    assert list(errors.chain(None)) == []
