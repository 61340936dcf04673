"""Bad input is refused in one line that gives file, key, value and requirement, and nothing is written."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.experiments import make_folder
from tests.support.numeric_places import CLUSTER_FILE, TIER, TRIAL, TUNED_FILE, numbers_of, places
from workflow.bench import aggregate, train, tune
from workflow.bench.plan import Plan
from workflow.bench.plan.__main__ import main as print_plan
from workflow.bench.support import config
from workflow.bench.support.config import ConfigError, dump, parse, read_yaml

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
SGD = "{lr: 0.1, momentum: 0.9}}"
MKOR = "{base: sgd, lr: 0.1}"
LONG_SWEEP = f"[{', '.join(map(str, range(1, 1001)))}], stabilizer_threshold: {list(range(1000))}"

# What is written in place of what, and the message behind the file's name; one that begins with a point goes on behind
# the key of the block.
MISTAKES = [
    ("steps: 20", "stepz: 20", ".stepz = 20: unknown key; did you mean 'steps'?"),
    ("paper:", "papre:", "papre = \"none\": unknown key; did you mean 'paper'?"),
    (
        "lr: 0.1, m",
        "lr: -0.1, m",
        ".optimizers[0].hyperparameters.lr = -0.1: must be greater than 0: the learning rate",
    ),
    ("lr: 0.1, m", "lr: fast, m", '.optimizers[0].hyperparameters.lr = "fast": must be a number: the learning rate'),
    ("lr: 0.1, m", "lr: 1.0e+300, m", ".optimizers[0].hyperparameters.lr = 1e+300: must be at most 1e+36: the learn"),
    ("name: sgd", "name: sdg", ".optimizers[0].name = \"sdg\": unknown optimizer; did you mean 'sgd'?"),
    ("base: sgd", "base: kaisa", '.optimizers[1].hyperparameters.base = "kaisa": must be one of adafisher, adamw, '),
    ("momentum", "momentun", ".optimizers[0].hyperparameters.momentun = 0.9: unknown hyperparameter of sgd; did you "),
    ("lr: 0.1, m", "m", ".optimizers[0].hyperparameters = {\"momentum\": 0.9}: the hyperparameter 'lr' of sgd is miss"),
    ("[0, 1]", "[0, 1.0]", ".seeds[1] = 1.0: must be an integer: a whole number from 0 to 4294967295"),
    ("[0, 1]", "[0, one]", '.seeds[1] = "one": must be an integer: a whole number from 0 to 4294967295'),
    ("[0, 1]", "[true]", ".seeds[0] = true: must be an integer: a whole number from 0 to 4294967295"),
    ("[0, 1]", "[1:30:00]", '.seeds[0] = "1:30:00": must be an integer'),
    ("[0, 1]", "[1_000]", '.seeds[0] = "1_000": must be an integer'),
    ("[0, 1]", "[1, 1]", ".seeds = [1, 1]: must not contain the same value twice: seeds of data order and initial "),
    ("seed: 9", "seed: 1", ".tuning.seed = 1: must differ from all of 'seeds'"),
    ("seed: 9", "seed: 0, studies: 3", ".tuning.seed = 0: the studies' seeds, 0 to 2, must differ from all of 'seeds'"),
    (
        "seed: 9",
        "studies: 2, seed: 4294967295",
        ".tuning.seed = 4294967295: the studies' seeds, 4294967295 to 4294967296, must be at most 4294967295",
    ),
    ("trials: 3", "trials: 3, studies: 0", ".tuning.studies = 0: must be at least 1: independent searches"),
    ("metric: {split: validation, metric: loss}, s", "metric: loss, s", '.tuning.metric = "loss": must be the metric '),
    ("name: auto", "name: aoto", ".workload.name = \"aotoencoder\": unknown workload; did you mean 'autoencoder'?"),
    ("batch_size", "batchsize", ".workload.batchsize = 128: unknown key; did you mean 'batch_size'?"),
    ("batch_size: 128", "batch_size: 0", ".workload.batch_size = 0: must be at least 1: images per step"),
    ("batch_size: 128", "batch_size: 1438", ".workload.batch_size = 1438: must be at most the number of training exam"),
    (
        "steps: 20",
        "micro_batch_size: 3\n      steps: 20",
        ".micro_batch_size = 3: must divide the workload's batch_size",
    ),
    ("embedded:", "embeded:", "tiers.embeded = "),
    ("name: linear", "name: linaer", '.schedule.name = "linaer": must be one of the known values; did you mean \'lin'),
    ("warmup: 0.1", "power: 2", ".schedule.power = 2: unknown key; known: name, warmup"),
    ("below: 0.1", "below: 0.1, above: 1", ".target = "),
    ("loss, below", "los, below", '.target.metric = "los": unknown metric of autoencoder on validation; did you mean'),
    ("validation, metric: loss}", "train, metric: accuracy}", '.tuning.metric.metric = "accuracy": unknown metric of '),
    (
        "{name: linear, warmup: 0.1}",
        "{name: step, milestones: [5, 20], factor: 0.5}",
        ".schedule.milestones[1] = 20: must be less than the number of steps, 20",
    ),
    (
        f"{MKOR}, sweep: {{",
        "{lr: 0.1}, sweep: {base: [sgd, lamb], ",
        '.optimizers[1].sweep.base = ["sgd", "lamb"]: cannot be swept; give an entry for each base',
    ),
    ("[1, 10]", "[1, 0]", ".optimizers[1].sweep.inverse_update_period[1] = 0: must be at least 1: "),
    (
        MKOR,
        "{base: sgd, lr: 0.1, inverse_update_period: 5}",
        ".optimizers[1].sweep.inverse_update_period = [1, 10]: is also given under 'hyperparameters'",
    ),
    (
        "{inverse_update_period: [1, 10]}",
        "[{inverse_update_period: 1}, {inverse_update_period: 10, lr: 1}]",
        '.optimizers[1].sweep[1] = {"inverse_update_period": 10, "lr": 1}: must give inverse_update_period, as',
    ),
    ("{inverse_update_period: [1, 10]}", "[{lr: 1}]", ".optimizers[1].sweep = [{"),
    ("{inverse_update_period: [1, 10]}", "[{base: sgd}]", ".optimizers[1].sweep = [{"),
    ("{inverse_update_period: [1, 10]}", "[{momentum: -1}]", ".optimizers[1].sweep[0].momentum = -1: must be "),
    ("{inverse_update_period: [1, 10]}", "[]", ".optimizers[1].sweep = []: must not be empty"),
    ("{inverse_update_period: [1, 10]}", "[{}]", ".optimizers[1].sweep[0] = {}: must not be empty"),
    ("name: mkor,", "name: mkor, label: sgd,", '.optimizers[1].label = "sgd": is used twice in this block; give anoth'),
    ("[0.1, 10]", "[10, 0.1]", ".tuning.space.lr.log = [10, 0.1]: the first end must be less than the second"),
    (
        "sweep: {inverse_update_period: [1, 10]}",
        "space: {inverse_update_period: {log: [1, 10]}}",
        ".optimizers[1].space.inverse_update_period.log = [1, 10]: needs real numbers; give 'choices'",
    ),
    (
        "lr: 0.1, momentum: 0.9}",
        "lr: 0.1}, space: {momentum: {linear: [0.5, 0.9]}}",
        ".optimizers[0].hyperparameters = {\"lr\": 0.1}: 'momentum' is in the tuning space: write 'momentum: tun",
    ),
    (
        "{log: [0.1, 10]}",
        "{grid: [1, 2, 3, 4]}",
        ".optimizers[0].space.lr.grid = [1, 2, 3, 4]: must have at most 3 values, ",
    ),
    (
        "{log: [0.1, 10]}",
        "{grid: [0.1]}, momentum: {linear: [0.1, 0.9]}",
        ".optimizers[0].space.lr.grid = [0.1]: must be the only tuned hyperparameter of sgd, which has lr, momentum",
    ),
    (
        "trials: 3",
        "trials: 3, steps: 9",
        ".tuning.steps = 9: must be at least 10, for 'evaluate_every' and the schedule's",
    ),
    (
        "space: {lr",
        "space: {momentun: {linear: [0, 0.9]}, lr",
        ".tuning.space.momentun.linear[0] = 0: unknown hyperparameter of sgd; did you mean 'momentum'?",
    ),
    (
        SGD,
        f"{SGD[:-1]}, space: {{{', '.join(f'x{k}: {{log: [1, 2]}}' for k in range(7))}}}}}",
        ".optimizers[0].space = ",
    ),
    ("momentum: 0.9", "momentum: tuned", ".optimizers[0].hyperparameters.momentum = \"tuned\": needs a 'tuning' in th"),
    (
        "steps: 20",
        "start_from: {experiment: tria, optimizer: sgd, seed: 0}\n      steps: 20",
        ".start_from.experiment = \"tria\": unknown experiment at tier 'embedded'; did you mean 'trial'?",
    ),
    (
        "steps: 20",
        "start_from: {experiment: trial, optimizer: sgd, seed: 0}\n      steps: 20",
        "start_from forms a cycle: trial -> trial",
    ),
    ("evaluate_every: 10", "evaluate_every: 21", ".evaluate_every = 21: must be at most the number of steps, 20"),
    ("size: 128", f"size: {10**29}", f"not valid YAML: the integer {10**29} does not fit into 64 bits, line 6"),
    ("steps: 20", "steps: 20000000000", ".steps = 20000000000: must be at most 1000000000: number of optimizer steps"),
    ("A test", '"A\\x1btest"', 'title = "A\\u001btest": must be text without line breaks'),
    ("A test", "A" * 201, f'title = "{"A" * 76}...: must have at most 200 characters: what the experiment'),
    ("[1, 10]", LONG_SWEEP, "tiers.embedded: makes 2,000,008 runs and trials; an experiment may make at most 10,000"),
    ("[1, 10]", f"{list(range(1, 1002))}", ".optimizers[1].sweep.inverse_update_period = [1, 2, 3, "),
    ("momentum: 0.9", "momentum: .nan", '.optimizers[0].hyperparameters.momentum = "nan": must be a finite number'),
    ("steps: 20", "steps: 20\n      steps: 30", "not valid YAML: the key 'steps' appears twice, line 8"),
    (EXPERIMENT, "tiers: [", "not valid YAML: "),
    (EXPERIMENT, "", "must be a mapping of keys to values"),
    (EXPERIMENT, "1: 2", "a key must be text; put it in quotes"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration folder with one experiment, `trial.yaml`, in the working directory."""
    monkeypatch.chdir(tmp_path)
    made = make_folder(Path("config"))
    (made / "experiments" / "trial.yaml").write_text(EXPERIMENT)
    return made


