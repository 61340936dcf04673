"""Texts with characters that mean something to a shell, and a shell that only records the commands it is given."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest import mock

import yaml
from hypothesis import settings
from hypothesis import strategies as st

from tests.support.experiments import block, make_folder, optimizer, write
from tests.support.pbs.cluster import PROFILE
from workflow.bench.support.config import ROOT

_PARTS: Final = (
    *("a", "0", "A b", " ", "'", '"', "\\", "\\d", "$", "$HOME", "${HOME}", "$((1))", "$(touch x)", "`touch x`"),
    *(";touch x;", "&& touch x", "& touch x &", "| touch x", "|| touch x", "(touch x)", "<(touch x)", ">x", "2>&1"),
    *("<x", "*", "?", "[a-z]", "(a|b)+", "^", "~", "~root", "#", "!", "!!", "%", "%s", "%j", ",", ":", "=", "@", "+"),
    *(".", "-x", "--out=x", "--", "{", "}", "{x}", "{{ 7*7 }}", "{% endraw %}", "{output}", "é", "中", "😀", "a" * 120),
    *("\n", "\ntouch x\n", "\r", "\t", "\0", "\x1b[2J", "\x7f", "\u2028", "\u202e", "\u00a0", "\udc80"),
)

_JOINED: Final = st.lists(st.sampled_from(_PARTS), min_size=1, max_size=5).map("".join)
TEXTS: Final = _JOINED.filter(lambda text: bool(text.strip(".")))
"""Names and folders without slashes; not ``.`` and ``..``, with which the paths of other files begin."""


def examples(*, one_in: int) -> settings:
    """Return settings for a test whose examples cost more: as many as others have, divided."""
    return settings(max_examples=(settings.default.max_examples if settings.default else 100) // one_in, deadline=None)


TRIED: Final = "shell characters: strings tried"
RAN: Final = "shell characters: commands run"
"""The counters of the tests: commands that were not meant to run."""


@contextmanager
def refused_in_one_line(*errors: type[BaseException]) -> Iterator[None]:
    """Accept an error whose message is one line that can be printed."""
    message = ""
    try:
        yield
    except errors as refusal:
        message = str(refusal)
    assert message.isprintable()


_NOWHERE: Final = "/nonexistent"

_SETUP: Final = f"""
PATH={_NOWHERE}
command_not_found_handle() {{ printf '%s\\0' "$@" >> "$RECORD"; printf '\\1' >> "$RECORD"; }}
"""
"""Makes bash record every command that is not built in, instead of running it."""


def recorded(commands: Sequence[str], folder: Path) -> list[list[str]]:
    """Return the commands, each with its arguments, that shell commands run in ``folder``; only redirections happen."""
    record = folder.parent / f"{folder.name}.record"
    record.unlink(missing_ok=True)
    script = _SETUP + "".join(f"(\n{command}\n)\n" for command in commands)
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run(
        [bash, "--norc", "-s"],
        cwd=folder,
        env={"RECORD": str(record), "HOME": _NOWHERE},
        input=os.fsencode(script),
        capture_output=True,
        check=False,
    )
    assert done.stderr == b"", done.stderr.decode(errors="replace")
    written = record.read_bytes() if record.exists() else b""
    return [os.fsdecode(command).removesuffix("\0").split("\0") for command in written.split(b"\1")[:-1]]


def cluster_with(place: str, text: str) -> dict[str, Any]:
    """Return the content of a cluster's file with a text as its queue, if that is the place."""
    content: dict[str, Any] = yaml.safe_load((PROFILE / "cluster.yaml").read_text())
    need = content["training"]["default"]
    if place == "queue":
        content["queues"][text] = content["queues"][need["queue"]]
        need["queue"] = text
    return content


NAMED: Final = ("results", "hardware", "tier", "compare", "config_dir", "name of a tier", "experiment", "label", "name")
"""Places of `configure` that hold a name or a folder."""


