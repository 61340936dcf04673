"""Running the pipeline through a scheduler.

`settings` and `preflight` say what the jobs need of a cluster, for the Snakefile.  The rest is what a profile's scripts
call on a login node, with the standard library only: `submit`, `status` and `cancel` lead chains of jobs, kept in the
ledger of `chains`, through the scheduler behind `pbs`.
"""

from __future__ import annotations
