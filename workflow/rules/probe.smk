"""Measurements that need no training run: probes, each a module of workflow.bench.probes."""

# Processes that a probe needs for itself, so that nothing else disturbs its times, or is disturbed in its own.
CORES_OF = {
    "communication": 4,
    "cost_scaling": workflow.cores,
    "iteration_time": workflow.cores,
    "scaling": workflow.cores,
    "step_breakdown": workflow.cores,
}
# These compute on the CPU at every tier.
CPU_ONLY = ("communication", "half_precision", "numerics", "sizes")
TIMING = ("communication", "cost_scaling", "iteration_time", "memory", "scaling", "step_breakdown")
PROBES = measured_by(PLAN)

for probe in PROBES:

    rule:
        name:
            probe.name
        output:
            f"{R}/probes/{probe.name}.csv",
        log:
            f"{R}/logs/probes/{probe.name}.log",
        # First, while nothing else waits for the cores.
        priority: 1
        conda:
            "../../environment.yml"
        threads: CORES_OF.get(probe.name, 1)
        resources:
            **probe_resources(CLUSTER, probe.name),
            gpu=0 if probe.name in CPU_ONLY else GPUS_A_JOB,
        params:
            name=probe.name,
            workloads=workloads_of(probe, PLAN),
            options=OPTIONS,
        shell:
            "python -m workflow.bench.probes.{params.name} {params.options} --out {output} 2> {log}"


rule probes:
    """Every probe of the tier."""
    input:
        [f"{R}/probes/{probe.name}.csv" for probe in PROBES],


rule timing:
    """Time, memory and bytes of this machine, to compare hardware; no convergence."""
    input:
        [f"{R}/probes/{probe.name}.csv" for probe in PROBES if probe.name in TIMING],
