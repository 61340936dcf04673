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


def test_a_caption_says_which_machine_trained_adopted_runs_and_which_was_timed():
    runs = _runs()
    runs.loc[runs["seed"] < 2, "hardware"] = "far-cpu"
    text = caption(RESULTS, runs)
    assert "Trained elsewhere, adopted: update_rules seed 0-1 on far-cpu; times of steps are of test-cpu. " in text


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


def test_the_papers_own_tier_is_no_stand_in():
    assert "no reproduction" not in caption(Results(Path("results/polaris/paper")), _runs())


def test_caption_names_what_did_not_finish():
    assert "Diverged: autoencoder mkor seed 1, 4." in caption(RESULTS, _runs(failed=(1, 4)))
    skipped = _runs().assign(status="skipped", reason="digits not found at data/digits")
    assert "Skipped: autoencoder mkor seed 0-5 [digits not found at data/digits]." in caption(RESULTS, skipped)


def test_a_failed_run_stands_with_its_reason_and_missing_runs_without_one():
    failed = _runs(seeds=range(1)).assign(status="failed", reason="OSError: disk full")
    missing = _runs("sgd", range(2)).assign(status="missing", reason="not trained yet")
    text = caption(RESULTS, pd.concat([failed, missing, _runs("kaisa", range(2))]))
    assert "Failed: autoencoder mkor seed 0 [OSError: disk full]." in text
    assert "Missing: autoencoder sgd seed 0-1." in text
    assert "seeds 0-1 (mean, 95 % t interval)" in text


def test_seeds_are_those_of_runs_with_values():
    missing = _runs(seeds=range(2, 6)).assign(status="missing")
    assert "; seeds 0-1 (mean" in caption(RESULTS, pd.concat([_runs(seeds=range(2)), missing]))


def test_a_workload_of_which_nothing_ran_is_named_once():
    labels = ("sgd", "kaisa", "mkor", "eva")
    runs = pd.concat([_runs(label, range(2)).assign(status="missing", workload="resnet20") for label in labels])
    assert "Missing: resnet20 all 8 runs." in caption(RESULTS, pd.concat([_runs(), runs]))


def test_up_to_three_optimizers_are_named_and_so_are_more_of_which_one_ran():
    runs = pd.concat([_runs(label, range(2)).assign(status="missing") for label in ("eva", "kaisa", "mkor")])
    assert "Missing: autoencoder eva seed 0-1, kaisa seed 0-1, mkor seed 0-1." in caption(RESULTS, runs)
    four = pd.concat([runs, _runs("sgd", range(2)).assign(status="missing")])
    assert "Missing: autoencoder all 8 runs." in caption(RESULTS, four)
    five = caption(RESULTS, pd.concat([four, _runs("lamb", range(2))]))
    assert "Missing: autoencoder eva seed 0-1, kaisa seed 0-1, mkor seed 0-1, sgd seed 0-1." in five


def test_a_status_names_every_workload_and_only_some_give_a_reason():
    failed = _runs(seeds=range(1)).assign(status="failed", reason="OSError: disk full.")
    memory = _runs("sgd", range(1)).assign(status="out_of_memory", reason="16 GB")
    other = failed.assign(workload="resnet20", reason="no file")
    text = caption(RESULTS, pd.concat([failed, memory, other]))
    assert "Failed: autoencoder mkor seed 0 [OSError: disk full.]; resnet20 mkor seed 0 [no file]." in text
    assert "Out of memory: autoencoder sgd seed 0." in text


def test_seeds_are_told_by_workload_where_they_differ():
    other = _runs(seeds=range(1)).assign(workload="resnet20")
    runs = pd.concat([_runs(), other])
    text = caption(RESULTS, runs)
    assert (
        "; autoencoder seeds 0-5 (median, 95 % order-statistics interval); resnet20 seeds 0 (one run, no interval)."
        in text
    )
    assert "; autoencoder seeds 0-5; resnet20 seeds 0." in caption(RESULTS, runs, summarized=False)
    assert "; seeds 0-1 (mean, 95 % t interval)." in caption(RESULTS, _runs(seeds=range(2)))
    planned = caption(RESULTS, _runs(seeds=range(3)).assign(status="skipped"))
    assert "; seeds 0-2 (mean, 95 % t interval)." in planned


