"""The rounds of a tier: which experiments get more seeds after a look, and when it ends."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.experiments import block, load, make_folder, optimizer, options, with_looks, write
from workflow.bench import evidence
from workflow.bench.evidence import next_rounds, undecided
from workflow.bench.plan import Plan
from workflow.bench.plan.pipeline import forwarding
from workflow.bench.plan.rounds import Rounds, read_rounds, write_rounds
from workflow.bench.results.rows import write_csv

TWICE = {"rounds": {"seeds": 1, "most": 2}}
THRICE = {"rounds": {"seeds": 2, "most": 3}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A configuration whose fine-tuning starts from a pre-training seed by seed, and that from one run of a phase."""
    config = with_looks(make_folder(tmp_path / "config"), 3)
    write(config, "phase", block(optimizer("sgd")), tier="evidence")
    first = {"start_from": {"experiment": "phase", "optimizer": "sgd", "seed": 0}}
    write(config, "pretraining", block(optimizer("sgd"), **THRICE, **first), tier="evidence")
    follows = {"start_from": {"experiment": "pretraining"}}
    write(config, "tuning", block(optimizer("sgd"), **THRICE, **follows), tier="evidence")
    write(config, "alone", block(optimizer("sgd"), **TWICE), tier="evidence")
    return config


def claim(name: str, verdict: str, *experiments: str, probe: str = "step_time") -> dict[str, str]:
    data = [f"{experiment}.runs.csv: runs 0123456789abcdef, fedcba9876543210" for experiment in experiments]
    data += [f"{experiment}.csv: runs 0123456789abcdef" for experiment in experiments[:1]]
    return {"id": name, "verdict": verdict, "data": "; ".join([*data, f"probes/{probe}.csv: experiment=alone"])}


def test_only_inconclusive_claims_are_undecided_and_their_sources_feed_them():
    verdicts = ["confirmed", "refuted", "no difference", "not tested"]
    rows = [claim(verdict, verdict, "alone") for verdict in verdicts]
    rows += [claim("C01", "inconclusive", "tuning", "alone"), claim("C14", "inconclusive")]
    assert undecided(rows) == {"C01": ["alone", "tuning"], "C14": []}


def test_seeds_go_to_what_feeds_an_open_claim_and_to_what_its_runs_start_from(folder: Path):
    plan = load(folder, tier="evidence")
    assert next_rounds(plan, {"C01": ["tuning"]}) == Rounds(2, {"tuning": 2, "pretraining": 2})
    assert next_rounds(plan, {"C01": ["alone"]}) == Rounds(2, {"alone": 2})
    assert next_rounds(plan, {"C01": ["phase"], "C02": [], "C03": ["gone"]}) is None
    assert next_rounds(plan, {}) is None


def test_an_experiment_has_its_most_rounds_and_a_tier_its_most_looks(folder: Path):
    results = load(folder, tier="evidence").results
    everything = {"C01": ["alone", "tuning"]}

    def after(rounds: Rounds) -> Rounds | None:
        write_rounds(results, rounds)
        return next_rounds(load(folder, tier="evidence"), everything)

    assert after(Rounds(2, {"alone": 2})) == Rounds(3, {"alone": 2, "tuning": 2, "pretraining": 2})
    # A pre-training that is further than the runs that start from it stays where it is.
    assert after(Rounds(2, {"alone": 2, "pretraining": 3})) == Rounds(3, {"alone": 2, "tuning": 2, "pretraining": 3})
    assert after(Rounds(3, {"alone": 2})) is None


def leading(
    folder: Path, monkeypatch: pytest.MonkeyPatch, looks: Sequence[dict[str, str]]
) -> list[tuple[int, list[str]]]:
    """Return the look and the targets of each call of the pipeline, which makes the claims of ``looks`` one by one."""
    calls: list[tuple[int, list[str]]] = []

    def pipeline(plan: Plan, _: argparse.Namespace, targets: Sequence[str]) -> int:
        calls.append((plan.rounds.look, [Path(target).name for target in targets]))
        rows = [claim(name, verdict, name) for name, verdict in looks[plan.rounds.look - 1].items()]
        write_csv(plan.results / "tables" / "claims.csv", ["id", "verdict", "data"], rows)
        return 0

    monkeypatch.setattr(evidence, "run_pipeline", pipeline)
    assert evidence.main(options(folder)) == 0
    return calls


def test_it_looks_until_nothing_is_open_and_then_makes_everything(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    looks = [{"alone": "inconclusive", "tuning": "inconclusive"}, {"alone": "confirmed", "tuning": "confirmed"}]
    assert leading(folder, monkeypatch, looks) == [(1, ["claims.csv"]), (2, ["claims.csv"]), (2, [])]
    assert capsys.readouterr().out.splitlines() == [
        "look 1 of at most 3: 2 claims undecided",
        "  alone  alone (round 1)",
        "  tuning  tuning (round 1)",
        "  alone: round 2 of 2 next",
        "  pretraining: round 2 of 3 next",
        "  tuning: round 2 of 3 next",
        "look 2 of at most 3: 0 claims undecided",
        "no further seeds",
    ]
    # Called again, it goes on where it was.
    assert leading(folder, monkeypatch, looks) == [(2, ["claims.csv"]), (2, [])]


def test_it_ends_after_the_last_look(folder: Path, monkeypatch: pytest.MonkeyPatch):
    calls = leading(folder, monkeypatch, [{"tuning": "inconclusive"}] * 3)
    assert [look for look, _ in calls] == [1, 2, 3, 3]
    plan = load(folder, tier="evidence")
    assert read_rounds(plan.results, plan.tier) == Rounds(3, {"tuning": 3, "pretraining": 3})
    assert [run.seed for run in plan.job("tuning", "sgd").runs] == [0, 1, 2, 3, 4]


def test_a_failed_pipeline_ends_it_with_its_status(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(evidence, "run_pipeline", lambda *_: 3)
    assert evidence.main(options(folder)) == 3


def test_a_request_to_stop_is_left_to_the_pipeline():
    """Ctrl-C does not end the leader before its child, and SIGTERM reaches the child."""
    before = signal.getsignal(signal.SIGINT)
    code = (
        "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); print(flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with forwarding(child):
            os.kill(os.getpid(), signal.SIGINT)
            assert child.poll() is None
            os.kill(os.getpid(), signal.SIGTERM)
            assert child.wait() == 7
    assert signal.getsignal(signal.SIGINT) is before
