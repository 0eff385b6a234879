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
        wide = "all => all.filter(code => code.scrollWidth > code.clientWidth + 1).map(code => code.innerText)"
        assert page.locator("pre > code").evaluate_all(wide) == [], name
        page.close()


@pytest.mark.parametrize(
    ("words", "first"), [("resume", "training.html"), ("early stopping", "training.html"), ("augmentation", "ops.html")]
)
def test_the_search_finds_the_page_of_a_subject_first_from_a_disk(open_page, words, first):
    page = open_page("recipes/05-cache.html")
    page.locator(".md-search__input").click()
    page.keyboard.type(words)
    found = page.locator(".md-search-result__item a")
    found.first.wait_for()
    page.wait_for_timeout(500)  # the results come one after the other
    links = found.evaluate_all("all => all.map(a => a.href)")
    assert all(link.startswith("file:") for link in links)
    assert Path(links[0].partition("#")[0].partition("?")[0]).name == first, links[:5]


def test_an_example_is_copied_without_prompts_and_output(open_page):
    page = open_page("api-input.html", permissions=["clipboard-read", "clipboard-write"])
    block = page.locator(".highlight", has=page.locator(".go")).first
    assert block.inner_text().startswith(">>> from trainer import")
    block.hover()
    block.locator(".md-code__button").click()
    page.wait_for_function("navigator.clipboard.readText().then(text => text.startsWith('from trainer import'))")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert ">>>" not in copied
    assert block.locator(".go").first.inner_text() not in copied


def test_the_notebook_can_be_read_and_downloaded(open_page, site):
    page = open_page("index.html")
    page.locator("article a", has_text="Tutorial").click()
    page.wait_for_url("**/tutorial.html")
    assert page.locator("article pre").count() > 10
    assert page.locator("article a[href='tutorial.ipynb']").count() == 1
    assert (site / "tutorial.ipynb").is_file()
