"""Write docs/hyperparameters.md: every optimizer's hyperparameters, from its annotations, defaults and docstrings."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from workflow.bench.plan.hyperparameters import (
    COMPUTED,
    REQUIRED,
    Hyperparameter,
    Signature,
    base_hyperparameter,
    ranges,
    read_signatures,
)
from workflow.bench.support.command_line import refuse_unwritable, run_command
from workflow.bench.support.config import ROOT
from workflow.bench.support.files import write_atomically

PAGE: Final = ROOT / "docs" / "hyperparameters.md"
_SECTIONS: Final = re.compile(r"^(?:Args|Raises|Returns):$", re.MULTILINE)
"""The sections of a docstring for programmers."""
_TYPES: Final = {float: "a number", int: "an integer", bool: "`true` or `false`", str: "text"}
_COMMAND: Final = "python -m workflow.bench.list_hyperparameters"

_START: Final = f"""\
# Hyperparameters

What an experiment file may set, and `baselines.build(name, model, {{...}})` takes. The classes of second-order
optimizers have the same arguments, `MKOR(inverse_update_period=10)`; `null` is None in Python, and the name of a dtype
is a `torch.dtype`. Numbers are finite unless a row says otherwise. D is a layer's gradient, with a column for the bias,
V its update. `{_COMMAND}` writes this page from the code; a test checks that it is current.

A second-order optimizer also takes `base`, and the hyperparameters of that optimizer.
"""


def page(signatures: Mapping[str, Signature]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield from _START.splitlines()
    for order, heading in (("second", "Second-order optimizers"), ("first", "First-order optimizers")):
        yield from ("", f"## {heading}")
        if order == "second":
            yield from ("", *_table([base_hyperparameter(signatures)]))
        for signature in sorted(signatures.values(), key=lambda signature: signature.name):
            if signature.order == order:
                yield from ("", f"### {signature.name}", "", f"**{signature.title}**", "")
                yield from (*_plain(_SECTIONS.split(signature.text)[0]).strip().splitlines(), "")
                yield from _table(signature.hyperparameters.values())


def _table(hyperparameters: Iterable[Hyperparameter]) -> Iterator[str]:
    yield "| hyperparameter | values | default | meaning |"
    yield "|---|---|---|---|"
    for one in hyperparameters:
        yield f"| `{one.name}` | {values(one.domain)} | {_default(one)} | {_meaning(one)} |"


def values(domain: ranges.Domain) -> str:
    """Return the values of a domain in words, such as "a number > 0, or null"."""
    words: list[str] = []
    if isinstance(domain.limit, ranges.OneOf):
        words += [f"`{value}`" for value in domain.limit.values]
    else:
        bounds = _bounds(domain.limit) if domain.limit else ""
        words += [f"{_TYPES[kind]} {bounds}".strip() for kind in domain.types if kind in _TYPES]
    if type(None) in domain.types:
        words.append("`null`")
    return ", ".join(words[:-1]) + (" or " if len(words) > 1 else "") + words[-1] if words else "any"


def _bounds(limit: ranges.Range) -> str:
    signs = {">": limit.above, "≥": limit.at_least, "<": limit.below, "≤": limit.at_most}
    if limit.largest < ranges.AT_LEAST_1.largest:
        signs["≤"] = limit.largest
    bounds = " and ".join(f"{sign} {bound}" for sign, bound in signs.items() if bound is not None)
    return bounds if limit.finite else f"{bounds}, also infinite"


def _default(hyperparameter: Hyperparameter) -> str:
    if hyperparameter.default in (REQUIRED, COMPUTED):
        return "required" if hyperparameter.default is REQUIRED else "computed"
    words = {None: "null", True: "true", False: "false"}
    plain = hyperparameter.default
    return f"`{words[plain] if plain is None or isinstance(plain, bool) else plain}`"


def _meaning(hyperparameter: Hyperparameter) -> str:
    parts = [_plain(part).rstrip(".") for part in (hyperparameter.domain.meaning, hyperparameter.details) if part]
    return ". ".join(part[0].upper() + part[1:] for part in parts).replace("|", "\\|")


def _plain(docstring: str) -> str:
    """Return a docstring as Markdown."""
    return docstring.replace("``", "`")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page of all optimizers' hyperparameters."""
    parser = argparse.ArgumentParser(prog=_COMMAND, description=main.__doc__)
    parser.add_argument("--out", type=Path, default=PAGE, help="where to write (default: docs/hyperparameters.md)")

    def work(options: argparse.Namespace) -> None:
        refuse_unwritable("--out", options.out)
        write_atomically(options.out, "\n".join([*page(read_signatures()), ""]))

    return run_command(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
