"""README's blocks from small references: compact values, a picture that can be shown, ranks, and faulty facts."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from workflow.bench.results.rows import write_csv
from workflow.bench.site import front_page
from workflow.bench.site.front_page import WORKLOADS, Facts, claims_table, optimizers_table, picture
from workflow.bench.support.config import ROOT, ConfigError

LANGUAGE, *_ = WORKLOADS


def write_claim(folder: Path, parts: dict[str, str], verdict: str = "refuted", **row: str) -> Path:
    """Write a reference with one claim, C20, which needs no runs."""
    keys = ("id", "verdict", "claim", "proxy", "quantity", "unit", "threshold", "wording", "published", "measured")
    claim = dict.fromkeys(keys, "") | {"id": "C20", "verdict": verdict, "quantity": "a quantity"} | row
    write_csv(folder / "tables" / "claims.csv", list(claim), [claim])
    rows = [{"id": claim["id"], "part": name, "verdict": verdict, "value": value} for name, value in parts.items()]
    write_csv(folder / "tables" / "claim_parts.csv", ["id", "part", "verdict", "value"], rows)
    return folder


def cells(folder: Path) -> list[str]:
    *_, line = claims_table(folder)
    return [cell.strip() for cell in line.split("|")[1:-1]]


@pytest.mark.parametrize(
    ("parts", "measured", "shown"),
    [
        ({"": "1.23456"}, "1.23", "1.23"),
        ({"a": "1"}, "a: 1", "a 1"),
        ({"a": "1", "b": "2"}, "a: 1; b: 2", "a 1; b 2"),
        ({"kaisa, x": "1", "kaisa, y": "3", "mkor, x": "2", "mkor, y": "2"}, "-", "kaisa 1 to 3; mkor 2"),
        ({name: f"{name}" for name in "1234"}, "-", "1 to 4 (4 parts)"),
        ({"a": "inf", "b": "2"}, "a: infinite (3 layers); b: 2 (none)", "a: infinite; b: 2"),
        ({"a": "", "b": ""}, "a: none of 8 (that is few)", "a: none of 8"),
    ],
)
def test_a_claim_s_values_are_listed_or_their_range(tmp_path, parts, measured, shown):
    """Truth: by hand."""
    folder = write_claim(tmp_path / "evidence", parts, measured=measured)
    assert cells(folder)[3] == f"a quantity: {shown}"


def test_a_row_has_unit_threshold_and_published_number(tmp_path):
    about = {"unit": "ratio", "threshold": "holds above 1", "published": "2.57", "measured": "1"}
    about |= {"proxy": "random vectors", "wording": "does not hold (mathematics)"}
    folder = write_claim(tmp_path / "evidence", {"": "1"}, **about)
    name, claim, proxy, quantity, verdict = cells(folder)
    assert (name, proxy) == ("C20", "random vectors")
    assert claim.endswith(" (2.57)")
    assert quantity == "a quantity (ratio; holds above 1): 1"
    assert verdict == "does not hold (mathematics)"
    about = {"published": "4 of 4 rates converge", "wording": "not tested"}
    untested = write_claim(tmp_path / "other", {}, "not tested", **about)
    assert cells(untested)[2:] == ["–", "–", "not tested"]
    assert "4 of 4" not in cells(untested)[1]


def reference_with(folder: Path, dirty: str, rules: dict[str, tuple[str, ...]], *names: str) -> Path:
    rows = [
        {"workload": workload, "update_rule": rule, "git_dirty": dirty} for workload, of in rules.items() for rule in of
    ]
    write_csv(folder / "update_rules.runs.csv", ["workload", "update_rule", "git_dirty"], rows)
    (folder / "figures").mkdir()
    for name in names:
        (folder / "figures" / f"{name}.png").touch()
    return folder


@pytest.mark.parametrize(
    ("dirty", "alexnet", "names", "shown", "why"),
    [
        ("false", ("", "published"), ("fig13_update_rules", "fig14_cost_scaling"), "fig13_update_rules", ""),
        ("True", ("", "published"), ("fig13_update_rules", "fig14_cost_scaling"), "fig14_cost_scaling", "uncommitted"),
        ("false", ("",), ("fig13_update_rules", "fig14_cost_scaling"), "fig14_cost_scaling", "alexnet lacks the rule"),
        ("false", ("", "published"), ("fig14_cost_scaling",), "fig14_cost_scaling", "not kept"),
        ("false", ("",), ("fig13_update_rules",), "", ""),
    ],
)
def test_the_first_picture_is_clean_and_complete(tmp_path, monkeypatch, dirty, alexnet, names, shown, why):
    monkeypatch.setattr(front_page, "ROOT", tmp_path)
    folder = reference_with(tmp_path / "r", dirty, {"alexnet": alexnet, "autoencoder": ("", "published")}, *names)
    if not shown:
        with pytest.raises(ConfigError, match="can be the first picture"):
            picture(folder)
        return
    ((line,), remarks) = picture(folder)
    assert line.endswith(f"](r/figures/{shown}.png)")
    assert bool(remarks) == bool(why)
    assert all(why in remark for remark in remarks)


def write_field(folder: Path, steps: dict[str, tuple[float, float, float]]) -> Path:
    """Write the field's tables: the base is SGD, on the language model AdamW; a label over Muon has neither."""
    results, costs, runs = [], [], []
    for label, of_label in {**steps, "sgd": (2.0, math.nan, math.nan), "over_muon": (0.1, 0.1, 0.1)}.items():
        for experiment, value in zip(WORKLOADS, of_label, strict=True):
            base = "muon" if label == "over_muon" else "adamw" if experiment == LANGUAGE else "sgd"
            text = "" if math.isnan(value) else f"{value}"
            row = {"experiment": experiment, "optimizer": label, "base": base}
            results.append(row | {"steps / base": text, "time / base": text})
            costs.append({"experiment": experiment, "optimizer": label, "ms a step": "2", "state / parameters": "1.25"})
        runs.append({"optimizer": label, "method": "muon" if label == "over_muon" else label})
    for name, rows in (("field_results", results), ("field_costs", costs)):
        write_csv(folder / "tables" / f"{name}.csv", list(rows[0]), rows)
    write_csv(folder / f"{LANGUAGE}.runs.csv", ["optimizer", "method"], runs)
    return folder


