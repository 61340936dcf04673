"""The site of a small results folder: what it says, what it escapes, what differs from the reference; descriptions."""

from __future__ import annotations

import base64
import html
import io
import json
import re
import shutil
import zlib
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markupsafe import Markup
from PIL import Image

from tests.support.synthetic_training import write_training
from workflow.bench import snakemake_report
from workflow.bench.analysis import descriptions
from workflow.bench.analysis.captions import as_rst
from workflow.bench.analysis.styles import style_of
from workflow.bench.figures._page import new_figure, save
from workflow.bench.plan.artefacts import Artefact, available, description
from workflow.bench.report import main
from workflow.bench.results.rows import read_csv, write_csv
from workflow.bench.results.sources import NamedRows, read_sources
from workflow.bench.site import machines
from workflow.bench.site.content import Content, describe
from workflow.bench.site.front_page import Facts
from workflow.bench.support.config import ROOT, ConfigError
from workflow.bench.support.templates import numbered

REFERENCE = ROOT / "results" / "reference" / "intel-xeon-2-cores" / "embedded"
HOSTILE = "<script>alert(1)</script>{{ 7*7 }}\"'"


def claim(name: str, verdict: str, **more: str) -> dict[str, str]:
    keys = (
        *("id", "verdict", "claim", "proxy", "quantity", "unit", "threshold", "wording", "published"),
        *("measured", "interval", "measured_interval"),
        *("confirmed_if", "published_inside", "smallest_visible", "seeds", "evidence", "why", "details"),
        *("source", "tier", "look", "data"),
    )
    row = dict.fromkeys(keys, "") | {"id": name, "verdict": verdict, "claim": f"claim {name}", "look": "1 of 1"}
    return row | {"data": "probes/cost_scaling.csv: optimizer=mkor"} | more


def part(name: str, **more: str) -> dict[str, str]:
    keys = ("id", "part", "verdict", "value", "low", "high", "is_ratio", "comparison", "bound", "published")
    return dict.fromkeys(keys, "") | {"id": name, "verdict": "confirmed"} | more


def write_results(folder: Path, verdicts: dict[str, str]) -> Path:
    rows = [claim(name, verdict, why=HOSTILE) for name, verdict in verdicts.items()]
    write_csv(folder / "tables" / "claims.csv", list(rows[0]), rows)
    parts = [part(name, part=HOSTILE, value="2", low="1.5", high="3", bound="1") for name in verdicts]
    write_csv(folder / "tables" / "claim_parts.csv", list(parts[0]), parts)
    (folder / "tables" / "claims.rst").write_text(as_rst("a caption"))
    (folder / "figures").mkdir()
    Image.new("RGB", (3, 2), "red").save(folder / "figures" / "fig14_cost_scaling.png")
    (folder / "figures" / "fig14_cost_scaling.rst").write_text(as_rst(f"mkor_h: {HOSTILE}"))
    return folder


