"""Recompute the verdicts of a results folder: ``python -m tests.recomputation results/<hardware>/<tier>``.

It prints every claim's verdict with value and interval of each part, and what differs from the folder's own
``tables/claims.csv`` and ``tables/claim_parts.csv``, if it has them. The exit status is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.recomputation.claims import disagreements, recompute
from tests.recomputation.reading import Folder, table


def main() -> int:
    """Print the recomputed verdicts; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.recomputation", description="Recompute verdicts.")
    parser.add_argument("folder", type=Path, help="results/<hardware>/<tier>, or a kept one below results/reference")
    root = parser.parse_args().folder
    recomputed = recompute(Folder.of(root))
    for claim, verdict in recomputed.verdicts.items():
        print(claim, verdict)
        of_claim = recomputed.parts[recomputed.parts["id"] == claim].drop(columns="id")
        for part, of_part, value, low, high in of_claim.itertuples(index=False):
            print(f"    {part or 'all'}: {of_part}, {value:.4g} [{low:.4g}, {high:.4g}]")
    verdicts, parts = (table(root / "tables" / f"{name}.csv") for name in ("claims", "claim_parts"))
    if verdicts.empty or parts.empty:
        return 0
    given = dict(zip(verdicts["id"], verdicts["verdict"], strict=True))
    found = disagreements(recomputed, given, parts.fillna({"part": ""}))
    print(f"{len(found)} differences from the folder's own tables", *found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