def test_optimizers_are_ranked_by_iterations_and_known_ones_always_shown(tmp_path):
    """Truth: by hand. Eight labels, of which the four best and three named ones stand before the bases."""
    steps = {f"m{place}": (place / 10, place / 10, place / 10) for place in range(1, 7)}
    steps |= dict.fromkeys(("nadamw", "mkor", "kaisa"), (1.5, 1.5, 1.5))
    steps |= {"adamw": (math.nan, 0.5, 0.9), "lacks_one": (0.01, math.nan, 0.01)}
    header, _, *rows = optimizers_table(write_field(tmp_path / "field", steps))
    assert header.startswith("| optimizer | iterations / base: language model, AlexNet, autoencoder | time / base: as ")
    labels = [row.split("`")[1] for row in rows]
    assert labels == ["m1", "m2", "m3", "m4", "kaisa", "mkor", "nadamw", "adamw", "sgd"]
    assert rows[0] == "| `m1` | 0.10, 0.10, 0.10 | 0.10, 0.10, 0.10 | 1.00 | 1.2 |"
    assert rows[-2].startswith("| `adamw` | 1.00, 0.50, 0.90 |")
    assert rows[-1].startswith("| `sgd` | 2.00, 1.00, 1.00 |")


def test_facts_without_an_entry_or_with_a_folder_without_tables_are_refused(tmp_path):
    file = tmp_path / "facts.yaml"
    measured = "{machine: a, date: b, reproduce: 1, test: 2, disk: 3}"
    for references, about, takes, missing in (
        ("{evidence: docs}", measured, "{evidence: []}", "'field'"),
        ("{evidence: docs, field: docs}", "{machine: a}", "{evidence: []}", "'date'"),
        ("{evidence: docs, field: docs}", measured, "{}", "'evidence'"),
    ):
        file.write_text(f"references: {references}\nmeasured: {about}\ntakes: {takes}\n")
        with pytest.raises(ConfigError, match=f"lacks the entry {missing}"):
            Facts.read(file)
    file.write_text(f"references: {{evidence: docs, field: docs}}\nmeasured: {measured}\ntakes: {{evidence: []}}\n")
    with pytest.raises(ConfigError, match=r"docs has no tables/claims\.csv"):
        Facts.read(file)
    assert Facts.read().evidence.is_relative_to(ROOT)