def test_experiments_that_share_a_workload_are_told_apart():
    other = _runs(seeds=range(2)).assign(experiment="autoencoder_inversion", status="missing")
    text = caption(RESULTS, pd.concat([_runs(), other]))
    assert "Missing: autoencoder_inversion autoencoder mkor seed 0-1." in text


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


def test_caption_tells_the_period_of_a_failure_where_periods_differ():
    runs = pd.concat([_runs(period=1, failed=(2,)), _runs(period=100)])
    assert "Diverged: autoencoder mkor (period 1) seed 2." in caption(RESULTS, runs)
    assert "Diverged: autoencoder mkor seed 2." in caption(RESULTS, pd.concat([_runs(failed=(2,)), _runs("kaisa")]))


def test_caption_names_missing_seeds_and_experiments():
    runs = pd.concat([_runs(), _runs("sgd", range(4))])
    text = caption(RESULTS, runs, absent=["bert_inversion", "probe iteration_time"])
    assert "Missing: autoencoder sgd seed 4-5." in text
    assert "Missing" not in caption(RESULTS, _runs())
    one_period = caption(RESULTS, pd.concat([_runs("sgd"), _runs(seeds=range(5))]))
    assert "Missing: autoencoder mkor seed 5." in one_period
    periods = pd.concat([_runs(), _runs(seeds=range(5), period=100)])
    assert "Missing: autoencoder mkor (period 100) seed 5." in caption(RESULTS, periods)
    assert "No results yet: bert_inversion, probe iteration_time." in text
    both = caption(RESULTS, pd.concat([_runs("eva"), _runs("kaisa", range(4)), _runs("sgd", range(4))]))
    assert "Missing: autoencoder kaisa, sgd seed 4-5." in both
    elsewhere = _runs("eva").assign(experiment="autoencoder_lamb")
    assert "Missing: update_rules autoencoder sgd seed 4-5." in caption(RESULTS, pd.concat([runs, elsewhere]))


def test_caption_marks_older_and_uncommitted_code():
    runs = _runs().assign(git_dirty=[False] * 5 + [True])
    runs["code_current"] = [True] * 4 + [False] * 2
    assert "Commit 012345678 with uncommitted changes; 2 of 6 runs made by older code." in caption(RESULTS, runs)
    runs["code_current"] = [True, True, False, None, None, None]
    assert "1 of 3 runs made by older code." in caption(RESULTS, runs.assign(git_dirty=None))
    assert "uncommitted" not in caption(RESULTS, runs.assign(git_dirty=None))
    neither = caption(RESULTS, runs.assign(git_commit=None, code_current=None))
    assert "ommit" not in neither
    assert "older code" not in neither


def test_caption_tells_which_runs_were_tuned():
    runs = pd.concat([_runs().assign(tuned=False), _runs("sgd")])
    assert "Tuned: sgd." in caption(RESULTS, runs)
    assert "Tuned" not in caption(RESULTS, _runs().assign(tuned=False))
    assert "Tuned" not in caption(RESULTS, _runs().assign(tuned=None))


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


def test_a_caption_names_the_methods_that_are_inert():
    """Truth: by hand; the median over seeds of the cosine of update and gradient."""
    runs = pd.concat([_runs("mkor"), _runs("kaisa").assign(direction_cosine=[0.9, 0.9, 0.9995, 0.9995, 0.9999, 1.0])])
    text = caption(RESULTS, runs)
    assert "Inert (median cosine of update and gradient above 0.999): kaisa on autoencoder." in text
    assert "nert (" not in caption(RESULTS, _runs("mkor"))
