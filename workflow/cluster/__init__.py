"""Running the pipeline through a batch scheduler.

`settings` and `preflight` tell the Snakefile what jobs ask of a cluster. The other modules belong to a profile's
scripts, which run on a login node for every job and minute: `submit`, `status` and `cancel` drive chains of jobs, which
`chains` keeps in a ledger, through the scheduler that `pbs` wraps. At start they import nothing beyond the standard
library and filelock.
"""

from __future__ import annotations
