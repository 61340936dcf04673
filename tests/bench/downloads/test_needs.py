"""What tiers need, what is missing, and the file of sources. Truth: the readers' layouts, and torchvision's facts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import text_files
from workflow.bench.data import DATASETS, glue, imagenet, squad
from workflow.bench.data.shards import shards_folder
from workflow.bench.data.vision import datasets
from workflow.bench.downloads import catalogue, needs
from workflow.bench.downloads.landing import INSTALL
from workflow.bench.downloads.meter import in_words
from workflow.bench.fetch import SUMS
from workflow.bench.plan import Plan
from workflow.bench.support.config import ROOT, ConfigError, schema

LARGE = ("single_gpu", "paper")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MKOR_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture(scope="module", params=LARGE)
def plan(request: pytest.FixtureRequest) -> Plan:
    return Plan.load(tier=request.param, hardware="any")


def test_everything_that_is_missing_is_listed_with_its_runs_and_the_command(plan, data):
    of_bert = "bert_base_squad, bert_imdb, bert_glue, bert_squad"
    missing = {
        "cifar100": "alexnet_cifar100, autoencoder_inversion, update_rules",
        "squad": "bert_base_squad, bert_squad",
        "vocab": of_bert,
        "weights": "bert_base_squad, bert_imdb",
        "glue": "bert_glue",
        "imdb": "bert_imdb",
        "corpus": "bert_inversion, bert_pretraining, bert_phase1",
        "imagenet": "resnet50_imagenet",
        "cifar10": "resnet_cifar10_lr",
    }
    *lines, command = needs.lines(plan)
    names = {line.split()[1]: line for line in lines}
    assert {name.strip(":") for name in names} == missing.keys()
    for what, users in missing.items():
        assert sorted(names[f"{what}:"].split("runs of ")[1].split(" will")[0].split(", ")) == sorted(users.split(", "))
        assert names[f"{what}:"].startswith(f"data: {what}: not in {data}; runs of ")
    fetch = f"python -m workflow.bench.fetch --tier {plan.tier.name}"
    assert command == f"data: {fetch} brings what can be downloaded; --dry-run lists sizes and licenses"


def test_of_a_part_that_is_missing_the_sets_are_named(plan, data):
    for task in text_files.GLUE:
        if task != "rte":
            text_files.write_glue(data, task)
    text_files.write_vocabulary(data, "bert-uncased")
    lines = list(needs.lines(plan, ["bert_glue"]))
    assert lines[:-1] == [f"data: glue (rte): not in {data}; runs of bert_glue will be skipped"]
    text_files.write_glue(data, "rte")
    assert list(needs.lines(plan, ["bert_glue"])) == [f"data: all in {data}"]
    (data / "glue" / "MNLI" / "dev_matched.tsv").unlink()
    assert f"data: glue (mnli): not in {data}" in "".join(needs.lines(plan, ["bert_glue"]))


def test_shards_need_their_text_and_vocabulary_until_they_are_made(plan, data):
    found = needs.needs(plan, ["bert_phase1"])
    assert [each.path for each in found] == [shards_folder("bert-uncased", 128)]
    assert [each.name for each in needs.downloads(found)] == ["bert-uncased", "wikipedia"]
    found[0].path.mkdir(parents=True)
    (found[0].path / "manifest.json").write_text("{}")
    assert needs.downloads(found) == []


@pytest.mark.parametrize("tier", ["embedded", "evidence", "field"])
def test_tiers_whose_data_comes_with_packages_need_nothing(tier, data):
    assert list(needs.lines(Plan.load(tier=tier, hardware="any"))) == []


def test_every_data_set_without_a_package_and_every_published_model_can_be_fetched():
    made = {name for name, each in DATASETS.items() if not {*each.packages} - {"tokenizers"}} - {"text"}
    models = {
        name
        for workload in ("bert_classification", "bert_span", "bert_krona")
        for name in schema(f"workloads/{workload}")["parameters"]["properties"]["pretrained"]["enum"]
        if name
    }
    assert catalogue.sets().keys() == made | models | {"bert-cased", "bert-uncased", "wikipedia"}


def test_sets_land_where_their_readers_look():
    """Truth: the names in the readers, and torchvision's."""
    sets = catalogue.sets()
    for task, layout in glue.TASKS.items():
        assert sets[task].folder == f"glue/{layout.folder}"
        assert sets[task].holds == ("train.tsv", layout.development)
    assert sets["squad"].holds == squad._FILES
    assert sets["imdb"].holds == tuple(f"{split}/{name}" for split in ("train", "test") for name in ("pos", "neg"))
    assert sets["imagenet"].holds == imagenet._SPLITS
    for name, kind in (("cifar10", datasets.CIFAR10), ("cifar100", datasets.CIFAR100)):
        assert sets[name].folder == kind.base_folder
        listed = [file for file, _ in (*kind.train_list, *kind.test_list)]
        assert sorted(sets[name].holds) == sorted([*listed, kind.meta["filename"]])


