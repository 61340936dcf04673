"""Synthetic results of probes with their real columns, from laws that tests can recompute."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workflow.bench.analysis.step_times import period_of
from workflow.bench.results.columns import probe_columns

ORIGIN = {
    "hardware": "test-cpu",
    "threads": 1,
    "code_fingerprint": "0123456789abcdef",
    "git_commit": "0123456789abcdef",
}
"""What `write_probe` writes in these columns if the rows have none."""
WORKLOADS = {"bert": "lamb", "resnet": "sgd", "autoencoder": "sgd"}
STEPS = (0, 10, 100)


def combinations(**axes: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Yield a row for each combination of the columns' values, the last of which changes first."""
    listed = {name: tuple(values) for name, values in axes.items()}
    return (dict(zip(listed, values, strict=True)) for values in product(*listed.values()))


def rank1_error(highest: float = 1.4) -> pd.DataFrame:
    """Return rows of probes/rank1_error.csv; ``highest`` is the largest error of a mean vector."""
    rows: list[dict[str, Any]] = []
    random = np.random.default_rng(0)
    layers, sides = ("first", "second", "third"), ("activation", "gradient")
    for at in combinations(workload=WORKLOADS, seed=(0, 1), step=STEPS, layer=layers, side=sides):
        best = float(random.uniform(0, 0.5))
        for name, error in (("best", best), ("scaled_mean", best + 0.2), ("mean", best + 0.4)):
            rows.append({**at, "optimizer": WORKLOADS[at["workload"]], "approximation": name, "error": error})
    table = pd.DataFrame(rows)
    table.loc[table.index[table["approximation"] == "mean"][0], "error"] = highest
    return table


def spectra() -> pd.DataFrame:
    """Return rows of probes/spectra.csv: running factors with the identity, and batches, one singular."""
    rows = []
    for at in combinations(workload=WORKLOADS, step=STEPS, layer=("first", "second"), factor=("running", "batch")):
        weight = 0.95 ** (at["step"] + 1) if at["factor"] == "running" else 0.0
        smallest = weight or (-1e-9 if at["layer"] == "second" else 1e-3)
        values = {"smallest": smallest, "largest": 10.0, "resolution": 1e-4, "start_weight": weight}
        condition = 10 / smallest if smallest > 0 else np.inf
        rows.append({**at, "optimizer": "kaisa", "seed": 0, **values, "condition_number": condition})
    return pd.DataFrame(rows)


def factors() -> pd.DataFrame:
    """Return rows of probes/factors.csv: J_L of the paper's g turns nothing, and the second layer's least of all."""
    rows = []
    changes = {("right", "mkor"): 0.3, ("left", "mkor"): 1e-9, ("left", "mkor_scaled"): 0.2}
    changes |= {("left", "mkor_normalized"): 0.1}
    shares = {"first": 1.0, "second": 1e-9}
    for at in combinations(workload=(*WORKLOADS, "alexnet"), step=STEPS, layer=shares):
        about = {"optimizer": "mkor", "seed": 0, "dimension": 64, "scale": 2.0, "largest": 2.0, "median": 2.0}
        for (side, vectors), change in changes.items():
            turned = {"smallest": 2 - 1.9 * change, "direction_change": change * shares[at["layer"]]}
            where = {"side": side, "vectors": vectors, "vector_norm": 1.0, "removed": 0.01, "leading": 1.0}
            rows.append({**at, **about, **where, **turned})
    return pd.DataFrame(rows)


STEP_MS = {"kaisa": 50.0}
"""Milliseconds of a step by label; of another label 30."""


def step_time(
    runs: pd.DataFrame,
    ms: Mapping[str, float] = STEP_MS,
    *,
    rounds: int = 45,
    cycle: int = 1,
    noise: float = 0.0,
    bias: float = 0.0,
    busy: Iterable[int] = (),
) -> pd.DataFrame:
    """Return rows of probes/step_time.csv for every label of ``<experiment>.runs.csv``, the first of them twice.

    Args:
        runs: the runs; labels that differ in their period are timed at each.
        ms: milliseconds of a step by label.
        rounds: the number of rounds.
        cycle: the steps of a cycle, of which one is trained in a round.
        noise: the standard deviation of a step's logarithm.
        bias: the logarithm of the second name's time over the first's.
        busy: rounds in which another process takes half of the cores, and steps three times as long.
    """
    random, rows = np.random.default_rng(0), []
    for (experiment, workload), of_workload in runs.groupby(["experiment", "workload"], sort=False):
        settings = {(row.optimizer, period_of(row.hyperparameters)): None for row in of_workload.itertuples()}
        (first, period), *_ = settings
        for label, at, again in [*((*one, False) for one in settings), (first, period, True)]:
            usual = ms.get(label, 30.0) * np.exp(noise * random.standard_normal(rounds) + bias * again)
            for number in range(rounds):
                is_busy = number in set(busy)
                about = {"experiment": experiment, "workload": workload, "optimizer": label, "again": again}
                about |= {"run": f"{workload} {label} {at}", "runs": 1, "inverse_update_period": at, "cycle": cycle}
                times = {"step_ms": usual[number] * (3 if is_busy else 1), "busy_share": 0.5 if is_busy else 0.01}
                rows.append({**about, "round": number, "steps": 1, **times, "left_out": is_busy, **ORIGIN})
    return pd.DataFrame(rows, columns=list(probe_columns("step_time")))