def configure(folder: Path, place: str, text: str) -> dict[str, str]:
    """Write a configuration with a text in one place, and return the settings that choose it.

    Raises:
        OSError: no file can have this name.
        ValueError: the same.
    """
    shutil.rmtree(folder, ignore_errors=True)
    config = make_folder(folder / "config")
    tier = yaml.safe_load((config / "tiers" / "embedded.yaml").read_text())
    settings = {"config_dir": "config", "hardware": "test", "tier": "embedded"}
    entry = optimizer("sgd")
    match place:
        case "results" | "hardware" | "tier":
            settings[place] = text
        case "results in the file":
            content = {"tier": "embedded", "results": text, "hardware": "test"}
            (config / "config.yaml").write_text(yaml.safe_dump(content))
        case "compare":
            compared = folder / text / "embedded"
            compared.mkdir(parents=True)
            content = {"tier": "embedded", "results": "results", "hardware": "test"}
            (config / "config.yaml").write_text(yaml.safe_dump({**content, "compare": [f"{text}/embedded"]}))
        case "name of a tier":
            (config / "tiers" / f"{text}.yaml").write_text(yaml.safe_dump(tier))
            settings["tier"] = text
        case "title of a tier":
            (config / "tiers" / "embedded.yaml").write_text(yaml.safe_dump({**tier, "title": text}))
        case "label" | "name":
            entry |= {place: text}
    name = text if place == "experiment" else "one"
    write(config, name, block(entry, optimizer("mkor", base="sgd")), tier=settings["tier"])
    if place == "title of an experiment":
        file = config / "experiments" / "one.yaml"
        file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "title": text, "paper": text}))
    if place == "config_dir":
        settings["config_dir"] = config.rename(config.with_name(text)).name
    if place in ("queue", "folder of a cluster"):
        profile = folder / (text if place == "folder of a cluster" else "profile")
        profile.mkdir()
        (profile / "cluster.yaml").write_text(yaml.safe_dump(cluster_with(place, text)))
        settings["cluster"] = str(profile)
    return settings


class Planned(NamedTuple):
    """A job that Snakemake plans: its rule and wildcards, its shell command, and the files that it writes."""

    name: str
    command: str
    files: tuple[str, ...]


def planned_jobs(folder: Path, **settings: str) -> list[Planned]:
    """Return all jobs with shell commands that Snakemake plans in ``folder``, sorted by name.

    Each command puts the folder of Snakemake's Python on its path; here that folder does not exist, so that
    `run_recorded` finds no program in it.

    Raises:
        SystemExit: the plan is refused; the value is the message.
    """
    # Imported here because Snakemake takes a second to import.
    from snakemake.api import SnakemakeApi
    from snakemake.settings.enums import Quietness
    from snakemake.settings.types import ConfigSettings, DAGSettings, OutputSettings, ResourceSettings

    with (
        chdir(folder),
        mock.patch.object(sys, "executable", f"{_NOWHERE}/bin; touch x/python"),
        SnakemakeApi(OutputSettings(quiet={Quietness.ALL}, dryrun=True)) as api,
    ):
        workflow = api.workflow(
            resource_settings=ResourceSettings(cores=2),
            config_settings=ConfigSettings(config=settings),
            snakefile=ROOT / "Snakefile",
        )
        workflow.dag(DAGSettings(targets={"all"}, forceall=True)).execute_workflow(executor="dryrun")
        return sorted(
            Planned(f"{job.rule} {job.wildcards_dict}", job.shellcmd, tuple(map(str, [*job.output, *job.log])))
            for job in workflow._workflow.dag.jobs
            if job.shellcmd
        )


class Ran(NamedTuple):
    """What jobs did in a shell that only records."""

    commands: Counter[tuple[str, ...]]
    """The commands with their arguments, sorted: a rule sorts the files that it takes checksums of."""
    files: Counter[str]
    """The files that redirections wrote."""

    def replaced(self, old: str, new: str) -> Ran:
        """Return it with another text in all arguments and names."""
        commands = [tuple(sorted(word.replace(old, new) for word in command)) for command in self.commands.elements()]
        return Ran(Counter(commands), Counter(file.replace(old, new) for file in self.files))


def run_recorded(jobs: Sequence[Planned], folder: Path) -> Ran:
    """Run the jobs' shell commands in ``folder``, which is emptied first, and return what they did."""
    shutil.rmtree(folder, ignore_errors=True)
    for job in jobs:
        for file in job.files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
    commands = recorded([job.command for job in jobs], folder)
    files = [str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()]
    return Ran(Counter(tuple(sorted(command)) for command in commands), Counter(files))
