"""The pipeline: train, probe, aggregate, draw, decide.  What is to be done comes from config/, by the plan."""

import os
import shlex
import sys
from pathlib import Path

from snakemake.utils import min_version

from workflow.bench.artefacts import compared, description, inputs, made_from, measured_by, workloads_of
from workflow.bench.config import ConfigError
from workflow.bench.partial import forget
from workflow.bench.plan import Plan
from workflow.bench.provenance import gpu_names
from workflow.cluster import preflight
from workflow.cluster.settings import Cluster, probe_resources, training_resources
from workflow.cluster.submit import SubmitError, account

min_version("9.0")

# Settings come from config/config.yaml, and from the command line as --config tier=... results=... hardware=...;
# config_dir=... takes another configuration folder, and a cluster's profile names the cluster that the jobs go to.
try:
    PLAN = Plan.load(**{key: value for key, value in config.items() if key != "cluster"})
    CLUSTER = Cluster.load(str(config["cluster"]), PLAN) if "cluster" in config else None
except ConfigError as problem:
    sys.exit(str(problem))

R = PLAN.results.as_posix()
SETTINGS = {"tier": PLAN.tier.name, "results": PLAN.results.parents[1].as_posix(), "hardware": PLAN.hardware}
SETTINGS |= {key: config[key] for key in ("config_dir",) if key in config}
OPTIONS = shlex.join(part for key, value in SETTINGS.items() for part in (f"--{key.replace('_', '-')}", value))

# One GPU is one job's. A job's own need limits nothing without a stock to take it from: this machine's GPUs, or what
# --resources gpu=N names. A cluster gives its jobs nodes of their own, with all their GPUs.
GPUS_A_JOB = 1 if PLAN.tier.device == "cuda" and CLUSTER is None else 0
workflow.global_resources.setdefault("gpu", max(1, len(gpu_names())))

FIGURES = made_from(PLAN, "figures")
TABLES = made_from(PLAN, "tables")

ARTEFACTS = [
    *expand("{R}/figures/{figure.name}.{suffix}", R=R, figure=FIGURES, suffix=["pdf", "png"]),
    *expand("figures/{figure.name}.{suffix}", figure=FIGURES, suffix=["pdf", "png"]),
    *expand("{R}/tables/{table.name}.{suffix}", R=R, table=TABLES, suffix=["csv", "md", "html"]),
    f"{R}/report.html",
]

for note in PLAN.notes:
    print(f"note: {note}", file=sys.stderr)

if CLUSTER and workflow.is_main_process:
    for line in preflight.lines(PLAN, CLUSTER):
        print(line, file=sys.stderr)
    preflight.set_environment()

# Jobs use the Python that runs Snakemake, and find the bench from any working directory.
shell.prefix(
    f"export PATH={shlex.quote(os.path.dirname(sys.executable))}:$PATH PYTHONPATH={shlex.quote(workflow.basedir)}; "
    "set -euo pipefail; "
    # A scheduler sends SIGTERM to all processes of a job; those that train save their work, and are waited for.
    + ("trap : TERM; " if CLUSTER and not workflow.is_main_process else "")
)


onstart:
    # Once, before the first of many submissions that would all fail.
    by_scripts = CLUSTER is not None and CLUSTER.scheduler == "pbs"
    if by_scripts and workflow.is_main_process and not all(job.is_local for job in workflow.dag.needrun_jobs()):
        try:
            account()
        except SubmitError as problem:
            sys.exit(str(problem))


# Made before the report is: what these runs say of every claim, and where each artefact is.
report: str(Path(R, "report", "front.rst").resolve())


onerror:
    # Failed jobs, or Ctrl-C: draw what has data, in a folder of its own. Whatever comes of it, the error stays.
    shell(f"python -m workflow.bench.partial {OPTIONS} >&2 || true")


onsuccess:
    if all(Path(artefact).exists() for artefact in ARTEFACTS):
        forget(PLAN)


wildcard_constraints:
    experiment="|".join(PLAN.experiments) or "(?!)",
    label="[^/]+",


rule all:
    """Every figure, table and claim of the tier, the report, and every probe."""
    input:
        ARTEFACTS,
        [f"{R}/probes/{probe.name}.csv" for probe in measured_by(PLAN)],


rule artefacts:
    """Every figure, table and claim of the tier, and the report, with the probes that they need."""
    input:
        ARTEFACTS,


include: "workflow/rules/train.smk"
include: "workflow/rules/probe.smk"
include: "workflow/rules/figures.smk"
include: "workflow/rules/tables.smk"
include: "workflow/rules/report.smk"
