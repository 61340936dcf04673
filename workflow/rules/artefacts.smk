"""Figures and tables, each made from the tidy tables that its module declares, and the figures' copies in figures/."""

# Tables, the claims among them, are CSV for programs, Markdown for repositories and HTML for the report.
IN_REPORT = {"figures": ("png", "pdf"), "tables": ("html", "csv")}

for artefact in FIGURES + TABLES:

    rule:
        name:
            artefact.name
        input:
            **sources_of(artefact),
            **({"template": f"{ROOT}/workflow/report/table.html.j2"} if artefact.kind == "tables" else {}),
        output:
            [
                report(
                    f"{R}/{artefact.kind}/{artefact.name}.{suffix}",
                    caption="../report/artefact.rst",
                    category=artefact.kind.capitalize(),
                    labels={artefact.kind.removesuffix("s"): artefact.name, "format": suffix.upper()},
                )
                for suffix in IN_REPORT[artefact.kind]
            ],
            [f"{R}/tables/{artefact.name}.md"] if artefact.kind == "tables" else [],
            [f"{R}/tables/{file}" for file in artefact.further],
            caption=f"{R}/{artefact.kind}/{artefact.name}.rst",
        log:
            f"{R}/logs/{artefact.kind}/{artefact.name}.log",
        priority: ARTEFACT
        localrule: True
        conda:
            "../envs/runtime.yaml"
        resources:
            setup=SETUP,
        params:
            name=artefact.name,
            results=lambda wildcards, output: Path(output[0]).parents[1],
            tier=lambda wildcards: PLAN.tier.title,
            looks=[f"--look={PLAN.rounds.look}", f"--looks={PLAN.tier.looks}"],
            compare=compared(artefact, PLAN),
            trials=trials(artefact, PLAN),
            # Functions, because they only matter to the report.
            description=lambda wildcards, output, file=description(artefact): file and Path(file),
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
