"""The numbers of README's findings, of docs/evidence.md and docs/field.md are those of the committed tables."""

from __future__ import annotations

import csv
import io
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pandas as pd
import pytest

from benchmarks import field_page
from workflow.bench.analysis.wording import number
from workflow.bench.plan import REFERENCE
from workflow.bench.results.archive import read_archive
from workflow.bench.results.rows import read_csv
from workflow.bench.site.findings import FINDINGS, findings
from workflow.bench.site.front_page import Facts
from workflow.bench.site.kept import Kept
from workflow.bench.support.config import ROOT

FIELD = " ".join(field_page.PAGE.read_text().split())
PAGES = (ROOT / "README.md", ROOT / "docs" / "evidence.md")
EVIDENCE = Facts.read().evidence
FIELD_TABLES = Facts.read().field / "tables"


@pytest.fixture(scope="module")
def parts() -> dict[tuple[str, str], str]:
    """Every part of a claim as its value with its interval, and as its value alone under ``<part> alone``."""
    shown = {}
    for row in read_csv(EVIDENCE / "tables" / "claim_parts.csv"):
        values = [number(float(row[name])) for name in ("value", "low", "high") if row[name]]
        if values:
            shown[row["id"], row["part"]] = f"{values[0]} [{', '.join(values[1:])}]"
            shown[row["id"], f"{row['part']} alone"] = values[0]
    return shown


def times(experiment: str) -> dict[str, dict[str, str]]:
    """Return the rows of time_to_target by optimizer, each cell without its interval."""
    rows = read_csv(EVIDENCE / "tables" / "time_to_target.csv")
    return {
        row["optimizer"]: {name: cell.partition(" [")[0] for name, cell in row.items()}
        for row in rows
        if row["experiment"] == experiment
    }


def last_losses(experiment: str) -> dict[str, float]:
    """Return the median over seeds of the last validation loss by optimizer, from the records of the runs."""
    found: dict[str, list[float]] = {}
    for file in REFERENCE.glob(f"*/evidence/{experiment}.records.json.gz"):
        labels = {row["run"]: row["optimizer"] for row in read_csv(file.with_name(f"{experiment}.runs.csv"))}
        for run, kept in read_archive(file).runs.items():
            rows = csv.DictReader(io.StringIO(kept.metrics))
            losses = [float(row["value"]) for row in rows if (row["split"], row["metric"]) == ("validation", "loss")]
            found.setdefault(labels[run], []).append(losses[-1])
    return {label: median(losses) for label, losses in found.items()}


def milliseconds(optimizer: str, part: str, dimension: int) -> str:
    rows = pd.read_csv(EVIDENCE / "probes" / "cost_scaling.csv")
    chosen = (rows["optimizer"] == optimizer) & (rows["part"] == part) & (rows["dimension"] == dimension)
    mean = rows.loc[chosen, "ms"].mean()
    return f"{mean:,.0f}" if mean >= 1000 else number(mean, 2)


def field(experiment: str, optimizer: str, quantity: str = "steps") -> str:
    """Return a ratio of field_results to two decimals with its interval."""
    rows = pd.read_csv(FIELD_TABLES / "field_results.csv")
    (row,) = rows[(rows["experiment"] == experiment) & (rows["optimizer"] == optimizer)].to_dict("records")
    value, low, high = (float(row[f"{quantity} / base{end}"]) for end in ("", ", low", ", high"))
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"


CLAIMS = ("C14", "C15")


