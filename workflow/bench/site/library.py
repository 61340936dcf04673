"""The library that draws the site's curves: Vega and Vega-Lite, as the pinned package of Snakemake brings them.

Snakemake ships them for its own report, so the site needs no package of its own, and no network.
"""

from __future__ import annotations

import base64
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from workflow.bench.support.config import ConfigError
from workflow.bench.support.reading import read_text

_SCRIPTS: Final = ("vega/vega.js", "vega-lite/vega-lite.js")
_NO_PART: Final = ("heroicons", "prop-types", "pygments", "react", "snakemake", "tailwindcss")
"""Snakemake's other assets, which are no part of Vega."""


def packed() -> str:
    """Return the library's source, its licenses before it, as base64 of a zlib stream; a third of the source's size.

    Raises:
        ConfigError: the installed Snakemake does not bring it.
    """
    assets = _assets()
    licenses = [file for file in sorted(assets.glob("*/LICENSE*")) if file.parent.name not in _NO_PART]
    texts = [f"{file.parent.name}\n\n{read_text(file)}" for file in licenses]
    comment = "\n\n".join(texts).replace("*/", "* /")
    for name in _SCRIPTS:
        if not (assets / name).is_file():
            raise ConfigError(f"snakemake/assets/data/{name} is missing: install the Snakemake of requirements.lock")
    source = "\n".join([f"/*\n{comment}\n*/", *(read_text(assets / name) for name in _SCRIPTS)])
    return base64.b64encode(zlib.compress(source.encode(), 9)).decode()


def _assets() -> Path:
    # Not imported: that takes a second, and only the folder is needed.
    spec = find_spec("snakemake")
    return Path(spec.origin).parent / "assets" / "data" if spec and spec.origin else Path()
