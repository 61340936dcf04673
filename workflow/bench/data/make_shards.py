"""Pre-training shards from a folder of text: sentences, word pieces, and pairs of segments.

Pairs follow BERT's original script (Devlin et al., NAACL 2019): segments of whole sentences that together fill a
sequence, one sequence in ten shorter, the second segment half the time from another document of the same part of the
text. The shards hold no masks, since each batch draws its own.
"""

from __future__ import annotations

import hashlib
import io
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from workflow.bench.data import shards
from workflow.bench.data.corpus import END_OF_SENTENCE, is_validation
from workflow.bench.data.features import Vocabulary
from workflow.bench.support.files import write_atomically, write_json

_SHORT: Final = 0.1
"""The share of sequences that are made shorter, so that the model also learns from short ones, as in fine-tuning."""
_RANDOM: Final = 0.5
"""The share of second segments from another document."""

Tokens = list[int]


class NamedText(NamedTuple):
    """A document; its name decides its split."""

    name: str
    text: str


@dataclass(frozen=True)
class Settings:
    """The settings of shards, all of which are in their manifest."""

    vocabulary: str
    sequence_length: int
    documents: str
    validation_one_in: int
    part_megabytes: float
    seed: int


def read(folder: Path, separation: str) -> Iterator[NamedText]:
    """Yield the documents of all text files under ``folder``, in the order of their paths.

    Args:
        folder: searched for ``*.txt`` files, with its subfolders.
        separation: "files" if each file is a document; "blank-lines" if blank lines separate documents, which are then
            named ``<file>:0``, ``<file>:1``, ...

    Raises:
        ValueError: no text file is there, or one is not UTF-8.
    """
    files = sorted(path for path in folder.rglob("*.txt") if path.is_file())
    if not files:
        raise ValueError(f"{folder}: no *.txt file in it")
    for path in files:
        name = str(path.relative_to(folder))
        try:
            if separation == "files":
                yield NamedText(name, path.read_text(encoding="utf-8"))
                continue
            with path.open(encoding="utf-8") as file:  # of any size: it is read line by line
                groups = groupby(file, key=lambda line: bool(line.strip()))
                for number, text in enumerate("".join(lines) for has_text, lines in groups if has_text):
                    yield NamedText(f"{name}:{number}", text)
        except UnicodeDecodeError as problem:
            raise ValueError(f"{path}: not UTF-8 text: {problem.reason} at byte {problem.start}") from None


