"""Tables, including the claims: CSV for programs, Markdown for repositories, HTML for the report."""

for table in TABLES:

    rule:
        name:
            table.name
        input:
            **sources_of(table),
            template=f"{ROOT}/workflow/report/table.html.j2",
        output:
            report(
                f"{R}/tables/{table.name}.html",
                caption="../report/artefact.rst",
                category="Tables",
                labels={"table": table.name, "format": "HTML"},
            ),
            report(
                f"{R}/tables/{table.name}.csv",
                caption="../report/artefact.rst",
                category="Tables",
                labels={"table": table.name, "format": "CSV"},
            ),
            f"{R}/tables/{table.name}.md",
            *[f"{R}/tables/{file}" for file in table.further],
            caption=f"{R}/tables/{table.name}.rst",
        log:
            f"{R}/logs/tables/{table.name}.log",
        priority: ARTEFACT
        localrule: True
        conda:
            "../envs/runtime.yaml"
        resources:
            setup=SETUP,
        params:
            name=table.name,
            results=lambda wildcards, output: Path(output[0]).parents[1],
            tier=lambda wildcards: PLAN.tier.title,
            looks=[f"--look={PLAN.rounds.look}", f"--looks={PLAN.tier.looks}"],
            compare=compared(table, PLAN),
            # Functions, because they only matter to the report.
            description=lambda wildcards, output, file=description(table): file and Path(file),
            caption=lambda wildcards, output: Path(output.caption),
        shell:
            "{resources.setup}python -m workflow.bench.make_artefact {params.name:q} --results={params.results:q} "
            "--tier-title={params.tier:q} {params.looks:q} --compare {params.compare:q} "
            "> {log:q} 2>&1"
