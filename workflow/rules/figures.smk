"""Figures, each made from the tidy tables that its module declares, and their copies in figures/."""

for figure in FIGURES:

    rule:
        name:
            figure.name
        input:
            **sources_of(figure),
        output:
            report(
                f"{R}/figures/{figure.name}.png",
                caption="../report/artefact.rst",
                category="Figures",
                labels={"figure": figure.name, "format": "PNG"},
            ),
            report(
                f"{R}/figures/{figure.name}.pdf",
                caption="../report/artefact.rst",
                category="Figures",
                labels={"figure": figure.name, "format": "PDF"},
            ),
            caption=f"{R}/figures/{figure.name}.rst",
        log:
            f"{R}/logs/figures/{figure.name}.log",
        priority: ARTEFACT
        localrule: True
        conda:
            "../envs/runtime.yaml"
        resources:
            setup=SETUP,
        params:
            name=figure.name,
            results=lambda wildcards, output: Path(output[0]).parents[1],
            tier=lambda wildcards: PLAN.tier.title,
            looks=[f"--look={PLAN.rounds.look}", f"--looks={PLAN.tier.looks}"],
            compare=compared(figure, PLAN),
            trials=trials(figure, PLAN),
            # Functions, because they only matter to the report.
            description=lambda wildcards, output, file=description(figure): file and Path(file),
            caption=lambda wildcards, output: Path(output.caption),
        shell:
            "{resources.setup}python -m workflow.bench.make_artefact {params.name:q} --results={params.results:q} "
            "--tier-title={params.tier:q} {params.looks:q} --compare {params.compare:q} --trials {params.trials:q} "
            "> {log:q} 2>&1"


rule publish:
    """Copy a figure of the current tier to figures/."""
    input:
        pdf=f"{R}/figures/{{figure}}.pdf",
        png=f"{R}/figures/{{figure}}.png",
    output:
        pdf="figures/{figure}.pdf",
        png="figures/{figure}.png",
    log:
        f"{R}/logs/publish/{{figure}}.log",
    wildcard_constraints:
        figure=r"fig\w+",
    priority: ARTEFACT
    localrule: True
    conda:
        "../envs/runtime.yaml"
    shell:
        # Not what a link leads to, in results that somebody else has handed over.
        "(for file in {input.pdf:q} {input.png:q}; do "
        'if test -L "$file"; then echo "$file: is a link" >&2; exit 1; fi; done; '
        "cp -- {input.pdf:q} {output.pdf:q} && cp -- {input.png:q} {output.png:q}) 2> {log:q}"
