"""``python -m workflow.bench.figures NAME --results R``."""

from __future__ import annotations

import sys

from workflow.bench.make_artefact import main

sys.exit(main("figures"))
