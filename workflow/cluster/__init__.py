"""Running the pipeline through a batch scheduler.

`settings` and `preflight` give the Snakefile the resources that jobs request, and the estimated cost. The other
modules belong to a profile's scripts, which run on a login node: `submit`, `status` and `cancel` drive chains of jobs,
which `chains` keeps in a ledger, through the scheduler that `pbs` wraps. At start they import nothing
beyond the standard library and filelock, because the status script is called for every job in every minute.
"""

from __future__ import annotations
