"""The HTML reports of `toolwire check` in a real browser."""

from typing import Any

import pytest

from tests.check.test_reports import faulty, live
from tests.support.browser import browse
from toolwire.check.report import write_report
from toolwire.check.verdicts import Report

__all__ = ["faulty", "live"]

LOOK = """
const seen = {};
// Chromium on a busy machine sometimes says "Unable to capture screenshot" to a page that it has just laid out.
const shoot = async (page, path, left = 5) => {
  try {
    await page.screenshot({ path });
  } catch (error) {
    if (left === 0) throw error;
    await page.waitForTimeout(500);
    await shoot(page, path, left - 1);
  }
};
for (const [name, path, width, colorScheme] of given) {
  const page = await browser.newPage({ viewport: { width, height: 1600 }, colorScheme });
  const asked = [], errors = [];
  page.on("request", (request) => asked.push(request.url()));
  page.on("dialog", (dialog) => { errors.push("a script ran"); dialog.dismiss(); });
  page.on("console", (message) => errors.push(message.text()));
  page.on("pageerror", (error) => errors.push(error.message));
  await page.goto(`file://${path}.html`);
  const measure = () => page.evaluate(() => ({
    page: document.documentElement.scrollWidth,
    window: window.innerWidth,
    scrolled: [...document.querySelectorAll(".box")].filter((box) => box.scrollHeight > box.clientHeight).length,
    pictures: [...document.querySelectorAll("svg.timeline")].filter((svg) => svg.clientWidth > 100).length,
  }));
  const closed = await measure();
  await shoot(page, `${path}-${width}-${colorScheme}-top.png`);
  await page.evaluate(() => (document.querySelector("article") ?? document.querySelector("details")).scrollIntoView());
  await shoot(page, `${path}-${width}-${colorScheme}-rules.png`);
  await page.evaluate(() => document.querySelectorAll("details").forEach((each) => (each.open = true)));
  seen[name] = { closed, open: await measure(), asked, errors };
  await page.close();
}
"""
SIZES = [(width, scheme) for width in (375, 1280) for scheme in ("light", "dark")]


@pytest.fixture(scope="module")
def looked_at(faulty: Report, live: Report, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What Chromium says of both reports in every size. Screenshots lie beside them."""
    folder = tmp_path_factory.mktemp("reports")
    for name, report in (("faulty", faulty), ("live", live)):
        write_report(report, folder / f"{name}.html")
    pages = [(f"{n}-{w}-{s}", str(folder / n), w, s) for n in ("faulty", "live") for w, s in SIZES]
    return {**browse(LOOK, pages), "folder": folder}


@pytest.mark.parametrize("name", ["faulty", "live"])
@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_a_page_is_never_wider_than_its_window(looked_at: dict[str, Any], name: str, width: int, scheme: str):
    seen = looked_at[f"{name}-{width}-{scheme}"]
    for state in ("closed", "open"):
        assert seen[state]["page"] <= seen[state]["window"] == width
    for part in ("top", "rules"):
        picture = looked_at["folder"] / f"{name}-{width}-{scheme}-{part}.png"
        assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["faulty", "live"])
def test_a_page_loads_and_runs_nothing(looked_at: dict[str, Any], name: str):
    seen = looked_at[f"{name}-375-light"]
    assert seen["asked"] == [f"file://{looked_at['folder']}/{name}.html"]
    assert seen["errors"] == []


def test_long_bytes_scroll_inside_of_their_box(looked_at: dict[str, Any]):
    seen = looked_at["faulty-375-light"]["closed"]
    assert seen["scrolled"] > 0
    assert seen["pictures"] > 5
