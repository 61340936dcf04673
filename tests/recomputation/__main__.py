"""Print verdicts recomputed from a results folder: ``python -m tests.recomputation results/<hardware>/<tier>``."""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.recomputation.claims import recompute
from tests.recomputation.reading import Folder


def main() -> None:
    """Print every claim's verdict, and value, low and high of each of its parts."""
    parser = argparse.ArgumentParser(prog="python -m tests.recomputation", description=__doc__)
    parser.add_argument("folder", type=Path, help="results/<hardware>/<tier>, or a kept one below results/reference")
    verdicts, parts = recompute(Folder.of(parser.parse_args().folder))
    for claim, verdict in verdicts.items():
        print(f"{claim} {verdict}")
        for _, part in parts[parts["id"] == claim].iterrows():
            print(f"    {part['part'] or 'all'}: {part['verdict']}, {part['value']:.4g} [{part['low']:.4g}, {part['high']:.4g}]")


if __name__ == "__main__":
    main()