PHASE_MS = {
    "forward": 10.0,
    "backward": 20.0,
    "capture": 1.0,
    "factor": 2.0,
    "precondition": 3.0,
    "communication": 0.5,
    "update": 1.5,
}
REFRESH = 4.0
"""Factor by which capture, factor and communication take longer in a refreshing step."""


def step_breakdown() -> pd.DataFrame:
    """Return rows of probes/step_breakdown.csv; an average step takes `PHASE_MS`, MKOR's factor phase twice as long."""
    rows = []
    for workload, base in WORKLOADS.items():
        settings = ((base, None), ("mkor", 10), ("kaisa", 10), ("kaisa", 50), ("eva", None))
        for at in combinations(workers=(1, 2), setting=settings, repeat=range(3), phase=PHASE_MS):
            (label, period), phase = at.pop("setting"), at["phase"]
            first_order = label == base and phase not in ("forward", "backward", "update")
            ms = 0.0 if first_order else PHASE_MS[phase] * (2 if (label, phase) == ("mkor", "factor") else 1)
            grows = phase in ("capture", "factor", "communication")
            times = {"ms": ms * (1 + 0.1 * at["repeat"]), "other_ms": ms}
            times |= {"refresh_ms": None if period is None else ms * (REFRESH if grows else 1)}
            about = {"workload": workload, "optimizer": label, "inverse_update_period": period, "steps": 10}
            about |= {"update_rule": "sherman_morrison" if label == "mkor" else None}
            rows.append({**about, **at, **times, "estimate": "combined" if period == 50 else "measured"})
    return pd.DataFrame(rows)


