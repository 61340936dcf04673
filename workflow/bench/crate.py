"""Pack the results of a run as a Workflow Run RO-Crate: a zip file to deposit, with checksums, commands and versions.

It holds the code and the configuration of this checkout, the tidy tables, probes, figures, tables and specs of the
results folder, and ``ro-crate-metadata.json``. Run folders, weights and hidden files are left out, and a link is
refused. No text in it names a folder of this machine or its user.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Final

from workflow.bench.plan import Plan, add_arguments, load_from
from workflow.bench.results.costs import total_of
from workflow.bench.results.private_names import PrivateNames
from workflow.bench.results.ro_crate import METADATA, README, WORKFLOW, Crate, JobRecord, job_records, metadata
from workflow.bench.results.verification import read_specs, refuse_links_in
from workflow.bench.support.command_line import refuse_unwritable, run_command, show
from workflow.bench.support.config import CONFIG, ROOT, ConfigError, shown_path
from workflow.bench.support.errors import DamagedFileError
from workflow.bench.support.files import write_atomically
from workflow.bench.support.provenance import git_state, package_versions
from workflow.bench.support.reading import read_bytes
from workflow.bench.training.record import RunFolder, read_record

CODE: Final = ("workflow", "mkor_core", "baselines")
"""Folders of the repository that make the results."""
FILES: Final = ("Snakefile", "Makefile", "requirements.lock", "environment.yml", "pyproject.toml", "LICENSE")
"""Files of the repository that make the results, or say how they may be used."""
RESULTS: Final = ("*.csv", "figures/*", "tables/*", "report/*", "*report.html", "rounds.yaml")
"""Files of the results folder, as patterns. Logs are left out: they may name hosts and folders."""
_README: Final = """# {name}

{description}.

The code and the configuration that made them are in `workflow/`, `mkor_core/`, `baselines/` and `config/`, the results
in `{place}/`. `ro-crate-metadata.json` lists every file with its checksum, and every job with its command, its times,
what it read and what it wrote.

Texts say `.` for the folder of this crate, `~` for a home folder, and `user` for the name of the user in a path.
"""


def crated_contents(plan: Plan, config_dir: Path) -> dict[str, bytes]:
    """Return the contents of a crate's files by their paths in it, but for the specs and the metadata.

    Raises:
        UnreadableError: a file cannot be read, or is a link, or its folder is one.
    """
    patterns = [*RESULTS, "probes/*.csv", *(f"{experiment}/*.csv" for experiment in plan.experiments)]
    folders = {name: (ROOT / name, ["**/*"]) for name in CODE}
    folders |= {"config": (config_dir, ["**/*"]), _results_in_crate(plan): (plan.results, patterns)}
    contents = {name: read_bytes(ROOT / name, within=ROOT) for name in FILES}
    for place, (folder, globs) in folders.items():
        for file in sorted({file for pattern in globs for file in folder.glob(pattern)}):
            name = file.relative_to(folder)
            # Hidden files may hold passwords, and Python makes the others.
            left_out = any(part.startswith(".") or part == "__pycache__" for part in name.parts)
            # A link, which is refused, may lead nowhere or to a folder.
            if not left_out and (file.is_file() or file.is_symlink()):
                contents[f"{place}/{name.as_posix()}"] = read_bytes(file, within=folder)
    return contents


def _results_in_crate(plan: Plan) -> str:
    return f"results/{plan.hardware}/{plan.tier.name}"


def _private_names(plan: Plan, config_dir: Path) -> PrivateNames:
    """Return the names of folders that texts of the pipeline hold. The results are below the settings' folder."""
    folders = {config_dir: "./config", plan.results.parents[1]: "./results"}
    if sys.prefix != sys.base_prefix:  # not the system's Python
        folders[Path(sys.prefix)] = "./.venv"
    return PrivateNames.of({Path.cwd(): ".", **folders, ROOT: "."})


