"""Make pre-training shards from a folder of text.

    python -m workflow.bench.prepare TEXT --vocabulary bert-uncased --sequence-length 512

reads every ``*.txt`` file under TEXT, in UTF-8, and writes ``pretraining/bert-uncased-512`` in the data folder, where
the workload ``bert_pretraining`` with ``dataset: text`` reads it. The vocabulary is ``bert-uncased/vocab.txt`` (or
``bert-cased``) in the data folder. A document is a file or, with ``--documents blank-lines``, the text between blank
lines (one article of a dump, one sentence a line). One document in ``--validation-one-in`` is held out, by the hash of
its name. `workflow.bench.data.make_shards` describes the pairs.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import Final

from workflow.bench.data.features import Vocabulary
from workflow.bench.data.folder import DataNotFound
from workflow.bench.data.make_shards import Settings, prepare
from workflow.bench.support.command_line import check_option, real, run_command, whole

_LIMITS: Final = {
    "sequence_length": (8, 4096),
    "validation_one_in": (2, 10**9),
    "part_megabytes": (0.001, 10**5),
    "processes": (1, 1024),
    "seed": (0, 2**32 - 1),
}
"""The smallest and the largest value of each option that is a number."""


def _run(options: argparse.Namespace) -> None:
    """Make the shards and print their folder."""
    for name, (smallest, largest) in _LIMITS.items():
        check_option(f"--{name.replace('_', '-')}", getattr(options, name), smallest, largest)
    settings = Settings(**{field.name: getattr(options, field.name) for field in fields(Settings)})
    vocabulary = Vocabulary(cased=options.vocabulary == "bert-cased")
    print(prepare(options.text, settings, vocabulary, options.processes))


def main(arguments: list[str] | None = None) -> int:
    """Make the shards that BERT's pre-training reads from a folder of text files."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.prepare", description=main.__doc__)
    add = parser.add_argument
    add("text", type=Path, help="a folder; every *.txt file under it is read")
    add("--vocabulary", choices=("bert-uncased", "bert-cased"), default="bert-uncased", help="(default: %(default)s)")
    add("--sequence-length", type=whole, default=512, help="tokens of a pair (default: %(default)s)")
    add(
        "--documents",
        choices=("files", "blank-lines"),
        default="files",
        help="how documents are separated (default: %(default)s)",
    )
    add("--validation-one-in", type=whole, default=200, help="hold out one document in so many (default: %(default)s)")
    add("--part-megabytes", type=real, default=32.0, help="size of the text of one shard (default: %(default)g)")
    add("--seed", type=whole, default=0, help="seed of the random choices (default: %(default)s)")
    add("--processes", type=whole, default=os.cpu_count() or 1, help="number of processes (default: all cores)")
    return run_command(parser, _run, arguments, failures=(DataNotFound, OSError, ValueError))


if __name__ == "__main__":
    sys.exit(main())
