"""The report in a real browser: the front page lists every claim, figure and table, and no request fails."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image, ImageStat

from tests.support import miniature
from tests.support.browser import Browser, find, running
from tests.support.miniature import RESULTS
from workflow.bench.plan.artefacts import available

pytestmark = pytest.mark.skipif(find() is None, reason="no Chromium on the PATH to open the report in")

IS_OPEN = "document.querySelector('#front') !== null"
TO_THE_FRONT = "app.setView({navbarMode: 'menu', content: 'metadata'})"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of a pipeline run."""
    return miniature.finished(tmp_path_factory) / RESULTS


@pytest.fixture(scope="module")
def page(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """The report, copied to a folder of its own, in a browser."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "report.html").write_bytes((finished / "report.html").read_bytes())
    with running(folder / "profile") as browser:
        browser.open(folder / "report.html")
        browser.wait_for(IS_OPEN)
        yield browser


@pytest.fixture(autouse=True)
def _front_page(page: Browser) -> None:
    page.run(TO_THE_FRONT)
    page.wait_for(IS_OPEN)


def click(page: Browser, file: str) -> None:
    """Follow the front page's link to a file."""
    page.run(f"document.querySelector('#front a[href=\"#{file}\"]').click()")


def test_the_front_page_lists_every_claim_with_its_verdict(page, finished):
    with (finished / "tables" / "claims.csv").open(newline="") as file:
        claims = list(csv.DictReader(file))
    script = (
        "[...document.querySelectorAll('#front tr')].filter(row => row.querySelector('span.verdict'))"
        ".map(row => [row.cells[0].textContent, row.cells[1].textContent, "
        "row.querySelector('span.verdict').textContent, getComputedStyle(row.querySelector('span.verdict')).color])"
    )
    shown = page.run(script)
    assert [row[:3] for row in shown] == [[row["id"], row["claim"], row["verdict"]] for row in claims]
    assert {row[3] for row in shown} == {"rgb(255, 255, 255)"}, "words on colour"
    text = page.run("document.querySelector('#front').innerText")
    assert "embedded tier" in text
    assert "finished" in text


def test_the_front_page_can_be_read_from_its_top(page, tmp_path):
    assert page.run("document.querySelector('.prose h1').getBoundingClientRect().top") >= 0
    page.screenshot(tmp_path / "front.png")
    with Image.open(tmp_path / "front.png") as picture:
        assert min(picture.size) >= 800
        assert ImageStat.Stat(picture.convert("L")).stddev[0] > 10, "an empty page"


@pytest.mark.parametrize("name", available("figures"))
def test_every_figure_opens_with_its_caption(page, finished, name):
    click(page, f"figures/{name}.png")
    image = "[...document.querySelectorAll('img')].find(found => found.src.startsWith('data:image/png'))"
    page.wait_for(f"({image} || {{}}).complete")
    with Image.open(finished / "figures" / f"{name}.png") as picture:
        assert page.run(f"[{image}.naturalWidth, {image}.naturalHeight]") == list(picture.size)
    caption = " ".join((finished / "figures" / f"{name}.rst").read_text().replace("\\", "").split())
    assert caption in " ".join(page.run("document.querySelector('nav').innerText").split())


@pytest.mark.parametrize("name", available("tables"))
def test_every_table_opens_with_its_caption(page, finished, name):
    click(page, f"tables/{name}.html")
    page.wait_for("document.querySelector('iframe') !== null")
    source = page.run("atob(document.querySelector('iframe').src.split('base64,')[1]).length")
    assert source == (finished / "tables" / f"{name}.html").stat().st_size
    caption = " ".join((finished / "tables" / f"{name}.rst").read_text().replace("\\", "").split())
    assert caption in " ".join(page.run("document.querySelector('nav').innerText").split())


def test_every_link_of_the_front_page_leads_somewhere(page):
    dead = page.run(
        "[...document.querySelectorAll('#front a')].map(link => link.getAttribute('href').slice(1))"
        ".filter(file => !Object.keys(results).some(name => name.endsWith('/' + file)))"
    )
    assert dead == []


def test_nothing_was_asked_of_the_network_and_nothing_failed(page):
    """Runs last, after all artefacts were opened."""
    assert page.failures == []
    assert {url.partition(":")[0] for url in page.requests} <= {"file", "data", "blob"}
