"""Figures, each from the tidy tables that its module names, and their copies under figures/."""

for figure in FIGURES:

    rule:
        name:
            figure.name
        input:
            **inputs(figure, PLAN),
        output:
            report(
                f"{R}/figures/{figure.name}.png",
                caption=f"../report/{figure.name}.rst",
                category="Figures",
                labels={"figure": figure.name, "format": "PNG"},
            ),
            report(
                f"{R}/figures/{figure.name}.pdf",
                caption=f"../report/{figure.name}.rst",
                category="Figures",
                labels={"figure": figure.name, "format": "PDF"},
            ),
        log:
            f"{R}/logs/figures/{figure.name}.log",
        localrule: True
        conda:
            "../../environment.yml"
        params:
            name=figure.name,
            results=lambda wildcards, output: Path(output[0]).parents[1],
            tier=PLAN.tier.title,
            hardware=PLAN.hardware,
        shell:
            "python -m workflow.bench.figures {params.name} --results {params.results} --tier-title {params.tier:q} "
            "> {log} 2>&1"


rule publish:
    """Copy a figure of the current tier to figures/."""
    input:
        f"{R}/figures/{{figure}}",
    output:
        "figures/{figure}",
    log:
        f"{R}/logs/publish/{{figure}}.log",
    wildcard_constraints:
        figure=r"fig\w+[.](pdf|png)",
    localrule: True
    conda:
        "../../environment.yml"
    shell:
        "cp {input} {output} 2> {log}"
