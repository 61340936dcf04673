"""Groups of runs that are compared with each other."""

from __future__ import annotations

import pandas as pd
import pytest

from workflow.bench.analysis.time_to_target import by_configuration
from workflow.bench.plan.targets import Target

RATES = (0.1, 0.2)


def runs(*, studies: bool, periods: tuple[int, ...] = (5, 10)) -> pd.DataFrame:
    """Return runs of four seeds at each period, whose rate two studies chose in turn."""
    shared = {"experiment": "one", "workload": "autoencoder", "dataset": "digits", "optimizer": "mkor", "steps": 10}
    return pd.DataFrame(
        shared
        | {"target": Target("validation", "loss", "below", 0.1), "seed": seed, "study": seed % 2 if studies else None}
        | {"hyperparameters": {"lr": RATES[seed % 2], "inverse_update_period": period, "momentum": 0.9}}
        for period in periods
        for seed in range(4)
    )


def test_the_seeds_of_all_studies_are_one_configuration_which_lists_their_values():
    found = by_configuration(runs(studies=True))
    expected = [{"lr": RATES, "inverse_update_period": period, "momentum": 0.9} for period in (5, 10)]
    assert [configuration.hyperparameters for configuration in found] == expected
    assert [configuration.period for configuration in found] == [5, 10]
    assert [rows["seed"].tolist() for rows in found.values()] == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize("periods", [(5,), (5, 10)])
def test_untuned_values_are_configurations_of_their_own(periods: tuple[int, ...]):
    found = by_configuration(runs(studies=False, periods=periods))
    assert sorted(configuration.hyperparameters["lr"] for configuration in found) == sorted(RATES * len(periods))
    assert [len(rows) for rows in found.values()] == [2] * 2 * len(periods)


def test_values_that_no_study_changed_are_not_listed():
    same = runs(studies=True).assign(hyperparameters=[{"lr": 0.1}] * 8)
    (configuration,) = by_configuration(same)
    assert configuration.hyperparameters == {"lr": 0.1}
