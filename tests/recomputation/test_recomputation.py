"""The bench's verdicts are those that code which shares none with it recomputes from the same files."""

from __future__ import annotations

import ast
import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.recomputation.cases import write_cases
from tests.recomputation.claims import disagreements, recompute, swept
from tests.recomputation.reading import Condition, Experiment, Folder, claims
from tests.recomputation.statistics import Found, verdict
from tests.recomputation.targets import Clock, Compared, Goal, base_limit, crossing
from workflow.bench.analysis.estimates import Estimate, looks
from workflow.bench.analysis.step_times import StepTimes, TimedLabel
from workflow.bench.analysis.target_sweep import SHARES, NoSweepError, SweptRatio, sweep_of_evaluations
from workflow.bench.claims import Verdicts, conditions_of, decide_all
from workflow.bench.claims.time_to_target import part_of
from workflow.bench.plan.targets import Target
from workflow.bench.results.archive import SUFFIX, read_archive
from workflow.bench.results.columns import EVALUATION_COLUMNS, probe_columns
from workflow.bench.results.tables import Results, published
from workflow.bench.support.config import ROOT
from workflow.bench.training.record import METRIC_COLUMNS

REFERENCE = ROOT / "results" / "reference"
KEPT = sorted(folder.parent for folder in REFERENCE.glob("*/*/probes"))
"""The folders with probes; those without hold records of another's runs."""
EMBEDDED = next(root for root in KEPT if root.name == "embedded" and (root / "probes" / "step_time.csv").exists())
SEPARATE = {"numpy", "pandas", "scipy"}
IDENTITY = [name for name in EVALUATION_COLUMNS if name not in METRIC_COLUMNS]


@dataclass(frozen=True)
class Once(Results):
    """Results that read every file once, and evaluations of which the records alone were kept from these."""

    read: dict[tuple[str, str], pd.DataFrame] = field(default_factory=dict, compare=False)

    def _once(self, kind: str, name: str, reader: Callable[[str], pd.DataFrame]) -> pd.DataFrame:
        if (kind, name) not in self.read:
            self.read[kind, name] = reader(name)
        return self.read[kind, name]

    def runs(self, experiment: str) -> pd.DataFrame:
        return self._once("runs", experiment, super().runs)

    def metrics(self, experiment: str) -> pd.DataFrame:
        return self._once("metrics", experiment, self._metrics)

    def probe(self, name: str) -> pd.DataFrame:
        # A model decides no claim, and kept tables of it may lack columns of today's.
        if name == "projection":
            return pd.DataFrame(columns=list(probe_columns(name)))
        return self._once("probe", name, super().probe)

    def _metrics(self, experiment: str) -> pd.DataFrame:
        runs = self.runs(experiment)
        if runs.empty or (self.root / f"{experiment}.csv").exists():
            return super().metrics(experiment)
        trainers = [REFERENCE / machine / self.tier for machine in runs["hardware"].dropna().unique()]
        kept = {
            run: one for folder in trainers for run, one in read_archive(folder / f"{experiment}{SUFFIX}").runs.items()
        }
        rows = [pd.read_csv(io.StringIO(kept[run].metrics)).assign(run=run) for run in runs["run"]]
        return runs[IDENTITY].merge(pd.concat(rows), on="run", how="left")


def decided(root: Path, allowed: int) -> Verdicts:
    with looks(allowed):
        return decide_all(Once(root, looks=allowed))


@cache
def both(root: Path) -> tuple[Folder, Verdicts]:
    """Return a folder as the script reads it, and the bench's verdicts."""
    folder = Folder.of(root)
    return folder, decided(root, folder.looks)


def differences(folder: Folder, verdicts: Verdicts, thresholds: dict[str, list[Condition]] | None = None) -> list[str]:
    given = dict(zip(verdicts.claims["id"], verdicts.claims["verdict"], strict=True))
    return disagreements(recompute(folder, thresholds), given, verdicts.parts)


def imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)


def test_the_script_shares_no_code_with_the_project():
    """It imports NumPy, pandas, SciPy, Python's library and itself."""
    for file in Path(__file__).parent.glob("*.py"):
        if file != Path(__file__):
            others = {name for name in imported(file) if name.split(".")[0] not in sys.stdlib_module_names | SEPARATE}
            assert {name for name in others if not name.startswith("tests.recomputation")} == set(), file.name


@pytest.mark.parametrize("root", KEPT, ids=lambda root: "/".join(root.parts[-2:]))
def test_every_verdict_and_number_is_recomputed(root):
    """Truth: the script, to three digits, from the files of a kept folder."""
    folder, verdicts = both(root)
    assert len(verdicts.claims) == 25
    assert differences(folder, verdicts) == []


