"""The plan, made from the configuration, and the settings and functions that the rules share."""

import json
import os
import re
import shlex
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.settings.types import DeploymentMethod
from snakemake.utils import min_version

# Import the bench from this repository, whatever the working directory and the Snakefile that includes this one.
sys.path.insert(0, str(Path(workflow.current_basedir.get_path_or_uri(secret_free=False)).parents[1]))

from workflow.bench.partial import forget
from workflow.bench.plan import Plan
from workflow.bench.plan.artefacts import (
    BENCH,
    compared,
    description,
    files_of,
    inputs,
    planned_artefacts,
    planned_probes,
    sources,
    trials,
    workloads_of,
)
from workflow.bench.results.costs import expected_core_seconds
from workflow.bench.status import share_left
from workflow.bench.support.config import CONFIG, ROOT, ConfigError, refuse_folder
from workflow.bench.support.names import folder_rule, portable_rule
from workflow.bench.support.provenance import gpu_names
from workflow.cluster import preflight
from workflow.cluster.settings import Cluster, pilot_resources, probe_resources, refused, training_resources
from workflow.cluster.submit import SubmitError, account

min_version("9.0")

# config/config.yaml holds the settings; --config tier=... results=... hardware=... overrides them on the command line,
# and config_dir=... chooses another configuration folder. A cluster's profile sets the cluster that runs the jobs.
try:
    PLAN = Plan.load(**{key: value for key, value in config.items() if key != "cluster"})
    CLUSTER = Cluster.load(str(config["cluster"]), PLAN) if "cluster" in config else None
    REFUSED = refused(PLAN, CLUSTER) if CLUSTER else {}
    # Commands get these folders too, and with a cluster its scheduler.
    FOLDERS = {"the working folder": Path.cwd(), "the repository": ROOT, "the Snakefile": workflow.main_snakefile}
    FOLDERS["config_dir"] = config.get("config_dir", CONFIG)
    for what, folder in FOLDERS.items():
        refuse_folder(what, folder, portable_rule if CLUSTER else folder_rule)
    FIGURES = planned_artefacts(PLAN, "figures")
    TABLES = planned_artefacts(PLAN, "tables")
    PROBES = planned_probes(PLAN)
except ConfigError as problem:
    sys.exit(str(problem))

R = PLAN.results.as_posix()
SETTINGS = {"tier": PLAN.tier.name, "results": PLAN.results.parents[1].as_posix(), "hardware": PLAN.hardware}
SETTINGS |= {key: config[key] for key in ("config_dir",) if key in config}

# The first part of each command, which imports the bench from this repository, whatever else lies in the working
# directory, and runs in the Python that runs Snakemake, or in the environment that conda has activated.
PATHS = {"PYTHONPATH": shlex.quote(str(ROOT)), "PYTHONSAFEPATH": "1"}
if DeploymentMethod.CONDA not in workflow.deployment_settings.deployment_method:
    PATHS["PATH"] = f"{shlex.quote(os.path.dirname(sys.executable))}:$PATH"
SETUP = f"export {' '.join(f'{name}={value}' for name, value in PATHS.items())}; "
if CLUSTER and not workflow.is_main_process:
    # A scheduler sends SIGTERM to all processes of a job. The shell ignores it and waits for training to save its work.
    SETUP += "trap : TERM; "

# Without a cluster, no job runs unless a number of cores is given. Then any number will do, as for --rulegraph.
CORES = workflow.cores if CLUSTER else workflow.resource_settings.cores or 1

# One GPU per job. Snakemake enforces a job's need only if the total is limited: to this machine's GPUs, or to
# --resources gpu=N. Jobs on a cluster get whole nodes, with all their GPUs.
GPUS_A_JOB = 1 if PLAN.tier.device == "cuda" and CLUSTER is None else 0
workflow.global_resources.setdefault("gpu", max(1, len(gpu_names())))

ARTEFACTS = [
    *expand("{R}/figures/{figure.name}.{suffix}", R=R, figure=FIGURES, suffix=["pdf", "png"]),
    *expand("figures/{figure.name}.{suffix}", figure=FIGURES, suffix=["pdf", "png"]),
    *expand("{R}/tables/{table.name}.{suffix}", R=R, table=TABLES, suffix=["csv", "md", "html"]),
    f"{R}/report.html",
    f"{R}/snakemake-report.html",
]

for note in PLAN.notes:
    print(f"note: {note}", file=sys.stderr)

if CLUSTER and workflow.is_main_process:
    for line in preflight.lines(PLAN, CLUSTER):
        print(line, file=sys.stderr)
    preflight.set_environment()
elif workflow.is_main_process:
    for line in preflight.lines_without_cluster(PLAN):
        print(line, file=sys.stderr)


def options_with(results):
    """Return the options of commands that plan as this file does, with their results in a folder."""
    return [f"--{key.replace('_', '-')}={value}" for key, value in {**SETTINGS, "results": results}.items()]


def prefix_of(output):
    """Return what a workflow that imports this one has put before a rule's outputs."""
    return str(output[0]).rpartition(f"{R}/")[0]


def options(wildcards, output):
    """Return the options of a rule's command."""
    return options_with(f"{prefix_of(output)}{SETTINGS['results']}")


def tables_of(experiment):
    """Return the tables of an experiment's jobs. Only targets that need it stop if it is not tuned."""
    try:
        return [f"{R}/{experiment}/{label}.csv" for label in PLAN.experiment(experiment).jobs]
    except ConfigError as problem:
        raise WorkflowError(str(problem)) from None


def sources_of(artefact):
    """Return the inputs of an artefact by kind. Only files that a rule makes take an importing workflow's prefix."""
    return {kind: files if kind == "measured" else local(files) for kind, files in inputs(artefact, PLAN).items()}


# Priorities. Of the jobs that are ready Snakemake starts those with the largest sum. Probes that need all cores come first:
# later they would wait for every job that is running, while cores idle. The jobs that other experiments start from follow the
# other probes, then what can be drawn, and training from the longest to the shortest, so that cores end together.
ALONE, PROBE, SOURCE, ARTEFACT = 1000, 200, 100, 50


def size_of(group):
    """Return the priority of a training job that no other one starts from: the digits of its steps in base 2."""
    return sum(planned.run.spec["steps"] for job in group for planned in job.planned).bit_length()


def seconds_of(job, expected):
    """Return the core-seconds that a job probably takes: of its labels what is left, or of its rule; 1 for a small one."""
    if "labels" not in job.params.keys():
        return expected.get(job.rule.name, 1.0)
    trained = [PLAN.job(job.params.experiment, label) for label in job.params.labels]
    return 1.0 + sum(expected.get(f"{each.experiment}/{each.label}", 1.0) * share_left(PLAN, each) for each in trained)
