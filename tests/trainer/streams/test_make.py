from __future__ import annotations

import itertools
import queue
import textwrap
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from beam_jobs.errors import OptionError
from tests.command import python
from tests.engines.flink_processes import wait_until
from tests.make_images import encode, grey_image
from trainer.input.position import Position
from trainer.input_fn import make_dataset
from trainer.options import InputOptions
from trainer.streams import FOREVER, QueueSource, Reading, cause_of, make_stream

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(60)]

SIDE = 8


def options(**values) -> InputOptions:
    given = {"image_side_px": SIDE, "batch_size": 1, "threads": 2, "shuffle": "none"}
    return InputOptions(**{**given, **dict.fromkeys(("train_ops", "eval_ops"), f"decode|resize({SIDE})"), **values})


def items(*greys: int, classes: int = 2) -> list[tuple[str, bytes, int]]:
    return [(f"{grey:03d}", grey_image(grey), grey % classes) for grey in greys]


def flat(stream):
    """(grey of the key, grey of the image, label) one by one."""
    for features, labels in stream:
        for key, image, label in zip(features["key"].numpy(), features["image"].numpy(), labels.numpy(), strict=True):
            assert len(np.unique(image)) == 1
            yield int(key), int(image[0, 0, 0]), label.tolist()


def greys(stream) -> list[int]:
    return [key for key, _, _ in flat(stream)]


@pytest.mark.parametrize("training", [True, False])
def test_a_generator_is_delivered_in_its_order_with_the_features_of_make_dataset(shades, training):
    given = items(*range(40))
    stream = make_stream(lambda: iter(given), options(parse_batch=7), classes=2, training=training)
    assert list(flat(stream)) == [(grey, grey, grey % 2) for grey in range(40)]
    assert stream.element_spec == make_dataset(str(shades), "train", options(), training).element_spec


def test_images_without_labels_and_with_many():
    none = make_stream(lambda: [("1", grey_image(1), None)], options(), classes=0, training=False)
    assert list(flat(none)) == [(1, 1, -1)]
    several = [("1", grey_image(1), [0, 2]), ("2", grey_image(2), []), ("3", grey_image(3), (1,))]
    stream = make_stream(lambda: several, options(), classes=3, training=False, reading=Reading(multi=True))
    assert [label for _, _, label in flat(stream)] == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]


def test_batches_that_no_memory_holds_are_refused():
    with pytest.raises(OptionError, match="batch_size is 9000000000: .* images fit$"):
        make_stream(lambda: items(1), options(batch_size=9_000_000_000), classes=2, training=True)


def test_zeros_at_the_end_of_an_image_and_a_key_stay():
    seen = list(make_stream(lambda: [(b"k\0", grey_image(1) + b"\0\0", 0)], options(), classes=1, training=False))
    assert seen[0][0]["key"].numpy().tolist() == [b"k\0"]


def test_jpeg_png_and_their_sizes_are_understood_by_the_fused_crop():
    wide = np.zeros((20, 60, 3), np.uint8)
    wide[:, 30:] = 255
    for kind in ("PNG", "JPEG", "GIF"):
        given = options(train_ops=f"decode_random_crop({SIDE}, min_area=1.0)")
        stream = make_stream(lambda kind=kind: [("1", encode(wide, kind), 0)], given, classes=1, training=True)
        image = next(iter(stream))[0]["image"].numpy()[0]
        assert image.shape == (SIDE, SIDE, 3)
        assert image[:, 0].max() < 60 or image[:, -1].min() > 195


def test_a_source_ends_an_epoch_and_is_opened_again():
    opened = []

    def source():
        opened.append(len(opened))
        yield from items(10 * opened[-1], 10 * opened[-1] + 1, 10 * opened[-1] + 2)

    assert greys(make_stream(source, options(), classes=2, training=True, epochs=2)) == [0, 1, 2, 10, 11, 12]
    opened.clear()
    endless = make_stream(source, options(batch_size=2), classes=2, training=True, epochs=FOREVER)
    assert [key for key, *_ in itertools.islice(flat(endless), 8)] == [0, 1, 2, 10, 11, 12, 20, 21]


