"""The site, report.html, and Snakemake's own report of the artefacts; each is one file that opens offline."""


rule report_sources:
    """List the checksums of the data, code and texts that the reports are made from."""
    input:
        sorted({file for artefact in FIGURES + TABLES for files in sources_of(artefact).values() for file in files}),
        [local(text) for artefact in FIGURES + TABLES if (text := description(artefact))],
        sorted(str(file) for file in Path(ROOT, "workflow", "report").rglob("*") if file.suffix not in ("", ".rst")),
        [
            f"{ROOT}/{file}"
            for file in ("workflow/report/artefact.rst", "workflow/report/workflow.rst", "docs/glossary.md")
        ],
        [str(file) for name in ("report", "snakemake_report") for file in sources(BENCH / f"{name}.py")],
        [local(str(file)) for folder in PLAN.compared if (file := folder / "tables" / "claims.csv").is_file()],
    output:
        f"{R}/report/sources.txt",
    log:
        f"{R}/logs/report_sources.log",
    localrule: True
    conda:
        "../envs/runtime.yaml"
    shell:
        "cksum -- {input:q} > {output:q} 2> {log:q}"


# A caption is made together with its figure or table, so the reports wait for both. They are ancient, because a figure
# that is drawn again from the same sources needs no new report. The sources are listed in a rule's output: when an
# ancient input is made anew, Snakemake does not look at the age of files that no rule makes.
CAPTIONS = [f"{R}/figures/{figure.name}.rst" for figure in FIGURES] + [
    f"{R}/tables/{table.name}.rst" for table in TABLES
]


rule site:
    """Combine claims, figures, tables, machines and runs in report.html."""
    input:
        captions=ancient(CAPTIONS),
        sources=f"{R}/report/sources.txt",
    output:
        f"{R}/report.html",
    log:
        f"{R}/logs/site.log",
    localrule: True
    conda:
        "../envs/runtime.yaml"
    resources:
        setup=SETUP,
    params:
        results=lambda wildcards, output: Path(output[0]).parent,
        tier=lambda wildcards: PLAN.tier.title,
        compare=[str(folder) for folder in PLAN.compared],
    shell:
        "{resources.setup}python -m workflow.bench.report --results={params.results:q} --tier-title={params.tier:q} "
        "--compare {params.compare:q} > {log:q} 2>&1"


rule snakemake_report:
    """Combine figures and tables with their captions and provenance in snakemake-report.html."""
    input:
        captions=ancient(CAPTIONS),
        sources=f"{R}/report/sources.txt",
    output:
        page=f"{R}/snakemake-report.html",
        front=f"{R}/report/front.rst",
        settings=f"{R}/report/settings.json",
    log:
        f"{R}/logs/snakemake_report.log",
    localrule: True
    conda:
        "../envs/runtime.yaml"
    resources:
        setup=SETUP,
    params:
        snakefile=workflow.main_snakefile,
        results=lambda wildcards, output: Path(output.page).parent,
        tier=lambda wildcards: PLAN.tier.title,
        settings=lambda wildcards: json.dumps(SETTINGS),
        look=f"{ROOT}/workflow/report/style.css",
        artefacts=lambda wildcards, output: [
            *(f"{prefix_of(output)}{R}/figures/{figure.name}.png" for figure in FIGURES),
            *(f"{prefix_of(output)}{R}/tables/{table.name}.html" for table in TABLES),
        ],
    shell:
        "{resources.setup}(python -m workflow.bench.snakemake_report --results={params.results:q} --tier-title={params.tier:q} && "
        # A second Snakemake makes the report. It only reads, so it needs no lock, which the first one holds. It gets the
        # settings in a file, because --config changes some values: it reads them as YAML and strips quotes. It writes to
        # a folder of its own, because --report expands variables in the name of the page.
        "printf %s {params.settings:q} > {output.settings:q} && "
        "folder=$(mktemp -d .snakemake/report.XXXXXX) && "
        "snakemake --snakefile {params.snakefile:q} --nolock --cores 1 --configfile {output.settings:q} "
        "--report $folder/report.html --report-stylesheet {params.look:q} -- {params.artefacts:q} && "
        "mv -- $folder/report.html {output.page:q} && rmdir $folder) 2> {log:q}"
