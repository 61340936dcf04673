"""What reaches a scheduler: names and folders are refused in one line unless a shell reads them as one word."""

from __future__ import annotations

import re
import shlex
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support import experiments
from tests.support.pbs.cluster import PROFILE
from tests.support.pbs.cluster import Cluster as Site
from tests.support.shells import TEXTS, cluster_with, examples, refused_in_one_line
from workflow.bench.support.config import ConfigError
from workflow.cluster import submit
from workflow.cluster.settings import Cluster


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a plan of one run, and room for a cluster's file."""
    made = tmp_path_factory.mktemp("cluster")
    experiments.write(experiments.make_folder(made / "config"), "it", experiments.block(experiments.optimizer("sgd")))
    return made


def load(folder: Path, place: str, text: str) -> Cluster:
    """Load a cluster with a text in one place."""
    profile = folder / (text if place == "cluster" else "profile")
    # A path that no file system takes is refused before it is looked for.
    with suppress(OSError, ValueError):
        profile.mkdir(exist_ok=True)
        (profile / "cluster.yaml").write_text(yaml.safe_dump(cluster_with(place, text)))
    plan = experiments.load(folder / "config", **({"results": text} if place == "results" else {}))
    return Cluster.load(str(profile), plan)


@examples(one_in=3)
@given(st.sampled_from(("queue", "results", "cluster")), TEXTS)
@example("queue", "debug; touch x")
@example("results", "my results")
@example("cluster", "$(touch x)")
def test_every_text_of_a_cluster_is_refused_in_one_line_or_one_word(folder: Path, place: str, text: str):
    cluster = None
    with refused_in_one_line(ConfigError):
        cluster = load(folder, place, text)
    if cluster is not None:
        queue = cluster.training("it").queue
        assert shlex.quote(queue) == queue
        assert re.fullmatch(r"[\w./+=@,-]+", text)


@pytest.mark.parametrize(
    ("account", "variable", "work", "says"),
    [
        ("a; touch x", "MKOR_X", "work", "MKOR_ACCOUNT = 'a; touch x': must consist of letters"),
        ("-l", "MKOR_X", "work", "MKOR_ACCOUNT = '-l': must consist of letters"),
        ("a", "MKOR_X;touch x", "work", "the environment variable 'MKOR_X;touch x' cannot be passed on"),
        ("a", "MKOR_X", "a,b", "must not contain ',', which batch schedulers do not pass on safely; work in another"),
        ("a", "MKOR_X", "$(touch x)", "must not contain '$', which batch schedulers do not pass on safely"),
    ],
)
def test_what_a_scheduler_cannot_pass_on_is_refused_before_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, account: str, variable: str, work: str, says: str
):
    site = Site.make(tmp_path)
    job = site.job_script("true")
    (tmp_path / work).mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / work)
    monkeypatch.setenv(submit.ACCOUNT, account)
    monkeypatch.setenv(variable, "1")
    with pytest.raises(submit.SubmitError, match=re.escape(says)) as refused:
        submit.submit(job, PROFILE / "jobscript", "", [])
    assert "\n" not in str(refused.value)