def phrases_of(parts: dict[tuple[str, str], str]) -> dict[str, list[str]]:
    """Return phrases with numbers of tables by a word of the finding that states them."""
    rows = times("autoencoder_lamb")
    steps = {label: row["iterations"] for label, row in rows.items()}
    losses = {label: f"{loss:.2f}" for label, loss in last_losses("bert_pretraining").items()}
    to_quality = pd.read_csv(EVIDENCE / "tables" / "time_to_target.csv")
    of_bert = to_quality[to_quality["experiment"] == "bert_pretraining"].set_index("optimizer")
    over_adamw = of_bert["fewer iterations than its base, final quality"]
    results = pd.read_csv(FIELD_TABLES / "field_results.csv").query("experiment == 'field_autoencoder'")
    ends = {
        row["optimizer"]: f"{number(row['end'])} [{number(row['end, low'])}, {number(row['end, high'])}]"
        for row in results.to_dict("records")
    }
    factor = {label: [milliseconds(label, "factor", d) for d in (256, 4096)] for label in ("mkor", "kaisa")}
    window = [milliseconds("mkor_windowed", part, 4096) for part in ("factor", "precondition")]
    sides = [
        [
            ", ".join(parts[claim, f"{model} {side} alone"] for model in ("autoencoder", "bert", "resnet"))
            for claim in CLAIMS
        ]
        for side in ("activations", "gradients")
    ]

    def of(claim: str, part: str) -> str:
        return parts.get((claim, part), "absent")

    return {
        "fewer iterations than LAMB": [
            f"MKOR takes {of('C03', 'BERT')} (BERT) and {of('C03', 'autoencoder')} (autoencoder) of LAMB's iterations",
            f"LAMB takes {of('C01', 'BERT')} (BERT) and {of('C01', 'autoencoder')} (autoencoder) of MKOR-H's time",
        ],
        "Newer optimizers": [
            f"Muon takes {field('field_language_model', 'muon')} of AdamW's iterations on a small language model, MKOR "
            f"{field('field_language_model', 'mkor')}",
            f"on AlexNet {field('field_alexnet', 'muon')} and {field('field_alexnet', 'mkor')} of SGD's",
        ],
        "factor updates are cheap": [
            f"takes MKOR {' to '.join(factor['mkor'])} ms (in one step of 10) and KAISA "
            f"{' to '.join(factor['kaisa'])} (in one of 50)",
            f"{milliseconds('mkor', 'precondition', 4096)} ms at 4096 (KAISA "
            f"{milliseconds('kaisa', 'precondition', 4096)})",
            f"takes {window[0]} ms for the update and {window[1]} ms for preconditioning",
            f"KAISA keeps {of('C13', ' alone')} times as much state (C13)",
        ],
        "A mean vector approximates": [
            f"On the autoencoder, BERT and ResNet the mean vector captures {sides[0][1]} of the best rank-1 matrix's "
            f"energy for activations, and {sides[1][1]} for gradients (C15)",
            f"is in the worst layer {sides[0][0]} for activations, and {sides[1][0]} for gradients (C14)",
        ],
        "do not tell the optimizers of pre-training apart": [
            f"MKOR minus LAMB {of('C04', '')} (C04",
            f"KAISA minus LAMB {of('C05', '')} (C05",
            f"MKOR-H minus MKOR {of('C25', '')} (C25",
        ],
        "On AlexNet MKOR": [
            f"SGD takes {of('C19', 'sgd/mkor')} times MKOR's time to equal training accuracy, HyLo "
            f"{of('C19', 'hylo/mkor')}, KAISA {of('C19', 'kaisa/mkor')}",
        ],
        "the least sensitive": [f"is {of('C18', 'KAISA without clip')}; minus SGD's {of('C18', 'SGD')}"],
        "both sides acting": [
            f"in {steps['mkor_normalized']} iterations, MKOR in {steps['mkor']}, KAISA in {steps['kaisa']}, LAMB in "
            f"{steps['lamb']}",
        ],
        "AdamW ends lower": [
            f"ends at {losses.get('lamb')} with LAMB, {losses.get('mkor')} with MKOR over LAMB, {losses.get('adamw')} "
            f"with AdamW, {losses.get('mkor_adamw')} with MKOR and {losses.get('kaisa_adamw')} with KAISA over AdamW",
            f"AdamW takes {over_adamw['mkor_adamw']} of MKOR's iterations and {over_adamw['kaisa_adamw']} of KAISA's",
        ],
        "over SGD KFAC ends lower": [
            f"ends at {ends['kaisa']} with KAISA (in a second search at {ends['kaisa_again']}), "
            f"{ends['mkor']} with MKOR and {ends['sgd']} with SGD"
        ],
    }


def test_the_numbers_of_the_findings_are_those_of_the_tables(parts):
    """Truth: the tables, read here. A finding that the reference does not support is on no page."""
    shown = [line for page in PAGES for line in re.findall(r"^(?:\d\.|-) (\*\*.*)$", page.read_text(), re.MULTILINE)]
    assert sum(line.startswith("**The printed update rule") for line in shown) == 1
    checked = 0
    for word, phrases in phrases_of(parts).items():
        for finding in (line for line in shown if word in line):
            checked += 1
            assert [phrase for phrase in phrases if phrase not in finding] == []
    assert checked >= 4


def planted(folder: Path, name: str, change: Callable[[pd.DataFrame], pd.DataFrame]) -> Kept:
    """Return the kept results with one table of the evidence tier changed."""
    evidence = folder / "machine" / "evidence"
    for part in ("tables", "probes"):
        shutil.copytree(EVIDENCE / part, evidence / part)
    for file in EVIDENCE.glob("*.runs.csv"):
        shutil.copy(file, evidence)
    file = evidence / "tables" / f"{name}.csv"
    change(pd.read_csv(file, dtype=str, keep_default_na=False)).to_csv(file, index=False)
    return Kept(evidence, FIELD_TABLES.parent)