@pytest.mark.parametrize(("old", "new", "said"), MISTAKES, ids=[said[:40] for _, _, said in MISTAKES])
def test_a_mistake_is_one_line_exit_1_and_nothing_written(
    old: str, new: str, said: str, folder: Path, capsys: pytest.CaptureFixture[str]
):
    assert old in EXPERIMENT
    (folder / "experiments" / "trial.yaml").write_text(EXPERIMENT.replace(old, new))
    before = sorted(Path().rglob("*"))
    assert print_plan(["--config-dir", "config"]) == 1
    captured = capsys.readouterr()
    block = "tiers.embedded[0]" if said.startswith(".") else ""
    assert captured.err.startswith(f"config/experiments/trial.yaml: {block}{said}")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert sorted(Path().rglob("*")) == before


def test_trials_cannot_be_ranked_by_a_target_that_the_block_lacks(folder: Path):
    without = EXPERIMENT.replace("      target: {split: validation, metric: loss, below: 0.1}\n", "")
    text = without.replace("metric: {split: validation, metric: loss}", "metric: target")
    (folder / "experiments" / "trial.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"tuning\.metric = \"target\": needs a 'target' in this block"):
        Plan.load(folder)


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
    assert [place for file in files for place in unbounded(read_yaml(file), (file.name,))] == []


