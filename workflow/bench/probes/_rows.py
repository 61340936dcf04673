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
    """Write rows of one type, at least one, atomically, as a `table_of` them."""
    write_atomically(out, table_of(rows).to_csv(index=False))


def table_of(rows: Iterable[NamedTuple]) -> pd.DataFrame:
    """Return rows of one type as a table, with the columns ``code_fingerprint`` and ``git_commit``."""
    commit, _ = provenance.git_state()
    return pd.DataFrame(rows).assign(code_fingerprint=probe_fingerprint(), git_commit=commit)