def test_batches_run_across_the_seam_and_only_training_drops_the_end():
    sizes = {}
    for training in (True, False):
        stream = make_stream(lambda: items(1, 2, 3), options(batch_size=4), classes=2, training=training, epochs=2)
        sizes[training] = [len(label) for _, label in stream]
    assert sizes == {True: [4], False: [4, 2]}


def test_several_sources_are_taken_in_turn_until_each_has_ended():
    sources = [lambda: items(0, 1, 2, 3), lambda: items(10), lambda: items(20, 21)]
    for _ in range(3):
        stream = make_stream(sources, options(), classes=2, training=True, epochs=2)
        assert greys(stream) == [0, 10, 20, 1, 21, 2, 3] * 2


def test_a_slow_source_delays_no_other_without_in_turn():
    release = threading.Event()

    def slow():
        release.wait(30)
        yield from items(99)

    sources = [slow, lambda: items(*range(20))]
    stream = make_stream(sources, options(), classes=2, training=True, reading=Reading(in_turn=False))
    iterator = flat(stream)
    assert [next(iterator)[0] for _ in range(20)] == list(range(20))
    release.set()
    assert [key for key, _, _ in iterator] == [99]


def test_a_slow_source_delivers_what_there_is_at_once():
    release = threading.Event()

    def trickle():
        yield from items(1, 2)
        release.wait(30)
        yield from items(3)

    iterator = flat(make_stream(trickle, options(parse_batch=64), classes=2, training=True))
    assert [next(iterator)[0], next(iterator)[0]] == [1, 2]
    release.set()
    assert next(iterator)[0] == 3


def test_a_thread_feeds_a_queue_of_unknown_length():
    received = queue.Queue(maxsize=4)

    def receive():
        for item in items(*range(50)):
            received.put(item)
        received.put(None)

    thread = threading.Thread(target=receive)
    thread.start()
    assert greys(make_stream(QueueSource(received), options(), classes=2, training=True)) == list(range(50))
    thread.join(10)
    assert received.empty()


def test_a_queue_goes_on_after_the_mark_of_an_epoch():
    end = object()
    received = queue.Queue()
    for item in [*items(1, 2), end, *items(3), end, *items(4)]:
        received.put(item)
    source = QueueSource(received, end)
    assert greys(make_stream(source, options(), classes=2, training=True)) == [1, 2]
    assert greys(make_stream(source, options(), classes=2, training=True)) == [3]
    assert received.qsize() == 1


def test_who_stops_reading_a_queue_takes_nothing_that_comes_later():
    received = queue.Queue()
    received.put(items(1)[0])
    iterator = iter(make_stream(QueueSource(received), options(), classes=2, training=True))
    assert next(iterator)[0]["key"].numpy() == [b"001"]
    del iterator
    wait_until(lambda: not source_threads(), 10)
    received.put(items(2)[0])
    time.sleep(0.3)
    assert received.qsize() == 1


def source_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("feedline-source")]


def test_a_generator_that_nobody_reads_on_is_closed():
    closed = threading.Event()

    def source():
        try:
            for grey in itertools.count():
                yield from items(grey % 256)
        finally:
            closed.set()

    iterator = iter(make_stream(source, options(), classes=2, training=True, reading=Reading(buffer_mb=0.001)))
    next(iterator)
    assert not closed.is_set()
    del iterator
    assert closed.wait(10)
    wait_until(lambda: not source_threads(), 10)


def test_what_is_read_ahead_is_bounded_in_bytes():
    taken = []

    def source():
        for grey in range(200):
            taken.append(grey)
            yield f"{grey}", grey_image(1) + bytes(10_000), 0

    given = options(prefetch_batches=1, parse_batch=1)
    iterator = iter(make_stream(source, given, classes=1, training=True, reading=Reading(buffer_mb=0.1)))
    next(iterator)
    time.sleep(1.0)
    assert 10 <= len(taken) <= 30  # ten in the buffer, and what the stages after it hold
    del iterator