def test_a_finding_that_the_tables_contradict_is_left_out_with_the_reason(tmp_path):
    """Truth: MKOR planted to need more iterations than LAMB, or perhaps as many, and a claim on bytes that is open."""

    def slower(parts: pd.DataFrame) -> pd.DataFrame:
        return parts.assign(value=parts["value"].mask((parts["id"] == "C03") & (parts["part"] == "BERT"), "1.1"))

    def open_(parts: pd.DataFrame) -> pd.DataFrame:
        return parts.assign(high=parts["high"].mask(parts["id"] == "C03", "1.1"))

    def faster(parts: pd.DataFrame) -> pd.DataFrame:
        return parts.assign(low=parts["low"].mask((parts["id"] == "C01") & (parts["part"] == "BERT"), "1.1"))

    def undecided(claims: pd.DataFrame) -> pd.DataFrame:
        return claims.assign(verdict=claims["verdict"].mask(claims["id"] == "C12", "inconclusive"))

    for name, change, word, why in (
        ("claim_parts", slower, "fewer iterations than LAMB", "C03 is not below 1 in all parts"),
        ("claim_parts", open_, "fewer iterations than LAMB", "C03 has 1 in the interval of every part"),
        ("claim_parts", faster, "fewer iterations than LAMB", "C01 is above 1 in a part"),
        ("claims", undecided, "factor updates are cheap", "C12 is not confirmed"),
    ):
        found, left_out = findings(planted(tmp_path / change.__name__, name, change))
        assert [reason for headline, reason in left_out.items() if word in headline] == [why]
        assert not any(word in finding for finding in found)
        assert len(found) + len(left_out) == len(FINDINGS)


def test_the_overhead_at_which_time_turns_is_stated_if_the_claim_has_it(tmp_path):
    """Truth: the sentences that the claim's details have for two workloads."""
    limits = ("1.26 [1.11, 1.43], here 1.05: wins", "1.83 [1.58, 2.12], here 1.82: open")
    details = " ".join(
        f"mkor_h takes less time if its step costs, in multiples of lamb's, < {limit}." for limit in limits
    )

    def with_limits(claims: pd.DataFrame) -> pd.DataFrame:
        return claims.assign(details=claims["details"].mask(claims["id"] == "C01", details))

    found, _ = findings(planted(tmp_path, "claims", with_limits))
    (text,) = (text for headline, text in found.items() if "fewer iterations than LAMB" in headline)
    assert "than 1.26 [1.11, 1.43] (BERT, here 1.05) and 1.83 [1.58, 2.12] (autoencoder, here 1.82)." in text


def test_the_ladder_counts_where_iterations_are_saved(tmp_path):
    """Truth: by hand; a ratio without an interval does not count, nor do MKOR's over a base with centred inputs."""
    columns = ("workload", "base", "inputs", "label", "iterations / base", "mkor / one_side", "one_side / one_vector")
    rows = [
        ("autoencoder", "sgd", "centred", "centred", "0.5 [0.4, 0.6]", "", ""),
        ("autoencoder", "sgd", "plain", "mac", "0.9 [0.8, 1]", "", ""),
        ("autoencoder", "sgd", "plain", "one_side", "0.9 [0.8, 0.95]", "", "0.9 [0.8, 1]"),
        ("autoencoder", "sgd", "plain", "mkor", "0.7 [0.6, 0.8]", "0.9 [0.8, 0.99]", ""),
        ("autoencoder", "sgd", "plain", "foof", "0.7 [0.6, 0.8]", "", ""),
        ("autoencoder", "sgd", "plain", "kfac", "0.7 [0.6, 0.8]", "", ""),
        ("autoencoder", "sgd", "centred", "mkor", "0.5 [0.4, 0.6]", "", ""),
        ("alexnet", "adamw", "plain", "mkor_adamw", "1.1 [0.9, 1.2]", "1 [0.7, 1.2]", ""),
        ("alexnet", "adamw", "plain", "kfac_adamw", "0.7", "", ""),
        ("alexnet", "adamw", "centred", "mkor_adamw", "1.3 [1.2, 1.4]", "", ""),
    ]
    (tmp_path / "tables").mkdir()
    table = pd.DataFrame(rows, columns=columns)
    decided = ["", "", "", "", "", "", "holds", "", "", "fails, slower"]
    of_some = {"mkor / centred": "1.4 [1.1, 1.7]", "iterations / base, final quality": "0.5 [0.4, 0.6]"}
    for column, cell in of_some.items():
        table[column] = ["", "", "", cell, *[""] * 6]
    table["prediction"] = decided
    table.to_csv(tmp_path / "tables" / "ladder.csv", index=False)
    found, _ = findings(Kept(tmp_path, tmp_path))
    text = found.pop("What the parts of MKOR are worth.")
    assert found == {}
    saves = "MAC on 0 of 1, MKOR on 1 of 2, FOOF on 1 of 1, KAISA on 1 of 1 and centring the inputs alone on 1 of 1"
    assert (
        f"lies below the base's: {saves} in the mean of all targets (`fig21_ladder`), MAC on 0 of 0, MKOR on 1 of 1"
        in text
    )
    assert (
        "MKOR's left factor saves some on 1 of 2, its memory of past inputs on 0 of 1 and MKOR in place of centring on "
        "0 of 1." in text
    )
    # It holds on one workload and fails on one.
    assert text.endswith("In general this is open: it holds on Autoencoder over SGD; fails on AlexNet over AdamW.")
    table.assign(prediction="").to_csv(tmp_path / "tables" / "ladder.csv", index=False)
    assert findings(Kept(tmp_path, tmp_path))[0]["What the parts of MKOR are worth."].endswith("centring on 0 of 1.")


