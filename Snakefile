"""The workflow, for ``snakemake`` called at the top of the repository; its main file is workflow/Snakefile."""


include: "workflow/Snakefile"


# An included file sets no default target.
workflow.default_target = "all"
