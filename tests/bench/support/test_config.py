"""Bad input is refused in one line that gives file, key, value and requirement, and nothing is written."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.experiments import make_folder
from tests.support.numbers import within
from workflow.bench.plan import Plan
from workflow.bench.plan.__main__ import main as print_plan
from workflow.bench.support import config
from workflow.bench.support.config import ConfigError

EXPERIMENT = """
title: A test
paper: none
tiers:
  embedded:
    - workload: {name: autoencoder, batch_size: 128}
      steps: 20
      evaluate_every: 10
      seeds: [0, 1]
      schedule: {name: linear, warmup: 0.1}
      target: {split: validation, metric: loss, below: 0.1}
      optimizers:
        - {name: sgd, hyperparameters: {lr: 0.1, momentum: 0.9}}
        - {name: mkor, hyperparameters: {base: sgd, lr: 0.1}, sweep: {inverse_update_period: [1, 10]}}
      tuning: {trials: 3, seed: 9, metric: {split: validation, metric: loss}, space: {lr: {log: [0.1, 10]}}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration folder with one experiment, `trial.yaml`, in the working directory."""
    monkeypatch.chdir(tmp_path)
    made = make_folder(Path("config"))
    (made / "experiments" / "trial.yaml").write_text(EXPERIMENT)
    return made


def _with(change: dict[str, Any] | None = None, **block: Any) -> str:
    content = yaml.safe_load(EXPERIMENT)
    content.update(change or {})
    content["tiers"]["embedded"][0].update(block)
    return yaml.safe_dump(content)


def _sgd(**entry: Any) -> dict[str, Any]:
    return {"optimizers": [{"name": "sgd", "hyperparameters": {"lr": 0.1}, **entry}]}


BLOCK = "config/experiments/trial.yaml: tiers.embedded[0]"
MISTAKES = {
    "misspelt key": (
        EXPERIMENT.replace("steps: 20", "stepz: 20"),
        f"{BLOCK}.stepz = 20: unknown key; did you mean 'steps'?",
    ),
    "misspelt top key": (
        EXPERIMENT.replace("paper:", "papre:"),
        "config/experiments/trial.yaml: papre = \"none\": unknown key; did you mean 'paper'?",
    ),
    "negative rate": (
        EXPERIMENT.replace("lr: 0.1, m", "lr: -0.1, m"),
        f"{BLOCK}.optimizers[0].hyperparameters.lr = -0.1: must be greater than 0: the learning rate",
    ),
    "rate as text": (
        EXPERIMENT.replace("lr: 0.1, m", "lr: fast, m"),
        f'{BLOCK}.optimizers[0].hyperparameters.lr = "fast": must be a number: the learning rate',
    ),
    "unknown optimizer": (
        EXPERIMENT.replace("name: sgd", "name: sdg"),
        f"{BLOCK}.optimizers[0].name = \"sdg\": unknown optimizer; did you mean 'sgd'?",
    ),
    "unknown base": (
        EXPERIMENT.replace("base: sgd", "base: kaisa"),
        f'{BLOCK}.optimizers[1].hyperparameters.base = "kaisa": must be one of adafisher, adamw, ',
    ),
    "unknown hyperparameter": (
        EXPERIMENT.replace("momentum", "momentun"),
        f"{BLOCK}.optimizers[0].hyperparameters.momentun = 0.9: unknown hyperparameter of sgd; "
        "did you mean 'momentum'?",
    ),
    "missing hyperparameter": (
        EXPERIMENT.replace("lr: 0.1, momentum: 0.9", "momentum: 0.9"),
        f"{BLOCK}.optimizers[0].hyperparameters = {{\"momentum\": 0.9}}: the hyperparameter 'lr' of sgd is missing",
    ),
    "seed with a point": (
        EXPERIMENT.replace("[0, 1]", "[0, 1.0]"),
        f"{BLOCK}.seeds[1] = 1.0: must be an integer: a whole number from 0 to 4294967295",
    ),
    "seed as text": (
        EXPERIMENT.replace("[0, 1]", "[0, one]"),
        f'{BLOCK}.seeds[1] = "one": must be an integer: a whole number from 0 to 4294967295',
    ),
    "seed as truth": (
        EXPERIMENT.replace("[0, 1]", "[true]"),
        f"{BLOCK}.seeds[0] = true: must be an integer: a whole number from 0 to 4294967295",
    ),
    "seed twice": (
        EXPERIMENT.replace("[0, 1]", "[1, 1]"),
        f"{BLOCK}.seeds = [1, 1]: must not contain the same value twice: seeds of data order and initial weights, "
        "shared by all optimizers",
    ),
    "tuning on a seed that counts": (
        EXPERIMENT.replace("seed: 9", "seed: 1"),
        f"{BLOCK}.tuning.seed = 1: must differ from all of 'seeds'",
    ),
    "a study on a seed that counts": (
        EXPERIMENT.replace("[0, 1]", "[0, 11]").replace("trials: 3", "trials: 3, studies: 3"),
        f"{BLOCK}.tuning.seed = 9: the studies' seeds, 9 to 11, must differ from all of 'seeds'",
    ),
    "a study beyond the last seed": (
        EXPERIMENT.replace("seed: 9", "studies: 2, seed: 4294967295"),
        f"{BLOCK}.tuning.seed = 4294967295: the studies' seeds, 4294967295 to 4294967296, must be at most 4294967295",
    ),
    "no studies": (
        EXPERIMENT.replace("trials: 3", "trials: 3, studies: 0"),
        f"{BLOCK}.tuning.studies = 0: must be at least 1: independent searches",
    ),
    "trials ranked by no target": (
        EXPERIMENT.replace("metric: {split: validation, metric: loss}, space", "metric: target, space").replace(
            "      target: {split: validation, metric: loss, below: 0.1}\n", ""
        ),
        f"{BLOCK}.tuning.metric = \"target\": needs a 'target' in this block",
    ),
    "trials ranked by a word": (
        EXPERIMENT.replace("metric: {split: validation, metric: loss}, space", "metric: loss, space"),
        f'{BLOCK}.tuning.metric = "loss": must be the metric that ranks the trials, measured after their last step',
    ),
    "unknown workload": (
        EXPERIMENT.replace("name: autoencoder", "name: autoencodr"),
        f"{BLOCK}.workload.name = \"autoencodr\": unknown workload; did you mean 'autoencoder'?",
    ),
    "unknown workload parameter": (
        EXPERIMENT.replace("batch_size", "batchsize"),
        f"{BLOCK}.workload.batchsize = 128: unknown key; did you mean 'batch_size'?",
    ),
    "batch of nothing": (
        EXPERIMENT.replace("batch_size: 128", "batch_size: 0"),
        f"{BLOCK}.workload.batch_size = 0: must be at least 1: images per step",
    ),
    "unknown tier": (
        EXPERIMENT.replace("embedded:", "embeded:"),
        "config/experiments/trial.yaml: tiers.embeded = ",
    ),
    "unknown schedule": (
        EXPERIMENT.replace("name: linear", "name: linaer"),
        f"{BLOCK}.schedule.name = \"linaer\": must be one of the known values; did you mean 'linear'?",
    ),
    "key of another schedule": (
        EXPERIMENT.replace("warmup: 0.1", "power: 2"),
        f"{BLOCK}.schedule.power = 2: unknown key; known: name, warmup",
    ),
    "target both ways": (
        EXPERIMENT.replace("below: 0.1", "below: 0.1, above: 1"),
        f"{BLOCK}.target = ",
    ),
    "unknown metric": (
        EXPERIMENT.replace("target: {split: validation, metric: loss", "target: {split: validation, metric: los"),
        f"{BLOCK}.target.metric = \"los\": unknown metric of autoencoder on validation; did you mean 'loss'?",
    ),
    "unknown metric of tuning": (
        EXPERIMENT.replace("metric: {split: validation, metric: loss}", "metric: {split: train, metric: accuracy}"),
        f'{BLOCK}.tuning.metric.metric = "accuracy": unknown metric of autoencoder on train; known: loss',
    ),
    "milestone behind the end": (
        EXPERIMENT.replace("{name: linear, warmup: 0.1}", "{name: step, milestones: [5, 20], factor: 0.5}"),
        f"{BLOCK}.schedule.milestones[1] = 20: must be less than the number of steps, 20",
    ),
    "swept base": (
        EXPERIMENT.replace("sweep: {", "sweep: {base: [sgd, lamb], ").replace("{base: sgd, lr", "{lr"),
        f'{BLOCK}.optimizers[1].sweep.base = ["sgd", "lamb"]: cannot be swept; give an entry for each base',
    ),
    "value of a sweep": (
        EXPERIMENT.replace("[1, 10]", "[1, 0]"),
        f"{BLOCK}.optimizers[1].sweep.inverse_update_period[1] = 0: must be at least 1: ",
    ),
    "swept and given": (
        EXPERIMENT.replace("{base: sgd, lr: 0.1}", "{base: sgd, lr: 0.1, inverse_update_period: 5}"),
        f"{BLOCK}.optimizers[1].sweep.inverse_update_period = [1, 10]: is also given under 'hyperparameters'",
    ),
    "the same label twice": (
        EXPERIMENT.replace("name: mkor,", "name: mkor, label: sgd,"),
        f'{BLOCK}.optimizers[1].label = "sgd": is used twice in this block; give another',
    ),
    "falling space": (
        EXPERIMENT.replace("[0.1, 10]", "[10, 0.1]"),
        f"{BLOCK}.tuning.space.lr.log = [10, 0.1]: the first end must be less than the second",
    ),
    "space of integers": (
        _with(**_sgd(name="mkor", space={"inverse_update_period": {"log": [1, 10]}})),
        f"{BLOCK}.optimizers[0].space.inverse_update_period.log = [1, 10]: needs real numbers; give 'choices'",
    ),
    "a space that its entry does not use": (
        _with(**_sgd(space={"momentum": {"linear": [0.5, 0.9]}})),
        f"{BLOCK}.optimizers[0].hyperparameters = {{\"lr\": 0.1}}: 'momentum' is in the tuning space: "
        "write 'momentum: tuned', or a value",
    ),
    "a block's space that an entry does not take": (
        EXPERIMENT.replace("space: {lr", "space: {momentun: {linear: [0, 0.9]}, lr"),
        f"{BLOCK}.tuning.space.momentun.linear[0] = 0: unknown hyperparameter of sgd; did you mean 'momentum'?",
    ),
    "a space of seven": (
        _with(**_sgd(space={f"x{index}": {"linear": [0, 1]} for index in range(7)})),
        f"{BLOCK}.optimizers[0].space = ",
    ),
    "tuned without a space": (
        EXPERIMENT.replace("momentum: 0.9", "momentum: tuned"),
        f"{BLOCK}.optimizers[0].hyperparameters.momentum = \"tuned\": needs a 'tuning' in this block, "
        "with a 'space' that contains this name",
    ),
    "start from nowhere": (
        _with(start_from={"experiment": "tria", "optimizer": "sgd", "seed": 0}),
        f"{BLOCK}.start_from.experiment = \"tria\": unknown experiment at tier 'embedded'; did you mean 'trial'?",
    ),
    "start from itself": (
        _with(start_from={"experiment": "trial", "optimizer": "sgd", "seed": 0}),
        "config/experiments/trial.yaml: start_from forms a cycle: trial -> trial",
    ),
    "evaluation after the end": (
        EXPERIMENT.replace("evaluate_every: 10", "evaluate_every: 21"),
        f"{BLOCK}.evaluate_every = 21: must be at most the number of steps, 20",
    ),
    "batch larger than the data": (
        EXPERIMENT.replace("batch_size: 128", "batch_size: 1438"),
        f"{BLOCK}.workload.batch_size = 1438: must be at most the number of training examples, 1437",
    ),
    "batch of thirty digits": (
        EXPERIMENT.replace("batch_size: 128", f"batch_size: {10**29}"),
        f"config/experiments/trial.yaml: not valid YAML: the integer {10**29} does not fit into 64 bits, line 6",
    ),
    "rate of four hundred digits": (
        EXPERIMENT.replace("lr: 0.1, m", f"lr: {'9' * 400}, m"),
        "config/experiments/trial.yaml: not valid YAML: the integer 9999999999999999999999999999999999999... does not",
    ),
    "enormous rate": (
        EXPERIMENT.replace("lr: 0.1, m", "lr: 1.0e+300, m"),
        f"{BLOCK}.optimizers[0].hyperparameters.lr = 1e+300: must be at most 1e+36: the learning rate",
    ),
    "more steps than a life has seconds": (
        EXPERIMENT.replace("steps: 20", "steps: 20000000000"),
        f"{BLOCK}.steps = 20000000000: must be at most 1000000000: number of optimizer steps",
    ),
    "seed as a time": (
        EXPERIMENT.replace("[0, 1]", "[1:30:00]"),
        f'{BLOCK}.seeds[0] = "1:30:00": must be an integer',
    ),
    "seed as YAML 1.1": (
        EXPERIMENT.replace("[0, 1]", "[1_000]"),
        f'{BLOCK}.seeds[0] = "1_000": must be an integer',
    ),
    "control character": (
        EXPERIMENT.replace("title: A test", 'title: "A\\x1btest"'),
        'config/experiments/trial.yaml: title = "A\\u001btest": must be text without line breaks',
    ),
    "endless title": (
        EXPERIMENT.replace("title: A test", f"title: {'A' * 201}"),
        f'config/experiments/trial.yaml: title = "{"A" * 76}...: must have at most 200 characters: what the experiment',
    ),
    "sweep of millions": (
        EXPERIMENT.replace(
            "{inverse_update_period: [1, 10]}",
            f"{{inverse_update_period: {list(range(1, 1001))}, stabilizer_threshold: {list(range(1000))}}}",
        ),
        "config/experiments/trial.yaml: tiers.embedded: makes 2,000,008 runs and trials; "
        "an experiment may make at most 10,000 at a tier",
    ),
    "long sweep": (
        EXPERIMENT.replace("[1, 10]", f"{list(range(1, 1002))}"),
        f"{BLOCK}.optimizers[1].sweep.inverse_update_period = [1, 2, 3, ",
    ),
    "not a number": (
        EXPERIMENT.replace("momentum: 0.9", "momentum: .nan"),
        f'{BLOCK}.optimizers[0].hyperparameters.momentum = "nan": must be a finite number',
    ),
    "key twice": (
        EXPERIMENT.replace("steps: 20", "steps: 20\n      steps: 30"),
        "config/experiments/trial.yaml: not valid YAML: the key 'steps' appears twice, line 8",
    ),
    "no YAML": ("tiers: [", "config/experiments/trial.yaml: not valid YAML: "),
    "empty": ("", "config/experiments/trial.yaml: must be a mapping of keys to values"),
    "numbers as keys": ("1: 2", "config/experiments/trial.yaml: a key must be text; put it in quotes"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_exit_1_and_nothing_written(
    mistake: str, folder: Path, capsys: pytest.CaptureFixture[str]
):
    content, said = MISTAKES[mistake]
    (folder / "experiments" / "trial.yaml").write_text(content)
    before = sorted(Path().rglob("*"))
    assert print_plan(["--config-dir", "config"]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(said)
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert sorted(Path().rglob("*")) == before


def test_every_number_that_a_user_writes_is_bounded_by_its_schema():
    """Records of runs are written by programs; theirs are not among them."""

    def unbounded(part: Any, path: tuple[str, ...]) -> Iterator[str]:
        if not isinstance(part, dict):
            return
        kinds = part.get("type", [])
        if {"integer", "number"} & set([kinds] if isinstance(kinds, str) else kinds):
            bounds = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
            if not all(set(ends) & part.keys() for ends in bounds):
                yield ".".join(path)
        for key, inner in part.items():
            yield from unbounded(inner, (*path, key))

    files = [file for file in config.SCHEMAS.rglob("*.schema.yaml") if not file.name.startswith("run.")]
    assert len(files) > 10
    assert [place for file in files for place in unbounded(config.read_yaml(file), (file.name,))] == []


DATASET = {"type": "string", "default": "digits"}
SIZE = {"type": "integer", "minimum": 1, "maximum": 9, "default": 8}
WORKLOAD_SCHEMAS: dict[str, tuple[dict[str, Any], str]] = {
    "no data set": (
        {"metrics": ["loss"], "parameters": {"properties": {"batch_size": SIZE}}},
        "parameters.properties = ... the key 'dataset' is missing: the data that the workload trains on",
    ),
    "no batch size by default": (
        {"metrics": ["loss"], "parameters": {"properties": {"dataset": DATASET, "batch_size": {"type": "integer"}}}},
        "parameters.properties.batch_size = ... the key 'default' is missing",
    ),
    "no metrics": (
        {"parameters": {"properties": {"dataset": DATASET, "batch_size": SIZE}}},
        "the key 'metrics' is missing: the metrics of an evaluation on the validation split",
    ),
    "no parameters": ({"metrics": ["loss"]}, "the key 'parameters' is missing: the JSON Schema of the parameters"),
    "no JSON Schema": (
        {"metrics": ["loss"], "$defs": {"size": {"minimum": "one"}}, "parameters": {}},
        '$defs.size.minimum = "one": must be a number',
    ),
}


@pytest.mark.parametrize("mistake", WORKLOAD_SCHEMAS)
def test_a_workload_s_schema_that_lacks_something_is_refused_in_one_line(
    mistake: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    content, said = WORKLOAD_SCHEMAS[mistake]
    schemas = shutil.copytree(config.SCHEMAS, tmp_path / "schemas")
    file = schemas / "workloads" / "autoencoder.schema.yaml"
    file.write_text(yaml.safe_dump({"title": "a workload", **content}))
    monkeypatch.setattr(config, "SCHEMAS", schemas)
    config.schema.cache_clear()
    try:
        with pytest.raises(ConfigError) as caught:
            Plan.load(folder)
    finally:
        config.schema.cache_clear()
    file_name, _, message = str(caught.value).partition(": ")
    place, _, rule = said.rpartition("... ")
    assert file_name.endswith("schemas/workloads/autoencoder.schema.yaml")
    assert message.startswith(place)
    assert rule in message
    assert "\n" not in message


def test_a_long_list_is_searched_for_equal_values_in_linear_time():
    """Numbers and texts cannot be sorted together; comparing every pair of 30,000 values takes a minute."""
    values = [value for k in range(15000) for value in (k, f"{k}")]
    unique = {"type": "array", "uniqueItems": True}
    with within(10):
        config.check(values, unique, "file")
        for again in (7, 7.0, "7", [[1], [1]]):
            with pytest.raises(ConfigError, match="must not contain the same value twice"):
                config.check([*values, *(again if isinstance(again, list) else [again])], unique, "file")
    config.check([1, True, [1], [True], None, "1"], unique, "file")


SETTINGS = {
    "misspelt setting": (
        {"teir": "embedded"},
        "config/config.yaml: teir = \"embedded\": unknown key; did you mean 'tier'?",
    ),
    "unknown tier": (
        {"tier": "embeded"},
        "config/config.yaml: tier = \"embeded\": unknown tier; did you mean 'embedded'?",
    ),
    "number for a tier": ({"tier": 5}, "config/config.yaml: tier = 5: must be text: "),
    "file for a folder": (
        {"results": "/dev/null/results"},
        'config/config.yaml: results = "/dev/null/results": must be a folder, but /dev/null is none',
    ),
    "odd hardware": ({"hardware": "My GPU"}, 'config/config.yaml: hardware = "My GPU": must '),
}


def test_settings_that_snakemake_read_are_refused_whatever_their_size(folder: Path):
    """Truth: a chain of lists that stands for 9^12 values, as aliases of YAML make it, and an endless integer."""
    bomb: Any = "x"
    for _ in range(12):
        bomb = [bomb] * 9
    given: list[dict[str, Any]] = [{"tier": bomb}, {"tier": {"a": bomb}}, {"compare": [bomb]}, {"tier": 10**5000}]
    for settings in given:
        (key,) = settings
        with within(5), pytest.raises(ConfigError, match=rf"config\.yaml: {key} = .*: must be text$"):
            Plan.load(folder, **settings)
    with pytest.raises(ConfigError, match="config_dir = 5: must be text"):
        Plan.load(5)


@pytest.mark.parametrize("mistake", SETTINGS)
def test_settings_from_the_command_line_are_checked(mistake: str, folder: Path):
    given, said = SETTINGS[mistake]
    with pytest.raises(ConfigError) as caught:
        Plan.load(folder, **given)
    assert str(caught.value).startswith(said)
    assert not Path("results").exists()


def test_unknown_names_on_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]):
    from workflow.bench import aggregate, train, tune

    options = ["--config-dir", "config"]
    for command, arguments, said in (
        (train.main, ["trail", "sgd"], "experiment = 'trail': unknown at tier 'embedded'; did you mean 'trial'?\n"),
        (train.main, ["trial", "sdg"], "label = 'sdg': unknown in experiment 'trial'; did you mean 'sgd'?\n"),
        (train.main, ["trial", "sgd", "--seed", "7"], "--seed = 7: no seed of trial/sgd; known: [0, 1]\n"),
        (train.main, ["trial", "sgd", "--threads", "0"], "--threads = 0: must be from 1 to 1024\n"),
        (aggregate.main, ["trail"], "experiment = 'trail': unknown at tier 'embedded'; did you mean 'trial'?\n"),
        (tune.main, ["trail"], "experiment = 'trail': unknown at tier 'embedded'; did you mean 'trial'?\n"),
        (print_plan, ["trail"], "experiment = 'trail': unknown at tier 'embedded'; did you mean 'trial'?\n"),
    ):
        assert command([*arguments, *options]) == 1
        assert capsys.readouterr().err == said


def test_the_line_names_the_file_of_an_absent_folder(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"nowhere/config\.yaml: no such file"):
        Plan.load(tmp_path / "nowhere")


@pytest.mark.parametrize(("written", "number"), [("1e-3", 1e-3), ("-2E5", -2e5), ("1.5e3", 1.5e3), ("3", 3)])
def test_exponents_without_a_point_are_numbers(written: str, number: float, tmp_path: Path):
    """Truth: Python's float(); YAML 1.1 reads 1e-3 as text."""
    file = tmp_path / "some.yaml"
    file.write_text(f"lr: {written}\n")
    assert config.read_yaml(file) == {"lr": number}


def test_a_mapping_takes_over_another_one_s_keys(tmp_path: Path):
    """Truth: the same file without anchors. A mapping's own keys win, and it may be merged into another in turn."""
    file = tmp_path / "file.yaml"
    file.write_text("a: &a {x: 1, y: {z: 2}}\nb: &b {<<: *a, x: 3}\nc: {<<: *b, w: 4}\nd: {<<: *b}\n")
    a, b = {"x": 1, "y": {"z": 2}}, {"x": 3, "y": {"z": 2}}
    assert config.read_yaml(file) == {"a": a, "b": b, "c": {**b, "w": 4}, "d": b}
    file.write_text("a: &a {x: 1}\nb: {<<: *a, x: 2, x: 3}\n")
    with pytest.raises(ConfigError, match="the key 'x' appears twice, line 2"):
        config.read_yaml(file)