def scaling(*, cores: int = 2) -> pd.DataFrame:
    """Return rows of probes/scaling.csv: efficiency 1 / p ** 0.5."""
    rows = []
    for at in combinations(optimizer=("sgd", "mkor", "kaisa"), workers=(1, 2, 4), repeat=range(3)):
        about = {"quantity": "step_ms", "source": "measured", "workload": "wide_autoencoder", "cores": cores}
        value = 64 * (1 + 0.1 * at["repeat"]) / at["workers"] ** 0.5
        rows.append({**about, **at, "batch": 1024 // at["workers"], "value": value})
    return pd.DataFrame(rows)


PROJECTED = {"mkor": 1.5, "mkor_windowed": 1.1, "kaisa": 2.0}
"""Steps of the projection over the base optimizer's."""
COUNTED = {"mkor": 1.6, "mkor_windowed": 1.4, "kaisa": 2.5}
"""The same with counted bytes."""


def projection() -> pd.DataFrame:
    """Return rows of probes/projection.csv: a base step of 64 s over the GPUs, and `PROJECTED` times that.

    With counted bytes, the base step takes 70 s, and methods `COUNTED` times that.
    """
    rows = []
    models = (("bert_large", "Polaris", "lamb", 1e9), ("gpt_7b", "DGX H100", "adamw", 1e11))
    for workload, system, base, size in models:
        methods = {base: 1.0, **PROJECTED}
        for at in combinations(suffix=("", "_sharded"), optimizer=methods, workers=(8, 64, 1024)):
            suffix, label, workers = at.pop("suffix"), at["optimizer"], at["workers"]
            state = 0.0 if label == base else size / 10
            memory = (size / workers if suffix else size) + state
            about = {"source": "model", "system": system, "gpu_memory_bytes": 8e10, "workload": workload, **at}
            about |= {"optimizer": f"{label}{suffix}", "memory_bytes": memory, "gradient_bytes": size / 4}
            about |= {"state_bytes": state, "sent_bytes": state / 100, "step_ms": 64_000 / workers * methods[label]}
            rows.append({**about, "step_ms_counted": 70_000 / workers * COUNTED.get(label, 1.0)})
    return pd.DataFrame(rows)


def sharding() -> pd.DataFrame:
    """Return rows of probes/sharding.csv: 4 GB over the ranks where sharded, 1 GB of state, 20 and 2 MB sent.

    One formula is wrong by a byte.
    """
    rows: list[dict[str, Any]] = []
    for workers, label in product((2, 4), ("sgd", "mkor_windowed", "sgd_sharded", "mkor_windowed_sharded")):
        parts = workers if label.endswith("_sharded") else 1
        sizes = {"parameters": 1e9 / parts, "gradients": 1e9 / parts, "first_order_state": 2e9 / parts}
        if label.startswith("mkor"):
            sizes |= {"preconditioner_state": 1e9, "sent_refreshing": 2e7, "sent_otherwise": 2e6, "peak_live": 3e6}
        for rank, (quantity, size) in product(range(workers), sizes.items()):
            about = {"workload": "wide_autoencoder", "optimizer": label, "workers": workers, "rank": rank}
            sent = {"collective": "all_reduce" if quantity.startswith("sent") else None}
            computed = None if quantity == "peak_live" else size
            rows.append({**about, **sent, "quantity": quantity, "bytes": size, "computed_bytes": computed})
    rows[0]["computed_bytes"] += 1
    return pd.DataFrame(rows)


SLOPES = {
    ("copy", "floor"): 2.0,
    ("mkor", "factor"): 2.1,
    ("mkor", "precondition"): 2.9,
    ("mkor_windowed", "factor"): 1.0,
    ("mkor_windowed", "precondition"): 2.0,
    ("kaisa", "factor"): 3.0,
    ("kaisa", "precondition"): 2.9,
    ("eva", "factor"): 1.0,
    ("eva", "precondition"): 2.0,
}


def cost_scaling() -> pd.DataFrame:
    """Return rows of probes/cost_scaling.csv: powers of the width by `SLOPES`; the largest KAISA is timed once."""
    rows = []
    for place, ((label, part), exponent) in enumerate(SLOPES.items()):
        for d in (256, 512, 1024):
            once = (label, part, d) == ("kaisa", "factor", 1024)
            for repeat in range(1 if once else 3):
                ms = (0.01 + 0.004 * place) * (d / 256) ** exponent * (1.2 ** (repeat - 1) if not once else 1)
                rows.append({"optimizer": label, "part": part, "dimension": d, "repeat": repeat, "calls": 1, "ms": ms})
    return pd.DataFrame(rows)


def communication() -> pd.DataFrame:
    """Return rows of probes/communication.csv: 8 d bytes for MKOR and Eva; for KAISA 4 d^2, and 8 d^2 by its owner."""
    rows = []
    for workers, d in product((2, 4), (64, 128, 256)):
        sent: list[tuple[str, str, int, int | None]]
        sent = [("mkor", "all_reduce", 8 * d, 4 * d), ("eva", "all_reduce", 8 * d, 8 * d)]
        sent += [("kaisa", "all_reduce", 4 * d * d, 16 * d * d), ("kaisa_mem_opt", "all_reduce", 4 * d * d, None)]
        owned = [("kaisa", "broadcast", 8 * d * d, 16 * d * d)]
        for rank in range(workers):
            for label, collective, size, paper in sent + (owned if rank == 0 else []):
                about = {"optimizer": label, "dimension": d, "workers": workers, "rank": rank}
                sizes = {"bytes": size, "predicted_bytes": size, "paper_bytes": paper}
                rows.append({**about, "collective": collective, **sizes})
    return pd.DataFrame(rows)


PROBES = {
    "rank1_error": rank1_error,
    "spectra": spectra,
    "step_breakdown": step_breakdown,
    "scaling": scaling,
    "projection": projection,
    "sharding": sharding,
    "factors": factors,
    "cost_scaling": cost_scaling,
    "communication": communication,
}


def write_probes(root: Path, **instead: pd.DataFrame) -> Path:
    """Write ``root/probes/<name>.csv`` of all `PROBES`; ``instead`` gives other rows for some of them."""
    for name, make in PROBES.items():
        write_probe(root, name, instead.get(name, make()))
    return root


def write_probe(root: Path, name: str, rows: pd.DataFrame) -> None:
    """Write ``probes/<name>.csv`` with all columns of the probe: `ORIGIN`, or empty, where ``rows`` lack them."""
    (root / "probes").mkdir(parents=True, exist_ok=True)
    columns = probe_columns(name)
    assert set(rows.columns) <= set(columns), name
    rows = rows.assign(**{key: value for key, value in ORIGIN.items() if key in columns and key not in rows})
    rows.reindex(columns=list(columns)).to_csv(root / "probes" / f"{name}.csv", index=False)
