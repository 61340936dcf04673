"""The site in a real browser: its pages at three widths, links, filters, sorting, zoom and Back; no request fails."""

from __future__ import annotations

import base64
import itertools
import json
import os
import re
import select
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from PIL import Image, ImageStat

from tests.support import miniature
from tests.support.experiments import rows
from tests.support.miniature import RESULTS
from workflow.bench.analysis.captions import from_rst

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
CHROMIUM = next((path for name in NAMES if (path := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH to open the report in")

PAGES = "[...document.querySelectorAll('section.page')].map(page => page.id)"
SHOWN = "[...document.querySelectorAll('section.page.shown')].map(page => page.id)"
BACKGROUND = "(element => getComputedStyle(element).backgroundColor)"
VISIBLE_ROWS = "[...document.querySelectorAll('#claim-table tbody tr')].filter(row => row.offsetHeight).length"


class Browser:
    """One tab of a headless Chromium, controlled through its DevTools protocol over two pipes, without a port.

    ``requests`` and ``failures`` record its network traffic and errors.
    """

    def __init__(self, write_to: int, read_from: int, seconds: float) -> None:
        self._write_to, self._read_from = write_to, read_from
        self._seconds = seconds
        self._ids = itertools.count(1)
        self._unread = b""
        self._session: str | None = None
        self._events: list[dict[str, Any]] = []
        self.requests: list[str] = []
        """Requested URLs in their order."""
        self.failures: list[str] = []
        """Requests that failed, uncaught errors of scripts, and errors on the console."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Network", "Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result; `RuntimeError` if it failed, `TimeoutError` if late."""
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write_to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, page: Path) -> None:
        """Open a file and wait until it is loaded."""
        self.call("Page.navigate", url=page.resolve().as_uri())
        self.wait_for("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression; `RuntimeError` if it throws."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait_for(self, script: str) -> None:
        """Wait until an expression is true; `TimeoutError` if it takes too long."""
        until = time.monotonic() + self._seconds
        while not self.run(script):
            if time.monotonic() > until:
                raise TimeoutError(f"not true after {self._seconds:g} s: {script}")
            time.sleep(0.05)

    def screenshot(self, file: Path) -> None:
        """Write a screenshot of the tab as PNG."""
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._read_from], [], [], self._seconds)
            if not ready:
                raise TimeoutError(f"no message from the browser for {self._seconds:g} s")
            part = os.read(self._read_from, 1 << 20)
            if not part:
                raise RuntimeError("the browser ended")
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        found = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(found["request"]["url"])
            case "Network.loadingFailed":
                self.failures.append(f"request: {found['errorText']}")
            case "Runtime.exceptionThrown":
                self.failures.append(f"script: {found['exceptionDetails']}")
            case "Log.entryAdded" if found["entry"]["level"] == "error":
                self.failures.append(f"log: {found['entry']['text']} {found['entry'].get('url', '')[:200]}")


@contextmanager
def running(profile: Path, *, seconds: float = 60) -> Iterator[Browser]:
    """Run a browser with its settings in ``profile``; ``seconds`` is the longest time for an answer."""
    to_browser, from_browser = os.pipe(), os.pipe()
    command = [
        *(str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *("--remote-debugging-pipe", "--window-size=1400,1000", "--no-first-run", "--disable-background-networking"),
        "--disable-component-update",
        "--disable-ipc-flooding-protection",  # it ignores a change of address after 200 others in ten seconds
        *("--disable-sync", "--disable-default-apps", f"--user-data-dir={profile}"),
    ]
    # Chromium reads the protocol from descriptor 3 and answers on 4.
    script = f'exec "$@" 3<&{to_browser[0]} 4>&{from_browser[1]}'
    process = subprocess.Popen(
        ["bash", "-c", script, "bash", *command],
        pass_fds=(to_browser[0], from_browser[1]),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for descriptor in (to_browser[0], from_browser[1]):
        os.close(descriptor)
    try:
        browser = Browser(to_browser[1], from_browser[0], seconds)
        yield browser
        browser.call("Browser.getVersion")
    finally:
        for descriptor in (to_browser[1], from_browser[0]):
            os.close(descriptor)
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of a pipeline run."""
    return miniature.finished(tmp_path_factory) / RESULTS


@pytest.fixture(scope="module")
def page(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """The site, copied to a folder of its own, in a browser."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "report.html").write_bytes((finished / "report.html").read_bytes())
    with running(folder / "profile") as browser:
        browser.open(folder / "report.html")
        yield browser


@pytest.fixture(autouse=True)
def _first_page(page: Browser) -> None:
    go(page, "claims")


def go(page: Browser, address: str) -> None:
    """Open a page of the site and wait until it is shown."""
    page.run(f"location.hash = '{address}'")
    page.wait_for(f"{SHOWN}.join() === '{address.partition('?')[0]}'")


def claims_of(finished: Path) -> list[dict[str, str]]:
    """Return the rows of the table of claims."""
    return rows(finished / "tables" / "claims.csv")


def type_into(page: Browser, holder: str, text: str) -> None:
    """Search in a table or list."""
    field = f"document.querySelector('input[data-filters={holder}]')"
    page.run(f"{field}.value = '{text}'; {field}.dispatchEvent(new Event('input'))")


def test_the_first_page_lists_every_claim_with_its_verdict_and_an_interval(page, finished):
    cells = "['.id', '.verdict', 'td.claim', 'td.quantity', 'td.threshold']"
    shown = page.run(
        "[...document.querySelectorAll('#claim-table tbody tr')]"
        f".map(row => {cells}.map(name => row.querySelector(name).textContent))"
    )
    columns = ("id", "verdict", "claim", "quantity", "confirmed_if")
    assert shown == [[row[column] for column in columns] for row in claims_of(finished)]
    measured = Counter(part["id"] for part in rows(finished / "tables" / "claim_parts.csv") if part["value"])
    pages = "[...document.querySelectorAll('section.page[id^=\"claim/\"]')]"
    pictures = page.run(f"{pages}.map(page => [page.id.slice(6), page.querySelectorAll('svg.interval').length])")
    assert dict(pictures) == {row["id"]: measured[row["id"]] for row in claims_of(finished)}
    assert "embedded tier" in page.run("document.querySelector('#claims').innerText")


def test_the_site_opens_on_what_was_found(page, finished):
    """The first page alone has the tier, the verdicts' counts, and every claim with its verdict."""
    page.open(Path(page.run("decodeURIComponent(location.pathname)")))
    page.wait_for(f"{SHOWN}.join() === 'summary'")
    text = page.run("document.querySelector('#summary').innerText")
    assert "embedded tier" in text
    verdicts = Counter(row["verdict"] for row in claims_of(finished))
    tally = page.run("[...document.querySelectorAll('.tally span')].map(part => [part.className, part.textContent])")
    assert {name.replace("-", " "): int(number) for name, number in tally} == dict(verdicts)
    for verdict in verdicts:
        group = page.run(f"document.querySelector('.by-verdict .{verdict.replace(' ', '-')}').textContent")
        assert all(row["claim"] in group for row in claims_of(finished) if row["verdict"] == verdict)


CHART = "document.querySelector('.page.shown .curves')"
LINES = f"{CHART}.querySelectorAll('.plot .mark-line path[stroke]').length"


def test_curves_are_switched_on_and_off_by_name(page):
    go(page, "curves/update_rules")
    names = f"[...{CHART}.querySelectorAll('.names label')]"
    page.wait_for(f"{LINES} > 1")
    total = page.run(f"{names}.length")
    assert page.run(LINES) == total
    page.run(f"{names}[0].querySelector('input').click()")
    page.wait_for(f"{LINES} === {total - 1}")
    page.run(f"[...{CHART}.querySelectorAll('button')].find(button => button.textContent === 'All off').click()")
    page.wait_for(f"{LINES} === 0")
    page.run(f"[...{CHART}.querySelectorAll('button')].find(button => button.textContent === 'All on').click()")
    page.wait_for(f"{LINES} === {total}")


def test_the_values_below_the_pointer_are_those_of_the_file(page, finished):
    """Truth: the medians of the evaluations in update_rules.csv, of two seeds the mean."""
    go(page, "curves/update_rules")
    page.wait_for(f"{LINES} > 1")
    page.run(f"{CHART}.scrollIntoView()")
    plot = f"{CHART}.querySelector('svg .background').getBoundingClientRect()"
    box = page.run(f"(box => [box.x, box.y, box.width, box.height])({plot})")
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] + box[2] * 0.49, y=box[1] + box[3] / 2)
    page.wait_for(f"{CHART}.querySelector('.key b').textContent.startsWith('After')")
    shown = page.run(
        f"{CHART}.querySelector('.names label').title + '|' + {CHART}.querySelector('.names output').textContent"
    )
    label, value = shown.split(":")[0], shown.split("|")[1]
    middle = (label, "autoencoder", "validation", "loss", "2")  # of the steps 0, 2 and 4
    keys = ("optimizer", "workload", "split", "metric", "step")
    evaluated = [
        float(row["value"]) for row in rows(finished / "update_rules.csv") if tuple(row[key] for key in keys) == middle
    ]
    assert float(value.split()[0]) == pytest.approx(median(evaluated), rel=0.02)


def test_a_term_leads_to_its_entry_in_the_glossary(page):
    go(page, "claims")
    page.run("document.querySelector('#claims a.term').click()")
    page.wait_for(f"{SHOWN}.join() === 'glossary'")
    entry = "document.getElementById(location.hash.slice(1)).getBoundingClientRect()"
    assert page.run(f"{entry}.top >= 0 && {entry}.bottom <= innerHeight")


def test_a_verdict_filters_the_claims_and_back_undoes_it(page, finished):
    verdicts = [row["verdict"] for row in claims_of(finished)]
    assert page.run(VISIBLE_ROWS) == len(verdicts)
    page.run("document.querySelector('.chip.refuted').click()")
    page.wait_for(f"{VISIBLE_ROWS} === {verdicts.count('refuted')}")
    page.run("[...document.querySelectorAll('#claim-table td.claim a')].find(link => link.offsetHeight).click()")
    first = claims_of(finished)[verdicts.index("refuted")]
    page.wait_for(f"{SHOWN}.join() === 'claim/{first['id']}'")
    assert first["claim"] in page.run("document.title")
    page.run("history.back()")
    page.wait_for(f"{SHOWN}.join() === 'claims' && {VISIBLE_ROWS} === {verdicts.count('refuted')}")
    page.run("history.back()")
    page.wait_for(f"{VISIBLE_ROWS} === {len(verdicts)}")


def test_a_search_says_what_it_finds(page, finished):
    found = "document.querySelector('#claims .found').textContent"
    type_into(page, "claim-table", "positive DEFINITE")
    assert (page.run(VISIBLE_ROWS), page.run(found)) == (1, f"1 of {len(claims_of(finished))}")
    type_into(page, "claim-table", "no such claim")
    assert (page.run(VISIBLE_ROWS), page.run(found)) == (0, "No claim matches.")
    type_into(page, "claim-table", "")
    assert page.run(found) == ""


def test_a_page_begins_at_the_top_although_its_id_is_the_address(page):
    go(page, "about")
    page.call("Emulation.setDeviceMetricsOverride", width=420, height=600, deviceScaleFactor=1, mobile=False)
    page.run("document.querySelector('.top nav a[href$=claims]').click()")
    page.wait_for(f"{SHOWN}.join() === 'claims'")
    page.run("document.querySelector('#claim-table td.claim a').click()")
    page.wait_for(f"{SHOWN}.join() === 'claim/C01'")
    page.run("new Promise(done => requestAnimationFrame(() => setTimeout(done, 100)))")
    assert page.run("scrollY") == 0
    page.call("Emulation.clearDeviceMetricsOverride")


def test_the_link_to_the_content_stays_on_its_page(page):
    go(page, "tables")
    page.run("document.querySelector('.skip').focus()")
    press(page, "Enter")
    assert page.run("document.activeElement.id") == "main"
    assert page.run(f"{SHOWN}.join() + location.hash") == "tables#tables"


def test_groups_of_a_long_table_open_together_by_a_filter_and_alone(page):
    go(page, "runs")
    rows = "[...document.querySelectorAll('#run-table tbody tr:not(.group)')]"
    visible = f"{rows}.filter(row => row.offsetHeight).length"
    total = page.run(f"{rows}.length")
    folds = page.run("document.querySelectorAll('#run-table .fold').length")
    assert folds > 1
    assert page.run(visible) == 0
    page.run("document.querySelector('#run-table .fold').click()")
    assert 0 < page.run(visible) < total
    page.run("document.querySelector('[data-unfolds=run-table]').click()")
    assert page.run(visible) == total
    page.run("document.querySelector('[data-unfolds=run-table]').click()")
    assert page.run(visible) == 0
    type_into(page, "run-table", "mkor")
    assert 0 < page.run(visible) < total
    assert page.run("document.querySelectorAll('#run-table .fold[aria-expanded=true]').length") == folds
    type_into(page, "run-table", "")
    assert page.run(visible) == 0


@pytest.mark.parametrize("width", [1400, 900, 420])
def test_no_page_scrolls_sideways(page, width):
    """Truth: the window's width. Groups of rows and lists of files are opened too."""
    go(page, "about")  # so that the loop changes the address to each page
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    wide = page.run(
        "(async () => { const wide = [];"
        f"for (const id of {PAGES}) {{ location.hash = id; await new Promise(done => setTimeout(done, 30));"
        "  const root = document.documentElement; const shown = document.querySelector('.shown');"
        "  const boxes = [...shown.querySelectorAll('.scroll')];"
        "  const isWide = () => root.scrollWidth > root.clientWidth"
        "    || boxes.some(box => box.scrollWidth > box.clientWidth + 1);"
        "  if (shown.id !== id || isWide()) wide.push(id);"
        "  shown.querySelectorAll('[data-unfolds]').forEach(button => button.click());"
        "  if (isWide()) wide.push(`${id} with open groups`);"
        "  const lists = [...shown.querySelectorAll('td details')].slice(0, 3);"
        "  lists.forEach(list => { list.open = true; });"
        "  if (lists.length) await new Promise(done => setTimeout(done, 30));"
        "  if (isWide()) wide.push(`${id} with open lists`);"
        "  lists.forEach(list => { list.open = false; });"
        "  shown.querySelectorAll('[data-unfolds]').forEach(button => button.click()); }"
        "return wide; })()"
    )
    page.call("Emulation.clearDeviceMetricsOverride")
    assert wide == []


def test_every_figure_is_whole_and_its_page_names_what_it_shows(page, finished):
    for name in sorted(file.stem for file in (finished / "figures").glob("*.png")):
        go(page, f"figure/{name}")
        page.wait_for(f"document.getElementById('{name}').complete")
        with Image.open(finished / "figures" / f"{name}.png") as picture:
            size = page.run(f"(image => [image.naturalWidth, image.naturalHeight])(document.getElementById('{name}'))")
            assert size == list(picture.size), name
        caption = " ".join(from_rst((finished / "figures" / f"{name}.rst").read_text()).split())
        assert caption in " ".join(page.run("document.querySelector('.shown').textContent").split())


def test_figures_and_claims_link_each_other(page):
    links = page.run(
        "[...document.querySelectorAll('section.page')].flatMap(page =>"
        '[...page.querySelectorAll(\'a[href^="#claim/"], a[href^="#figure/"]\')]'
        ".filter(link => !link.closest('.neighbours')).map(link => [page.id, link.hash.slice(1)]))"
    )
    pairs = {tuple(link) for link in links}
    forth = {pair for pair in pairs if pair[0].startswith("claim/") and pair[1].startswith("figure/")}
    back = {pair for pair in pairs if pair[0].startswith("figure/") and pair[1].startswith("claim/")}
    assert len(forth) >= 15
    assert back == {(figure, claim) for claim, figure in forth}
    of_costs = [figure for claim, figure in links if claim == "claim/C11"]
    assert of_costs[0] == "figure/fig14_cost_scaling", "the figure of these data alone comes first"


def test_the_enlarged_figure_grows_and_closes_by_keys_and_by_back(page):
    address = "figure/fig14_cost_scaling"
    go(page, address)
    is_open = "document.querySelector('#zoom').open"
    width = "document.querySelector('#zoom img').getBoundingClientRect().width"
    page.run("document.querySelector('.shown .button').click()")
    page.wait_for(is_open)
    before = page.run(width)
    scrolls = "(box => box.scrollHeight > box.clientHeight || box.scrollWidth > box.clientWidth)"
    assert not page.run(f"{scrolls}(document.querySelector('#zoom .canvas'))"), "the whole figure fits the window"
    assert page.run("getComputedStyle(document.documentElement).overflowY") == "hidden", "the page stays behind it"
    press(page, "+")
    assert page.run(width) == pytest.approx(1.5 * before, rel=0.01)
    press(page, "0")
    place = "(box => [(650 - box.x) / box.width, (500 - box.y) / box.height])(zoomed.getBoundingClientRect())"
    page.run("window.zoomed = document.querySelector('#zoom img')")
    below = page.run(place)
    page.run("zoomed.dispatchEvent(new MouseEvent('click', {clientX: 650, clientY: 500}))")
    assert page.run(width) == pytest.approx(2 * before, rel=0.01)
    assert page.run(place) == pytest.approx(below, abs=0.01), "what was below the pointer still is"
    press(page, "Escape")
    page.wait_for(f"!{is_open} && location.hash === '#{address}'")
    page.run("document.querySelector('.shown a.picture').click()")
    page.wait_for(is_open)
    page.run("history.back()")
    page.wait_for(f"!{is_open}")


def press(page: Browser, key: str, **more: Any) -> None:
    """Press a key."""
    code = {"Escape": 27, "Tab": 9, "Enter": 13}.get(key, ord(key[0]))
    text = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
    for kind in ("keyDown", "keyUp"):
        pressed = text if kind == "keyDown" else {}
        page.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **pressed, **more)


