"""The command that downloads data sets, against a server on this machine with files of the true formats.

Truth: the readers of `workflow.bench.data`, which find what was fetched.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from torch.testing import assert_close

from tests.support import faulty_server, published, text_files
from tests.support.faulty_server import Page, Server
from workflow.bench import fetch, prepare
from workflow.bench.data import cifar, glue, imdb, squad
from workflow.bench.data.features import Vocabulary
from workflow.bench.data.make_shards import read
from workflow.bench.data.shards import Manifest, Shards
from workflow.bench.downloads import catalogue, transfer
from workflow.bench.downloads.needs import needs
from workflow.bench.plan import Plan
from workflow.bench.workloads.fine_tuning import published_weights

FREE = ("cifar10", "cifar100", "glue", "squad", "imdb", "vocab", "weights")
"""What needs neither a registration nor a further package."""


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[published.Files]:
    """What is published of each set."""
    with pytest.MonkeyPatch.context() as patch:
        yield published.pack(tmp_path_factory.mktemp("unpacked"), patch)


@cache
def plan_of(tier: str) -> Plan:
    return Plan.load(tier=tier, hardware="any")


@pytest.fixture
def server(packed: published.Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """All published sets, and an empty data folder."""
    monkeypatch.setattr(fetch, "Plan", SimpleNamespace(load=lambda _, tier, hardware: plan_of(tier)))  # read once
    monkeypatch.setenv("MKOR_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(transfer, "WAIT_SECONDS", 0.0)
    with faulty_server.running() as found:
        published.publish(found, packed, tmp_path / "datasets.yaml", monkeypatch)
        yield found
    catalogue.sets.cache_clear()


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_all_sets_land_where_their_readers_look(server, tmp_path, capsys):
    data = tmp_path / "data"
    assert fetch.main(["--tier", "single_gpu", "--what", *FREE]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert f"mrpc: in {data}/glue/MRPC" in said.out
    vocabulary = Vocabulary(cased=True)
    for name in ("cifar10", "cifar100"):
        images = cifar.load(name)
        assert (len(images.train), len(images.validation)) == (60, 20)
    for task in (*published.GLUE, "mrpc"):
        examples = glue.load(task, vocabulary, 32)
        assert (len(examples.train), len(examples.validation)) == (24, 12)
    assert len(imdb.load(vocabulary, 32).train) == 16
    assert len(squad.load(vocabulary, 96).question) > 0
    assert Vocabulary(cased=False).pieces == list(text_files.PIECES)
    base, large = (published_weights(name) for name in published.WEIGHTS)
    assert base.keys() == large.keys()
    with pytest.raises(AssertionError):
        assert_close(base, large)
    assert "downloads" not in files(data), "nothing but what is read stays"
    server.requests.clear()
    capsys.readouterr()
    assert fetch.main(["--what", *FREE]) == 0
    assert server.requests == [], "what is here is not asked for again"
    assert "to download: 0 B" in capsys.readouterr().out


def test_mrpc_s_files_are_those_of_glue_s_own_script(server, tmp_path):
    """Truth by hand: each third pair is listed for development; the header keeps Microsoft's byte order mark."""
    assert fetch.main(["--what", "glue"]) == 0
    published_pairs = server.pages["mrpc/msr_paraphrase_train.txt"].content.decode()
    header, *rows = published_pairs.splitlines()
    for name, kept in (("dev.tsv", rows[::3]), ("train.tsv", [row for n, row in enumerate(rows) if n % 3])):
        assert (tmp_path / "data/glue/MRPC" / name).read_text().splitlines() == [header, *kept]


