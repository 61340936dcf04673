"""Functions of the rules."""


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
