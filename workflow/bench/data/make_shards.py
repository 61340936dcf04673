"""Pre-training shards from a folder of text: sentences, word pieces, and pairs of segments.

Pairs follow BERT's original script (Devlin et al., NAACL 2019): segments of whole sentences that together fill a
sequence, one sequence in ten shorter, the second segment half the time from another document of the same part of the
text. The shards hold no masks: each batch draws its own.
"""

from __future__ import annotations

import hashlib
import io
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from workflow.bench.data import docstrings, shards
from workflow.bench.data.features import Vocabulary
from workflow.bench.support.files import write_atomically, write_json

_SHORT: Final = 0.1
"""Share of sequences that are made shorter, so that fine-tuning's short ones are no surprise."""


_RANDOM: Final = 0.5
"""Share of second segments from another document."""


Tokens = list[int]


@dataclass(frozen=True)
class Document:
    """A text and what it is called."""

    name: str
    text: str


@dataclass(frozen=True)
class Settings:
    """What shards are made with; all of it stands in their manifest."""

    vocabulary: str
    sequence_length: int
    documents: str
    validation_one_in: int
    part_megabytes: float
    seed: int


def read(folder: Path, how: str) -> Iterator[Document]:
    """Yield the documents of all text files under ``folder``, in the order of their paths.

    how: "files" or "blank-lines".  Raises `ValueError` where there is no text file, or one is not UTF-8.
    """
    files = sorted(path for path in folder.rglob("*.txt") if path.is_file())
    if not files:
        raise ValueError(f"{folder}: no *.txt file in it")
    for path in files:
        name = str(path.relative_to(folder))
        try:
            if how == "files":
                yield Document(name, path.read_text(encoding="utf-8"))
                continue
            with path.open(encoding="utf-8") as file:
                yield from _between_blank_lines(name, file)
        except UnicodeDecodeError as problem:
            raise ValueError(f"{path}: not UTF-8 text: {problem.reason} at byte {problem.start}") from None


def _between_blank_lines(name: str, lines: Iterator[str]) -> Iterator[Document]:
    found: list[str] = []
    number = 0
    for line in lines:
        if line.strip():
            found.append(line)
        elif found:
            yield Document(f"{name}:{number}", "".join(found))
            found, number = [], number + 1
    if found:
        yield Document(f"{name}:{number}", "".join(found))


def parts(documents: Iterator[Document], megabytes: float) -> Iterator[list[Document]]:
    """Yield the documents in parts of about ``megabytes`` million characters, each of which becomes a shard."""
    part: list[Document] = []
    size = 0
    for document in documents:
        part.append(document)
        size += len(document.text)
        if size >= megabytes * 1e6:
            yield part
            part, size = [], 0
    if part:
        yield part


def pairs(
    documents: Sequence[Sequence[Tokens]], length: int, rng: np.random.Generator
) -> Iterator[tuple[Tokens, Tokens, bool]]:
    """Yield both segments of every pair, and whether the second one is random.

    documents: their sentences' tokens.  Together, segments have at most ``length`` - 3 tokens.  Where there is only
    one document no segment is random.
    """
    room = length - 3
    for number, sentences in enumerate(documents):
        target = _target(room, rng)
        chunk: list[Tokens] = []
        size = at = 0
        while at < len(sentences):
            chunk.append(sentences[at])
            size += len(sentences[at])
            if at == len(sentences) - 1 or size >= target:
                cut = 1 if len(chunk) == 1 else int(rng.integers(1, len(chunk)))
                first = _joined(chunk[:cut])
                can_be_random = len(documents) > 1
                is_random = can_be_random and (len(chunk) == 1 or rng.random() < _RANDOM)
                if is_random:
                    other = int(rng.integers(len(documents) - 1))
                    elsewhere = documents[other + (other >= number)]
                    second = _from(elsewhere, int(rng.integers(len(elsewhere))), target - len(first))
                    at -= len(chunk) - cut  # what is not used starts the next pair
                else:
                    second = _joined(chunk[cut:])
                if first and second:
                    yield *_cut(first, second, room, rng), is_random
                target = _target(room, rng)
                chunk, size = [], 0
            at += 1


def _target(room: int, rng: np.random.Generator) -> int:
    return int(rng.integers(2, room + 1)) if rng.random() < _SHORT else room


def _joined(sentences: Sequence[Tokens]) -> Tokens:
    return [token for sentence in sentences for token in sentence]


def _from(sentences: Sequence[Tokens], start: int, size: int) -> Tokens:
    """Return sentences from ``start`` on, until they have ``size`` tokens."""
    found: Tokens = []
    for sentence in sentences[start:]:
        found += sentence
        if len(found) >= size:
            break
    return found