def test_predictions_on_batch_and_width_name_where_they_hold_and_where_not(tmp_path):
    """Truth: by hand; a workload on which nothing was tested is not named, nor is the sweep beside the last target."""
    batch = [
        ("autoencoder", "mkor", "128", "nadamw", "", ""),
        ("autoencoder", "mkor", "1024", "nadamw", "-0.2 [-0.3, -0.1]", "holds"),
        ("autoencoder", "muon", "1024", "nadamw", "0.1 [0.05, 0.2]", "fails"),
        ("autoencoder", "sgd", "1024", "nadamw", "", "not tested"),
        ("language_model", "mkor", "64", "", "", "not tested"),
    ]
    columns = ["workload", "label", "batch size", "reference", "slope", "prediction"]
    (tmp_path / "tables").mkdir()
    pd.DataFrame(batch, columns=columns).to_csv(tmp_path / "tables" / "batch_size.csv", index=False)
    places = {"at the final quality": "1.1 [0.9, 1.3]", "over the sweep": "3 [2, 4]"}
    width = [
        (label, where, at, ratio if at == "256" else "", said if at == "256" else "")
        for label, said in (("mkor", "holds"), ("soap", "open"))
        for where, ratio in places.items()
        for at in ("64", "128", "256")
    ]
    table = pd.DataFrame(width, columns=["label", "where", "width", "measured / predicted", "prediction"])
    table.to_csv(tmp_path / "tables" / "width.csv", index=False)
    found, _ = findings(Kept(tmp_path / "evidence", tmp_path))
    assert found.pop("What a larger batch changes.").endswith(
        "on Autoencoder against NadamW this holds for `mkor` (-0.2 [-0.3, -0.1]), fails for `muon` (0.1 [0.05, 0.2]), "
        "is not tested for `sgd` (`fig22_batch_size`)."
    )
    wider = found.pop("What a wider model changes.")
    assert "at a width of 256 is what a line through those at 64 and 128 has there" in wider
    assert wider.endswith("holds for `mkor` (1.1 [0.9, 1.3]), is open for `soap` (1.1 [0.9, 1.3]) (`fig23_width`).")
    assert found == {}
    table.assign(prediction="").to_csv(tmp_path / "tables" / "width.csv", index=False)
    _, left_out = findings(Kept(tmp_path / "evidence", tmp_path))
    assert left_out["What a wider model changes."] == "the prediction is not tested for any label"


def test_without_a_table_every_finding_is_left_out(tmp_path):
    found, left_out = findings(Kept(tmp_path / "evidence", tmp_path / "field"))
    assert found == {}
    assert set(left_out) == set(FINDINGS)
    assert (
        left_out["The published numbers do not all agree with each other."] == "published_consistency.csv was not kept"
    )


def test_the_page_of_the_field_is_filled_from_the_tables(tmp_path: Path):
    page = Path(shutil.copy(field_page.PAGE, tmp_path))
    assert field_page.main([str(FIELD_TABLES.parent), "--page", str(page)]) == 0
    assert page.read_text() == field_page.PAGE.read_text()
