"""Texts of the site: marks, names in place of identifiers, and links to the glossary where a page first uses a term."""

from __future__ import annotations

import re

import pytest

from workflow.bench.analysis.styles import STYLES
from workflow.bench.site import glossary as of_glossary
from workflow.bench.site.glossary import Glossary, Term, read_glossary
from workflow.bench.site.prose import inline, named
from workflow.bench.support.config import ROOT, ConfigError

TERMS = Glossary(
    (
        Term("KFAC (KAISA)", ("KFAC", "KAISA"), "two `names` & one method", "Optimizers"),
        Term("study", ("studies", "tuning study"), "a search", "Experiments"),
        Term("Eva", (), "a rival", "Optimizers"),
    )
)


def links(html: str) -> list[str]:
    return re.findall(r'<a class="term"[^>]*>([^<]*)</a>', html)


def test_markup_becomes_html_and_all_else_is_text():
    assert inline("*runs* of ``kl_clip`` < **3** & 2*3*4") == (
        "<i>runs</i> of <code>kl_clip</code> &lt; <b>3</b> &amp; 2*3*4"
    )
    assert inline("<script>") == "&lt;script&gt;"
    assert inline("**a** in [the field](docs/field.md), `b`") == "<b>a</b> in the field, <code>b</code>"


def test_names_stand_for_identifiers_which_are_tooltips():
    assert named("lamb/mkor_h") == '<span title="lamb">LAMB</span>/<span title="mkor_h">MKOR-H</span>'
    assert inline("`mkor_normalized`") == '<span title="mkor_normalized">MKOR (both sides acting)</span>'
    assert named("Carried by update_rules.") == (
        'Carried by “<span title="update_rules">The three update rules of MKOR side by side</span>”.'
    )
    assert named("wide_autoencoder: 3") == '<span title="wide_autoencoder">Wide autoencoder</span>: 3'


@pytest.mark.parametrize("text", ["mkor_core", "a copy of the width", "sgd.csv", "update_rules.runs.csv", "my-mkor"])
def test_words_and_files_are_no_identifiers(text):
    assert "title=" not in named(text)
    assert named(text).striptags() == text


def test_every_label_has_a_name_of_its_own():
    assert len({look.name for look in STYLES.values()}) == len(STYLES)


def test_a_term_is_linked_where_a_page_first_uses_it():
    page = TERMS.linked("<h1>KFAC</h1><p>Two studies of KAISA; a tuning study of KFAC, Eva.</p><p>Evangelist KAISA</p>")
    assert links(page) == ["studies", "KAISA", "Eva"]
    assert 'href="#glossary-kfac-kaisa" title="two names &amp; one method"' in page
    assert re.sub(r"</?a\b[^>]*>", "", page) == (
        "<h1>KFAC</h1><p>Two studies of KAISA; a tuning study of KFAC, Eva.</p><p>Evangelist KAISA</p>"
    )


def test_links_controls_and_attributes_are_left_alone():
    page = '<p title="KFAC"><a href="#x">KFAC</a> <code>eva</code> <button>Eva</button><img alt="Eva"></p>'
    assert TERMS.linked(page) == page
    assert links(TERMS.linked(f"{page}<p>The longest form: KFAC (KAISA)</p>")) == ["KFAC (KAISA)"]


def test_the_glossary_has_the_words_of_the_pages_once():
    found = read_glossary()
    forms = [form for term in found.terms for form in (term.name, *term.others)]
    assert len(set(forms)) == len(forms)
    assert len({term.id for term in found.terms}) == len(found.terms)
    assert {"KAISA", "KFAC", "tier", "inert", "clip", "both sides acting", "target", "studies", "break-even"} <= set(
        forms
    )
    assert found.linked(f"<p>{', '.join(forms)}</p>").count('class="term"') == len(found.terms)


def test_a_line_that_is_no_entry_is_named(tmp_path, monkeypatch):
    file = tmp_path / "glossary.md"
    file.write_text("# Glossary\n\n- a line\n")
    monkeypatch.setattr(of_glossary, "_FILE", file)
    with pytest.raises(ConfigError, match=r"docs/glossary\.md, line 3: must be '- \*\*term\*\* "):
        read_glossary()


def test_the_glossary_s_page_is_linked_from_the_docs():
    assert "glossary.md" in (ROOT / "docs" / "results.md").read_text()