def test_a_table_is_sorted_by_its_headings_with_the_keyboard(page):
    go(page, "table/published_consistency")
    heads = page.run("[...document.querySelectorAll('.shown thead th')].map(head => head.textContent.trim())")
    column = heads.index("implied")
    values = f"[...document.querySelectorAll('.shown tbody tr')].map(row => row.cells[{column}].textContent)"
    listed = numbers_of(page.run(values))
    page.run(f"document.querySelectorAll('.shown thead button')[{column}].focus()")
    press(page, "Enter")
    assert numbers_of(page.run(values)) == sorted(listed) != listed
    press(page, "Enter")
    assert numbers_of(page.run(values)) == sorted(listed, reverse=True)
    assert page.run(f"document.querySelectorAll('.shown th')[{column}].ariaSort") == "descending"


def numbers_of(texts: list[str]) -> list[float]:
    """Return the number at the beginning of each text."""
    return [float(match[0]) for text in texts if (match := re.match(r"[-+]?[\d.]+", text))]


def test_a_claim_s_runs_are_those_that_its_row_names(page, finished):
    claim = next(row for row in claims_of(finished) if row["id"] == "C09")
    go(page, "runs?claim=C09")
    rows = "[...document.querySelectorAll('#run-table tbody tr:not(.group)')].filter(row => row.offsetHeight)"
    shown = page.run(f"{rows}.map(row => row.cells[row.cells.length - 1].textContent)")
    assert shown
    assert all(run in claim["data"] for run in shown)
    assert len(set(shown)) == len(set(claim["data"].replace(",", "").partition("runs ")[2].split()))


