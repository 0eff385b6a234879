from __future__ import annotations

import json

import pytest

from beam_jobs.errors import OptionError
from trainer.input.position import Host, Position


@pytest.mark.parametrize(("delivered", "epoch_records", "epoch", "records"), [(95, 96, 0, 95), (96, 96, 1, 0)])
def test_what_was_delivered_says_epoch_and_record(delivered, epoch_records, epoch, records):
    assert Position.after(delivered, epoch_records) == Position(epoch=epoch, records=records)


def test_a_position_survives_json_in_less_than_a_kilobyte():
    position = Position(epoch=2**40, records=2**40)
    text = json.dumps(position.to_json())
    assert Position.from_json(json.loads(text)) == position
    assert len(text) < 1000


@pytest.mark.parametrize(("name", "value"), [("epoch", -1), ("records", True)])
def test_a_position_is_two_whole_numbers(name, value):
    with pytest.raises(OptionError, match=f"^{name} is {value!r}; it must be a whole number of at least 0$"):
        Position(**{name: value})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"count": 0}, "^host count is 0; it must be a whole number of at least 1$"),
        ({"index": -1}, "^host index is -1; it must be a whole number of at least 0$"),
        ({"index": 4, "count": 4}, "^host index is 4; with 4 hosts it must be below 4$"),
    ],
)
def test_there_is_no_host_outside_of_all_hosts(values, message):
    with pytest.raises(OptionError, match=message):
        Host(**values)