class Tags(HTMLParser):
    """Collects elements, so that a test sees what a browser makes of the page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The site of a folder with hostile texts, beside that of a machine with another verdict."""
    folder = tmp_path_factory.mktemp("site")
    verdicts = {"C01": "confirmed", "C10": "refuted", "C11": "inconclusive"}
    own = write_results(folder / "here" / "embedded", verdicts)
    other = write_results(folder / "there" / "embedded", {**verdicts, "C10": "confirmed"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machines, "REFERENCE", folder / "there")
        assert main([f"--results={own}", f"--tier-title={HOSTILE}", "--compare", str(other)]) == 0
    return (own / "report.html").read_text()


def test_texts_from_files_and_settings_are_escaped(site):
    tags = Tags(site)
    assert [attributes for tag, attributes in tags.elements if tag == "script"] == [
        {"type": "application/json", "id": "runs-of-claims"},
        {"type": "application/json", "id": "curve-data"},
        {"type": "text/plain", "id": "vega"},
        {},
        {},
    ]
    assert site.count(html.escape(HOSTILE).replace("&#x27;", "&#39;").replace("&quot;", "&#34;")) > 5
    assert "{{ 7*7 }}" in tags.text, "no template is read in texts"
    assert "mkor_h: <script>" in tags.text, "the marks of reStructuredText are gone"


def test_nothing_is_loaded_from_elsewhere(site):
    addresses = [value for _, attributes in Tags(site).elements for key, value in attributes.items() if key == "src"]
    (address,) = addresses  # embedded once
    assert address is not None
    kind, _, picture = address.partition(",")
    assert kind == "data:image/webp;base64"
    with Image.open(io.BytesIO(base64.b64decode(picture))) as image:
        assert (image.size, image.convert("RGB").getpixel((1, 1))) == ((3, 2), (255, 0, 0))
    assert re.findall(r"(?:https?:)?//\w+\.\w+", re.sub(r"<style>.*?</style>", "", site, flags=re.DOTALL)) == []
    assert "default-src 'none'" in site


def test_a_verdict_that_is_not_the_reference_s_is_marked(site):
    rows = {
        attributes.get("data-verdict"): "data-differs" in attributes
        for tag, attributes in Tags(site).elements
        if tag == "tr" and "data-verdict" in attributes
    }
    assert rows == {"confirmed": False, "refuted": True, "inconclusive": False}
    assert "1 of 3 verdicts differs from the reference (there): C10." in Tags(site).text
    assert "≠ reference: confirmed" in Tags(site).text


def section(site: str, page: str) -> str:
    return site.partition(f'<section class="page" id="{page}">')[2].partition("</section>")[0]


def test_the_first_page_counts_the_verdicts_and_has_every_claim(site):
    summary = section(site, "summary")
    assert site.index('<section class="page"') == site.index('<section class="page" id="summary">')
    for verdict in ("confirmed", "refuted", "inconclusive"):
        assert re.search(rf'href="#claims\?verdict={verdict}">{verdict} <b>1</b>', summary)
    for claim_id in ("C01", "C10", "C11"):
        assert re.search(rf'<a href="#claim/{claim_id}"><b>{claim_id}</b> claim {claim_id}</a>', summary)
    assert "2 [1.5, 3]" in summary


def test_findings_are_those_that_the_results_support_with_links(tmp_path):
    """Truth: the committed tables, and the same tables with another verdict."""
    results = tmp_path / "here" / "embedded"
    shutil.copytree(REFERENCE / "tables", results / "tables")

    def headlines() -> list[str]:
        assert main([f"--results={results}", "--tier-title=embedded tier"]) == 0
        summary = section((results / "report.html").read_text(), "summary")
        assert not re.search(r"<p>[^<]*\(C20\)", summary), "claims are links"
        return [Tags(item).text for item in re.findall(r"<li[^>]*><b>(.*?)</b><p>", summary)]

    before = headlines()
    file = results / "tables" / "claims.csv"
    rows = [row | ({"verdict": "refuted"} if row["id"] == "C20" else {}) for row in read_csv(file)]
    write_csv(file, list(rows[0]), rows)
    printed = "The printed update rule is not the one that works."
    assert set(before) - set(headlines()) == {printed}


def test_the_first_page_of_the_field_names_those_with_the_fewest_iterations(tmp_path):
    """Truth: the kept table, sorted here."""
    results = write_results(tmp_path / "here" / "field", {"C01": "not tested"})
    table = read_csv(Facts.read().field / "tables" / "field_results.csv")
    write_csv(results / "tables" / "field_results.csv", list(table[0]), table)
    assert main([f"--results={results}", "--tier-title=field tier"]) == 0
    summary = Tags(section((results / "report.html").read_text(), "summary")).text
    rows = [row for row in table if row["experiment"] == "field_alexnet" and row["steps / base"]]
    first, *_, last = sorted(rows, key=lambda row: float(row["steps / base"]))
    for row, is_named in ((first, True), (last, False)):
        text = f"{style_of(row['optimizer']).name} {float(row['steps / base']):.3g} ["
        assert (text in summary) == is_named, text
    assert "Claim by claim" not in summary


def test_a_figure_that_is_no_picture_is_named(tmp_path, capsys):
    results = write_results(tmp_path / "here" / "embedded", {"C01": "confirmed"})
    (results / "figures" / "fig14_cost_scaling.png").write_bytes(b"no picture")
    assert main([f"--results={results}", "--tier-title=embedded tier"]) == 1
    error = capsys.readouterr().err
    assert re.fullmatch(r".*fig14_cost_scaling\.png: damaged: .*; delete it and run again\n", error)
    assert not (results / "report.html").exists()


def test_the_site_has_the_curves_of_the_experiments_and_their_library(tmp_path):
    results = write_results(write_training(tmp_path / "here" / "embedded"), {"C01": "confirmed"})
    assert main([f"--results={results}", "--tier-title=embedded tier"]) == 0
    site = (results / "report.html").read_text()
    data = json.loads(site.partition('id="curve-data">')[2].partition("</script>")[0])
    assert sorted(data) == ["alexnet_cifar100", "bert_base_squad", "bert_imdb", "resnet50_imagenet"]
    packed = site.partition('id="vega">')[2].partition("</script>")[0]
    assert b"vegaLite" in zlib.decompress(base64.b64decode(packed))
    assert 'data-experiment="bert_imdb"' in section(site, "curves/bert_imdb")
    assert 'href="#curves/bert_imdb"' in section(site, "curves")


def test_a_claim_links_the_figure_of_its_data_and_the_figure_the_claim(site):
    assert re.search(
        r'<section class="page" id="claim/C10">.*?href="#figure/fig14_cost_scaling".*?</section>', site, re.DOTALL
    )
    assert 'href="#claim/C10"' in section(site, "figure/fig14_cost_scaling")


def test_a_page_of_results_that_test_no_claim_says_so(tmp_path):
    results = write_results(tmp_path / "here" / "field", {"C01": "not tested", "C02": "not tested"})
    assert main([f"--results={results}", "--tier-title=field tier"]) == 0
    assert "These runs test no claim" in (results / "report.html").read_text()
    write_results(tmp_path / "there" / "field", {"C01": "not tested", "C02": "refuted"})
    assert main([f"--results={tmp_path / 'there' / 'field'}", "--tier-title=field tier"]) == 0
    assert "These runs test no claim" not in (tmp_path / "there" / "field" / "report.html").read_text()


def test_a_name_stays_on_one_line_with_its_number():
    assert (
        numbered("ResNet-50 < rank-1") == '<span class="whole">ResNet-50</span> &lt; <span class="whole">rank-1</span>'
    )
    assert numbered("MKOR-H's O(d²); d-1 of 3 - 4") == 'MKOR-H&#39;s O(d²); <span class="whole">d-1</span> of 3 - 4'


def test_tables_with_a_number_come_first(tmp_path):
    results = write_results(tmp_path / "here" / "embedded", {"C01": "confirmed"})
    for name in ("aa_test", "table2_squad", "table1_complexity"):
        write_csv(results / "tables" / f"{name}.csv", ["a"], [{"a": "1"}])
        (results / "tables" / f"{name}.rst").write_text(as_rst("a caption"))
    shown = [table.name for table in Content(results, "embedded tier", ()).shown["tables"]]
    assert shown == ["table1_complexity", "table2_squad", "aa_test", "claims"]


def test_seeds_are_stated_as_ranges(tmp_path):
    runs = [{"run": f"{seed}", "status": "finished", "git_commit": "", "seed": f"{seed}"} for seed in (0, 1, 2, 10, 3)]
    write_csv(tmp_path / "x.runs.csv", list(runs[0]), runs)
    assert Content(tmp_path, "embedded tier").facts["Seeds"] == "0-3, 10"


def test_a_folder_without_claims_still_has_a_site(tmp_path, capsys):
    results = tmp_path / "here" / "embedded"
    results.mkdir(parents=True)
    assert main([f"--results={results}", "--tier-title=embedded tier"]) == 0
    page = (results / "report.html").read_text()
    assert "The table of claims was not made." in page
    assert "No other machine" in page


def test_the_reference_is_that_of_the_same_hardware(tmp_path):
    for name in ("a-cpu", "b-cpu", "mine"):
        write_csv(
            tmp_path / "reference" / name / "t" / "tables" / "claims.csv", ["id", "claim", "verdict"], [{"id": "C01"}]
        )
    compared = sorted((tmp_path / "reference").glob("*/t"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machines, "REFERENCE", tmp_path / "reference")
        own, *others = machines.gather(tmp_path / "results" / "mine" / "t", compared)
        (_, first, *_) = machines.gather(tmp_path / "results" / "new" / "t", compared)
    assert own.name == "mine (this run)"
    assert [machine.name for machine in others if machine.is_reference] == ["mine (reference)"]
    assert (first.is_reference, first.name) == (True, "a-cpu (reference)")
    assert [machine.name for machine in others if not machine.is_reference] == ["a-cpu", "b-cpu"]


def test_times_of_machines_stand_side_by_side():
    keys = ("quantity", "optimizer", "machine", "repeats or runs", "reached", "iterations", "iterations measured on")
    rows = [
        dict.fromkeys((*keys, "measured", "projected", "data"), "") | row
        for row in (
            {"quantity": "ms", "optimizer": "mkor", "machine": "a", "measured": "3"},
            {"quantity": "ms", "optimizer": "mkor", "machine": "b", "measured": "4"},
            {"quantity": "s", "optimizer": "mkor", "machine": "b", "projected": "9"},
        )
    ]
    assert machines.side_by_side(rows) == [
        {"quantity": "ms", "optimizer": "mkor", "a": "3", "b": "4"},
        {"quantity": "s", "optimizer": "mkor", "a": "", "b": "9 projected"},
    ]


def test_the_committed_tables_name_sources_that_can_be_read_again():
    """Truth: the texts themselves, put together again."""
    for row in read_csv(REFERENCE / "tables" / "table2_squad.csv"):
        assert {source.file for source in read_sources(row["data"])} == set(re.findall(r"[\w/.]+\.csv", row["data"]))
    shown = read_sources("a.csv: runs x, y; p.csv: optimizer=mkor, d=3; a.csv: runs y, z; q.csv")
    assert shown == (
        NamedRows("a.csv", ("x", "y", "z")),
        NamedRows("p.csv", (), ("optimizer=mkor, d=3",)),
        NamedRows("q.csv"),
    )
    assert read_sources("") == ()


@pytest.mark.parametrize("command", [main, snakemake_report.main])
def test_no_report_is_made_of_a_file_that_a_link_leads_to(tmp_path, capsys, command):
    results = write_results(tmp_path / "here" / "embedded", {"C01": "confirmed"})
    figure = results / "figures" / "fig14_cost_scaling.png"
    figure.rename(tmp_path / "private")
    figure.symlink_to(tmp_path / "private")
    before = set(results.rglob("*"))
    assert command([f"--results={results}", "--tier-title=embedded tier"]) == 1
    assert capsys.readouterr().err == (
        f"{figure}: is a link, to {tmp_path / 'private'}; put the file or folder itself in its place\n"
    )
    assert set(results.rglob("*")) == before


# Titles and readings of figures and tables


@pytest.mark.parametrize("name", [*available("figures"), *available("tables")])
def test_every_figure_and_table_has_a_title_for_people_and_a_reading(name):
    shown = describe(name)
    assert not re.fullmatch(r"(Figure|Table)\s\d+", shown.title), "the number alone is no title"
    assert len(shown.title.partition(" (")[0]) < 50
    # Tier, machine and seeds are added to captions in each run; braces of a template would appear in the report.
    assert "{{" not in (ROOT / "workflow" / "report" / f"{name}.rst").read_text()
    number = re.match(r"(fig|table)0*(\d+)_", name)
    if number:
        word = "Figure" if number[1] == "fig" else "Table"
        place = ", appendix" if name.endswith("_appendix") else ""
        assert shown.title.endswith(f"({word}\u00a0{number[2]}{place})"), shown.title
    if name.startswith("fig"):
        sentences = re.findall(r"[.:?](?= [A-Z(]|$)", re.sub(r"<.*?>", "", str(shown.paragraphs[0])))
        least = 1 if name.endswith("_appendix") else 2  # the figure's own page says how to read both
        assert least <= len(sentences) <= 3, f"two sentences, not {len(sentences)}: {shown.paragraphs[0]}"


def test_a_description_is_split_into_title_reading_and_more(tmp_path, monkeypatch):
    monkeypatch.setattr(descriptions, "REPORT", tmp_path)
    (tmp_path / "x.rst").write_text("**A title (Figure 3).** One sentence.\nAnother.\n\nMore of it.\n")
    (tmp_path / "fig99.rst").write_text("No title.")
    assert descriptions.described("x") == ("A title (Figure 3)", ("One sentence. Another.", "More of it."))
    with pytest.raises(ConfigError, match=r"workflow/report/fig99\.rst must begin with '\*\*<title>\.\*\*'"):
        descriptions.described("fig99")


@pytest.mark.parametrize(
    ("name", "title", "place"),
    [("fig14_cost_scaling", "Cost over the width of a layer", "Figure 14. "), ("x", "", "")],
)
def test_a_figure_begins_with_the_title_of_its_page(name, title, place, tmp_path):
    figure, _ = new_figure(1, 1, height=1)
    save(figure, tmp_path, name, legend=[], caption="A caption.")
    assert [text.get_text() for text in figure.texts] == [*filter(None, [title]), f"{place}A caption."]


def test_an_artefact_without_a_description_has_its_name_as_the_title():
    """A figure of one's own is drawn, and stands in the reports, before it is described."""
    assert describe("fig99_of_my_own") == descriptions.Described("fig99_of_my_own", (Markup(),))
    assert description(Artefact("figures", "fig99_of_my_own")) == ""
    assert description(Artefact("figures", "fig01_mkor_diagram")).endswith("workflow/report/fig01_mkor_diagram.rst")