def test_a_dry_run_prints_sizes_licenses_and_addresses_and_asks_nobody(server, tmp_path, capsys):
    assert fetch.main(["--tier", "paper", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert server.requests == []
    assert not (tmp_path / "data").exists()
    sizes = {name: sum(source.size for source in each.files) for name, each in catalogue.sets().items()}
    rows = {line.split()[1]: line.split() for line in out.splitlines() if " missing " in line}
    assert rows["cola"] == ["glue", "cola", "missing", str(sizes["cola"]), "B", "glue/CoLA", "published"]
    assert "publisher's pointer; config.json: none published" in " ".join(rows["bert-large-cased"])
    for each in catalogue.sets().values():
        if each.name in rows:
            assert each.license in out
    assert f"  squad: {server.url('squad/train-v1.1.json')}\n" in out
    assert "to download: " in out
    assert f"python -m workflow.bench.prepare {tmp_path}/data/text --documents blank-lines --sequence-length 512" in out


def test_sizes_and_licenses_are_printed_before_the_first_request(server, tmp_path, capsys, monkeypatch):
    said = []
    monkeypatch.setattr(fetch, "bring", lambda wanted: said.append(capsys.readouterr().out))
    assert fetch.main(["--what", "squad"]) == 0
    assert "licenses:\n  squad: CC BY-SA 4.0\nto download: " in said[0]


def test_a_wrong_file_is_one_line_and_the_others_arrive(server, tmp_path, capsys):
    right = server.pages["cola/CoLA.zip"]
    server.pages["cola/CoLA.zip"] = Page(b"x" * len(right.content))
    assert fetch.main(["--what", "glue"]) == 1
    wrong, expected = (hashlib.sha256(page.content).hexdigest() for page in (server.pages["cola/CoLA.zip"], right))
    assert capsys.readouterr().err == (
        f"cola: CoLA.zip was not downloaded: {server.url('cola/CoLA.zip')}: "
        f"its SHA-256 is {wrong}, and must be {expected}: refused\n"
    )
    assert files(tmp_path / "data/glue") == ["MNLI", "MRPC", "QNLI", "QQP", "RTE", "SST-2", "STS-B"]
    assert files(tmp_path / "data") == [".fetch.lock", "glue"]
    server.pages["cola/CoLA.zip"] = right
    assert fetch.main(["--what", "glue"]) == 0
    assert (tmp_path / "data/glue/CoLA/dev.tsv").exists()


def test_an_interrupted_fetch_goes_on_where_it_ended(server, tmp_path, capsys, monkeypatch):
    path = "imdb/aclImdb_v1.tar.gz"
    server.pages[path].cuts = [100]
    received = transfer._received

    def interrupted(response):
        if not (chunk := received(response)):
            raise KeyboardInterrupt
        return chunk

    with monkeypatch.context() as patch:
        patch.setattr(transfer, "_received", interrupted)
        assert fetch.main(["--what", "imdb"]) == 130
    assert capsys.readouterr().err.endswith("interrupted: the same command goes on from here\n")
    assert fetch.main(["--what", "imdb"]) == 0
    assert server.requests == [(path, None), (path, "bytes=100-")]
    assert files(tmp_path / "data") == [".fetch.lock", "aclImdb"]


class TestWithoutAPublishedChecksum:
    def test_the_first_download_s_is_kept_in_the_format_of_sha256sum(self, server, tmp_path):
        assert fetch.main(["--what", "weights"]) == 0
        names = [
            "bert-base-cased/config.json",
            *(f"bert-large-cased/{n}" for n in ("config.json", "model.safetensors")),
        ]
        sums = [f"{hashlib.sha256((tmp_path / 'data' / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
        assert (tmp_path / "data/SHA256SUMS").read_text() == "".join(sums)

    def test_a_second_machine_with_that_file_refuses_another_one(self, server, tmp_path, capsys):
        assert fetch.main(["--what", "weights"]) == 0
        sums = (tmp_path / "data/SHA256SUMS").read_text()
        shutil.rmtree(tmp_path / "data")
        (tmp_path / "data").mkdir()
        (tmp_path / "data/SHA256SUMS").write_text(sums)
        capsys.readouterr()
        server.pages["bert-base-cased/config.json"].content += b" "
        server.pages[
            "bert-large-cased/model.safetensors.pointer"
        ].content = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 1\n".encode()
        assert fetch.main(["--what", "weights"]) == 1
        small, large = capsys.readouterr().err.splitlines()
        assert small.startswith("bert-base-cased: config.json was not downloaded: ")
        assert small.endswith(f"and must be {sums.split()[0]}: refused")
        assert large == (
            f"bert-large-cased: bert-large-cased/model.safetensors: its publisher now states the SHA-256 {'0' * 64}, "
            f"and SHA256SUMS in the data folder has {sums.split()[4]}; remove that line to take the new file"
        )
        assert (tmp_path / "data/SHA256SUMS").read_text() == sums

    def test_weights_are_checked_against_their_publisher_s_pointer(self, server, capsys):
        server.pages["bert-large-cased/model.safetensors"].content += b"more"
        assert fetch.main(["--what", "weights"]) == 1
        assert "bert-large-cased: model.safetensors was not downloaded: " in capsys.readouterr().err


def test_an_incomplete_folder_is_refused_before_the_download(server, tmp_path, capsys):
    folder = tmp_path / "data/glue/RTE"
    folder.mkdir(parents=True)
    (folder / "train.tsv").write_text("mine")
    assert fetch.main(["--what", "glue"]) == 1
    assert capsys.readouterr().err == f"rte: {folder} lacks dev.tsv; move that folder away first\n"
    assert (folder / "train.tsv").read_text() == "mine"
    assert "rte/RTE.zip" not in [path for path, _ in server.requests]


def test_an_archive_without_the_files_is_one_line(server, tmp_path, capsys):
    """The published checksum fits, but the reader would not find its files: an error of the file of sources."""
    archive = server.pages["rte/RTE.zip"].content
    file = catalogue.FILE
    file.write_text(file.read_text().replace("folder: glue/RTE", "folder: glue/ETR"))
    catalogue.sets.cache_clear()
    assert fetch.main(["--what", "glue"]) == 1
    assert capsys.readouterr().err == "rte: RTE.zip: ETR is not in it, with train.tsv, dev.tsv\n"
    assert not (tmp_path / "data/glue/ETR").exists()
    damaged = archive[:100]
    server.pages["rte/RTE.zip"].content = damaged
    text = file.read_text().replace("folder: glue/ETR", "folder: glue/RTE")
    text = text.replace(hashlib.sha256(archive).hexdigest(), hashlib.sha256(damaged).hexdigest())
    file.write_text(text.replace(f"bytes: {len(archive)}\n", f"bytes: {len(damaged)}\n"))
    catalogue.sets.cache_clear()
    assert fetch.main(["--what", "glue"]) == 1
    assert capsys.readouterr().err == "rte: RTE.zip: cannot be unpacked: File is not a zip file\n"


def test_too_little_space_is_said_before_the_download(server, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(fetch, "_free", lambda: 1000)
    assert fetch.main(["--what", "squad"]) == 1
    assert capsys.readouterr().err.endswith(" are free; make room, or set MKOR_DATA\n")
    assert server.requests == []


def test_a_tier_whose_data_comes_with_packages_needs_nothing(server, capsys):
    assert fetch.main(["--tier", "embedded"]) == 0
    assert capsys.readouterr().out == "tier 'embedded' needs no download: its data comes with the packages\n"


def test_what_a_tier_does_not_need_is_refused(server, tmp_path, capsys, monkeypatch):
    found = [need for need in needs(plan_of("single_gpu")) if need.what == "squad"]
    monkeypatch.setattr(fetch.needs, "needs", lambda plan: found)
    assert fetch.main(["--what", "squad", "imagenet"]) == 1
    assert capsys.readouterr().err == "--what imagenet: tier 'single_gpu' does not need it\n"


class TestCorpus:
    @pytest.fixture(autouse=True)
    def json_for_parquet(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The file format alone is replaced, since PyArrow is no package of the tests."""

        def read_parquet(path: Path, columns: list[str]) -> pd.DataFrame:
            return pd.DataFrame({"text": json.loads(path.read_text())})[columns]

        monkeypatch.setattr(pd, "read_parquet", read_parquet)

    def test_articles_become_documents(self, server, tmp_path):
        """Truth: the documents that `prepare` reads."""
        assert fetch.main(["--what", "corpus"]) == 0
        texts = [each.text for each in read(tmp_path / "data/text", "blank-lines")]
        assert texts == [
            "Anna was in Paris.\nShe wrote it.\n",
            "Bob was in London.\nIt is good.\nIt is very good.\n",
        ]

    def test_the_commands_that_it_names_make_the_shards(self, server, tmp_path, capsys, monkeypatch):
        rng = np.random.default_rng(0)
        articles = [" ".join(text_files.sentence(rng) for _ in range(40)) for _ in range(60)]
        for part in range(published.PARTS):
            path = f"wikipedia/train-{part:05}-of-00041.parquet"
            server.pages[path].content = json.dumps(articles[part::2]).encode()
            digest = hashlib.sha256(server.pages[path].content).hexdigest()
            server.pages[f"{path}.pointer"].content = f"oid sha256:{digest}\n".encode()
        assert fetch.main(["--what", "corpus", "vocab"]) == 0
        commands = [
            shlex.split(line) for line in capsys.readouterr().out.splitlines() if "workflow.bench.prepare" in line
        ]
        assert [command[-1] for command in commands] == ["512", "128"]
        for command in commands:
            assert command[:3] == ["python", "-m", "workflow.bench.prepare"]
            assert prepare.main([*command[3:], "--processes=1", "--validation-one-in=6"]) == 0
        for length in (128, 512):
            assert len(Shards(Manifest("bert-uncased", length), "train")) > 0
        capsys.readouterr()
        assert fetch.main(["--what", "corpus"]) == 0
        assert "workflow.bench.prepare" not in capsys.readouterr().out

    def test_it_goes_on_at_the_part_that_is_missing(self, server, tmp_path, capsys):
        second = server.pages.pop("wikipedia/train-00001-of-00041.parquet")
        before = catalogue.sets()["wikipedia"].bytes_left
        assert fetch.main(["--what", "corpus"]) == 1
        assert catalogue.sets()["wikipedia"].bytes_left == before / 2
        assert capsys.readouterr().err.endswith(": 404 Not Found\n")
        server.pages["wikipedia/train-00001-of-00041.parquet"] = second
        server.requests.clear()
        assert fetch.main(["--what", "corpus"]) == 0
        assert [path for path, _ in server.requests] == [
            "wikipedia/train-00001-of-00041.parquet.pointer",
            "wikipedia/train-00001-of-00041.parquet",
        ]
        assert files(tmp_path / "data/text/wikipedia") == [f"train-0000{part}-of-00041.txt" for part in range(2)]


def test_without_pyarrow_the_corpus_names_the_command_that_installs_it(server, tmp_path, capsys, monkeypatch):
    def without(*_: object, **__: object) -> None:
        raise ImportError("Unable to find a usable engine")

    monkeypatch.setattr(pd, "read_parquet", without)
    assert fetch.main(["--what", "corpus"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("wikipedia: train-00000-of-00041.parquet: to read it takes PyArrow: pip install pyarrow==")
    server.requests.clear()
    monkeypatch.undo()
    assert (tmp_path / "data/downloads/wikipedia/train-00000-of-00041.parquet").exists(), "it is not downloaded twice"