def evaluated(
    name: str, label: str, metric: str, change: Callable[[pd.Series], pd.Series]
) -> Callable[[Folder], Folder]:
    """Return a change of one metric of a label's first run."""

    def planted(folder: Folder) -> Folder:
        one = folder.experiment(name)
        run = one.runs.loc[one.runs["optimizer"] == label, "run"].iloc[0]
        rows = one.evaluations.copy()
        chosen = (rows["run"] == run) & (rows["metric"] == metric)
        assert chosen.any()
        rows.loc[chosen, "value"] = change(rows.loc[chosen, "value"])
        return replace(folder, read={**folder.read, name: Experiment(name, one.runs, rows)})

    return planted


def diverged(folder: Folder) -> Folder:
    one = folder.experiment("alexnet_cifar100")
    runs = one.runs.copy()
    runs.loc[(runs["optimizer"] == "mkor").idxmax(), "status"] = "diverged"
    return replace(folder, read={**folder.read, one.name: Experiment(one.name, runs, one.evaluations)})


def probed(name: str, rows: str, column: str, factor: float) -> Callable[[Folder], Folder]:
    """Return a change of some of a probe's rows."""

    def planted(folder: Folder) -> Folder:
        table = folder.probe(name).copy()
        chosen = table.query(rows).index
        assert len(chosen)
        table[column] = table[column].where(~table.index.isin(chosen), factor * table[column])
        return replace(folder, read={**folder.read, name: table})

    return planted


def busy(folder: Folder) -> Folder:
    """Return a folder in whose last row of iteration times other processes took a fifth of the cores."""
    table = folder.probe("iteration_time").copy()
    table.loc[table.index[-1], "busy_share"] = 0.2
    return replace(folder, read={**folder.read, "iteration_time": table})


