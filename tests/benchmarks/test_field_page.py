"""docs/field.md: a place and two sentences for every label, tests that exist, and texts from the tables."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from benchmarks import field_page
from benchmarks.field_page import PAGE, lead, luck, missed, text
from tests.support.synthetic_field import write_field
from workflow.bench.make_artefact import main as make_artefact
from workflow.bench.plan.experiment_files import label_of
from workflow.bench.support.config import CONFIG, ROOT, read_mapping


def labels() -> set[str]:
    """Return the labels of all experiments of the tier."""
    contents = map(read_mapping, (CONFIG / "experiments").glob("*.yaml"))
    blocks = [block for content in contents for block in content["tiers"].get("field", ())]
    return {label_of(entry) for block in blocks for entry in block["optimizers"]}


@pytest.mark.parametrize("experiment", field_page.NAMES)
def test_every_label_searches_as_the_page_says(experiment):
    """Two hyperparameters in three studies of eight trials; MKOR and Muon's kind at the points of what they wrap."""
    blocks = read_mapping(CONFIG / "experiments" / f"{experiment}.yaml")["tiers"]["field"]
    entries = {label_of(entry): entry for block in blocks for entry in block["optimizers"]}
    assert {len(entry["space"]) for entry in entries.values()} == {2}
    assert {(block["tuning"]["trials"], block["tuning"]["studies"]) for block in blocks} == {(8, 3)}
    assert {len(block["seeds"]) for block in blocks} == {6}
    for label, entry in entries.items():
        if label.startswith("mkor"):
            wrapped = entry["hyperparameters"]["base"]
            assert entry["space"] == entries["muon" if "muon" in label else wrapped]["space"], label
    for label in ("muon_exact", "normuon", "soap_muon"):
        assert label not in entries or entries[label]["space"] == entries["muon"]["space"]
    if "kaisa_again" in entries:
        assert {**entries["kaisa_again"], "label": None} == {**entries["kaisa"], "label": None}
        seeds = [
            block["tuning"]["seed"] for block in blocks for entry in block["optimizers"] if entry["name"] == "kaisa"
        ]
        assert abs(seeds[0] - seeds[1]) >= 3  # no study of one draws the points of another


def test_every_label_has_its_place_on_the_page():
    page = PAGE.read_text(encoding="utf-8")
    assert set(re.findall(r"<!-- end of (\w+) -->", page)) - {"missed", "luck", "leaders"} == labels()
    assert set(re.findall(r"^\*\*`(\w+)`\*\* ", page, re.MULTILINE)) == labels()


def test_the_tests_that_the_page_names_exist():
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text(encoding="utf-8")))
    written = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests" / "baselines").glob("test_*.py"))
    assert named
    assert {name for name in named if f"def {name}(" not in written} == set()


def row(experiment: str, label: str, steps: tuple[object, object, object], **other: object) -> dict[str, object]:
    """Return a row of field_results.csv."""
    names = ("steps / base", "steps / base, low", "steps / base, high")
    blank = dict.fromkeys(("time / base", "time / base, low", "time / base, high"))
    about = {"experiment": experiment, "optimizer": label, "base": "sgd"}
    return {**about, **blank, **dict(zip(names, steps, strict=True)), **other}


def test_the_leaders_are_those_with_the_lowest_ratios_over_the_base_that_most_methods_have():
    """Truth: by hand. Muon alone wraps nothing but AdamW here, and HyLo has no interval and no time."""
    rows = [
        row("field_alexnet", "mkor", ("0.9", "0.8", "1.1")),
        row("field_alexnet", "muon", ("0.1", "0.1", "0.2"), base="adamw"),
        row("field_alexnet", "hylo", ("0.7", "", "")),
        row("field_alexnet", "sgd", ("", "", "")),
    ]
    of_time = dict(zip(("time / base", "time / base, low", "time / base, high"), ("1.4", "1.2", "1.6"), strict=True))
    known = [
        {key: str(value or "") for key, value in (one | (of_time if one is rows[0] else {})).items()} for one in rows
    ]
    _, _, line = lead(known)
    assert line == "| AlexNet | `sgd` | `hylo` 0.7, `mkor` 0.9 [0.8, 1.1] | `mkor` 1.4 [1.2, 1.6] | 2 of 2, 1 of 1 |"


def test_a_label_saves_and_loses_where_its_interval_lies_on_one_side_of_1():
    results = pd.DataFrame(
        [
            row("field_autoencoder", "mkor", (0.5, 0.4, 0.6)),
            row("field_alexnet", "mkor", (1.5, 1.2, 1.8)),
            row("field_language_model", "mkor", (0.9, 0.7, 1.1)),
        ]
    )
    assert text(results, pd.DataFrame(columns=["optimizer"]), "mkor") == (
        "Steps over its base's: autoencoder 0.50 [0.40, 0.60], AlexNet 1.50 [1.20, 1.80], language model 0.90 [0.70, "
        "1.10]. It saved steps on autoencoder and lost steps on AlexNet."
    )


def controlled(control: str, ratio: tuple[float, float, float]) -> dict[str, object]:
    """Return the columns of field_results.csv about a label's control."""
    names = ("steps / control", "steps / control, low", "steps / control, high")
    return {"control": control, **dict(zip(names, ratio, strict=True))}


def test_a_label_is_shown_with_its_control_and_whether_the_interval_contains_1():
    results = pd.DataFrame(
        [
            row("field_autoencoder", "kaisa", (0.5, 0.4, 0.6)),
            row("field_autoencoder", "kaisa_again", (0.6, 0.5, 0.7)) | controlled("kaisa", (1.2, 0.9, 1.6)),
            row("field_alexnet", "dp_kfac", (0.9, 0.8, 1.0)) | controlled("kaisa", (0.73, 0.56, 0.95)),
        ]
    )
    assert list(luck(results))[2:] == [
        "| autoencoder | `kaisa_again` | `kaisa` | 1.20 [0.90, 1.60] contains 1 |",
        "| AlexNet | `dp_kfac` | `kaisa` | 0.73 [0.56, 0.95] excludes 1 |",
    ]
    assert list(luck(results[results["optimizer"] == "kaisa"])) == ["Not run yet."]


def test_runs_that_miss_their_target_are_listed():
    results = pd.DataFrame(
        [
            row("field_autoencoder", "mkor", (0.5, 0.4, 0.6), target="loss ≤ 1", reached=3, runs=4),
            row("field_autoencoder", "muon", (0.5, 0.4, 0.6), target="loss ≤ 1", reached=4, runs=4),
        ]
    )
    assert list(missed(results))[2:] == ["| autoencoder | `mkor` | loss ≤ 1 | 3 of 4 |"]


def test_the_page_is_filled_from_the_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    root, page = write_field(tmp_path / "test-cpu" / "field"), tmp_path / "page.md"
    page.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    assert field_page.main([str(root), "--page", str(page)]) == 1
    assert "field_results.csv: missing; run make field first" in capsys.readouterr().err
    for name in ("field_results", "field_costs"):
        assert make_artefact([name, "--results", str(root)]) == 0
    assert field_page.main([str(root), "--page", str(page)]) == 0
    filled = page.read_text(encoding="utf-8")
    assert "autoencoder 0.50" in filled
    assert "A step on the language model: 3 times the parameters in state, 1 Mflop, 12 kernels, 0.5 kB sent." in filled
    assert "| language model | `sgd` | validation loss ≤ 0.85 | 0 of 3 |" in filled