def _parts(documents: Iterator[NamedText], megabytes: float) -> Iterator[list[NamedText]]:
    """Yield the documents in parts of about ``megabytes`` million characters, each of which becomes a shard."""
    part: list[NamedText] = []
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

    Sentences gather in a chunk until it fills a sequence. The chunk is cut between two of its sentences, s1 s2 | s3:
    the first segment is s1 s2; the second one is s3, which follows, or sentences of another document. In that case s3
    is not used yet and starts the next chunk.

    Args:
        documents: for each document, its sentences as token ids. With only one document no segment is random.
        length: tokens of a sequence; both segments together have at most three fewer.
        rng: draws the lengths, the cuts and the random segments.
    """
    room = length - 3  # [CLS] and two [SEP] take the rest
    for number, sentences in enumerate(documents):
        target = _target(room, rng)
        chunk: list[Tokens] = []
        size = position = 0
        while position < len(sentences):
            chunk.append(sentences[position])
            size += len(sentences[position])
            if position == len(sentences) - 1 or size >= target:
                cut = 1 if len(chunk) == 1 else int(rng.integers(1, len(chunk)))
                first = list(chain(*chunk[:cut]))
                # A chunk of one sentence has no rest, so its second segment must be random.
                is_random = len(documents) > 1 and (len(chunk) == 1 or rng.random() < _RANDOM)
                if is_random:
                    second = _random_segment(documents, number, target - len(first), rng)
                    position -= len(chunk) - cut  # the sentences after the cut start the next chunk
                else:
                    second = list(chain(*chunk[cut:]))
                if first and second:
                    yield *_cut(first, second, room, rng), is_random
                target = _target(room, rng)
                chunk, size = [], 0
            position += 1


def _target(room: int, rng: np.random.Generator) -> int:
    """Return the number of tokens that a pair should have: ``room``, or one time in ten a smaller random number."""
    return int(rng.integers(2, room + 1)) if rng.random() < _SHORT else room


def _random_segment(
    documents: Sequence[Sequence[Tokens]], excluded: int, size: int, rng: np.random.Generator
) -> Tokens:
    """Return sentences from a random place of a document other than ``excluded``, until they have ``size`` tokens."""
    other = int(rng.integers(len(documents) - 1))
    document = documents[other + (other >= excluded)]
    segment: Tokens = []
    for sentence in document[int(rng.integers(len(document))) :]:
        segment += sentence
        if len(segment) >= size:
            break
    return segment


def _cut(first: Tokens, second: Tokens, room: int, rng: np.random.Generator) -> tuple[Tokens, Tokens]:
    """Return both segments cut to ``room`` tokens in all, at random from the front or the end.

    The longer segment is cut until both are equally long, then both alike: segments of 9 and 5 tokens lose 4 and 0 of
    them if there is room for 10, 5 and 1 if there is room for 8.
    """
    excess = max(len(first) + len(second) - room, 0)
    from_first = min(max(len(first) - len(second), 0), excess)
    from_second = min(max(len(second) - len(first), 0), excess)
    both = excess - from_first - from_second
    cuts = (from_first + (both + 1) // 2, from_second + both // 2)
    shortened = []
    for tokens, cut in zip((first, second), cuts, strict=True):
        front = int(rng.binomial(cut, 0.5))
        shortened.append(tokens[front : len(tokens) - (cut - front)])
    return shortened[0], shortened[1]


def make_part(
    folder: Path, number: int, documents: list[NamedText], settings: Settings, vocabulary: Vocabulary
) -> dict[str, Any]:
    """Write the shards of one part, one for each split, and return their entries in the manifest, by split."""
    entries: dict[str, Any] = {}
    for split in shards.SPLITS:
        held_out = split == "validation"
        chosen = [each for each in documents if is_validation(each.name, settings.validation_one_in) == held_out]
        rng = np.random.default_rng([settings.seed, number, held_out])
        segments = list(pairs(_tokenize(chosen, vocabulary), settings.sequence_length, rng))
        if segments:
            arrays = _pack(segments, settings.sequence_length, vocabulary)
            name, digest = f"{split}-{number:05}", hashlib.sha256()
            for kind, array in arrays.items():
                content = io.BytesIO()
                np.save(content, array, allow_pickle=False)
                write_atomically(folder / f"{name}.{kind}.npy", content.getvalue())
                digest.update(content.getvalue())
            entries[split] = {"name": name, "pairs": len(segments), "sha256": digest.hexdigest()}
    return entries


def _tokenize(documents: Sequence[NamedText], vocabulary: Vocabulary) -> list[list[Tokens]]:
    """Return each document as the token ids of its sentences, without empty sentences and documents.

    A sentence also ends at the end of its line.
    """
    sentences = [
        [sentence for line in document.text.splitlines() for sentence in END_OF_SENTENCE.split(line.strip())]
        for document in documents
    ]
    # All sentences at once, since the tokenizer uses several threads, then distributed to their documents.
    encodings = iter(
        vocabulary.tokenizer().encode_batch([text for texts in sentences for text in texts], add_special_tokens=False)
    )
    tokens = [[ids for _ in texts if (ids := next(encodings).ids)] for texts in sentences]
    return [document for document in tokens if document]


def _pack(
    segments: Sequence[tuple[Tokens, Tokens, bool]], length: int, vocabulary: Vocabulary
) -> dict[str, np.ndarray]:
    """Return a shard's arrays, as `workflow.bench.data.shards` describes them.

    With the tokens 7 8 and 9 and a length of 8, the row of tokens is ``[CLS] 7 8 [SEP] 9 [SEP] [PAD] [PAD]`` and the
    row of pairs is ``4 6 0``.
    """
    pad, _, cls, sep, _ = vocabulary.special()
    tokens = np.full((len(segments), length), pad, dtype=np.uint16)
    about = np.zeros((len(segments), 3), dtype=np.uint16)
    for row, (first, second, is_random) in enumerate(segments):
        text = [cls, *first, sep, *second, sep]
        tokens[row, : len(text)] = text
        about[row] = len(first) + 2, len(text), is_random
    return {"tokens": tokens, "pairs": about}


def prepare(text: Path, settings: Settings, vocabulary: Vocabulary, processes: int) -> Path:
    """Make all shards, then the manifest, and return their folder.

    The manifest of an earlier call is removed first, so that an interrupted call leaves an unfinished folder. The
    shards do not depend on ``processes``.

    Raises:
        ValueError: no text is there, or one of the splits has no pair.
    """
    folder = shards.shards_folder(vocabulary.name, settings.sequence_length)
    (folder / shards.MANIFEST).unlink(missing_ok=True)
    finished = _make_parts(folder, text, settings, vocabulary, processes)
    entries = {split: [part[split] for part in finished if split in part] for split in shards.SPLITS}
    for split, its_shards in entries.items():
        if not its_shards:
            raise ValueError(f"{text}: it has no pair of segments for the {split} split; give more documents")
    write_json(
        folder / shards.MANIFEST,
        {
            "format": shards.FORMAT,
            **vars(settings),
            "vocabulary_size": len(vocabulary.pieces),
            "vocabulary_sha256": hashlib.sha256("\n".join(vocabulary.pieces).encode()).hexdigest(),
            "specials": shards.Specials(*vocabulary.special())._asdict(),
            "shards": entries,
        },
    )
    return folder


def _make_parts(
    folder: Path, text: Path, settings: Settings, vocabulary: Vocabulary, processes: int
) -> list[dict[str, Any]]:
    """Make the shards of all parts, several at a time, and return the manifest's entries of each part in order."""
    finished: list[dict[str, Any]] = []
    waiting: deque[Future[Any]] = deque()

    def collect() -> None:
        finished.append(waiting.popleft().result())
        counts = {split: sum(part[split]["pairs"] for part in finished if split in part) for split in shards.SPLITS}
        print(f"\r{len(finished)} parts, " + ", ".join(f"{n} {name} pairs" for name, n in counts.items()), end="")

    with ProcessPoolExecutor(processes) as pool:
        for number, part in enumerate(_parts(read(text, settings.documents), settings.part_megabytes)):
            waiting.append(pool.submit(make_part, folder, number, part, settings, vocabulary))
            # Parts that wait are in memory, so no more of them are read than the processes will soon need.
            while len(waiting) > 2 * processes:
                collect()
        while waiting:
            collect()
    print()
    return finished
