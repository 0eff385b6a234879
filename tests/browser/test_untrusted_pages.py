"""Pages full of hostile names, in a real browser; and what the policy stops should a name ever get through."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.beam_jobs.web_server import serving
from tests.browser.markup import NAMES, foreign
from tests.make_images import jpeg, png
from tests.trainer.bench_figures import ablated, figures

pytestmark = pytest.mark.filterwarnings("ignore")
SCRIPTS = {"report": 1, "bench": 0}


@pytest.fixture(scope="session")
def pages(tmp_path_factory) -> dict[str, Path]:
    """Every kind of page that is written, all of their names, values and reasons out of `NAMES`."""
    folder = tmp_path_factory.mktemp("pages")
    paths = {name: folder / f"{name}.html" for name in SCRIPTS}
    paths["report"].write_text(_report(folder), encoding="utf-8")
    paths["bench"].write_text(_bench(), encoding="utf-8")
    return paths


def _report(folder: Path) -> str:
    from beam_jobs.ingest import run
    from beam_jobs.options import IngestOptions, TableColumns
    from components.dataset_report import ArtifactDetail, RunDetails, StepDetail
    from components.dataset_report.render import render

    header = ["image", "label", "key", *(f"{name}|{place}" for place, name in enumerate(NAMES))]
    with open(folder / "table.csv", "w", newline="", encoding="utf-8") as stream:
        rows = csv.writer(stream)
        rows.writerow(header)
        for place, name in enumerate(NAMES):
            for copy in range(3):
                (folder / f"{place}-{copy}.jpg").write_bytes(jpeg(place // 2 * 3 + copy))
                rows.writerow([f"{place}-{copy}.jpg", name, f"{copy} {name}", *NAMES])
            (folder / f"{name.replace('/', '|')}.png").write_bytes(b"no image" if place % 2 else png(place)[:300])
            rows.writerow([f"{name.replace('/', '|')}.png", name, f"bad {name}", *NAMES])
    options = IngestOptions(
        source=str(folder / "table.csv"),
        out=str(folder / "out"),
        columns=TableColumns(key="key", extra=tuple(header[3:])),
        splits={"train": 0.7, "eval": 0.3},
        max_reject_ratio=1,
        near_duplicates="report",
    )
    run(options)
    finding = ("check", "split", "feature", "value", "limit", "remedy")
    compared = ("kind", "baseline", "split", "measure", "feature")
    verdict = {
        "mode": "report",
        "limits": dict.fromkeys(NAMES, NAMES[0]),
        "anomalies": dict.fromkeys(NAMES, 2),
        "findings": [dict.fromkeys(finding, name) for name in NAMES],
        "comparisons": [{**dict.fromkeys(compared, name), "value": 0.2, "limit": 0.1} for name in NAMES],
        "notes": list(NAMES),
    }
    details = RunDetails(
        steps=tuple(StepDetail(component=name, state=name, seconds=1.0) for name in NAMES),
        artifacts=tuple(
            ArtifactDetail(
                id=place + 1, type=name, producer=name, inputs=(place,) if place else (), properties={name: name}
            )
            for place, name in enumerate(NAMES)
        ),
    )
    return render(str(folder / "out"), verdict=verdict, run=details, source=str(folder))


def _bench() -> str:
    from trainer.bench.report import as_page

    every = " ".join(NAMES)
    given = figures(
        {every: (900.0, 900.0)},
        dataset=every,
        split=every,
        ops=every,
        device=every,
        model=every,
        ablation=tuple(ablated(name) for name in NAMES),
    )
    return as_page(given)


@pytest.mark.parametrize("kind", SCRIPTS)
def test_names_stay_names_wherever_they_stand(browser, pages, kind):
    page = browser.new_page()
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (wrong.append("dialog"), dialog.dismiss()))
    page.on("request", lambda request: wrong.append(request.url) if request.url.startswith("http") else None)
    page.goto(pages[kind].as_uri())
    for selector in ("summary", "[data-sort]", "[data-open]"):
        if page.locator(f"{selector}:visible").count():
            page.locator(f"{selector}:visible").first.click()
    page.keyboard.press("Escape")
    page.mouse.move(300, 300)
    page.wait_for_timeout(300)
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.scripts.length") == SCRIPTS[kind]
    assert list(foreign(page)) == []
    text = page.evaluate("document.documentElement.textContent")
    assert [name for name in NAMES if name.strip() not in text] == []
    assert page.title().endswith(("dataset report", "input bench"))
    assert wrong == []
    page.close()


_ATTACK = """url => {
  window.violations = [];
  addEventListener("securitypolicyviolation", event => window.violations.push(event.effectiveDirective));
  const add = (name, values) => document.body.append(Object.assign(document.createElement(name), values));
  add("script", { textContent: "window.hacked = 'inline'" });
  add("script", { src: url + "script" });
  add("img", { src: url + "image" });
  add("iframe", { src: url + "frame" });
  add("iframe", { srcdoc: `<img src=${url}inner>` });
  add("object", { data: url + "object" });
  add("video", { src: url + "video" });
  add("link", { rel: "stylesheet", href: url + "style" });
  add("style", { textContent: `@import "${url}import"; body { background: url(${url}background) }` });
  add("a", { href: "javascript:void(window.hacked='link')", id: "evil" });
  document.body.insertAdjacentHTML("beforeend", "<img style=color:red src=data:, onerror=window.hacked='handler'>");
  add("iframe", { name: "there" });
  document.body.insertAdjacentHTML("beforeend", `<form action=${url}form target=there><button id=send></form>`);
  fetch(url + "fetch", { mode: "no-cors" }).catch(() => 0);
  navigator.sendBeacon(url + "beacon", "x");
  try { new WebSocket(url.replace("http", "ws") + "socket"); } catch { /* refused at once */ }
  try { new EventSource(url + "events"); } catch { /* refused at once */ }
  try { new Worker(url + "worker"); } catch { /* refused at once */ }
  document.getElementById("evil").click();
  document.getElementById("send").click();
}"""


def attack(browser, path: Path) -> tuple[str | None, set[str], set[str]]:
    """Puts into a page what its names would like to be.

    Returns:
      what ran, the directives that were violated, and the paths that a server was asked for.
    """
    page = browser.new_page()
    page.goto(path.as_uri())
    with serving({}) as server:
        page.evaluate(_ATTACK, server.url("/"))
        page.wait_for_timeout(1500)
        ran, violated = page.evaluate("[window.hacked ?? null, window.violations]")
        asked = {found.strip("/?") for found in server.seen}
    page.context.close()
    return ran, set(violated), asked


@pytest.mark.parametrize("kind", SCRIPTS)
def test_the_policy_lets_nothing_foreign_run_and_nothing_leave(browser, pages, kind):
    ran, violated, asked = attack(browser, pages[kind])
    assert ran is None
    assert asked == set()
    blocked = {"script-src-elem", "script-src-attr", "style-src-attr", "img-src", "connect-src", "frame-src"}
    assert {*blocked, "form-action"} <= violated
