"""Trainings of one label that differ in the workload's parameters are told apart."""

from __future__ import annotations

import pandas as pd

from workflow.bench.analysis.time_to_target import by_configuration, varied
from workflow.bench.plan.targets import Target

RATES = (0.1, 0.2)


def runs(**parameters: object) -> pd.DataFrame:
    """Return runs of four seeds, whose rate two studies chose in turn."""
    shared = {"experiment": "one", "workload": "autoencoder", "dataset": "digits", "optimizer": "mkor", "steps": 10}
    shared |= {"target": Target("validation", "loss", "below", 0.1), "workload_parameters": parameters}
    return pd.DataFrame(
        shared | {"seed": seed, "study": seed % 2, "hyperparameters": {"lr": RATES[seed % 2]}} for seed in range(4)
    )


def test_sizes_are_configurations_of_their_own():
    """Truth: by hand. Two batch sizes have one label, and the studies of each chose rates of its own."""
    large = runs(batch_size=32, centred_inputs=True)
    large["hyperparameters"] = [{"lr": 10 * given["lr"]} for given in large["hyperparameters"]]
    found = by_configuration(pd.concat([runs(batch_size=8), large], ignore_index=True))
    assert [(one.varied, one.hyperparameters["lr"]) for one in found] == [
        ("batch_size=8", RATES),
        ("batch_size=32, centred_inputs=True", (1.0, 2.0)),
    ]
    assert [rows["seed"].tolist() for rows in found.values()] == [[0, 1, 2, 3]] * 2


def test_what_is_the_same_in_an_experiment_is_not_named():
    alike = runs(batch_size=8)
    assert set(varied(alike)) == {""}
    other = runs(batch_size=32).assign(experiment="two")
    assert set(varied(pd.concat([alike, other], ignore_index=True))) == {""}
    assert set(varied(alike.assign(workload_parameters=None))) == {""}
