"""The documentation, opened from a disk in a real browser."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    """The site as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def open_page(browser, site):
    """Opens a page of the site; none may ask for anything from elsewhere, or fail at something."""
    opened, wrong = [], []

    def open_(name: str, **options):
        page = browser.new_page(**{"viewport": {"width": 1280, "height": 900}, **options})
        opened.append(page)
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: wrong.append(request.url) if request.url.startswith("http") else None)
        page.goto((site / name).as_uri())
        return page

    yield open_
    for page in opened:
        page.close()
    assert wrong == []


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_pages_fit_their_width_and_need_nothing_from_elsewhere(open_page, site, width, scheme):
    names = sorted(path.name for path in site.glob("*.html") if path.name != "404.html")
    assert {"index.html", "cli-reference.html", "tutorial.html"} <= set(names)
    for name in names:
        page = open_page(name, viewport={"width": width, "height": 900}, color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert page.locator("h1").count() == 1, name
        page.close()


def test_the_search_finds_a_page_from_a_disk(open_page):
    page = open_page("recipes/05-cache.html")
    page.locator(".md-search__input").click()
    page.keyboard.type("max_reject_ratio")
    found = page.locator(".md-search-result__item a")
    found.first.wait_for()
    assert any(
        link.startswith("file:") and ".html" in link for link in found.evaluate_all("all => all.map(a => a.href)")
    )


def test_the_notebook_can_be_read_and_downloaded(open_page, site):
    page = open_page("index.html")
    page.locator("article a", has_text="Tutorial").click()
    page.wait_for_url("**/tutorial.html")
    assert page.locator("article pre").count() > 10
    assert page.locator("article a[href='tutorial.ipynb']").count() == 1
    assert (site / "tutorial.ipynb").is_file()
