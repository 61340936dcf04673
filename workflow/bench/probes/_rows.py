"""A probe's rows as a CSV file, with the version of the code that measured them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from workflow.bench.support import provenance
from workflow.bench.support.files import write_atomically
from workflow.bench.support.source_code import probe_fingerprint


def write_rows(out: Path, rows: Iterable[NamedTuple], columns: Sequence[str] = ()) -> None:
    """Write rows of one type atomically, as a `table_of` them; ``columns`` are theirs, in case there is none."""
    write_atomically(out, table_of(rows, columns).to_csv(index=False))


def table_of(rows: Iterable[NamedTuple], columns: Sequence[str] = ()) -> pd.DataFrame:
    """Return rows of one type as a table, with the columns ``code_fingerprint`` and ``git_commit``."""
    commit, _ = provenance.git_state()
    table = pd.DataFrame(rows, columns=list(columns) or None)
    return table.assign(code_fingerprint=probe_fingerprint(), git_commit=commit)
