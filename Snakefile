"""Include workflow/Snakefile, the main file, so that ``snakemake`` works at the top of the repository."""


include: "workflow/Snakefile"


# An included file sets no default target.
workflow.default_target = "all"