def test_every_number_of_a_schema_has_its_place_in_the_tests_of_odd_numbers():
    free = {"embedded", "lr", "default", "short"}  # names that a user chooses
    files = {"experiment": TRIAL, "tier": TIER, "cluster": CLUSTER_FILE, "tuned": TUNED_FILE}
    for name, file in files.items():
        paths = [place.path for place in places() if place.file == file]
        found = {tuple(key for key in path if isinstance(key, str) and key not in free) for path in paths}
        shape = config.schema(name)
        assert set(numbers_of(shape, shape)) <= found
        for schedule in shape["$defs"]["schedules"].values() if name == "experiment" else ():
            assert set(numbers_of(schedule, shape, "tiers", "schedule")) <= found


PARAMETERS = {"properties": {"dataset": {"type": "string", "default": "digits"}, "batch_size": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("content", "place", "rule"),
    [
        (
            {"metrics": ["loss"], "parameters": {"properties": {"batch_size": {"type": "integer", "default": 8}}}},
            "parameters.properties = ",
            "the key 'dataset' is missing: the data that the workload trains on",
        ),
        (
            {"metrics": ["loss"], "parameters": PARAMETERS},
            "parameters.properties.batch_size = ",
            "the key 'default' is missing",
        ),
        ({"parameters": PARAMETERS}, "", "the key 'metrics' is missing: the metrics of an evaluation on the valid"),
        ({"metrics": ["loss"]}, "", "the key 'parameters' is missing: the JSON Schema of the parameters"),
        (
            {"metrics": ["loss"], "$defs": {"size": {"minimum": "one"}}, "parameters": {}},
            '$defs.size.minimum = "one": ',
            "must be a number",
        ),
    ],
)
def test_a_workload_s_schema_that_lacks_something_is_refused_in_one_line(
    content: dict[str, Any], place: str, rule: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
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
    assert file_name.endswith("schemas/workloads/autoencoder.schema.yaml")
    assert message.startswith(place)
    assert rule in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"teir": "embedded"}, "teir = \"embedded\": unknown key; did you mean 'tier'?"),
        ({"tier": "embeded"}, "tier = \"embeded\": unknown tier; did you mean 'embedded'?"),
        ({"tier": 5}, "tier = 5: must be text: "),
        ({"compare": [["x"]]}, 'compare[0] = ["x"]: must be text'),
        ({"results": "/dev/null/results"}, 'results = "/dev/null/results": must be a folder, but /dev/null is none'),
        ({"hardware": "My GPU"}, 'hardware = "My GPU": must '),
    ],
)
def test_settings_from_the_command_line_are_checked(given: dict[str, Any], said: str, folder: Path):
    with pytest.raises(ConfigError) as caught:
        Plan.load(folder, **given)
    assert str(caught.value).startswith(f"config/config.yaml: {said}")
    assert not Path("results").exists()


