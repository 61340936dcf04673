"""Captions name the tier, the machine, the seeds, the rule, and every run that is not in the picture."""

from __future__ import annotations

import html
import math
import re
import string
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from snakemake.report import publish_parts

from tests.support.synthetic import run_rows
from workflow.bench.analysis.captions import as_rst, caption, footer, from_rst
from workflow.bench.analysis.estimates import looks
from workflow.bench.analysis.wording import integer_ranges, number, paper_name
from workflow.bench.results.tables import Results
from workflow.bench.support.errors import one_line

RESULTS = Results(Path("results/test-cpu/embedded"), "embedded tier (small models)")


def _runs(label: str = "mkor", seeds: range = range(6), failed: tuple[int, ...] = (), period: int = 10) -> pd.DataFrame:
    return pd.DataFrame(run_rows("update_rules", "autoencoder", label, seeds, period=period, failed=failed)[1])


@pytest.mark.parametrize(
    ("numbers", "text"), [([0, 1, 2, 5], "0-2, 5"), ([3], "3"), ([], ""), ([7, 1], "1, 7"), ([1.0, 2.0], "1-2")]
)
def test_integer_ranges(numbers, text):
    assert integer_ranges(numbers) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.66912, "0.669"),
        (999.0, "999"),
        (-1000.0, "-1000"),
        (1234.5, "1234"),
        (1e-12, "1e-12"),
        (math.inf, "not reached"),
        (-math.inf, "0"),
        (math.nan, ""),
    ],
)
def test_number(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("sgd", "SGD"),
        ("lamb", "LAMB"),
        ("hylo", "HyLo"),
        ("eva", "Eva"),
        ("mkor", "MKOR"),
        ("mkor_bfloat16", "MKOR"),
        ("mkor_released", "MKOR"),
        ("mkor_released_600", "MKOR"),
        ("mkor_h", "MKOR-H"),
        ("kaisa_no_clip", "KAISA"),
        ("kaisa_1000", "KAISA"),
        ("soap", None),
        ("mkor_windowed", None),
    ],
)
def test_an_optimizer_has_the_papers_name(label, name):
    assert paper_name(label) == name


def test_caption_names_tier_hardware_seeds_rule_and_commit():
    text = caption(RESULTS, _runs())
    assert text == (
        "Embedded tier (small models), no reproduction of the paper's numbers; test-cpu; "
        "seeds 0-5 (median, 95 % order-statistics interval). MKOR's update rule: mkor = sherman_morrison; "
        "inverse update period 10. Tuned: all optimizers. Commit 012345678."
    )


def test_a_caption_of_a_tier_with_several_looks_says_so_and_shows_the_level_of_one_look():
    results = Results(Path("results/test-cpu/evidence"), look=2, looks=4)
    with looks(results.looks):
        text = caption(results, _runs(seeds=range(8)))
        assert "seeds 0-7 (median, 98.75 % order-statistics interval)" in text
        assert (
            "Look 2 of at most 4: intervals of 98.75 %, so that all looks together err in at most 5 % of cases. "
            in text
        )
        assert "seeds 0-6 (mean, 98.75 % t interval)" in caption(results, _runs(seeds=range(7)))
        # Probes do not grow by rounds.
        assert "Look" not in footer(results, pd.DataFrame({"git_commit": []}), notes=[])


def _all(*runs: pd.DataFrame) -> pd.DataFrame:
    return pd.concat(runs)


def _planned(*labels: str) -> pd.DataFrame:
    """Return two runs of each label that were not trained."""
    return _all(*(_runs(label, range(2)).assign(status="missing", reason="not trained yet") for label in labels))


FAILED = _runs(seeds=range(1)).assign(status="failed", reason="OSError: disk full.")
NO_FILE = FAILED.assign(workload="resnet20", reason="no file")
OUT_OF_MEMORY = _runs("sgd", range(1)).assign(status="out_of_memory", reason="16 GB")
OTHER_WORKLOAD = _runs(seeds=range(1)).assign(workload="resnet20")
LATER_PLANNED = _runs(seeds=range(2, 6)).assign(status="missing")
OLDER = _runs().assign(git_dirty=[False] * 5 + [True], code_current=[True] * 4 + [False] * 2)
HALF_KNOWN = _runs().assign(code_current=pd.Series([True, True, False, *[None] * 3], dtype=object), git_dirty=None)
COSINES = _runs("kaisa").assign(direction_cosine=[0.9, 0.9, 0.9995, 0.9995, 0.9999, 1.0])
FOUR_SEEDS = _all(_runs(), _runs("sgd", range(4)))


