"""Measurements that need no training run."""


rule iteration_time:
    """Time iterations over the inverse update period, with the machine to itself."""
    output:
        f"{R}/probes/iteration_time.csv",
    log:
        f"{R}/logs/probes/iteration_time.log",
    # First, while nothing else waits for the cores.
    priority: 1
    conda:
        "../../environment.yml"
    threads: workflow.cores
    params:
        workloads=workloads_of(describe("probes", "iteration_time"), PLAN),
        options=OPTIONS,
    shell:
        "python -m workflow.bench.probes.iteration_time {params.options} --out {output} 2> {log}"


rule numerics:
    """Check the update rules' numerics against float64 and what the paper's lemmas say."""
    output:
        f"{R}/probes/numerics.csv",
    log:
        f"{R}/logs/probes/numerics.log",
    conda:
        "../../environment.yml"
    shell:
        "python -m workflow.bench.probes.numerics --out {output} 2> {log}"
