"""Probes: measurements that need no training run, each a module of workflow.bench.probes."""

for probe in PROBES:

    rule:
        name:
            probe.name
        input:
            local(files_of(probe)),
        output:
            f"{R}/probes/{probe.name}.csv",
        log:
            f"{R}/logs/probes/{probe.name}.log",
        priority: ALONE if probe.cores == "all" else PROBE
        conda:
            "../envs/runtime.yaml"
        threads: CORES if probe.cores == "all" else probe.cores
        resources:
            **probe_resources(CLUSTER, probe.name),
            setup=SETUP,
            gpu=GPUS_A_JOB if probe.uses_gpu else 0,
        params:
            name=probe.name,
            workloads=workloads_of(probe, PLAN),
            options=options,
        shell:
            "{resources.setup}python -m workflow.bench.probes.{params.name:q} {params.options:q} --out={output:q} > {log:q} 2>&1"


rule probes:
    """Every probe of the tier."""
    input:
        [f"{R}/probes/{probe.name}.csv" for probe in PROBES],


rule timing:
    """Time, memory and bytes of this machine, to compare hardware; no convergence."""
    input:
        [f"{R}/probes/{probe.name}.csv" for probe in PROBES if probe.timing],