def _cut(first: Tokens, second: Tokens, room: int, rng: np.random.Generator) -> tuple[Tokens, Tokens]:
    """Return both segments cut to ``room`` tokens in all: always the longer one, at its front or end alike."""
    excess = max(len(first) + len(second) - room, 0)
    from_first = min(max(len(first) - len(second), 0), excess)
    from_second = min(max(len(second) - len(first), 0), excess)
    both = excess - from_first - from_second
    cuts = (from_first + (both + 1) // 2, from_second + both // 2)
    kept = []
    for tokens, cut in zip((first, second), cuts, strict=True):
        front = int(rng.binomial(cut, 0.5))
        kept.append(tokens[front : len(tokens) - (cut - front)])
    return kept[0], kept[1]


def is_validation(name: str, one_in: int) -> bool:
    """Return whether a document is held out, by the hash of its name."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) % one_in == 0


def make_part(folder: Path, number: int, documents: list[Document], settings: Settings, vocabulary: Vocabulary) -> Any:
    """Write one part's shards and return their entries in the manifest, by split."""
    tokenizer = vocabulary.tokenizer()
    specials = shards.Specials(*vocabulary.special())
    entries: dict[str, Any] = {}
    for split in shards.SPLITS:
        held_out = split == "validation"
        chosen = [each for each in documents if is_validation(each.name, settings.validation_one_in) == held_out]
        sentences = [
            [sentence for line in each.text.splitlines() for sentence in docstrings.END_OF_SENTENCE.split(line.strip())]
            for each in chosen
        ]
        encodings = iter(tokenizer.encode_batch([s for each in sentences for s in each], add_special_tokens=False))
        encoded = [[ids for _ in each if (ids := next(encodings).ids)] for each in sentences]
        rng = np.random.default_rng([settings.seed, number, held_out])
        found = list(pairs([each for each in encoded if each], settings.sequence_length, rng))
        if not found:
            continue
        tokens = np.full((len(found), settings.sequence_length), specials.pad, dtype=np.uint16)
        about = np.zeros((len(found), 3), dtype=np.uint16)
        for row, (first, second, is_random) in enumerate(found):
            text = [specials.cls, *first, specials.sep, *second, specials.sep]
            tokens[row, : len(text)] = text
            about[row] = len(first) + 2, len(text), is_random
        name = f"{split}-{number:05}"
        digest = hashlib.sha256()
        for kind, array in (("tokens", tokens), ("pairs", about)):
            content = io.BytesIO()
            np.save(content, array, allow_pickle=False)
            write_atomically(folder / f"{name}.{kind}.npy", content.getvalue())
            digest.update(content.getvalue())
        entries[split] = {"name": name, "pairs": len(found), "sha256": digest.hexdigest()}
    return entries


def prepare(text: Path, settings: Settings, vocabulary: Vocabulary, processes: int) -> Path:
    """Make all shards, then the manifest, and return their folder.

    What stood there counts as unfinished from the start on.  The shards do not depend on ``processes``.

    Raises `ValueError` where there is no text, or none of it in one of the splits.
    """
    folder = shards.folder_of(vocabulary.name, settings.sequence_length)
    (folder / shards.MANIFEST).unlink(missing_ok=True)
    made: list[dict[str, Any]] = []
    waiting: deque[Future[Any]] = deque()

    def collect() -> None:
        made.append(waiting.popleft().result())
        counts = {split: sum(part[split]["pairs"] for part in made if split in part) for split in shards.SPLITS}
        print(f"\r{len(made)} parts, " + ", ".join(f"{n} {name} pairs" for name, n in counts.items()), end="")

    with ProcessPoolExecutor(processes) as pool:
        for number, part in enumerate(parts(read(text, settings.documents), settings.part_megabytes)):
            waiting.append(pool.submit(make_part, folder, number, part, settings, vocabulary))
            while len(waiting) > 2 * processes:
                collect()
        while waiting:
            collect()
    print()
    found = {split: [part[split] for part in made if split in part] for split in shards.SPLITS}
    for split, entries in found.items():
        if not entries:
            raise ValueError(f"{text}: it has no pair of segments for the {split} split; give more documents")
    write_json(
        folder / shards.MANIFEST,
        {
            "format": shards.FORMAT,
            **vars(settings),
            "vocabulary_size": len(vocabulary.pieces),
            "vocabulary_sha256": hashlib.sha256("\n".join(vocabulary.pieces).encode()).hexdigest(),
            "specials": shards.Specials(*vocabulary.special())._asdict(),
            "shards": found,
        },
    )
    return folder
