"""What a claim was tested on, its threshold in words, and verdicts that name the proxy that decided."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest

from workflow.bench.claims.decision import Part, Verdict, all_of
from workflow.bench.claims.proxies import (
    BESIDE,
    BETTER,
    NO_MODEL,
    proxies_of,
    short_data,
    short_model,
    threshold_of,
    worded,
)
from workflow.bench.results.tables import Results, published
from workflow.bench.support.config import ROOT

EVIDENCE = next(path for path in (ROOT / "results" / "reference").glob("*/evidence") if (path / "probes").is_dir())


def parts(*verdicts: Verdict, names: str = "abc") -> list[Part]:
    return [Part(name, verdict, "1") for name, verdict in zip(names, verdicts, strict=False)]


@pytest.mark.parametrize(
    ("claim", "data", "proxy"),
    [
        (
            "C01",
            "bert_pretraining.runs.csv: runs a; autoencoder_lamb.runs.csv: runs b; bert_squad.runs.csv: runs c; "
            "probes/step_time.csv: experiment=x",
            "BERT 2x64 on docstrings; autoencoder on digits",
        ),
        ("C06", "resnet50_imagenet.runs.csv: runs a; resnet50_imagenet.csv: runs a", "ResNet-20 on glyphs"),
        ("C11", "probes/cost_scaling.csv: optimizer=mkor, kaisa, part=factor", "one layer, d = 256 to 4,096"),
        ("C16", "probes/rank1_error.csv: workload=resnet", "ResNet-20"),
        ("C16", "probes/rank1_error.csv: workload=resnet, bert, step=1", "BERT; ResNet-20"),
        ("C21", "probes/numerics.csv: check=C21", NO_MODEL),
        ("C09", "", ""),
    ],
)
def test_the_proxy_is_what_the_runs_and_probes_trained(claim, data, proxy):
    """Truth: the models and data of the kept evidence tier, read by eye."""
    assert proxies_of(claim, data, Results(EVIDENCE), BESIDE.get(claim, "")) == proxy


def test_names_of_models_and_data_are_short():
    """Truth: by hand; a name that has no details stays."""
    models = ("BERT, 4 layers x 128, 4 heads", "AlexNet for 32 x 32, 16 channels", "autoencoder 64-256-64", "ResNet-50")
    assert [*map(short_model, models)] == ["BERT 4x128", "AlexNet", "autoencoder", "ResNet-50"]
    data = ("scikit-learn's digits, at 16 x 16", "docstrings: similarity", "glyphs of matplotlib's fonts", "CIFAR-100")
    assert [*map(short_data, data)] == ["digits", "docstrings", "glyphs", "CIFAR-100"]


def test_a_threshold_reads_as_a_sentence():
    assert threshold_of("> 0") == "holds above 0"
    assert threshold_of("< 1e-6 in float64") == "holds below 1e-6 in float64"
    assert threshold_of("MKOR <= 0.25 and KAISA > 0.5") == "holds if MKOR is at or below 0.25 and KAISA is above 0.5"
    for row in published("claims", as_text=True).to_dict("records"):
        assert row["unit"], row["id"]
        assert not {"<", ">"} & set(threshold_of(row["holds_when"])), row["id"]


def test_no_verdict_of_a_proxy_is_worded_like_one_on_the_paper():
    """For all verdicts of three parts: the wording names the proxy, and at the paper's tier the verdict itself."""
    for verdicts in product(get_args(Verdict), repeat=3):
        verdict = all_of(verdicts)
        shown = worded(parts(*verdicts), "BERT 2x64 on docstrings", "evidence")
        if verdict == "not tested":
            assert shown == verdict
            continue
        assert "on the proxy" in shown
        assert "confirmed" not in shown
        assert "refuted" not in shown
        assert worded(parts(*verdicts), "BERT-Large", "paper").startswith(verdict)


@pytest.mark.parametrize(
    ("verdicts", "shown"),
    [
        (("refuted", "refuted"), "not seen on the proxies"),
        (("refuted", "confirmed"), "not seen on the proxies: a"),
        (("inconclusive", "confirmed", "not tested"), "open on the proxies: a, c"),
        (("not tested", "confirmed"), "open on the proxies: a"),
        (("inconclusive", "inconclusive", "not tested", "confirmed"), "open on the proxies: 3 of 4 parts"),
        (("no difference", "confirmed"), "no difference on the proxies: a"),
    ],
)
def test_a_mixed_verdict_names_the_parts_that_decide(verdicts, shown):
    assert worded(parts(*verdicts, names="abcd"), "x; y", "embedded") == shown


def test_a_verdict_that_hangs_on_one_study_is_worded_narrowly():
    """One robust refutation suffices, and a confirmed claim needs every part."""

    def shown(verdict: Verdict, *narrowly: str) -> str:
        given = [Part(name, verdict, "1", narrowly=text) for name, text in zip("ab", narrowly, strict=True)]
        return worded(given, "x; y", "evidence")

    assert shown("confirmed", "1 of 8", "") == "seen on the proxies, narrowly"
    assert shown("refuted", "1 of 8", "") == "not seen on the proxies"
    assert shown("refuted", "1 of 8", "2 of 8") == "not seen on the proxies, narrowly"
    assert shown("confirmed", "", "") == "seen on the proxies"


def test_better_than_claimed_is_no_refutation():
    """Truth: C07, where the paper concedes more epochs; MKOR that is slower, too, is no better."""
    proxy = "ResNet-20 on glyphs"
    time, iterations = "time kaisa/mkor", "iterations mkor/kaisa"

    def shown(of_time: Verdict, of_iterations: Verdict) -> str:
        given = [Part(time, of_time, "1"), Part(iterations, of_iterations, "1")]
        return worded(given, proxy, "evidence", "iterations")

    assert shown("confirmed", "refuted") == f"{BETTER} on the proxy"
    assert shown("refuted", "refuted") == "not seen on the proxy"
    assert shown("confirmed", "confirmed") == "seen on the proxy"
    assert shown("inconclusive", "refuted") == f"not seen on the proxy: {iterations}"


def test_mathematics_needs_no_proxy():
    assert worded(parts("refuted"), NO_MODEL, "embedded") == "does not hold (mathematics)"
    assert worded(parts("confirmed"), NO_MODEL, "evidence") == "holds (mathematics)"
