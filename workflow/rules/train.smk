"""Training runs, and the tidy tables of each experiment."""

# A rule for each group of jobs, because the number of its outputs depends on the group.
SOURCES = {source for job in PLAN.jobs for source in job.upstream}

for group in PLAN.grouped(without=REFUSED):

    rule:
        name:
            f"train-{group[0].experiment}-{group[0].label}"
        input:
            sorted(
                f"{R}/{experiment}/{label}.csv"
                for experiment, label in {source for job in group for source in job.upstream}
            ),
        output:
            [PLAN.csv_of(job).as_posix() for job in group],
        log:
            f"{R}/logs/train/{group[0].experiment}/{group[0].label}.log",
        priority: SOURCE if any((job.experiment, job.label) in SOURCES for job in group) else size_of(group)
        conda:
            "../envs/runtime.yaml"
        threads: PLAN.tier.threads
        resources:
            **training_resources(CLUSTER, group[0].experiment),
            setup=SETUP,
            gpu=GPUS_A_JOB,
        params:
            experiment=group[0].experiment,
            labels=[job.label for job in group],
            runs=[run for job in group for run in job.run_ids],
            options=options,
        shell:
            # The launch command consists of several words, which are quoted already.
            "{resources.setup}{resources.launch} python -m workflow.bench.train {params.experiment:q} {params.labels:q} "
            "{params.options:q} >> {log:q} 2>&1"


rule pilot:
    """Measure a few steps of every workload, for the estimates of node-hours."""
    output:
        touch(f"{R}/logs/pilot.done"),
    log:
        f"{R}/logs/pilot.log",
    conda:
        "../envs/runtime.yaml"
    threads: PLAN.tier.threads
    resources:
        **pilot_resources(CLUSTER),
        setup=SETUP,
        gpu=GPUS_A_JOB,
    params:
        cluster=["--cluster", str(config["cluster"])] if CLUSTER else [],
        options=options,
    shell:
        # It writes pilot.csv itself, workload by workload: Snakemake would delete the output of a job that is cut off.
        "{resources.setup}{resources.launch} python -m workflow.cluster.pilot {params.cluster:q} {params.options:q} > {log:q} 2>&1"


if REFUSED:

    rule refuse:
        """Record the runs that do not fit the cluster's GPUs, without asking it for nodes."""
        output:
            [PLAN.csv_of(job).as_posix() for job in REFUSED],
        log:
            f"{R}/logs/refuse.log",
        localrule: True
        conda:
            "../envs/runtime.yaml"
        resources:
            setup=SETUP,
        params:
            cluster=str(config["cluster"]),
            options=options,
            reasons=list(REFUSED.values()),
        shell:
            "{resources.setup}python -m workflow.cluster.refuse {params.cluster:q} {params.options:q} > {log:q} 2>&1"


rule aggregate:
    """Write the two tidy tables of an experiment: evaluations and runs."""
    input:
        lambda wildcards: tables_of(wildcards.experiment),
    output:
        f"{R}/{{experiment}}.csv",
        f"{R}/{{experiment}}.runs.csv",
    log:
        f"{R}/logs/aggregate/{{experiment}}.log",
    priority: ARTEFACT
    localrule: True
    conda:
        "../envs/runtime.yaml"
    resources:
        setup=SETUP,
    params:
        # The tables hold targets and labels, which are not part of a run's id: Snakemake must notice their changes.
        runs=lambda wildcards: [
            f"{label} {planned.run.id} {planned.target} {planned.study}"
            for label, job in PLAN.experiment(wildcards.experiment).jobs.items()
            for planned in job.planned
        ],
        options=options,
    shell:
        "{resources.setup}python -m workflow.bench.aggregate {wildcards.experiment:q} {params.options:q} > {log:q} 2>&1"