class Lost(Exception):
    pass


@pytest.mark.parametrize("batch_size", [1, 3])
def test_what_a_source_raises_ends_training_in_one_line_after_what_came_before(batch_size):
    def source():
        yield from items(1, 2, 3)
        raise Lost("the camera\nis gone")

    stream = make_stream([items, source], options(batch_size=batch_size), classes=2, training=True)
    seen = []
    with pytest.raises(tf.errors.OpError) as caught:
        seen.extend(flat(stream))
    if batch_size == 1:
        assert [key for key, _, _ in seen] == [1, 2, 3]
    assert "source 1: Lost: the camera is gone" in caught.value.message
    assert "Traceback" not in caught.value.message
    cause = cause_of(caught.value)
    assert isinstance(cause, Lost)
    assert cause.args == ("the camera\nis gone",)
    assert cause_of(ValueError("something else")) is None


def test_a_source_that_cannot_be_opened_is_an_error_of_its_own():
    def source():
        raise Lost

    with pytest.raises(tf.errors.OpError, match="source 0: Lost"):
        list(make_stream(source, options(), classes=2, training=True))
    with pytest.raises(tf.errors.OpError, match="source 0: TypeError: `int` object is not iterable"):
        list(make_stream(lambda: 7, options(), classes=2, training=True))


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("text", "a source gave str `text`; it must give (key, image bytes, label)"),
        (("k", b"x"), "it must give (key, image bytes, label)"),
        ((1, b"x", 0), "a source gave the key int 1; it must be text or bytes"),
        (("k", "x.jpg", 0), "a source gave str `x.jpg` as the image of `k`; it must be the bytes of a file"),
        (("k", b"x", 2), "a source gave the label int 2 of `k`; it must be a whole number from 0 to 1"),
        (("k", b"x", -1), "it must be a whole number from 0 to 1"),
        (("k", b"x", "cat"), "a source gave the label str `cat` of `k`"),
        (("k", b"x", [0]), "a source gave the label list [0] of `k`"),
    ],
)
def test_what_is_no_image_is_named(item, message):
    with pytest.raises(tf.errors.OpError) as caught:
        list(make_stream(lambda: [item], options(shuffle="window"), classes=2, training=True))
    assert message in caught.value.message


def test_a_source_that_cannot_be_opened_twice_is_no_endless_wait():
    once = iter(items(1, 2))
    seen = []
    with pytest.raises(tf.errors.OpError, match="the sources gave no image in epoch 1; each must return a new"):
        seen.extend(flat(make_stream(lambda: once, options(), classes=2, training=True, epochs=FOREVER)))
    assert [key for key, _, _ in seen] == [1, 2]


def test_an_image_that_cannot_be_decoded_is_an_error():
    with pytest.raises(tf.errors.InvalidArgumentError):
        list(make_stream(lambda: [("k", b"no image", 0)], options(), classes=1, training=True))


def test_the_window_mixes_within_its_bytes_and_the_same_way_every_time():
    given = items(*range(200))
    size = len(given[0][1])
    held = 20

    def order(seed=0, epoch=0):
        window = options(shuffle="window", shuffle_mb=held * size / 1e6, seed=seed)
        start = Position(epoch=epoch)
        return greys(make_stream(lambda: given, window, classes=2, training=True, start=start))

    first = order()
    assert sorted(first) == list(range(200))
    assert first == order()
    assert len({tuple(first), tuple(order(seed=1)), tuple(order(epoch=1)), tuple(range(200))}) == 4
    early = [place - grey for place, grey in enumerate(first)]
    assert min(early) >= -held - 2  # nobody comes more than the window early
    unmixed = options(shuffle="window", shuffle_mb=1)
    assert greys(make_stream(lambda: given, unmixed, classes=2, training=False)) == list(range(200))