@pytest.mark.parametrize(
    ("runs", "text"),
    [
        (
            _runs().assign(hardware=["far-cpu"] * 2 + ["test-cpu"] * 4),
            "update_rules seeds 0-1 on far-cpu; times of steps",
        ),
        (_runs(failed=(1, 4)), "Diverged: autoencoder mkor seeds 1, 4."),
        (_runs().assign(status="skipped", reason="no digits"), "Skipped: autoencoder mkor seeds 0-5 [no digits]."),
        # Some statuses give a reason, and every workload is named.
        (_all(FAILED, _runs("kaisa", range(2))), "Failed: autoencoder mkor seed 0 [OSError: disk full.]."),
        (_all(FAILED, OUT_OF_MEMORY, NO_FILE), "[OSError: disk full.]; resnet20 mkor seed 0 [no file]."),
        (_all(FAILED, OUT_OF_MEMORY), "Out of memory: autoencoder sgd seed 0."),
        (_all(_planned("sgd"), _runs("kaisa")), "Missing: autoencoder sgd seeds 0-1."),
        # Of a workload of which nothing ran up to three optimizers are named.
        (_all(_runs(), _planned("sgd", "eva", "lamb", "kaisa").assign(workload="x")), "Missing: x all 8 runs."),
        (_planned("eva", "kaisa", "mkor"), "Missing: autoencoder eva seeds 0-1, kaisa seeds 0-1, mkor seeds 0-1."),
        (_planned("eva", "kaisa", "mkor", "sgd"), "Missing: autoencoder all 8 runs."),
        (_all(_planned("eva", "kaisa", "mkor", "sgd"), _runs("lamb", range(2))), "mkor seeds 0-1, sgd seeds 0-1."),
        # Seeds are those of runs with values, or those planned, told by workload where they differ.
        (_all(_runs(seeds=range(2)), LATER_PLANNED), "; seeds 0-1 (mean, 95 % t interval)."),
        (_runs(seeds=range(3)).assign(status="skipped"), "; seeds 0-2 (mean, 95 % t interval)."),
        (_all(_runs(), OTHER_WORKLOAD), "; autoencoder seeds 0-5 (median, 95 % order-statistics interval); resnet20"),
        (_all(_runs(), OTHER_WORKLOAD), "; resnet20 seed 0 (one run, no interval)."),
        (_all(_runs(), _planned("mkor").assign(experiment="x")), "Missing: x autoencoder mkor seeds 0-1."),
        # A period is told where a label has several.
        (_all(_runs(period=1, failed=(2,)), _runs(period=100)), "Diverged: autoencoder mkor (period 1) seed 2."),
        (_all(_runs(failed=(2,)), _runs("kaisa")), "Diverged: autoencoder mkor seed 2."),
        (_all(_runs(), _runs(seeds=range(5), period=100)), "Missing: autoencoder mkor (period 100) seed 5."),
        (_all(_runs("sgd"), _runs(seeds=range(5))), "Missing: autoencoder mkor seed 5."),
        (FOUR_SEEDS, "Missing: autoencoder sgd seeds 4-5."),
        (_all(_runs("eva"), _runs("kaisa", range(4)), _runs("sgd", range(4))), "autoencoder kaisa, sgd seeds 4-5."),
        (_all(FOUR_SEEDS, _runs("eva").assign(experiment="x")), "Missing: update_rules autoencoder sgd seeds 4-5."),
        (OLDER, "Commit 012345678 with uncommitted changes; 2 of 6 runs made by older code."),
        (HALF_KNOWN, "Commit 012345678; 1 of 3 runs made by older code."),
        (_all(_runs().assign(tuned=False), _runs("sgd")), "Tuned: sgd."),
        # Truth: by hand; the median over seeds of the cosine of update and gradient.
        (_all(_runs(), COSINES), "Inert (median cosine of update and gradient 0.999 or more): kaisa on autoencoder."),
        # At other values of another experiment it acts.
        (_all(COSINES, COSINES.assign(experiment="x", direction_cosine=0.5)), "kaisa on update_rules autoencoder."),
    ],
)
def test_a_caption_names_what_a_picture_does_not_show(runs, text):
    assert text in caption(RESULTS, runs)


@pytest.mark.parametrize(
    ("runs", "word"),
    [
        (_runs(), "Missing"),
        (_runs(), "nert ("),
        (_runs().assign(tuned=False), "Tuned"),
        (_runs().assign(tuned=None), "Tuned"),
        (HALF_KNOWN.assign(git_commit=None, code_current=None), "ommit"),
        (HALF_KNOWN.assign(git_commit=None, code_current=None), "older code"),
    ],
)
def test_a_caption_says_nothing_of_what_there_is_none_of(runs, word):
    assert word not in caption(RESULTS, runs)


def test_what_has_no_results_yet_is_named_and_the_papers_own_tier_is_no_stand_in():
    text = caption(RESULTS, _runs(), absent=["bert_inversion", "probe iteration_time"])
    assert "No results yet: bert_inversion, probe iteration_time." in text
    runs = _all(_runs(), OTHER_WORKLOAD)
    assert "; autoencoder seeds 0-5; resnet20 seed 0." in caption(RESULTS, runs, summarized=False)
    assert "no reproduction" not in caption(Results(Path("results/polaris/paper")), _runs())


def test_a_caption_as_text_of_the_report_has_no_markup():
    """Truth: by hand; a backslash takes a sign's meaning, and a test of the report reads captions in a browser."""
    assert as_rst("*star* `tick` x|y temp_ C:\\") == "\\*star\\* \\`tick\\` x\\|y temp\\_ C\\:\\\\\n"