def test_every_link_leads_to_a_page_or_a_file(page, finished):
    links = page.run("[...new Set([...document.querySelectorAll('a')].map(link => link.getAttribute('href')))]")
    pages = set(page.run("[...document.querySelectorAll('[id]')].map(element => element.id)")) | {"everything"}
    inside = {link[1:].partition("?")[0] for link in links if link.startswith("#")}
    assert inside - pages == set()
    files = [link for link in links if not link.startswith("#")]
    assert len(files) > 50
    assert [link for link in files if not (finished / link).is_file()] == []


def test_the_page_follows_the_colors_of_the_system_and_prints_without_its_menu(page):
    background = f"{BACKGROUND}(document.body)"
    light = page.run(background)
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    dark = page.run(background)
    page.call("Emulation.setEmulatedMedia", media="print")
    menu = page.run("getComputedStyle(document.querySelector('header')).display")
    labels = page.run("[...document.querySelectorAll('label')].filter(label => label.offsetHeight).length")
    badges = page.run(f"[...document.querySelectorAll('.verdict')].map(badge => {BACKGROUND}(badge))")
    page.call("Emulation.setEmulatedMedia", media="", features=[])
    assert (light, menu, labels) == ("rgb(255, 255, 255)", "none", 0)
    assert set(badges) == {"rgba(0, 0, 0, 0)"}, "black letters on paper"
    assert sum(int(part) for part in dark[4:-1].split(",")) < 150