@pytest.mark.parametrize("mode", ["none", "window"])
def test_starting_later_gives_exactly_what_was_left(mode):
    given = options(shuffle=mode, shuffle_mb=0.002)
    make = lambda **more: make_stream(lambda: items(*range(30)), given, classes=2, training=True, **more)  # noqa: E731
    whole = list(flat(make(epochs=3)))
    left = make(epochs=2, start=Position(epoch=1, records=7))
    assert list(flat(left)) == whole[37:]


def test_draws_derive_from_seed_key_and_epoch_alone():
    def draws(seed=0, epoch=0, order=(1, 2, 3)):
        start = Position(epoch=epoch)
        stream = make_stream(lambda: items(*order), options(seed=seed), classes=2, training=True, start=start)
        return {int(features["key"].numpy()[0]): tuple(features["draw"].numpy()[0]) for features, _ in stream}

    first = draws()
    assert len(set(first.values())) == 3
    assert draws(order=(3, 1, 2)) == first
    assert not set(draws(seed=1).values()) & set(first.values())
    assert not set(draws(epoch=1).values()) & set(first.values())


def test_interleaved_evaluation_disturbs_no_training():
    def make(training):
        given = options(shuffle="window", shuffle_mb=0.002, batch_size=2)
        return make_stream(lambda: items(*range(40)), given, classes=2, training=training, epochs=2)

    alone = greys(make(True))
    mixed = []
    evaluation = make(False)
    for step, (features, _) in enumerate(make(True)):
        mixed.extend(int(key) for key in features["key"].numpy())
        if step % 10 == 3:
            assert greys(evaluation) == 2 * list(range(40))
        if step % 10 == 5:
            next(iter(evaluation))  # begun and left
    assert mixed == alone


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shuffle": "global"}, "shuffle is 'global'; a stream needs 'window' or 'none'"),
        ({"cache": "memory"}, "cache is 'memory'"),
        ({"balance": "uniform"}, "balance is 'uniform'"),
        ({"columns": ("age",)}, "columns is ('age',)"),
        ({"targets": ("boxes",)}, "targets is ('boxes',)"),
        ({"pad_batches": True}, "pad_batches is True"),
        ({"service": "grpc://x:1"}, "service is 'grpc://x:1'"),
        ({"max_corrupt_records": 1}, "max_corrupt_records is 1"),
        ({"train_ops": "decode|resize(9)"}, "image_side_px is 8"),
        ({"train_ops": "decode|mixup(0.2)"}, "contain mixup or cutmix; for a stream, put them into device_ops"),
        ({"train_ops": "decode|multi_crop(2, 8)"}, "contain multi_crop, which no stream supports; use random_crop"),
    ],
)
def test_options_that_mean_nothing_for_a_stream_are_refused(change, message):
    with pytest.raises(OptionError) as caught:
        make_stream(lambda: items(1), options(**change), classes=2, training=True)
    assert message in str(caught.value)


@pytest.mark.timeout(240)
def test_a_source_that_never_answers_does_not_keep_the_interpreter():
    program = f"""
        import threading
        from trainer.options import InputOptions
        from trainer.streams import make_stream
        def silent():
            yield "a", bytes.fromhex("{grey_image(1).hex()}"), 0
            threading.Event().wait()
        def main():
            given = InputOptions(image_side_px=8, batch_size=1, shuffle="none")
            iterator = iter(make_stream([silent, silent], given, classes=1, training=True))
            print(len(next(iterator)[0]["key"]), len(next(iterator)[0]["key"]), flush=True)
            globals()["kept"] = iterator
            raise SystemExit(3)
        main()
    """
    done = python(textwrap.dedent(program), timeout=200)  # most of it is importing TensorFlow
    assert done.stdout == "1 1\n", done.stderr[-2000:]
    assert done.returncode == 3, done.stderr[-2000:]