PLANTED: dict[str, tuple[str, Callable[[Folder], Folder]]] = {
    "losses of a run": ("C03", evaluated("autoencoder_lamb", "mkor", "loss", lambda values: 1.1 * values)),
    "steps of the base": ("C03", evaluated("autoencoder_lamb", "lamb", "loss", lambda values: 1.1 * values)),
    "a score": ("C04", evaluated("bert_glue", "lamb", "score", lambda values: values + 0.01)),
    "a run's end": ("C19", diverged),
    "times of a label": ("C19", probed("step_time", "optimizer == 'mkor' and not again", "step_ms", 1.01)),
    "an accuracy": ("C18", evaluated("resnet_cifar10_lr", "sgd", "accuracy", lambda values: values + 0.1)),
    "bytes": ("C13", probed("memory", "optimizer == 'kaisa'", "bytes", 1.01)),
    "a repeat": ("C11", probed("cost_scaling", "optimizer == 'mkor' and repeat == 0 and dimension == 4096", "ms", 1.1)),
    "a busy machine": ("C08", busy),
    "the looks": ("C06", lambda folder: replace(folder, looks=2)),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_change_is_noticed(planted):
    claim, change = PLANTED[planted]
    folder, verdicts = both(EMBEDDED)
    asked = {claim: claims()[claim]}
    assert differences(folder, verdicts, asked) == []
    assert differences(change(folder), verdicts, asked)


def test_a_planted_threshold_is_noticed():
    folder, verdicts = both(EMBEDDED)
    strict = {"C11": [given._replace(threshold=1.0) for given in claims()["C11"]]}
    assert any(line.startswith("C11: ") for line in differences(folder, verdicts, strict))


def test_cases_that_kept_results_have_not_are_recomputed(tmp_path):
    """Truth: the script, on altered results; at two looks, for which only intervals over runs are wider."""
    root = tmp_path / "machine" / "evidence"
    write_cases(EMBEDDED, root)
    folder, verdicts = Folder.of(root), decided(root, 2)
    assert folder.looks == 2
    assert differences(folder, verdicts) == []
    tested = set(verdicts.claims.loc[verdicts.claims["verdict"] != "not tested", "id"])
    assert tested == {"C01", "C02", "C03", "C04", "C05", "C06", "C07", "C09", "C10", "C11", "C18", "C19", "C24", "C25"}
    details = verdicts.claims.set_index("id")["details"]
    assert "each with its own decay (autoencoder_horizons)" in details["C01"]
    assert not verdicts.parts["verdict"].eq("not tested").any()


def test_targets_and_crossings_of_random_curves_agree():
    """Truth: the script. Curves have few, equal and infinite values; some targets beat their trivial predictor."""
    draw, kept, dropped = np.random.default_rng(0), 0, 0
    for _ in range(100):
        rising, number = bool(draw.random() < 0.5), int(draw.integers(2, 9))
        trivial = None if draw.random() < 0.5 else draw.uniform(-2, 2)
        steps = np.arange(number) * 10.0
        values = np.round((1 if rising else -1) * steps / 20 + draw.normal(0, 1, (4, number)), 1)
        values[3, draw.integers(1, 4 * number) % number] = draw.choice([np.inf, 0.0])
        goal = Target("validation", "loss", "above" if rising else "below", 0.0, trivial)
        about = {"split": goal.split, "metric": goal.metric, "train_seconds": 0.0}
        curves = {
            f"{run}": [about | {"step": step, "value": value} for step, value in zip(steps, row, strict=True)]
            for run, row in enumerate(values)
        }
        labels = ["base", "base", "other", "other"]
        runs = pd.DataFrame({"run": [*curves], "optimizer": labels, "seed": [0, 1, 0, 1], "status": "finished"})
        ours = {
            share: base_limit([(steps, row) for row in values[:2]], Goal.of(goal.as_dict()), share) for share in SHARES
        }
        try:
            sweep = sweep_of_evaluations(goal, runs, curves, "base", SHARES)
        except NoSweepError:
            assert set(ours.values()) == {None}
            continue
        assert {share: limit for share, limit in ours.items() if limit is not None} == pytest.approx(
            {share: target.limit for share, target in sweep.targets.items()}, rel=1e-9
        )
        for label, (first, second) in {"base": (0, 1), "other": (2, 3)}.items():
            for seed, run in enumerate((first, second)):
                own = [crossing(steps, values[run], target.limit, rising) for target in sweep.targets.values()]
                assert own == pytest.approx(list(sweep.courses[label].crossings[seed]), rel=1e-6)
        kept, dropped = kept + len(sweep.targets), dropped + len(sweep.dropped)
    assert min(kept, dropped) > 50


def test_verdicts_of_random_intervals_agree():
    """Truth: the script, for every threshold of the paper's claims, bounds at the margins included."""
    draw, seen = np.random.default_rng(0), set()
    rows = published("claims", as_text=True).set_index("id", drop=False)
    for claim, thresholds in claims().items():
        given = conditions_of(rows.loc[claim].to_dict())
        assert len(given) == len(thresholds)
        for ours, theirs in zip(thresholds, given, strict=True):
            for _ in range(100):
                center, fall = ours.threshold, draw.choice([0.5, 1.0])
                size = (ours.margin or 0.1) * max(abs(center), 1.0)
                low, high = np.sort(center + size * draw.choice([-2.0, -1.0, -0.3, 0.0, 0.3, 1.0, 2.0], 2))
                own = verdict(Found(center, low, high), ours, fall)
                assert own == theirs.judge(Estimate(center, low, high, 8, "mean", "t"), fall), (claim, low, high)
                seen.add(own)
    assert seen == {"confirmed", "refuted", "no difference", "inconclusive"}


@pytest.mark.parametrize("unreached", [0, 1, 2])
@pytest.mark.parametrize(("low", "high"), [(0.99, 1.01), (1.0, 1.0), (0.5, 1.5), (1.1, 1.2), (np.nan, np.nan)])
def test_pairs_that_missed_the_target_leave_a_part_open_alike(unreached, low, high):
    """Truth: the script; of 10 pairs."""
    ratio = SweptRatio(Estimate(1.0, low, high, 8, "geometric mean", "t", is_ratio=True), 10, unreached, 0, (), 8)
    (ours,), (theirs,) = (
        claims()["C06"],
        conditions_of(published("claims", as_text=True).set_index("id").loc["C06"].to_dict()),
    )
    assert (
        swept("", Compared(Found(1.0, low, high), unreached / 10), ours).verdict == part_of("", ratio, theirs).verdict
    )


def test_step_times_of_random_rounds_agree():
    """Truth: the script, for turns that end inside a cycle, busy rounds, several kinds of step, and noisy machines."""
    draw, quiet, comparable = np.random.default_rng(0), [], []
    for _ in range(40):
        noise, rounds = draw.choice([0.01, 0.3]), np.arange(draw.integers(12, 180))
        busy = draw.random(len(rounds)) < draw.choice([0.0, 0.2])
        kinds = [
            {
                "optimizer": label,
                "run": f"{label}{run}",
                "runs": run + 1,
                "again": again,
                "cycle": cycle,
                "steps": steps,
            }
            for label, run, again, cycle, steps in (
                ("sgd", 0, False, 1, 1),
                ("sgd", 0, True, 1, 1),
                ("mkor", 0, False, *draw.choice([(10, 4), (10, 10), (6, 4)])),
                ("mkor", 1, False, 1, 1),
            )
        ]
        rows = pd.concat([pd.DataFrame({"round": rounds, "left_out": busy}).assign(**kind) for kind in kinds])
        rows["step_ms"] = np.exp(draw.normal(0, 0.01, len(rows)))
        # On a noisy machine the copies differ in every other interval of nine rounds.
        rows["step_ms"] *= 1 + noise * (rows["again"] & (rows["round"] // 9 % 2 == 1))
        rows = rows.assign(experiment="x", workload="w", inverse_update_period=np.nan, note=None)
        theirs, ours = StepTimes(rows), Clock(rows)
        labels = [TimedLabel("x", "w", label) for label in ("sgd", "mkor")]
        blocks = ours.blocks([("x", "w", label.optimizer, 0.0) for label in labels])
        assert ours.is_quiet == theirs.is_quiet
        assert (blocks is None) == bool(theirs.problem(*labels))
        if blocks is not None:
            assert np.array([*blocks.values()]) == pytest.approx(theirs.blocks(*labels))
        quiet.append(bool(ours.is_quiet))
        comparable.append(blocks is not None)
    assert {*quiet} == {*comparable} == {True, False}