def test_sources_are_those_that_torchvision_knows():
    sets = catalogue.sets()
    for name, kind in (("cifar10", datasets.CIFAR10), ("cifar100", datasets.CIFAR100)):
        (source,) = sets[name].files
        assert (source.urls[0], source.name) == (kind.url, kind.filename)
    assert {source.name for source in sets["imagenet"].files} == {
        name for name, _ in datasets.imagenet.ARCHIVE_META.values()
    }


def test_every_source_is_complete():
    """An exact size comes with the published checksum, and what has none says so."""
    for each in catalogue.sets().values():
        assert each.unpack or [source.name for source in each.files] == list(each.holds)
        for source in each.files:
            assert source.size > 0
            if each.by_hand:
                assert source.urls == ()
            else:
                assert all(url.startswith("https://") for url in source.urls)
                assert (source.sha256 is None) == (source.bytes is None)
                assert source.checksum == (
                    "published" if source.sha256 else "publisher's pointer" if source.pointer else "none published"
                )
    none = {each.name for each in catalogue.sets().values() for source in each.files if source.checksum[0] == "n"}
    assert none == {"bert-base-cased", "bert-large-cased", "bert-large-uncased"}, "their config.json, a kilobyte"


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (("sha256: 85cd", "sha256: x5cd"), "datasets.yaml: sets.cifar100.files[0].sha256 = "),
        (("- https://www.cs", "- file:///www.cs"), "datasets.yaml: sets.cifar10.files[0].urls[0] = "),
        (("folder: glue/CoLA", "folder: glue/{task}"), "datasets.yaml: sets.cola.folder = "),
        (("unpack: mrpc", "unpack: mrcp"), "datasets.yaml: sets.mrpc.unpack = "),
    ],
)
def test_a_mistake_in_the_file_of_sources_is_one_line(changed, says, tmp_path, monkeypatch):
    text = catalogue.FILE.read_text()
    assert changed[0] in text
    file = tmp_path / "datasets.yaml"
    file.write_text(text.replace(*changed, 1))
    monkeypatch.setattr(catalogue, "FILE", file)
    catalogue.sets.cache_clear()
    with pytest.raises(ConfigError, match=re.escape(says)):
        catalogue.sets()
    monkeypatch.undo()
    catalogue.sets.cache_clear()


def test_the_page_says_what_each_tier_needs(plan):
    """docs/data.md, row by row: truth is the plan, and the file of sources."""
    page = (ROOT / "docs" / "data.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| `")]
    found = needs.needs(plan)
    wanted = needs.downloads(found)
    assert {row[0].strip("`") for row in rows} == {each.what for each in wanted}
    for what, users, size, _, places in rows:
        sets = [each for each in wanted if each.what == what.strip("`")]
        experiments = {name for need in found if need.what == what.strip("`") for name in need.experiments}
        assert set(re.findall(r"`(\w+)`", users)) == experiments
        assert size.startswith(in_words(sum(each.size for each in sets)))
        if what != "`glue`":
            named = set(re.findall(r"`([^`]+)`", places)) - {"pretraining"}
            assert named == {each.folder for each in sets}


def test_the_page_names_the_sums_and_the_extra():
    page = (ROOT / "docs" / "data.md").read_text()
    assert f"`data/{SUMS}`" in page
    assert f"`.venv/bin/{INSTALL}`" in page
