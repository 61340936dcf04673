"""Texts with characters that mean something to a shell, and a shell that only records the commands it is given."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path
from typing import Final

from hypothesis import settings
from hypothesis import strategies as st

from workflow.bench.support.config import ROOT

_PARTS: Final = (
    *("a", "0", "A b", " ", "'", '"', "\\", "\\d", "$", "$HOME", "${HOME}", "$((1))", "$(touch x)", "`touch x`"),
    *(";touch x;", "&& touch x", "& touch x &", "| touch x", "|| touch x", "(touch x)", "<(touch x)", ">x", "2>&1"),
    *("<x", "*", "?", "[a-z]", "(a|b)+", "^", "~", "~root", "#", "!", "!!", "%", "%s", "%j", ",", ":", "=", "@", "+"),
    *(".", "-x", "--out=x", "--", "{", "}", "{x}", "{{ 7*7 }}", "{% endraw %}", "{output}", "é", "中", "😀", "a" * 120),
    *("\n", "\ntouch x\n", "\r", "\t", "\0", "\x1b[2J", "\x7f", "\u2028", "\u202e", "\u00a0", "\udc80"),
)

TEXTS: Final = st.lists(st.sampled_from(_PARTS), min_size=1, max_size=5).map("".join)
"""Names and folders without slashes."""


def examples(*, one_in: int) -> settings:
    """Return settings for a test whose examples cost more: as many as others have, divided."""
    return settings(max_examples=(settings.default.max_examples if settings.default else 100) // one_in, deadline=None)


_SETUP: Final = """
PATH=/nonexistent
command_not_found_handle() { printf '%s\\0' "$@" >> "$RECORD"; printf '\\1' >> "$RECORD"; }
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
        env={"RECORD": str(record), "HOME": "/nonexistent"},
        input=os.fsencode(script),
        capture_output=True,
        check=False,
    )
    assert done.stderr == b"", done.stderr.decode(errors="replace")
    written = record.read_bytes() if record.exists() else b""
    return [os.fsdecode(command).removesuffix("\0").split("\0") for command in written.split(b"\1")[:-1]]


def commands_of(folder: Path, targets: Sequence[str], **settings: str) -> dict[str, str]:
    """Return the shell commands of all jobs that Snakemake plans in ``folder``, by rule and wildcards.

    Raises:
        SystemExit: the plan is refused; the value is the message.
    """
    from snakemake.api import SnakemakeApi
    from snakemake.settings.enums import Quietness
    from snakemake.settings.types import ConfigSettings, DAGSettings, OutputSettings, ResourceSettings

    with chdir(folder), SnakemakeApi(OutputSettings(quiet={Quietness.ALL}, dryrun=True)) as api:
        workflow = api.workflow(
            resource_settings=ResourceSettings(cores=2),
            config_settings=ConfigSettings(config=settings),
            snakefile=ROOT / "Snakefile",
        )
        dag = workflow.dag(DAGSettings(targets=set(targets), forceall=True))
        dag.execute_workflow(executor="dryrun")
        jobs = list(workflow._workflow.dag.jobs)
        return {f"{job.rule.name} {dict(job.wildcards_dict)}": job.shellcmd for job in jobs if job.shellcmd}