def test_machines_can_be_reduced_to_the_claims_on_which_they_differ(page):
    go(page, "machines")
    rows = "[...document.querySelectorAll('#verdicts-by-machine tbody tr')]"
    marked = page.run(f"{rows}.filter(row => row.querySelector('.mark')).length")
    total = page.run(f"{rows}.length")
    box = "document.querySelector('[data-only-marked]')"
    page.run(f"{box}.click()")
    assert page.run(f"{rows}.filter(row => row.offsetHeight).length") == marked < total
    page.run(f"{box}.click()")
    assert page.run(f"{rows}.filter(row => row.offsetHeight).length") == total


def test_tables_are_fitted_to_paper_before_they_are_printed(page):
    go(page, "table/table1_complexity")
    page.call("Emulation.setDeviceMetricsOverride", width=1400, height=900, deviceScaleFactor=1, mobile=False)
    page.run("dispatchEvent(new Event('beforeprint'))")
    page.call("Emulation.setDeviceMetricsOverride", width=718, height=900, deviceScaleFactor=1, mobile=False)
    page.call("Emulation.setEmulatedMedia", media="print")
    overhang = page.run("document.documentElement.scrollWidth - innerWidth")
    page.call("Emulation.setEmulatedMedia", media="")
    page.call("Emulation.clearDeviceMetricsOverride")
    page.run("dispatchEvent(new Event('afterprint'))")
    assert overhang <= 0
    assert not page.run("document.body.classList.contains('paper')")


def test_the_first_page_is_drawn(page, tmp_path):
    page.screenshot(tmp_path / "claims.png")
    with Image.open(tmp_path / "claims.png") as picture:
        assert min(picture.size) >= 800
        assert ImageStat.Stat(picture.convert("L")).stddev[0] > 10, "an empty page"


def test_nothing_was_asked_of_the_network_and_nothing_failed(page):
    """Runs last, after all pages were opened."""
    assert page.failures == []
    assert {url.partition(":")[0] for url in page.requests} <= {"file", "data"}