def pack(plan: Plan, config_dir: Path, agent: str | None) -> bytes:
    """Return the zip file of a crate.

    Raises:
        ConfigError: the folder has no results.
        UnreadableError: a file cannot be read, or is a link.
    """
    refuse_links_in(plan.results)
    private = _private_names(plan, config_dir)
    contents = crated_contents(plan, config_dir)
    place = _results_in_crate(plan)
    outputs = [name for name in contents if name.startswith(f"{place}/")]
    if not any(name.endswith(".csv") for name in outputs):
        raise ConfigError(f"{shown_path(plan.results)}: has no tables; run make reproduce first")
    specs = read_specs(plan.results)
    contents[f"{place}/specs.json"] = json.dumps(specs, indent=1, sort_keys=True).encode()
    name = f"MKOR harness, {plan.tier.name} tier on {plan.hardware}"
    description = (
        "Results of the benchmarking and reproduction harness for MKOR (NeurIPS 2023, arXiv 2306.01685): "
        f"{len(specs)} runs of {len(plan.experiments)} experiments at the {plan.tier.title} on {plan.hardware}, "
        "the probes of that machine, and the figures, tables and verdicts made from them"
    )
    contents[README] = _README.format(name=name, description=description, place=place).encode()
    # Before the checksums are taken, which are of what is published.
    contents = {name: private.hidden(name, content) for name, content in contents.items()}
    jobs = [_crated(job, plan, contents) for job in job_records(plan.results)]
    version = (ROOT / "mkor_core" / "VERSION").read_text(encoding="utf-8").strip()
    # A version says little of a checkout between two releases.
    commit, dirty = git_state()
    crate = Crate(
        name=name,
        description=description,
        published=max((job.ended for job in jobs), default=datetime.now(UTC)),
        files=dict(contents),
        inputs=[name for name in contents if name.startswith(("config/", "workflow/paper/"))],
        outputs=outputs,
        jobs=jobs,
        version=version + (f"+{commit[:12]}{'.dirty' if dirty else ''}" if commit else ""),
        packages=_packages(plan),
        agent=agent,
    )
    contents[METADATA] = private.hidden(METADATA, json.dumps(metadata(crate), indent=1).encode())
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in sorted(contents.items()):
            # An entry without a time, so that the same contents give the same bytes.
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def _packages(plan: Plan) -> dict[str, str]:
    """Return the versions of Python and of the packages with which a run was trained; without a run, today's."""
    for run in plan.runs.values():
        with suppress(DamagedFileError):
            summary = read_record(RunFolder.of(plan.results, run.id), run).summary
            if "packages" in summary:
                return {"Python": summary["python"], **summary["packages"]}
    return {"Python": platform.python_version(), **package_versions()}


def _crated(job: JobRecord, plan: Plan, contents: Mapping[str, bytes]) -> JobRecord:
    """Return a recorded job with the paths of the crate, its tool and its cost."""

    def crated(paths: Sequence[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for path in paths if (name := _name(path, plan)) in contents))

    # The cost is that of the group, where jobs were trained together.
    cost = total_of(map(Path, job.logs))
    return job._replace(inputs=crated(job.inputs), outputs=crated(job.outputs), tool=_tool(job, contents), cost=cost)


def _name(path: str, plan: Plan) -> str:
    """Return the path in the crate of a file that Snakemake named, from its working folder."""
    file = Path(path)
    for folder, name in ((plan.results, f"{_results_in_crate(plan)}/"), (ROOT, ""), (Path.cwd(), "")):
        if file.is_relative_to(folder):
            return f"{name}{file.relative_to(folder).as_posix()}"
    return file.as_posix()


def _tool(job: JobRecord, contents: Mapping[str, bytes]) -> str:
    """Return the file of the module that a job's command runs; if it runs none, the file of its rule."""
    if match := re.search(r"\bpython (?:-P )?-m ([\w.]+)", job.command):
        module = f"{match[1].replace('.', '/')}.py"
        if module in contents:
            return module
    rules = (name for name in contents if name.startswith("workflow/rules/"))
    return next((name for name in rules if f"rule {job.rule}:".encode() in contents[name]), WORKFLOW)


def _report(plan: Plan, file: Path, content: bytes) -> Iterator[str]:
    """Yield the size of a crate, and a line for each folder of code, each other folder, and the files outside."""
    with zipfile.ZipFile(BytesIO(content)) as archive:
        names, graph = archive.namelist(), json.loads(archive.read(METADATA))["@graph"]
    jobs = sum(entity["@type"] == "ControlAction" for entity in graph)
    files = sum("File" in entity["@type"] for entity in graph)
    yield f"{shown_path(file)}: {len(content) / 1e6:.1f} MB, {files} files, {jobs} jobs"
    folders = defaultdict(list)
    for name in names:
        folders[name.partition("/")[0] if name.startswith(CODE) else name.rpartition("/")[0]].append(name)
    for folder, inside in sorted(folders.items()):
        number = f"{len(inside)} file{'s' if len(inside) > 1 else ''}"
        yield f"  {folder}/: {number}" if folder else f"  {', '.join(inside)}"
    if not jobs:
        yield f"note: no records of Snakemake about {shown_path(plan.results)} in this folder, so no commands and times"


def main(arguments: Sequence[str] | None = None) -> int:
    """Pack the results of this machine and tier as a Workflow Run RO-Crate, a zip file with its provenance."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.crate", description=main.__doc__)
    parser.add_argument("--out", type=Path, help="the file to write (default: crate.zip in the results folder)")
    parser.add_argument("--agent", metavar="NAME", help="who ran the workflow; left out by default")
    add_arguments(parser)

    def work(options: argparse.Namespace) -> None:
        plan = load_from(options)
        file = options.out or plan.results / "crate.zip"
        refuse_unwritable("--out", file)
        content = pack(plan, options.config_dir or CONFIG, options.agent)
        write_atomically(file, content)
        show(_report(plan, file, content))

    return run_command(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