def test_a_configuration_folder_is_text_and_exists(tmp_path: Path):
    with pytest.raises(ConfigError, match="config_dir = 5: must be text"):
        Plan.load(5)
    with pytest.raises(ConfigError, match=r"nowhere/config\.yaml: no such file"):
        Plan.load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("command", "arguments", "said"),
    [
        (train.main, ["trail", "sgd"], "experiment = 'trail': unknown at tier 'embedded'; did you mean 'trial'?\n"),
        (train.main, ["trial", "sdg"], "label = 'sdg': unknown in experiment 'trial'; did you mean 'sgd'?\n"),
        (train.main, ["trial", "sgd", "--seed", "7"], "--seed = 7: no seed of trial/sgd; known: [0, 1]\n"),
        (train.main, ["trial", "sgd", "--threads", "0"], "--threads = 0: must be from 1 to 1024\n"),
        (aggregate.main, ["trail"], "experiment = 'trail': unknown at tier 'embedded'; did you mean 'trial'?\n"),
        (tune.main, ["trail"], "experiment = 'trail': unknown at tier 'embedded'; did you mean 'trial'?\n"),
        (print_plan, ["trail"], "experiment = 'trail': unknown at tier 'embedded'; did you mean 'trial'?\n"),
    ],
)
def test_unknown_names_on_the_command_line(
    command: Any, arguments: list[str], said: str, folder: Path, capsys: pytest.CaptureFixture[str]
):
    assert command([*arguments, f"--config-dir={folder}"]) == 1
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("written", "value"),
    [
        *((text, text) for text in ("1:30:00", "1:30.5", "1_000", "010", "0x10", "0b11", "0o7", "1 000")),
        *((text, text) for text in ("yes", "off", "2026-01-01", "2026-13-45")),
        *(("0", 0), ("-3", -3), ("+5", 5), (f"{2**63 - 1}", 2**63 - 1), (f"-{2**63 - 1}", 1 - 2**63)),
        *(("1.", 1.0), (".5", 0.5), ("1e-3", 0.001), ("2E6", 2e6), ("-1.5e+2", -150.0), ("-2E5", -2e5)),
        *(("true", True), ("False", False), ("null", None), ("~", None), ("", None)),
    ],
)
def test_only_decimal_numbers_truth_values_and_nothing_are_no_text(written: str, value: object):
    """YAML 1.1 takes texts for numbers and dates, and 1e-3 for text."""
    found = parse(f"a: {written}")["a"]
    assert found == value
    assert type(found) is type(value)


