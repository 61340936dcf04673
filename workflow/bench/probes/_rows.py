"""A probe's rows as a CSV file, with the version of the code that measured them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from workflow.bench.support import provenance
from workflow.bench.support.files import write_atomically
from workflow.bench.support.source_code import probe_fingerprint


def write_rows(out: Path, rows: Iterable[NamedTuple]) -> None:
    """Write rows of one type, at least one, atomically, with the columns ``code_fingerprint`` and ``git_commit``."""
    commit, _ = provenance.git_state()
    table = pd.DataFrame(rows).assign(code_fingerprint=probe_fingerprint(), git_commit=commit)
    write_atomically(out, table.to_csv(index=False))
