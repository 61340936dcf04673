"""Snakemake's own report of the artefacts: one file that opens offline."""


rule html_report:
    """Bind figures and tables with their captions and provenance into report.html."""
    input:
        artefacts=[f"{R}/figures/{figure.name}.png" for figure in FIGURES]
        + [f"{R}/tables/{table.name}.html" for table in TABLES],
        captions=sorted((Path(workflow.basedir) / "workflow" / "report").glob("*.rst")),
    output:
        f"{R}/report.html",
    log:
        f"{R}/logs/report.log",
    localrule: True
    conda:
        "../../environment.yml"
    params:
        snakefile=workflow.main_snakefile,
        settings=[f"{key}={value}" for key, value in SETTINGS.items()],
    shell:
        # A report is made by a second Snakemake, which only reads; the first one holds the lock.
        "snakemake --snakefile {params.snakefile:q} --nolock --cores 1 --config {params.settings:q} "
        "--report {output} -- {input.artefacts} 2> {log}"