def test_a_mapping_takes_over_another_one_s_keys():
    """Truth: the same file without anchors. A mapping's own keys win, and it may be merged into another in turn."""
    text = "a: &a {x: 1, y: {z: 2}}\nb: &b {<<: *a, x: 3}\nc: {<<: *b, w: 4}\nd: {<<: *b}\n"
    a, b = {"x": 1, "y": {"z": 2}}, {"x": 3, "y": {"z": 2}}
    assert parse(text) == {"a": a, "b": b, "c": {**b, "w": 4}, "d": b}


TEXTS = st.one_of(
    st.text(st.characters(categories=("L", "N", "P", "S", "Zs")), max_size=8),
    st.from_regex(r"[-+]?[0-9_.:exob]{1,8}", fullmatch=True),  # run ids such as 12e45 look like numbers
    st.sampled_from(["yes", "null", "~", "<<", "true", ".inf", "2026-01-01", "!!int", "*x", "&x", "1e400", ""]),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63) + 1, 2**63 - 1), st.floats(allow_nan=False), TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(value=VALUES)
@settings(max_examples=30)
def test_what_is_dumped_is_read_back_the_same(value: Any):
    assert repr(parse(dump(value))) == repr(value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((each * 100_000, "values are nested too deeply") for each in ("[", "{a: ")),
        ("".join(f"{' ' * k}a:\n" for k in range(1000)), "values are nested too deeply"),
        (f"a: {'9' * 9000}", "the integer 9999999999999999999999999999999999999... does not fit into 64 bits, line 1"),
        (f"a: -{2**63}", f"the integer -{2**63} does not fit into 64 bits, line 1"),
        ("a: [1e400]", 'a[0] = "inf": must be a finite number'),
        ("a: &a [*a]", "an alias stands in its own anchor"),
        ("a: &a {x: 1}\nb: {<<: *a, x: 2, x: 3}", "the key 'x' appears twice, line 2"),
        ("b: {<<: 1}", "<< takes over the keys of one mapping, line 1"),
        ("- &a 1\n- &a 2", "found duplicate anchor 'a'; first occurrence: second occurrence, line 2"),
        ('a: !!int "1:30"', "tags such as !!int are not allowed, line 1"),
        ("!!python/object/apply:os.system [ls]", "tags such as !!int are not allowed"),
        ("? [a]\n: 1", "a key must be text, line 1"),
        ('a: "\\UFFFFFFFF"', "found invalid Unicode character escape code, line 1"),
        ('a: "\\ud800"', "found invalid Unicode character escape code, line 1"),
        ('a: ["\\x07"]', 'a[0] = "\\u0007": must be text without line breaks and control characters'),
        ("a: |\n  b\n  c", 'a = "b\\nc": must be text without line breaks'),
        ('a: "b\\u2028c"', 'a = "b\\u2028c": must be text without line breaks'),
        ('a: "\\u202ecba"', 'a = "\\u202ecba": must be text without'),
        ('"\\x07": 1', "a key must have no line breaks"),
    ],
)
def test_what_would_mislead_or_crash_is_one_line_soon(text: str, said: str, tmp_path: Path):
    file = tmp_path / "some.yaml"
    file.write_text(text)
    began = time.process_time()
    with pytest.raises(ConfigError) as caught:
        read_yaml(file)
    assert time.process_time() - began < 5
    assert "some.yaml: " in str(caught.value)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(("make", "words"), [(Path.mkdir, "a folder"), (os.mkfifo, "a FIFO")])
def test_only_a_file_is_read(make: Any, words: str, tmp_path: Path):
    make(tmp_path / "some.yaml")
    with pytest.raises(ConfigError, match=rf"some\.yaml: cannot be read: it is {words}, not a file"):
        read_yaml(tmp_path / "some.yaml")
