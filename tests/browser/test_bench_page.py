"""The page of `feedline bench input` in a real browser."""

from __future__ import annotations

import pytest

from tests.trainer.bench_figures import ablated, figures

pytestmark = pytest.mark.filterwarnings("ignore")
EVIL = "<script>window.hacked = 1</script>\"'><img src=x onerror='window.hacked=2'>"


@pytest.mark.parametrize(("width", "scheme"), [(400, "light"), (1280, "dark")])
def test_the_page_fits_shows_its_bars_and_runs_nothing(browser, tmp_path, scheme, width):
    from trainer.bench.report import as_page

    path = tmp_path / "bench.html"
    given = figures({EVIL: (900.0, 900.0)}, dataset=EVIL, ablation=(ablated(EVIL),))
    path.write_text(as_page(given), encoding="utf-8")
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    wrong = []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("request", lambda request: wrong.append(request.url) if not request.url.startswith("file:") else None)
    page.goto(path.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    bars = page.locator("svg.bar rect:nth-of-type(2)").evaluate_all(
        "all => all.map(one => one.getBoundingClientRect().width)"
    )
    assert bars[0] > bars[1] > bars[2] > 50
    assert page.get_by_text(EVIL).count() > 2
    assert page.evaluate("window.hacked") is None
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(19, 22, 24)"
    assert dark is (scheme == "dark")
    assert wrong == []
    page.close()
