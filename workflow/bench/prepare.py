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
from pathlib import Path

from workflow.bench.data.features import Vocabulary
from workflow.bench.data.folder import DataNotFound
from workflow.bench.data.make_shards import Settings, prepare


def main(arguments: list[str] | None = None) -> int:
    """Make the shards that BERT's pre-training reads from a folder of text files."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.prepare", description=main.__doc__)
    parser.add_argument("text", type=Path, help="a folder; every *.txt file under it is read")
    parser.add_argument("--vocabulary", choices=("bert-uncased", "bert-cased"), default="bert-uncased")
    parser.add_argument("--sequence-length", type=int, default=512, help="tokens of a pair (default: 512)")
    parser.add_argument(
        "--documents",
        choices=("files", "blank-lines"),
        default="files",
        help="how documents are separated (default: files)",
    )
    parser.add_argument(
        "--validation-one-in", type=int, default=200, help="hold out one document in this many (default: 200)"
    )
    parser.add_argument(
        "--part-megabytes", type=float, default=32.0, help="size of the text of one shard (default: 32)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the random choices (default: 0)")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, help="number of processes (default: all cores)"
    )
    given = parser.parse_args(arguments)
    limits = {"sequence_length": 8, "validation_one_in": 2, "processes": 1, "seed": 0}
    for name, least in limits.items():
        if getattr(given, name) < least:
            print(f"--{name.replace('_', '-')} {getattr(given, name)}: must be at least {least}", file=sys.stderr)
            return 1
    settings = Settings(
        given.vocabulary,
        given.sequence_length,
        given.documents,
        given.validation_one_in,
        given.part_megabytes,
        given.seed,
    )
    try:
        vocabulary = Vocabulary(cased=given.vocabulary == "bert-cased")
        print(prepare(given.text, settings, vocabulary, given.processes))
    except (DataNotFound, OSError, ValueError) as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
