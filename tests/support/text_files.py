"""Small text data sets in the format of the real ones, and a small vocabulary in the published format, for tests."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

WORDS = (
    *("the", "a", "film", "was", "good", "bad", "not", "very", "it", "is", "who"),
    *("wrote", "when", "did", "paris", "london", "in", "by", "anna", "bob", "what", "why"),
)
MARKS = tuple(".,?!'\"()")
UNUSED = 99  # word pieces between [PAD] and [UNK] in the published vocabularies
PIECES = (
    "[PAD]",
    *(f"[unused{n}]" for n in range(UNUSED)),
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *MARKS,
    *WORDS,
    *(word.capitalize() for word in WORDS),
    *"0123456789",
    "##s",
)

MNLI = [
    *("index", "promptID", "pairID", "genre", "sentence1_binary_parse", "sentence2_binary_parse"),
    *("sentence1_parse", "sentence2_parse", "sentence1", "sentence2", "label1", "gold_label"),
]
QQP = ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"]
STSB = ["index", "genre", "filename", "year", "old_index", "source1", "source2", "sentence1", "sentence2", "score"]
GLUE = {
    "mnli": ("MNLI", MNLI, ("sentence1", "sentence2"), "gold_label", ("contradiction", "entailment", "neutral")),
    "qqp": ("QQP", QQP, ("question1", "question2"), "is_duplicate", ("0", "1")),
    "qnli": (
        "QNLI",
        ["index", "question", "sentence", "label"],
        ("question", "sentence"),
        "label",
        ("entailment", "not_entailment"),
    ),
    "sst2": ("SST-2", ["sentence", "label"], ("sentence",), "label", ("0", "1")),
    "cola": ("CoLA", ["source", "label", "star", "sentence"], ("sentence",), "label", ("0", "1")),
    "stsb": ("STS-B", STSB, ("sentence1", "sentence2"), "score", ("0.000", "2.600", "5.000")),
    "mrpc": (
        "MRPC",
        ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"],
        ("#1 String", "#2 String"),
        "Quality",
        ("0", "1"),
    ),
    "rte": (
        "RTE",
        ["index", "sentence1", "sentence2", "label"],
        ("sentence1", "sentence2"),
        "label",
        ("entailment", "not_entailment"),
    ),
}
"""For each task: folder, header (which CoLA's files lack), columns of texts, column of the label, and its values."""


def write_vocabulary(root: Path, *names: str) -> None:
    """Write the vocabularies ``bert-uncased`` and ``bert-cased``, or only those of ``names``."""
    for name in names or ("bert-uncased", "bert-cased"):
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")


def sentence(rng: np.random.Generator, words: int = 6) -> str:
    """Return a random sentence of known words."""
    return " ".join(rng.choice(WORDS, words)).capitalize() + "."


def write_glue(root: Path, task: str, *, train: int = 24, development: int = 12) -> list[tuple[list[str], str]]:
    """Write a task's files, with an unmatched quote in one text; return the texts and labels of the training split."""
    folder, header, texts, label, values = GLUE[task]
    rng = np.random.default_rng(0)
    (root / "glue" / folder).mkdir(parents=True, exist_ok=True)
    examples: list[tuple[list[str], str]] = []
    for split, number in (("train", train), ("dev_matched" if task == "mnli" else "dev", development)):
        rows = []
        for row in range(number):
            fields = dict.fromkeys(header, "x")
            fields |= {name: sentence(rng) for name in texts}
            fields[texts[0]] = '" ' + fields[texts[0]] if row == 1 else fields[texts[0]]
            fields[label] = values[row % len(values)]
            rows.append("\t".join(fields[name] for name in header))
            if split == "train":
                examples.append(([fields[name] for name in texts], fields[label]))
        lines = rows if task == "cola" else ["\t".join(header), *rows]
        (root / "glue" / folder / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return examples


def write_imdb(root: Path, each: int = 8) -> None:
    """Write ``each`` reviews of each class to both splits; positive ones call the film good, negative ones bad."""
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for name, word in (("neg", "bad"), ("pos", "good")):
            folder = root / "aclImdb" / split / name
            folder.mkdir(parents=True)
            for number in range(each):
                text = f"The film was {word}.<br /><br />{sentence(rng)}"
                (folder / f"{number}_{number % 10}.txt").write_text(text, encoding="utf-8")
        (root / "aclImdb" / split / "urls_pos.txt").write_text("not a review")


def write_squad(root: Path, *, filler: int = 150) -> None:
    """Write both files: contexts with a name after ``filler`` words, a question for it, and the correct answers."""
    (root / "squad").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for file, articles in (("train-v1.1.json", 3), ("dev-v1.1.json", 2)):
        data = []
        for article in range(articles):
            paragraphs = []
            for number, name in enumerate(("Anna", "Bob")):
                context = f"{sentence(rng, filler)} It was in Paris, by ({name})."
                start = context.index(f"({name})") + 1
                answers = [{"text": name, "answer_start": start}]
                if file.startswith("dev"):
                    answers.append({"text": f"by ({name})", "answer_start": start - 4})
                question = {"id": f"{article}-{number}", "question": " Who wrote it?", "answers": answers}
                paragraphs.append({"context": context, "qas": [question]})
            data.append({"title": str(article), "paragraphs": paragraphs})
        (root / "squad" / file).write_text(json.dumps({"version": "1.1", "data": data}), encoding="utf-8")
