from __future__ import annotations

import json

import pytest

from tests.components.dataset_report.page import Page
from tests.trainer.bench_figures import ablated, figures
from trainer.bench.meter import Cost
from trainer.bench.report import _shares, as_page, as_text

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
VOID = {"meta", "link", "br", "img"}


def test_stages_totals_and_the_bottleneck_are_lines_of_a_table():
    text = as_text(figures())
    lines = [line.split() for line in text.splitlines()]
    assert "photos, train: 1,811 records of 50.0 kB in 4 shards" in text
    assert ["decode_random_crop(224)", "1,700", "590.0", "588.2"] in lines
    assert ["read", "14,000", "60.0", "71.4", "14,000"] in lines
    assert "transfer, a copy in memory" in text
    assert ["input", "pipeline", "1,560", "740.0", "97%", "of", "the", "limit"] in lines
    assert ["limit", "1,610", "1,230.0", *"bare decode of the same bytes on 2 cores".split()] in lines
    assert ["naive", "730", "900.0", *"the input pipeline is 2.14 times as fast".split()] in lines
    assert text.index("\ntutorial") < text.index("\nnaive")  # the fastest first
    assert text.endswith("to decode 2.1 times fewer pixels.")


def test_the_model_is_named_with_its_device():
    given = figures({"small_cnn": (210.0, 9e3), "trained": (190.0, 9.5e3)}, model="small_cnn", device="GPU:0")
    text = as_text(given)
    assert "training step, small_cnn" in text
    assert "transfer, to GPU:0" in text
    assert "with small_cnn" in text
    assert "on GPU:0, input and training together" in text


def test_the_ablation_shows_what_is_worth_most_first():
    rows = (ablated("cheap", 1_500.0), ablated("dear", 780.0))
    text = as_text(figures(ablation=rows))
    assert text.index("dear: parse_batch=1") < text.index("cheap: parse_batch=1")
    assert "2.00x" in text
    assert "worth" not in as_text(figures())


@pytest.mark.parametrize("write", [as_text, as_page])
def test_what_spoils_a_measurement_is_mentioned(write):
    shared, unread = "a bare decode had 1.0 of 2 cores", "were not read into memory"
    plain, spoilt = write(figures()), write(figures({"limit": (800.0, 1_230.0)}, in_memory=False))
    assert (shared in plain, unread in plain) == (False, False)
    assert (shared in spoilt, unread in spoilt) == (True, True)


def test_json_holds_every_figure_under_the_documented_keys():
    values = json.loads(json.dumps(figures(ablation=(ablated(),)).to_json()))
    assert list(values) == [
        *("facts", "stages", "ops", "pipeline", "limit", "efficiency", "cpu_efficiency", "baselines", "trained"),
        *("ablation", "disturbed"),
    ]
    assert values["stages"][0] == {
        "name": "read",
        "kind": "read",
        "images_s": 14_000.0,
        "cpu_us": 60.0,
        "wall_us": pytest.approx(71.43, abs=0.01),
        "up_to_here_images_s": 14_000.0,
    }
    assert values["efficiency"] == pytest.approx(1560 / 1610)
    assert values["cpu_efficiency"] == pytest.approx(1230 / 740)
    assert values["baselines"]["naive"]["ratio"] == pytest.approx(1560 / 730)
    assert values["trained"] is None
    assert values["ablation"][0]["worth"] == pytest.approx(1.3)


def test_the_shares_are_of_the_cpu_time_without_what_comes_behind_the_input_pipeline():
    bars = _shares(figures({"small_cnn": (210.0, 9e3)}))
    assert bars[0].length == pytest.approx(100 * 60 / (60 + 35 + 20 + 590 + 15 + 30))
    assert Cost(rate=1000.0, cpu_us=1500.0).cores == 1.5


class Outline(Page):
    """A page whose elements are all closed where they were opened."""

    def __init__(self, text: str) -> None:
        self.open: list[str] = []
        super().__init__(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        super().handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        super().handle_endtag(tag)
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_shows_stages_limit_baselines_and_bottleneck():
    given = figures({"small_cnn": (2_100.0, 9.0), "trained": (1_400.0, 9.0)}, model="small_cnn", ablation=(ablated(),))
    found = Outline(as_page(given))
    shown = ["decode_random_crop(224)", "tutorial", "naive", "1,610 images/s", "Decoding is the bottleneck", "1.30"]
    assert [text for text in shown if text not in found.text] == []
    assert "prefers-color-scheme: dark" in as_page(given)
    bars = [attrs for tag, attrs in found.tags if tag == "svg" and attrs.get("class") == "bar"]
    assert [attrs["aria-label"].partition(":")[0] for attrs in bars] == [
        *("input pipeline", "with small_cnn", "tutorial", "naive")
    ]


def test_the_bars_are_in_proportion_and_the_limit_is_a_line():
    found = Outline(as_page(figures()))
    in_bars = [
        attrs for tag, attrs in found.tags if tag == "rect" and attrs.get("rx") == "4" and "rail" not in attrs["class"]
    ]
    widths = [float(attrs["width"].rstrip("%")) for attrs in in_bars]
    assert widths[2] / widths[0] == pytest.approx(730 / 1560, rel=0.01)
    lines = {attrs["x1"] for tag, attrs in found.tags if tag == "line" and attrs["y1"] == "0"}
    assert [float(place.rstrip("%")) / widths[0] for place in lines] == [pytest.approx(1610 / 1560, rel=0.01)]
    stack = [attrs for tag, attrs in found.tags if tag == "rect" and "x" in attrs]
    assert sum(float(attrs["width"].rstrip("%")) for attrs in stack) == pytest.approx(100, abs=0.1)


def test_a_limit_far_beyond_the_bars_is_a_number_only():
    page = as_page(figures({"limit": (90_000.0, 9.0)}, policy="raw", limit_description="bare read of the same bytes"))
    assert "<line" not in page
    assert "limit 90,000 images/s: bare read of the same bytes" in page


def test_every_name_is_escaped_and_the_page_may_load_and_run_nothing():
    given = figures({EVIL: (9e4, 1.0)}, dataset=EVIL, split=EVIL, ops=EVIL, ablation=(ablated(EVIL),))
    found = Outline(as_page(given))
    tags = {tag for tag, _ in found.tags}
    assert not tags & {"script", "img", "iframe"}
    assert found.text.count(EVIL) >= 5
    policy = next(attrs["content"] for _, attrs in found.tags if "http-equiv" in attrs)
    assert policy.startswith("default-src 'none'; ")
    assert "script" not in policy
    assert not any(name.startswith("on") for _, attrs in found.tags for name in attrs)


def test_what_to_type_looks_like_code_and_is_escaped_too():
    page = as_page(figures({EVIL: (2_000.0, 900.0)}))
    assert "<code>device_ops</code>" in as_page(figures({"flip": (2_000.0, 900.0)}))
    assert "<code>&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script" not in page
