"""Training runs, and the tidy tables of each experiment."""


rule train:
    """Train the unfinished runs of one optimizer in one experiment."""
    input:
        lambda wildcards: [
            f"{R}/{experiment}/{label}.csv"
            for experiment, label in PLAN.job(wildcards.experiment, wildcards.label).upstream
        ],
    output:
        f"{R}/{{experiment}}/{{label}}.csv",
    log:
        f"{R}/logs/train/{{experiment}}/{{label}}.log",
    conda:
        "../../environment.yml"
    threads: PLAN.tier.threads
    resources:
        **training_resources(CLUSTER),
        gpu=GPUS_A_JOB,
    params:
        runs=lambda wildcards: PLAN.job(wildcards.experiment, wildcards.label).run_ids,
        options=OPTIONS,
    shell:
        # The launch command consists of several words, which are quoted already.
        "{resources.launch} python -m workflow.bench.train {wildcards.experiment:q} {wildcards.label:q} "
        "{params.options:q} --out={output:q} 2>> {log:q}"


if REFUSED:

    ruleorder: refuse > train

    rule refuse:
        """Record the runs that do not fit the cluster's GPUs, without asking it for nodes."""
        output:
            [PLAN.csv_of(job).as_posix() for job in REFUSED],
        log:
            f"{R}/logs/refuse.log",
        localrule: True
        conda:
            "../../environment.yml"
        params:
            cluster=str(config["cluster"]),
            options=OPTIONS,
            reasons=list(REFUSED.values()),
        shell:
            "python -m workflow.cluster.refuse {params.cluster:q} {params.options:q} 2> {log:q}"


rule aggregate:
    """Write the two tidy tables of an experiment: evaluations and runs."""
    input:
        lambda wildcards: [
            f"{R}/{wildcards.experiment}/{label}.csv" for label in PLAN.experiment(wildcards.experiment).jobs
        ],
    output:
        f"{R}/{{experiment}}.csv",
        f"{R}/{{experiment}}.runs.csv",
    log:
        f"{R}/logs/aggregate/{{experiment}}.log",
    localrule: True
    conda:
        "../../environment.yml"
    params:
        # The tables hold targets and labels, which are not part of a run's id: Snakemake must notice their changes.
        runs=lambda wildcards: [
            f"{label} {planned.run.id} {planned.target} {planned.study}"
            for label, job in PLAN.experiment(wildcards.experiment).jobs.items()
            for planned in job.planned
        ],
        options=OPTIONS,
    shell:
        "python -m workflow.bench.aggregate {wildcards.experiment:q} {params.options:q} 2> {log:q}"
