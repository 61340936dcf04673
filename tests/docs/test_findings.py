"""The numbers of README's findings and of docs/field.md are those of the committed tables."""

from __future__ import annotations

import csv
import io
import re
import shutil
from pathlib import Path
from statistics import median

import pandas as pd
import pytest

from benchmarks import field_page
from workflow.bench.analysis.wording import number
from workflow.bench.plan import REFERENCE
from workflow.bench.results.archive import read_archive
from workflow.bench.results.rows import read_csv
from workflow.bench.support.config import ROOT

README = " ".join((ROOT / "README.md").read_text().split())
FIELD = " ".join(field_page.PAGE.read_text().split())
(EVIDENCE,) = (ROOT / folder for folder in re.findall(r"tables and figures\]\((results/\S+/evidence)\)", README))
FIELD_TABLES = EVIDENCE.with_name("field") / "tables"


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


def test_findings_of_the_front_page(parts):
    rows = times("autoencoder_lamb")
    ms, steps = ({label: row[column] for label, row in rows.items()} for column in ("ms a step", "iterations"))
    losses = {label: f"{loss:.2f}" for label, loss in last_losses("bert_pretraining").items()}
    factor = {label: [milliseconds(label, "factor", d) for d in (256, 4096)] for label in ("mkor", "kaisa")}
    window = [milliseconds("mkor_windowed", part, 4096) for part in ("factor", "precondition")]
    activations, gradients = (
        [parts["C15", f"{model} {kind} alone"] for model in ("autoencoder", "bert", "resnet")]
        for kind in ("activations", "gradients")
    )
    for phrase in (
        f"{parts['C03', 'BERT']} of LAMB's iterations on a BERT of 4 × 128 and {parts['C03', 'autoencoder']} on the "
        "autoencoder (C03; the paper: 0.65)",
        f"(LAMB {ms['lamb']} ms, MKOR {ms['mkor']}, MKOR-H {ms['mkor_h']}, KFAC {ms['kaisa']})",
        f"MKOR-H is {parts['C01', 'autoencoder']} times as fast as LAMB there; on BERT {parts['C01', 'BERT']} times",
        f"SGD takes {parts['C19', 'sgd/mkor']} times its time, HyLo {parts['C19', 'hylo/mkor']}, KFAC "
        f"{parts['C19', 'kaisa/mkor']}",
        f"SGD takes {parts['C06', 'sgd/mkor']} times MKOR's time (C06†)",
        f"KFAC's without the clip is {parts['C18', 'KAISA without clip']}; minus SGD's {parts['C18', 'SGD']}",
        f"reaches the target in {steps['mkor_normalized']} iterations, MKOR in {steps['mkor']}, KFAC in "
        f"{steps['kaisa']}, LAMB in {steps['lamb']}",
        f"ends at {losses['lamb']} with LAMB, {losses['mkor']} with MKOR over LAMB, {losses['adamw']} with AdamW, "
        f"{losses['mkor_adamw']} with MKOR and {losses['kaisa_adamw']} with KFAC over AdamW",
        f"takes MKOR {' to '.join(factor['mkor'])} ms and KFAC {' to '.join(factor['kaisa'])} ms",
        f"{milliseconds('mkor', 'precondition', 4096)} ms at 4096 (KFAC {milliseconds('kaisa', 'precondition', 4096)})",
        f"it is {window[0]} and {window[1]} ms",
        f"{activations[0]}, {activations[1]} and {activations[2]} for activations (autoencoder, BERT, ResNet), and "
        f"{gradients[0]}, {gradients[1]} and {gradients[2]} for gradients",
        f"{parts['C13', ' alone']} times smaller than KFAC's (C13)",
        f"Muon takes {field('field_language_model', 'muon')} of AdamW's iterations on a small language model and MKOR "
        f"{field('field_language_model', 'mkor')}",
        f"on AlexNet they take {field('field_alexnet', 'muon')} and {field('field_alexnet', 'mkor')} of SGD's",
    ):
        assert phrase in README


def test_findings_of_the_field():
    def steps(label: str, *experiments: str) -> list[str]:
        return [field(f"field_{experiment}", label).partition(" ")[0] for experiment in experiments]

    def seconds(label: str) -> str:
        return field("field_autoencoder", label, "time").partition(" ")[0]

    three = ("autoencoder", "alexnet", "language_model")
    mkor, both = steps("mkor", *three), steps("mkor_normalized", "autoencoder", "autoencoder_lamb", *three[1:])
    nadamw, free, muon = (steps(label, *three) for label in ("nadamw", "schedule_free_adamw", "mkor_muon"))
    for phrase in (
        f"NadamW takes {seconds('nadamw')} of SGD's, schedule-free AdamW {seconds('schedule_free_adamw')}, MKOR "
        f"{seconds('mkor')}",
        f"MKOR {field('field_alexnet', 'mkor', 'time')}. ",
        f"it saves steps in all four: {', '.join(both[:3])} and {both[3]}",
        f"NadamW takes {nadamw[0]}, {nadamw[1]} and {nadamw[2]} of the base's steps",
        f"schedule-free AdamW {free[0]}, {free[1]} and {free[2]}. MKOR takes {mkor[0]}, {mkor[1]} and {mkor[2]}",
        f"MKOR-Muon takes {muon[0]}, {muon[1]} and {muon[2]} of Muon's steps",
    ):
        assert phrase in FIELD


def test_the_page_of_the_field_is_filled_from_the_tables(tmp_path: Path):
    page = Path(shutil.copy(field_page.PAGE, tmp_path))
    assert field_page.main([str(FIELD_TABLES.parent), "--page", str(page)]) == 0
    assert page.read_text() == field_page.PAGE.read_text()
