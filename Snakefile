"""The pipeline: train, probe, aggregate, draw, decide.  What is to be done comes from config/, by the plan."""

import os
import shlex
import sys
from pathlib import Path

from snakemake.utils import min_version

from workflow.bench.artefacts import describe, inputs, made_from, workloads_of
from workflow.bench.config import ConfigError
from workflow.bench.plan import Plan

min_version("9.0")

# Settings come from config/config.yaml, and from the command line as --config tier=... results=... hardware=...;
# config_dir=... takes another configuration folder.
try:
    PLAN = Plan.load(**config)
except ConfigError as problem:
    sys.exit(str(problem))

R = PLAN.results.as_posix()
SETTINGS = {"tier": PLAN.tier.name, "results": PLAN.results.parents[1].as_posix(), "hardware": PLAN.hardware}
SETTINGS |= {key: config[key] for key in ("config_dir",) if key in config}
OPTIONS = shlex.join(part for key, value in SETTINGS.items() for part in (f"--{key.replace('_', '-')}", value))

FIGURES = made_from(PLAN, "figures")
TABLES = made_from(PLAN, "tables")

for note in PLAN.notes:
    print(f"note: {note}", file=sys.stderr)

# Jobs use the Python that runs Snakemake, and find the bench from any working directory.
shell.prefix(
    f"export PATH={shlex.quote(os.path.dirname(sys.executable))}:$PATH PYTHONPATH={shlex.quote(workflow.basedir)}; "
    "set -euo pipefail; "
)


report: "workflow/report/workflow.rst"


wildcard_constraints:
    experiment="|".join(PLAN.experiments) or "(?!)",
    label="[^/]+",


rule all:
    """Every figure, table and claim of the tier, and the report."""
    input:
        expand("figures/{figure}.{suffix}", figure=[figure.name for figure in FIGURES], suffix=["pdf", "png"]),
        expand("{R}/tables/{table}.{suffix}", R=R, table=[table.name for table in TABLES], suffix=["csv", "md"]),
        f"{R}/report.html",


include: "workflow/rules/train.smk"
include: "workflow/rules/probe.smk"
include: "workflow/rules/figures.smk"
include: "workflow/rules/tables.smk"
include: "workflow/rules/report.smk"
