"""Titles and readings of figures and tables."""

from __future__ import annotations

import re

import pytest
from markupsafe import Markup

from workflow.bench.analysis.descriptions import parse
from workflow.bench.figures._page import save
from workflow.bench.figures._style import new_figure
from workflow.bench.plan.artefacts import Artefact, available, description
from workflow.bench.site.descriptions import Description, describe, inline
from workflow.bench.support.config import ConfigError

NAMES = [*available("figures"), *available("tables")]


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_and_table_has_a_title_for_people_and_a_reading(name):
    shown = describe(name)
    assert not re.fullmatch(r"(Figure|Table)\s\d+", shown.title), "the number alone is no title"
    assert len(shown.title) < 60
    number = re.match(r"(fig|table)0*(\d+)_", name)
    if number:
        word = "Figure" if number[1] == "fig" else "Table"
        assert shown.title.endswith(f"({word}\u00a0{number[2]})"), shown.title
    if name.startswith("fig"):
        sentences = re.findall(r"[.:?](?= [A-Z(]|$)", re.sub(r"<.*?>", "", str(shown.reading)))
        assert 2 <= len(sentences) <= 3, f"two sentences, not {len(sentences)}: {shown.reading}"


def test_a_description_is_split_into_title_reading_and_more():
    title, paragraphs = parse("**A title (Figure 3).** One sentence.\nAnother.\n\nMore of it.\n", "x")
    assert title == "A title (Figure 3)"
    assert paragraphs == ("One sentence. Another.", "More of it.")


def test_a_description_without_a_title_is_named():
    with pytest.raises(ConfigError, match=r"workflow/report/fig99\.rst must begin with '\*\*<title>\.\*\*'"):
        parse("No title.", "fig99")


@pytest.mark.parametrize(
    ("name", "title"), [("fig14_cost_scaling", "Cost over the width of a layer (Figure 14)"), ("x", "")]
)
def test_a_figure_begins_with_the_title_of_its_page(name, title, tmp_path):
    figure, _ = new_figure(1, 1, height=1)
    save(figure, tmp_path, name, legend=[], caption="A caption.")
    assert [text.get_text() for text in figure.texts] == [*filter(None, [title]), "A caption."]


def test_markup_becomes_html_and_all_else_is_text():
    assert inline("*runs* of ``kl_clip`` < **3** & 2*3*4") == (
        "<i>runs</i> of <code>kl_clip</code> &lt; <b>3</b> &amp; 2*3*4"
    )
    assert inline("<script>") == "&lt;script&gt;"


def test_an_artefact_without_a_description_has_its_name_as_the_title():
    """A figure of one's own is drawn, and stands in the reports, before it is described."""
    assert describe("fig99_of_my_own") == Description("fig99_of_my_own", Markup())
    assert description(Artefact("figures", "fig99_of_my_own")) == ""
    assert description(Artefact("figures", "fig01_mkor_diagram")).endswith("workflow/report/fig01_mkor_diagram.rst")
