"""Small data sets as their publishers pack them, on a server of this machine, and the file of sources that names it."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save

from tests.support import text_files
from tests.support.faulty_server import Page, Server
from tests.support.image_files import write_cifar
from workflow.bench.downloads import catalogue
from workflow.bench.workloads import bert

GLUE = ("cola", "sst2", "stsb", "qqp", "mnli", "qnli", "rte")
"""GLUE's tasks that are published as one archive each."""
WEIGHTS = ("bert-base-cased", "bert-large-cased")
PARTS = 2
"""Parts of the corpus here."""
ARTICLES = (
    ("Anna was in Paris.\n\nShe wrote it.", " \n\n"),
    ("Bob was in London.\r\n\n\nIt is good.\nIt is very good.",),
)
"""The articles of each part of the corpus."""


Files = dict[str, dict[str, bytes]]
"""The files of sets, by set and name."""


def publish(server: Server, published: Files, file: Path, patch: pytest.MonkeyPatch) -> None:
    """Serve sets as ``<set>/<file>``, and make `catalogue` read a file of sources that names them.

    It is the project's own file with other addresses, sizes and checksums.

    Args:
        server: gets the pages; ``<set>/<file>.pointer`` are Git LFS pointers.
        published: what `pack` returns.
        file: for the file of sources.
        patch: makes `catalogue` read it.
    """
    content = yaml.safe_load(catalogue.FILE.read_text())
    for name, files in published.items():
        for path, data in files.items():
            kind = "text/plain" if path.endswith((".txt", ".json")) else "application/octet-stream"
            server.pages[f"{name}/{path}"] = Page(data, kind=kind, etag=f'"{hashlib.sha256(data).hexdigest()[:8]}"')
    for name, given in content["sets"].items():
        given["parts"] = PARTS if "parts" in given else 1
        for source in given["files"]:
            _point(source, name, server)
        if given["parts"] == 1:
            del given["parts"]
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    patch.setattr(catalogue, "FILE", file)
    catalogue.sets.cache_clear()


def _point(source: dict, name: str, server: Server) -> None:
    """Give a file of the sources its address here, and what was published of it."""
    if "urls" not in source:
        return
    source["urls"] = [server.url(f"{name}/{source['name']}")]
    if "pointer" in source:
        source["pointer"] = server.url(f"{name}/{source['name']}.pointer")
        for path, page in list(server.pages.items()):
            if path.startswith(f"{name}/") and not path.endswith(("config.json", ".pointer")):
                digest = hashlib.sha256(page.content).hexdigest()
                text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(page.content)}\n"
                server.pages[f"{path}.pointer"] = Page(text.encode(), kind="text/plain")
    elif f"{name}/{source['name']}" in server.pages:
        data = server.pages[f"{name}/{source['name']}"].content
        if "bytes" in source:
            source["bytes"] = len(data)
        if "sha256" in source:
            source["sha256"] = hashlib.sha256(data).hexdigest()


def pack(root: Path, patch: pytest.MonkeyPatch) -> Files:
    """Return what is published of each set but ImageNet, after writing it to ``root``.

    patch: makes torchvision expect these files' checksums.
    """
    text_files.write_squad(root)
    text_files.write_imdb(root)
    text_files.write_vocabulary(root)
    found = {"imdb": {"aclImdb_v1.tar.gz": _tar(root / "aclImdb")}, "mrpc": _mrpc()}
    for name in ("cifar10", "cifar100"):
        write_cifar(root, name, patch)
        folder = "cifar-10-batches-py" if name == "cifar10" else "cifar-100-python"
        archive = "cifar-10-python.tar.gz" if name == "cifar10" else "cifar-100-python.tar.gz"
        found[name] = {archive: _tar(root / folder)}
    for task in GLUE:
        text_files.write_glue(root, task)
        place = root / "glue" / text_files.GLUE[task][0]
        found[task] = {{"qqp": "QQP-clean.zip", "qnli": "QNLIv2.zip"}.get(task, f"{place.name}.zip"): _zip(place)}
    found["squad"] = {file.name: file.read_bytes() for file in (root / "squad").iterdir()}
    for name in ("bert-cased", "bert-uncased"):
        found[name] = {"vocab.txt": (root / name / "vocab.txt").read_bytes()}
    found |= {name: _weights(seed) for seed, name in enumerate(WEIGHTS)}
    # Parquet takes PyArrow: tests that have it write it, the others let JSON stand for it.
    parts = {f"train-{part:05}-of-00041.parquet": json.dumps(ARTICLES[part]).encode() for part in range(PARTS)}
    return {**found, "wikipedia": parts}


def _tar(folder: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.add(folder, folder.name)
    return buffer.getvalue()


def _zip(folder: Path) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.iterdir()):
            archive.write(file, f"{folder.name}/{file.name}")
        archive.writestr(f"__MACOSX/{folder.name}/._x", b"as in some of GLUE's archives")
    return buffer.getvalue()


def _mrpc() -> dict[str, bytes]:
    """Return Microsoft's file of 36 pairs, which starts with a byte order mark, and the ids of 12 for development."""
    rng = np.random.default_rng(0)
    rows = [
        [str(n % 2), str(1000 + n), str(2000 + n), *(text_files.sentence(rng) for _ in range(2))] for n in range(36)
    ]
    header = "\ufeff" + "\t".join(text_files.GLUE["mrpc"][1])
    pairs = "".join("\t".join(row) + "\n" for row in [[header], *rows])
    listed = "".join(f"{row[1]}\t{row[2]}\n" for row in rows[::3])
    return {"msr_paraphrase_train.txt": pairs.encode(), "mrpc_dev_ids.tsv": listed.encode()}


def _weights(seed: int) -> dict[str, bytes]:
    """Return a small BERT's ``config.json`` and ``model.safetensors``, in the layout of the published ones."""
    from transformers import BertForPreTraining

    sizes = {
        "layers": 1,
        "hidden_size": 16,
        "heads": 2,
        "vocabulary_size": 30,
        "dropout": 0.0,
        "initializer_range": 0.02,
    }
    config = bert.encoder_config({**sizes, "sequence_length": 16}, positions=bert.POSITIONS)
    torch.manual_seed(seed)
    model = BertForPreTraining(config)
    tensors = {key: value.clone() for key, value in model.state_dict().items() if "decoder" not in key}
    return {"config.json": config.to_json_string().encode(), "model.safetensors": save(tensors, {"format": "pt"})}
