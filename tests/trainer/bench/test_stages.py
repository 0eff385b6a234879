from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

from beam_jobs.common import system
from beam_jobs.ingest import run
from beam_jobs.options import IngestOptions, PixelOptions
from tests.trainer.conftest import records_of
from trainer.bench import baselines
from trainer.bench.measure import make_removals, measure, prepare
from trainer.bench.report import as_text
from trainer.bench.stages import Stages, load_pool, open_source
from trainer.ops import IMAGE
from trainer.options import InputOptions

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

FUSED = "decode_random_crop(16)|rotate(10)"


def options(**values) -> InputOptions:
    return InputOptions(**{"image_side_px": 16, "batch_size": 8, "threads": 2, "cache": "none", "lanes": 1, **values})


def stages_of(path, **values) -> Stages:
    source = open_source(str(path), "train", options(**values))
    return Stages(source=source, pool=load_pool(source))


@pytest.fixture(scope="module")
def raw(photos, tmp_path_factory):
    """`photos` as pixels, 16x16, all in `train`. Read only."""
    out = tmp_path_factory.mktemp("raw")
    pixels = PixelOptions(policy="raw", side_px=16)
    run(IngestOptions(source=str(photos), out=str(out), splits={"train": 1}, pixels=pixels))
    return out


def test_the_pool_holds_the_files_of_the_split(photographs):
    pool = stages_of(photographs).pool
    assert list(pool.serialized) == records_of(photographs, "train")
    sizes = [tf.io.decode_jpeg(one, channels=3).shape for one in pool.encoded]
    assert pool.pixels == pytest.approx(np.mean([height * width for height, width, _ in sizes]))
    assert pool.short_px == pytest.approx(np.mean([min(height, width) for height, width, _ in sizes]))


def test_an_image_that_comes_again_draws_anew(photographs):
    stages = stages_of(photographs, train_ops=FUSED)
    one = tf.data.Dataset.from_tensor_slices(list(stages.pool.serialized)).take(1)
    pixels = list(stages.run(stages.parse(one).cache().repeat(64), stages.source.plan.image_ops).as_numpy_iterator())
    assert len(set(pixels[0])) > 1


def test_stored_pixels_are_taken_whole_batches_at_a_time(raw):
    stages = stages_of(raw, train_ops="decode|flip")
    names = [subject.name for subject in stages.isolated_subjects()]
    assert names == ["read", "parse", "DecodeRaw", "ops of images", "batch", "flip", "ops of batches"]
    assert [removal.name for removal in make_removals(stages.source)][-1] == "whole batches at a time"


@pytest.mark.parametrize(("data", "chain"), [("photographs", FUSED), ("raw", "decode|flip")])
def test_every_stage_runs_for_ever_and_counts_images(request, data, chain):
    path = request.getfixturevalue(data)
    stages = stages_of(path, train_ops=chain)
    records = len(stages.pool.serialized)
    for subject in [*stages.isolated_subjects(), *stages.cumulative_subjects()]:
        counts = subject.start()
        seen = list(itertools.islice(counts, 2 * records))
        assert len(seen) == 2 * records, subject.name
        assert all(count >= 1 for count in seen), subject.name
        counts.close()


def test_crops_of_one_image_count_as_images(photographs):
    stages = stages_of(photographs, train_ops="decode|resize(32)|multi_crop(16, 2)")
    subjects = {subject.name: subject for subject in stages.isolated_subjects()}
    outputs = stages.source.plan.crops
    assert outputs > 1
    assert next(subjects["parse"].start()) == 64 * outputs
    assert next(subjects["batch"].start()) == 8


def test_without_the_fused_decode_the_chain_is_the_plain_one(photographs):
    source = open_source(str(photographs), "train", options(train_ops="decode_random_crop(16)"))
    removal = next(removal for removal in make_removals(source) if removal.name == "fused decode and crop")
    assert next(iter(removal.dataset))[0][IMAGE].shape == (8, 16, 16, 3)


def test_only_what_is_in_the_pipeline_is_taken_out(photographs):
    source = open_source(str(photographs), "train", options(train_ops="decode|resize(16)", threads=1, parse_batch=1))
    assert [removal.name for removal in make_removals(source)] == [
        *("uint8 batches", "prefetch", "shuffle before the decode")
    ]


def test_the_limit_decodes_every_file_and_counts_each(photographs, monkeypatch):
    encoded = stages_of(photographs).pool.encoded
    monkeypatch.setattr(baselines, "_TASK_BYTES", 4 * sum(map(len, encoded)) / len(encoded))
    counts = baselines.bare_decode("limit", encoded, crops=3).start()
    seen = list(itertools.islice(counts, 20))
    counts.close()
    assert max(seen) <= 3 * 4 * 2 * system.cores()
    assert all(count % 3 == 0 and count > 0 for count in seen)


def test_a_damaged_file_stops_the_limit():
    counts = baselines.bare_decode("limit", [b"\xff\xd8\xff no image"]).start()
    with pytest.raises(tf.errors.InvalidArgumentError):
        next(counts)


def test_the_bare_read_turns_bytes_into_images(shades):
    source = open_source(str(shades), "train", options(image_side_px=8))
    counts = baselines.bare_read("limit", source.files, source.record_bytes).start()
    seen = list(itertools.islice(counts, 40))  # four shards of 24 records, over and over, one or more at a time
    counts.close()
    assert all(count > 12 and count / 24 == pytest.approx(round(count / 24), rel=0.05) for count in seen)


def test_what_would_not_stay_in_memory_is_not_read_before(shades, monkeypatch):
    files = open_source(str(shades), "train", options(image_side_px=8)).files
    assert baselines.warm_page_cache(files, 1000)
    assert not baselines.warm_page_cache(files, system.free_bytes())
    assert not baselines.warm_page_cache(["gs://bucket/data"], 1000)


@pytest.fixture(scope="module")
def figures(photographs):
    """A whole measurement, as short as it can be."""
    bench = prepare(str(photographs), "train", options(train_ops="decode|resize(16)|flip"), "small_cnn", ablate=True)
    told: list[str] = []
    found = measure(bench, 0.01, told.append, rounds=1)
    assert told == [subject.name for subject in bench.subjects]
    assert bench.duration(1.0) > 3 * len(told)
    return found


def test_a_measurement_has_all_stages_in_order(figures):
    names = ["read", "parse", "call", "decode", "resize(16)", "batch", "flip", "transfer", "small_cnn"]
    assert [stage.name for stage in figures.stages] == names
    assert [stage.kind for stage in figures.stages] == [
        *("read", "parse", "call", "decode", "augment", "batch", "augment", "transfer", "step")
    ]
    assert {stage.name for stage in figures.stages if stage.cumulative_rate} == {
        "read",
        "parse",
        "decode",
        "resize(16)",
    }
    assert all(stage.cost.rate > 0 for stage in figures.stages)


def test_a_measurement_has_limit_baselines_model_and_ablation(figures):
    assert figures.limit_description == "bare decode of the same bytes"
    assert list(figures.baselines) == ["tutorial", "naive"]
    assert figures.trained.rate > 0
    assert [row.name for row in figures.ablation][:2] == ["parallel map", "batched parse"]
    assert "flip" in figures.device_ops
    assert "bottleneck" in as_text(figures)


def test_stored_pixels_have_a_bare_read_as_limit(raw):
    bench = prepare(str(raw), "train", options(train_ops="decode|flip"))
    assert bench.limit_description == "bare read of the same bytes"


def test_a_cache_that_decides_itself_is_none_here(photographs):
    assert prepare(str(photographs), "train", options(cache="auto")).source.plan.cache.kind == "none"
