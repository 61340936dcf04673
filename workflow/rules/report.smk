"""Snakemake's report of the artefacts: one file that opens offline."""


rule report_sources:
    """List the checksums of the data, code and texts that the report is made from."""
    input:
        sorted({file for artefact in FIGURES + TABLES for files in inputs(artefact, PLAN).values() for file in files}),
        [description(artefact) for artefact in FIGURES + TABLES],
        [f"{ROOT}/workflow/report/{file}" for file in ("artefact.rst", "front.html.j2", "style.css", "workflow.rst")],
        f"{ROOT}/workflow/bench/report.py",
    output:
        f"{R}/report/sources.txt",
    log:
        f"{R}/logs/report_sources.log",
    localrule: True
    conda:
        "../../environment.yml"
    shell:
        "cksum -- {input:q} > {output:q} 2> {log:q}"


rule html_report:
    """Combine figures and tables with their captions and provenance in report.html."""
    input:
        # A caption is made together with its figure or table, so the report waits for both. They are ancient, because a
        # figure that is drawn again from the same sources needs no new report.
        captions=ancient(
            [f"{R}/figures/{figure.name}.rst" for figure in FIGURES]
            + [f"{R}/tables/{table.name}.rst" for table in TABLES]
        ),
        # The sources are listed in a rule's output: when an ancient input is made anew, Snakemake does not look at the
        # age of files that no rule makes.
        sources=f"{R}/report/sources.txt",
    output:
        page=f"{R}/report.html",
        front=f"{R}/report/front.rst",
        counts=f"{R}/report/counts.yaml",
        settings=f"{R}/report/settings.json",
    log:
        f"{R}/logs/report.log",
    localrule: True
    conda:
        "../../environment.yml"
    params:
        snakefile=workflow.main_snakefile,
        results=lambda wildcards, output: Path(output.page).parent,
        tier=lambda wildcards: PLAN.tier.title,
        settings=lambda wildcards: json.dumps(SETTINGS),
        look=f"{ROOT}/workflow/report/style.css",
        artefacts=[f"{R}/figures/{figure.name}.png" for figure in FIGURES]
        + [f"{R}/tables/{table.name}.html" for table in TABLES],
    shell:
        "(python -m workflow.bench.report --results={params.results:q} --tier-title={params.tier:q} && "
        # A second Snakemake makes the report. It only reads, so it needs no lock, which the first one holds. It gets the
        # settings in a file, because --config changes some values: it reads them as YAML and strips quotes. It writes to
        # a folder of its own, because --report expands variables in the name of the page.
        "printf %s {params.settings:q} > {output.settings:q} && "
        "folder=$(mktemp -d .snakemake/report.XXXXXX) && "
        "snakemake --snakefile {params.snakefile:q} --nolock --cores 1 --configfile {output.settings:q} "
        "--report $folder/report.html --report-stylesheet {params.look:q} --report-metadata {output.counts:q} "
        "-- {params.artefacts:q} && "
        "mv -- $folder/report.html {output.page:q} && rmdir $folder) 2> {log:q}"
