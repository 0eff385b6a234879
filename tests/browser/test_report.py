"""The report in a real browser: what it shows, what it does, and what it must never do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.conftest import EVIL_CLASS

pytestmark = pytest.mark.filterwarnings("ignore")

SECTIONS = ["gate", "dataset", "classes", "gallery", "distributions", "extremes", "comparison"]
SECTIONS += ["rejects", "duplicates", "augmentation", "training", "evaluation", "mistakes", "run"]


@pytest.fixture
def open_page(browser, report):
    """Opens the report; at the end nothing may have gone wrong in any page it opened."""
    opened, wrong = [], []

    def open_(**options):
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        opened.append(context)
        page = context.new_page()
        page.on("console", lambda message: wrong.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: _judge(request.url, report, wrong))
        page.add_init_script(
            "window.violations = [];"
            "addEventListener('securitypolicyviolation', event => window.violations.push(event.violatedDirective));"
        )
        page.goto(report.as_uri())
        return page

    yield open_
    for context in opened:
        for page in context.pages:
            if page.evaluate("typeof window.violations") != "undefined":
                wrong += page.evaluate("window.violations")
                assert page.evaluate("window.hacked") is None
        context.close()
    assert wrong == []


def _judge(url: str, report, wrong: list[str]) -> None:
    if not url.startswith(("data:", report.as_uri())):
        wrong.append(f"request: {url}")


def visible(page, selector: str) -> int:
    return page.locator(f"{selector}:visible").count()


def column(page, section: str, place: int) -> list[str]:
    return (
        page.locator(f"#{section} table[data-sortable]").first.locator(f"tbody td:nth-child({place})").all_inner_texts()
    )


def test_every_section_is_there_and_every_picture_shows(open_page):
    page = open_page()
    assert page.locator("main > section").evaluate_all("found => found.map(one => one.id)") == SECTIONS
    pictures = page.locator("main img").evaluate_all("found => found.map(one => one.naturalWidth)")
    assert len(pictures) > 100
    assert all(width > 0 for width in pictures)


def test_the_gallery_filters_by_class_split_and_name(open_page):
    page = open_page()
    items = "#gallery [data-item]"
    everything = visible(page, items)
    assert everything > 30
    assert page.locator("#gallery [data-count]").inner_text() == ""

    page.select_option("#gallery [data-by=label]", label="dark")
    dark = visible(page, items)
    assert 0 < dark < everything
    assert visible(page, "#gallery .class") == 1
    assert page.locator("#gallery [data-count]").inner_text() == f"{dark} of {everything}"

    page.select_option("#gallery [data-by=split]", "eval")
    assert 0 < visible(page, items) < dark
    assert visible(page, "#gallery .strip") == 1

    page.select_option("#gallery [data-by=label]", "")
    page.select_option("#gallery [data-by=split]", "")
    page.fill("#gallery [data-by=search]", " COPY.png")
    assert visible(page, items) == page.locator("#gallery [data-item][data-search*='copy.png']").count() <= 1
    page.fill("#gallery [data-by=search]", "no such name")
    assert visible(page, items) == 0
    assert page.get_by_text("No image fits the filter.").is_visible()
    page.fill("#gallery [data-by=search]", "")
    assert visible(page, items) == everything


def test_rejects_filter_by_reason_and_words(open_page):
    page = open_page()
    rows = "#rejects tbody tr"
    assert visible(page, rows) == 3
    page.select_option("#rejects [data-by=reason]", "not_an_image")
    assert visible(page, rows) == 1
    page.select_option("#rejects [data-by=reason]", "")
    page.fill("#rejects [data-by=search]", "CUT.jpg")
    assert page.locator(f"{rows}:visible").inner_text().split()[:2] == ["dark/cut.jpg", "undecodable"]


def test_tables_sort_both_ways_by_numbers_and_by_names(open_page):
    page = open_page()
    heading = page.locator("#classes th").nth(1)
    heading.locator("button").click()
    counts = [int(text) for text in column(page, "classes", 2)]
    assert counts == sorted(counts, reverse=True)
    assert heading.get_attribute("aria-sort") == "descending"
    heading.locator("button").click()
    assert [int(text) for text in column(page, "classes", 2)] == counts[::-1]
    assert heading.get_attribute("aria-sort") == "ascending"
    page.locator("#classes th").nth(0).locator("button").click()
    assert column(page, "classes", 1) == [EVIL_CLASS, "bright", "dark"]
    assert heading.get_attribute("aria-sort") == "none"


def test_a_picture_opens_with_its_facts_and_the_keys_lead_on(open_page):
    from playwright.sync_api import expect

    page = open_page()
    page.select_option("#gallery [data-by=label]", label="bright")
    first, second = (
        page.locator("#gallery [data-open]:visible").nth(0),
        page.locator("#gallery [data-open]:visible").nth(1),
    )
    first.focus()
    page.keyboard.press("Enter")
    viewer = page.locator("#viewer")
    assert viewer.is_visible()
    assert page.locator("#viewer img").evaluate("image => image.naturalWidth") > 0
    assert page.locator("#viewer img").get_attribute("src") == first.locator("img").get_attribute("src")
    facts = page.locator("#viewer dl").inner_text()
    assert first.locator("img").get_attribute("alt") in facts
    assert "Class\nbright" in facts
    page.keyboard.press("ArrowRight")
    assert page.locator("#viewer img").get_attribute("src") == second.locator("img").get_attribute("src")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")  # from the first to the last that the filter leaves
    last = page.locator("#gallery [data-open]:visible").last
    assert page.locator("#viewer img").get_attribute("src") == last.locator("img").get_attribute("src")
    page.keyboard.press("Escape")
    assert not viewer.is_visible()
    expect(last).to_be_focused()  # the event that a dialog was closed comes after it is


def test_the_set_of_a_duplicate_leads_to_its_section(open_page):
    page = open_page()
    member = page.locator("#duplicates .cluster [data-open]").first
    member.click()
    page.locator("#viewer dl a").first.click()
    assert not page.locator("#viewer").is_visible()
    assert page.evaluate("document.activeElement.className").startswith("panel cluster")
    shown = page.evaluate("document.activeElement.getBoundingClientRect().top")
    assert 0 <= shown < page.viewport_size["height"]


@pytest.mark.parametrize("clipboard", ["navigator.clipboard", "undefined"])  # as without TLS
def test_a_short_hash_copies_the_whole(open_page, clipboard):
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    button = page.locator("header [data-copy]")
    assert button.inner_text() == button.get_attribute("data-copy")[:16]
    page.evaluate("window.clipboard = navigator.clipboard")
    page.evaluate("window.clipboard.writeText('something else')")
    page.evaluate(f"Object.defineProperty(navigator, 'clipboard', {{value: {clipboard}}})")
    button.click()
    page.locator("header [data-copied]").wait_for()
    assert page.evaluate("window.clipboard.readText()") == button.get_attribute("data-copy")


@pytest.fixture(scope="session")
def folder(report) -> Path:
    """Pages with all images of the dataset of the report."""
    from components.dataset_report.render import render_all

    render_all(str(report.parent / "dataset"), str(report.parent / "pages"), str(report.parent / "model"))
    return report.parent / "pages"


@pytest.mark.parametrize("width", [390, 1280])
def test_pages_with_all_images_open_without_an_error(browser, folder, width):
    page = browser.new_page(viewport={"width": width, "height": 800})
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: message.type == "error" and wrong.append(message.text))
    page.goto(f"file://{folder}/index.html")
    names = page.locator("td a").evaluate_all("links => links.map(link => link.href)")
    for name in names:
        page.goto(name)
        page.locator("[data-open]").first.click()
        assert page.locator("#viewer").is_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.goto(names[0])
    page.fill("[data-by=search]", "no such name")
    assert page.locator("[data-none]").is_visible()
    assert wrong == []
    page.close()


@pytest.mark.parametrize("section", ["rejects", "augmentation"])
def test_pictures_of_every_section_open(open_page, section):
    page = open_page()
    page.locator(f"#{section} [data-open]").first.click()
    assert page.locator("#viewer").is_visible()
    assert page.locator("#viewer dd").count() > 0
    page.locator("#viewer [data-close]").click()
    assert not page.locator("#viewer").is_visible()


def back(page) -> str:
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_light_and_dark_follow_the_system_until_they_are_switched(open_page, scheme, dark):
    page = open_page(color_scheme=scheme)
    before = back(page)
    assert (sum(int(part) for part in before[4:-1].split(",")) < 200) == dark
    switch = page.locator("[data-theme-switch]")
    assert switch.get_attribute("aria-pressed") == str(dark).lower()
    switch.click()
    assert back(page) != before
    assert switch.get_attribute("aria-pressed") == str(not dark).lower()
    switch.click()
    assert back(page) == before


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(open_page, scheme):
    page = open_page(color_scheme=scheme)
    names = ["ink", "soft", "back", "card", "bad", "good", "warn", "accent", "bad-back"]
    style = page.evaluate(
        "names => names.map(name => getComputedStyle(document.documentElement).getPropertyValue('--' + name))", names
    )
    colours = dict(zip(names, style, strict=True))
    pairs = [
        (front, behind) for front in ("ink", "soft", "bad", "good", "warn", "accent") for behind in ("back", "card")
    ]
    for front, behind in [*pairs, ("bad", "bad-back")]:
        assert contrast(colours[front], colours[behind]) >= 4.5, (front, behind)  # WCAG 2.1, AA
    shades = page.evaluate(
        """names => names.map(name => {
          const cell = document.querySelector(".confusion td");
          cell.className = name;
          const [red, green, blue] = getComputedStyle(cell).backgroundColor.match(/[\\d.]+/g).map(Number);
          const parts = [red, green, blue].map(part => Math.round(red + green + blue > 3 ? part : 255 * part));
          return "#" + parts.map(part => part.toString(16).padStart(2, "0")).join("");
        })""",
        levels := [f"{kind}{level}" for kind in "rw" for level in range(9)],
    )
    for level, shade in zip(levels, shades, strict=True):
        assert contrast(colours["ink"], shade) >= 4.5, level


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour.strip()[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("width", [360, 1280])
def test_no_width_makes_the_page_scroll_sideways(open_page, width):
    page = open_page(viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_links_lead_to_the_sections(open_page):
    from playwright.sync_api import expect

    page = open_page()
    page.locator("nav a", has_text="Duplicates").click()
    expect(page.locator("#duplicates h2")).to_be_in_viewport()
    expect(page.locator("nav a[aria-current]")).to_be_visible()


def test_without_script_everything_can_be_read_and_nothing_is_offered_that_does_not_work(open_page):
    page = open_page(java_script_enabled=False)
    assert page.locator("main > section:visible").count() == len(SECTIONS)
    assert visible(page, "#gallery [data-item]") > 30
    assert visible(page, "#rejects tbody tr") == 3
    assert visible(page, "th .plain") > 10
    assert visible(page, "th button") == visible(page, ".filters") == visible(page, "[data-theme-switch]") == 0


def test_print_shows_whole_tables_and_no_controls(open_page):
    page = open_page(color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert visible(page, ".filters") == visible(page, "nav") == 0
    assert page.locator(".tall").first.evaluate("table => getComputedStyle(table).maxHeight") == "none"
    assert back(page) == "rgb(255, 255, 255)"
    assert page.pdf()[:5] == b"%PDF-"