MARKUP = (
    "a\n\n.. include:: /etc/passwd\n\nb",
    "a\r\n\r\n.. raw:: html\r\n\r\n   <script>alert(1)</script>",
    *(f"a{end}{end}.. include:: /etc/passwd" for end in ("\v", "\f", "\x1c", "\x85", "\u2028", "\u2029")),
    *(".. raw:: html", ".. include:: /etc/passwd", ".. |x| image:: x.png", ".. _x: http://x.org", "__ http://x.org"),
    *("1. one", "a) one", "(i) one", "#. one", "- one", "* one", "\u2022 one", ":a: b", "-a  b", "/V  b", "| one"),
    *(">>> one", "::", "one::", "====", "+--+", "[1]_ one", ".. [1] one", "=== ===", " one", "\tone"),
    *("`x <javascript:alert(1)>`_", "`x`_ x_ x__ `x`__", "_`x`", ":raw-html:`<b>`", ":math:`x`", "|x| |x|_", "``x``"),
    *(
        "https://x.org javascript:x mailto:a@b.org a@b.org",
        "<b>&amp;&#38;",
        "\\\\ \\x",
        "{{ 7*7 }} {% x %} {# x #}",
        "*a **b",
    ),
)


def shows_as_it_is(text: str) -> None:
    """Truth: docutils itself; a paragraph of one line, which names what cannot be printed."""
    line = one_line(text).strip()
    assert from_rst(as_rst(text)) == line
    body = publish_parts(as_rst(text), writer="html")["body"]
    assert html.unescape(body) == (f"<p>{line}</p>\n" if line else "")
    assert set(re.findall(r"<(\w+)", body)) <= {"p"}


@pytest.mark.parametrize("text", MARKUP)
def test_the_report_shows_markup_as_it_is(text: str):
    shows_as_it_is(text)


@given(st.one_of(st.text(), st.lists(st.sampled_from((*MARKUP, *string.printable)), max_size=8).map("".join)))
def test_the_report_shows_any_text_as_it_is(text: str):
    shows_as_it_is(text)


@pytest.mark.parametrize(
    "column", ["reason", "workload", "optimizer", "experiment", "update_rule", "hardware", "git_commit"]
)
@pytest.mark.parametrize("end", ["\n", "\r", "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029", "\0", "\x1b[2J"])
def test_a_caption_is_one_line_whatever_a_run_says(column: str, end: str):
    hostile = f"x{end}{end}.. include:: /etc/passwd{end}"
    runs = pd.concat([_runs(), _runs(seeds=range(2)).assign(status="failed", **{column: hostile})])
    text = caption(RESULTS, runs)
    assert text.isprintable()
    assert ("include" in text) == (column != "git_commit")
    rows = pd.DataFrame({"optimizer": ["mkor"], "update_rule": [hostile], "git_commit": [None]})
    assert footer(RESULTS, rows, notes=[hostile], absent=[hostile]).isprintable()


def test_caption_without_runs_still_names_tier_and_hardware():
    text = caption(RESULTS, pd.DataFrame(), notes=["6 repeats"])
    assert text == "Embedded tier (small models), no reproduction of the paper's numbers; test-cpu. 6 repeats."


def test_the_footer_of_a_probe_names_seeds_rules_and_commit():
    rows = pd.DataFrame(
        {
            "optimizer": ["mkor", "mkor", "mkor_released", "sgd"],
            "update_rule": ["sherman_morrison", "sherman_morrison", "released", None],
            "seed": [0, 1, 0, 2],
            "git_commit": ["0123456789abcdef", "fedcba9876543210", "0123456789abcdef", None],
        }
    )
    text = footer(RESULTS, rows, notes=["6 repeats"], absent=["probe spectra"])
    assert text == (
        "Embedded tier (small models), no reproduction of the paper's numbers; test-cpu. Seeds 0-2. "
        "MKOR's update rule: mkor = sherman_morrison, mkor_released = released. 6 repeats. "
        "Commit 012345678, fedcba987. No results yet: probe spectra."
    )
    bare = "Embedded tier (small models), no reproduction of the paper's numbers; test-cpu. 6 repeats."
    rows = rows.drop(columns="seed").assign(git_commit=None, update_rule=None)
    assert footer(RESULTS, rows, notes=["6 repeats"]) == bare
    assert footer(RESULTS, rows.drop(columns="update_rule"), notes=["6 repeats"]) == bare


def test_the_footer_of_a_probe_names_the_workloads_trained_in_less_than_float32():
    rows = pd.DataFrame(
        {
            "workload": ["bert", "bert", "resnet", "autoencoder", "older"],
            "precision": ["bfloat16", "bfloat16", "float32", "bfloat16", None],
        }
    ).assign(git_commit=None)
    assert "trained with autocast: autoencoder, bert in bfloat16" in footer(RESULTS, rows, notes=[]).lower()
    assert "autocast" not in footer(RESULTS, rows[2:3], notes=[])
