"""The projection: links, bytes, memory and pieces of a step by hand, and what must hold for all of its rows."""

from __future__ import annotations

import math
import re

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.counting import count_steps
from workflow.bench.probes import _counted_steps, _links, _sharding, projection
from workflow.bench.probes._costs import CostedLayer
from workflow.bench.probes._counting import META
from workflow.bench.probes._links import Assumed, Gpu, Messages, System
from workflow.bench.probes._sharding import Setup
from workflow.bench.probes.projection import Model
from workflow.bench.support.config import ROOT, ConfigError

GPU = Gpu("test", bfloat16=1e12, tf32=1e12, float32=1e12, memory=1e9, bandwidth=1e9, link=100.0)
TEST = System(
    "test",
    GPU,
    gpus_per_node=4,
    network=40.0,
    ring=Messages(start=1000.0, link=10.0, network=100.0, share=1.0),
    tree=Messages(start=1000.0, link=20.0, network=200.0, share=0.5),
    assumed=Assumed(1.0, 1.0, 1.0),
)
"""Seconds, and bytes a second: nodes of 4, rings of 100 inside a node and of 40 through several."""


def test_collectives_inside_a_node_by_hand():
    """A ring of 4 passes 3 parts of a quarter to gather, and twice as many to reduce; a tree passes all bytes on."""
    assert _links.gather_seconds(TEST, 4, 400.0) == pytest.approx(1000 + 3 * 10 + 3 * 100 / 100)
    assert _links.all_reduce_seconds(TEST, 4, 400.0) == pytest.approx(1000 + 6 * 10 + 6 * 100 / 100)
    assert _links.broadcast_seconds(TEST, 4, 400.0) == pytest.approx(1000 + 3 * 20 + 400 / 50)
    # A rank sends three quarters of its bytes away.
    assert _links.exchange_seconds(TEST, 4, 400.0) == pytest.approx(1000 + 3 * 10 + 300 / 100)


def test_collectives_between_nodes_by_hand():
    """A ring of 8 in 2 nodes has one hop between them on its way, a tree one level; 4 GPUs share the adapters."""
    assert _links.gather_seconds(TEST, 8, 800.0) == pytest.approx(1000 + 6 * 10 + 100 + 7 * 100 / 40)
    assert _links.broadcast_seconds(TEST, 8, 800.0) == pytest.approx(1000 + 3 * 20 + 200 + 800 / 20)
    assert _links.exchange_seconds(TEST, 8, 800.0) == pytest.approx(1000 + 3 * 10 + 4 * 100 + 300 / 100 + 400 / 10)


def test_an_all_reduce_is_that_of_the_faster_algorithm():
    """Of few bytes among many GPUs a tree's: its levels grow with the logarithm. Of many bytes a ring's."""
    ring = 1000 + 2 * (48 * 10 + 15 * 100), 2 * 63 / 64 / 40
    tree = 1000 + 2 * (3 * 20 + 4 * 200), 2 / 20
    assert _links.all_reduce_seconds(TEST, 64, 8.0) == pytest.approx(tree[0] + 8 * tree[1])
    assert _links.all_reduce_seconds(TEST, 64, 1e6) == pytest.approx(ring[0] + 1e6 * ring[1])


@pytest.mark.parametrize("seconds", [_links.all_reduce_seconds, _links.gather_seconds, _links.broadcast_seconds])
@given(gpus=st.integers(1, 64), size=st.floats(1.0, 1e6), messages=st.integers(1, 20))
def test_messages_cost_their_latency_again(seconds, gpus, size, messages):
    one, many = seconds(TEST, gpus, size), seconds(TEST, gpus, size, messages)
    assert one <= many <= messages * one
    assert seconds(TEST, gpus, 2 * size, messages) <= 2 * many
    assert seconds(TEST, 1, size) == seconds(TEST, gpus, 0.0) == 0


def test_the_published_systems():
    """Truth: data sheets, by hand: 2 and 8 adapters of 200 Gb/s; NVLink's 600 and 900 GB/s are of both directions."""
    by_name = {system.name: system for system in _links.systems()}
    assert (by_name["Polaris"].network, by_name["Polaris"].gpus_per_node) == (2 * 200e9 / 8, 4)
    assert (by_name["DGX A100"].network, by_name["DGX A100"].gpu.link) == (8 * 200e9 / 8, 600e9 / 2)
    assert (by_name["DGX H100"].network, by_name["DGX H100"].gpu.link) == (8 * 400e9 / 8, 900e9 / 2)
    assert by_name["Polaris"].gpu.memory == 40e9
    assert by_name["DGX H100"].gpu.bfloat16 == 989e12
    assert by_name["DGX H100"].ring.network == pytest.approx(4e-6)
    assert by_name["DGX H100"].assumed.products == 0.4


def test_every_published_number_names_its_source():
    content = yaml.safe_load(_links.SYSTEMS.read_text())
    assert all(len(part["source"]) > 20 for kind in ("systems", "gpus") for part in content[kind].values())
    assert "NCCL" in content["messages"]["source"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"systems": {"X": {"gpu": "Z"}}}, 'systems.X.gpu = "Z": must be one of A100 40 GB'),
        ({"assumed": {"products": 1.5}}, "assumed.products = 1.5: must be at most 1"),
        ({"assumed": {"link": 1}}, "assumed.link = 1: unknown key"),
        ({"systems": {"X": {"source": ""}}}, 'systems.X.source = "": must not be empty'),
    ],
)
def test_a_wrong_file_is_one_clear_line(change, message, tmp_path):
    content = yaml.safe_load(_links.SYSTEMS.read_text())
    content["systems"]["X"] = dict(content["systems"]["Polaris"])
    for key, values in change.items():
        for name, value in values.items():
            content[key][name] = {**content[key][name], **value} if isinstance(value, dict) else value
    file = tmp_path / "systems.yaml"
    file.write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigError) as error:
        _links.systems(file)
    assert message in str(error.value)


A, B = CostedLayer(4, 6, has_bias=True), CostedLayer(8, 3)
LAYERS = (A, B)
TINY = Model("tiny", "adamw", LAYERS, parameters=100, depth=2, width=4, vocabulary=10, sequences=64, tokens=16)


def statistics(label: str) -> int:
    return _sharding.statistic_bytes(Setup.of(label), LAYERS)


def test_bytes_of_statistics_by_hand():
    """Means: 7 + 3 inputs and a number a layer; 8 outputs of B, which has no bias, and of A only where it is cut.

    The other bytes of a rank are counted in real collectives, in test_bytes.py.
    """
    assert statistics("mkor") == 4 * (7 + 1 + 3 + 1 + 8)
    assert statistics("mkor_windowed_sharded") == 4 * (7 + 1 + 3 + 1 + 8 + 4)
    # Eva takes few examples, so that no bias's gradient has their sum.
    assert statistics("eva") == statistics("eva_sharded") == 4 * (7 + 1 + 4 + 3 + 1 + 8)
    assert statistics("kaisa") == 4 * (7 * 8 // 2 + 4 * 5 // 2 + 1 + 3 * 4 // 2 + 8 * 9 // 2 + 1)


def test_owners_and_what_kaisa_sends_by_hand():
    """D has 28 numbers of A and 24 of B. Two ranks own a layer each; KAISA's decompositions cost most for B."""
    assert _sharding.owned(Setup.of("mkor_owners_sharded").method, LAYERS, 2) == {0: (A,), 1: (B,)}
    kaisa, moments = Setup.of("kaisa"), statistics("kaisa")
    assert _sharding.owned(kaisa.method, LAYERS, 2) == {0: (B,), 1: (A,)}
    # Owners broadcast eigenvectors and values in one step of 10.
    of_b = 4 * (8 * 8 + 8 + 3 * 3 + 3)
    assert _sharding.sent_bytes(kaisa, LAYERS, 2, 0, step=0) == {"all_reduce": moments, "broadcast": of_b}
    assert _sharding.sent_bytes(kaisa, LAYERS, 2, 0, step=1) == {}
    mean = statistics("mkor") / 10 + 4 * 28
    assert _sharding.most_sent_bytes(Setup.of("mkor_owners_ddp"), LAYERS, 2) == pytest.approx(mean)
    assert _sharding.most_sent_bytes(Setup.of("base"), LAYERS, 2) == 0


@given(rows=st.integers(1, 100), ranks=st.integers(1, 12))
def test_shards_are_those_of_torch(rows, ranks):
    """Truth: torch.chunk, by which PyTorch cuts the first dimension; ranks beyond the last chunk have nothing."""
    chunks = [len(chunk) for chunk in torch.empty(rows).chunk(ranks)]
    shards = [_sharding.shard_rows(rows, ranks, rank) for rank in range(ranks)]
    assert shards == chunks + [0] * (ranks - len(chunks))


@pytest.mark.parametrize("label", projection.OPTIMIZERS)
def test_one_rank_sends_nothing(label):
    assert _sharding.most_sent_bytes(Setup.of(label), LAYERS, 1) == 0


def test_memory_by_hand():
    """Dense MKOR: two factors with a vector and a scale each, and a counter of 8 bytes a layer."""
    of_a, of_b = 4 * (7 * 8 + 4 * 5 + 2) + 8, 4 * (3 * 4 + 8 * 9 + 2) + 8
    assert _sharding.most_state_bytes(Setup.of("mkor"), LAYERS, 2) == of_a + of_b
    for label in ("mkor_owners_ddp", "mkor_owners_sharded"):
        assert [_sharding.state_bytes(Setup.of(label), LAYERS, 4, rank) for rank in range(4)] == [of_a, of_b, 0, 0]
        assert _sharding.most_state_bytes(Setup.of(label), LAYERS, 4) == max(of_a, of_b)
    # KAISA's factors are on every rank, what it computes from them at the owner alone.
    factors, vectors = 4 * (7 * 7 + 4 * 4 + 3 * 3 + 8 * 8) + 16, 4 * (8 * 8 + 8 + 3 * 3 + 3)
    for label in ("kaisa_mem_opt", "kaisa_mem_opt_sharded"):
        assert _sharding.most_state_bytes(Setup.of(label), LAYERS, 2) == factors + vectors
    # Parameters, gradients and AdamW's two numbers; SGD's momentum is one.
    assert _sharding.model_bytes(100) == 4 * 400
    assert _sharding.model_bytes(100, first_order=1) == 4 * 300


def test_published_sizes():
    """Truth: transformers' BertForPreTraining of bert-large-uncased, and Llama 2's 7B model as published."""
    assert projection.bert_large().parameters == 336_226_108
    assert projection.gpt_7b().parameters == 6_738_415_616
    assert len(projection.bert_large().layers) == 146
    assert len(projection.gpt_7b().layers) == 7 * 32


class Block(nn.Module):
    """One head of attention and a product, without biases; then the vocabulary's product."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(8, 8, bias=False) for _ in range(4))
        self.head = nn.Linear(8, 50, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = lambda layer: layer(x)[:, None]  # noqa: E731
        attended = functional.scaled_dot_product_attention(shape(self.query), shape(self.key), shape(self.value))
        return self.head(self.output(attended[:, 0])).sum()


def test_operations_are_those_of_forward_and_backward():
    """Truth: PyTorch's counter on the meta device."""
    with META:
        block, x = Block(), torch.empty(3, 16, 8, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        block(x).backward()
    square = CostedLayer(8, 8)
    model = Model("m", "sgd", 4 * (square,), 0, depth=1, width=8, vocabulary=50, sequences=3, tokens=16)
    assert model.operations == counter.get_total_flops()


def floor_ms(label: str, piece: str) -> float:
    """Return the milliseconds of a piece at the floor, on two ranks of 1e12 operations and 1e9 bytes a second."""
    return projection.of_pieces(Setup.of(label), TINY, 2, projection.floor_ms(TEST))[piece]


def test_seconds_by_hand():
    """Truth: two ranks own a layer each, B costs most."""
    assert projection.compute_ms(TINY, TEST, 2) == pytest.approx(TINY.operations / 2 / 1e9)
    dense_a, dense_b = 4 * (16 + 36 + 4 * 24) / 1e6, 4 * (64 + 9 + 4 * 24) / 1e6
    assert floor_ms("mkor", "precondition") == pytest.approx(dense_a + dense_b)
    assert floor_ms("mkor_owners_ddp", "precondition") == pytest.approx(max(dense_a, dense_b))
    of_a = 4 * (3 * 16 + 4 * 4 + 3 * 36 + 4 * 6) / 1e6
    of_b = 4 * (3 * 64 + 4 * 8 + 3 * 9 + 4 * 3) / 1e6
    assert floor_ms("mkor", "factor") == pytest.approx((of_a + of_b) / 10)
    assert floor_ms("mkor_owners_ddp", "factor") == pytest.approx(max(of_a, of_b) / 10)
    # Two ranks divide windowed layers by rows: 2 and 4 of A's and B's.
    windows = sum(4 * (3 * m * n + 16 * (m + n)) for m, n in ((2, 6), (4, 3))) / 1e6
    assert floor_ms("mkor_windowed_sharded", "precondition") == pytest.approx(windows)
    assert floor_ms("mkor_windowed_sharded", "update") == pytest.approx(7 * 4 * 50 / 1e6)
    assert floor_ms("mkor_owners_ddp", "update") == pytest.approx(7 * 4 * 100 / 1e6)


def test_seconds_of_kaisa_by_hand():
    """Truth: 9 d^3 operations a decomposition, which owners share even where every rank preconditions all layers."""
    of_b = 9 * (8**3 + 3**3) / 1e9
    for label in ("kaisa", "kaisa_mem_opt"):
        assert floor_ms(label, "factor") == pytest.approx(of_b / 10)
    four = [4 * (2 * m * m + 2 * n * n + 10 * m * n) / 1e6 for m, n in ((4, 6), (8, 3))]
    assert floor_ms("kaisa", "precondition") == pytest.approx(sum(four))
    assert floor_ms("kaisa_mem_opt", "precondition") == pytest.approx(max(four))


@pytest.mark.parametrize("label", ["kaisa", "eva", "mkor", "base"])
def test_seconds_of_capture_by_hand(label: str):
    """Moments and means of 512 rows of a rank, in one step of 10; Eva reads 16 of its 32 examples, in every step."""
    read = lambda examples: sum(2 * examples * 16 * n + 4 * n for n in (6, 3)) / 1e6  # noqa: E731
    expected = {
        # Their operations take less time than their bytes.
        "kaisa": sum(2 * 512 * (m + n) + 4 * (m * m + n * n) for m, n in ((4, 6), (8, 3))) / 1e6 / 10,
        "eva": read(16),
        "mkor": read(32) / 10,
        "base": 0,
    }
    assert projection.capture_ms(Setup.of(label).method, TINY, TEST, 2) == pytest.approx(expected[label])


def test_communication_by_hand():
    """Two ranks of a node: gradients of 400 bytes in one bucket; sharded parameters of 200, twice, in three parts."""
    base, sharded = Setup.of("base"), Setup.of("base_sharded")
    assert projection.gradients_ms(base, TINY, TEST, 2) == pytest.approx(1000 * (1000 + 2 * 10 + 400 / 100))
    three = 3 * (1000 + 10)
    assert projection.gradients_ms(sharded, TINY, TEST, 2) == pytest.approx(1000 * (3 * three + 2 * 1 + 2))
    assert (projection.gradient_bytes(base, TINY), projection.gradient_bytes(sharded, TINY)) == (400, 800)
    assert projection.communication_ms(base, TINY, TEST, 2) == 0
    statistic = (1000 + 2 * 10 + statistics("mkor") / 100) / 10
    assert projection.communication_ms(Setup.of("mkor"), TINY, TEST, 2) == pytest.approx(1000 * statistic)
    updates = 2 * (1000 + 20) + 4 * 52 / 50
    assert projection.communication_ms(Setup.of("mkor_owners_ddp"), TINY, TEST, 2) == pytest.approx(
        1000 * (statistic + updates)
    )
    cut = (1000 + 2 * 10 + statistics("mkor_windowed_sharded") / 100) / 10
    exchange = 2 * (1000 + 10 + 4 * 28 / 2 / 100)
    assert projection.communication_ms(Setup.of("mkor_owners_sharded"), TINY, TEST, 2) == pytest.approx(
        1000 * (cut + exchange)
    )
    blocks = 2 * (1000 + 2 * 10) + 4 * (4 * 10 + 4) / 100
    assert projection.communication_ms(Setup.of("mkor_windowed_sharded"), TINY, TEST, 2) == pytest.approx(
        1000 * (cut + blocks)
    )


class Stack(nn.Module):
    """Layers of several shapes, some with equal ones, on rows of ones."""

    def __init__(self, layers: tuple[CostedLayer, ...]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(layer.n, layer.m, bias=layer.has_bias) for layer in layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum((layer(x[..., : layer.in_features]).sum() for layer in self.layers), start=x.new_zeros(()))


@pytest.mark.parametrize("label", ["mkor", "mkor_windowed", "kaisa"])
def test_a_layers_share_of_a_count_is_that_of_a_whole_model(label):
    """Truth: all layers counted at once, by the benchmarks' own counter. Shares are of layers in stacks of two."""
    square, wide = CostedLayer(32, 32, has_bias=True), CostedLayer(48, 32)
    model = (*5 * (square,), *3 * (wide,))
    with META:
        network, x = Stack(model), torch.empty(2, 32)
    method = Setup.of(label, period=2).method
    assert method is not None
    whole = count_steps(method, network, x).plain.bytes
    shares = sum(_counted_steps.of_layer(method, layer).plain.bytes for layer in model)
    assert shares == pytest.approx(whole, rel=2e-3)


def test_counted_bytes_of_bert_large_are_those_of_the_page():
    """Truth: the table of docs/performance.md, which counts all 146 layers at once; 14.8 GB take Polaris 11.9 ms."""
    page = (ROOT / "docs" / "performance.md").read_text()
    layers, polaris = projection.bert_large().layers, _links.systems()[0]
    for label, row in (("mkor_windowed", "mkor_w4"), ("mkor", "mkor")):
        (gigabytes,) = re.findall(rf"^\| {row} \|.*\| ([\d.]+) \| [\d.]+ \|$", page, re.MULTILINE)
        plain = [_counted_steps.of_layer(Setup.of(label).method, layer).plain for layer in layers]
        assert sum(work.bytes for work in plain) / 1e9 == pytest.approx(float(gigabytes), abs=0.01)
        if label == "mkor_windowed":
            ms = 1000 * float(gigabytes) * 1e9 / (0.8 * polaris.gpu.bandwidth)
            assert sum(work.milliseconds(polaris) for work in plain) == pytest.approx(ms, rel=0.01)


def test_a_kernel_takes_as_long_as_its_bytes_or_its_operations():
    """Truth by hand: 1e9 bytes and 1e12 operations a second, and a quarter of that in decompositions."""
    system = TEST._replace(assumed=Assumed(1.0, 1.0, 0.25))
    kernel = _counted_steps.Kernel(decomposes=False, operations=1e9, bytes=3e6)
    assert _counted_steps.CountedWork(((kernel, 2.0),)).milliseconds(system) == pytest.approx(6)
    for decomposes, ms in ((False, 4), (True, 16)):
        kernel = kernel._replace(decomposes=decomposes, operations=4e9)
        assert _counted_steps.CountedWork(((kernel, 0.5),)).milliseconds(system) == pytest.approx(ms / 2)


def test_the_base_optimizers_read_and_write_more_than_the_floor():
    """Truth: AdamW's seven numbers a parameter, of 4 bytes, are the least."""
    for name in ("lamb", "adamw"):
        assert 28 < _counted_steps.of_base(name).bytes < 200


@pytest.fixture(scope="module")
def rows() -> list[projection.Row]:
    return list(projection.measure(None, workers=(8, 1024)))


def test_every_row_is_a_model_and_adds_up(rows):
    assert {row.source for row in rows} == {"model"}
    assert len({(row.system, row.workload, row.optimizer, row.workers) for row in rows}) == len(rows)
    assert len(rows) == 3 * 2 * len(projection.OPTIMIZERS) * 2
    parts = [field for field in projection.Row._fields if field.endswith("_ms") and field != "step_ms"]
    for row in rows:
        assert row.step_ms == pytest.approx(sum(getattr(row, part) for part in parts))
        above = sum(
            getattr(row, f"{part}_ms_counted") - getattr(row, f"{part}_ms")
            for part in ("factor", "precondition", "update")
        )
        assert row.step_ms_counted == pytest.approx(row.step_ms + above)
        assert row.step_ms_counted >= row.step_ms
        assert row.bytes_counted >= row.bytes_floor
        assert all(math.isfinite(value) and value >= 0 for value in row if isinstance(value, float))


def test_more_gpus_are_faster_and_sharded_ranks_keep_less(rows):
    by_key = {(row.system, row.workload, row.optimizer, row.workers): row for row in rows}
    for (system, workload, label, workers), row in by_key.items():
        if workers == 1024:
            fewer = by_key[system, workload, label, 8]
            assert row.step_ms < fewer.step_ms
            assert row.memory_bytes <= fewer.memory_bytes
        if label.endswith("_sharded") and "windowed" in label:
            # In blocks no gradient leaves its rank: about one per cent of what is exchanged anyway.
            assert row.sent_bytes < 0.01 * row.gradient_bytes
            replicated = by_key[system, workload, label.removesuffix("_sharded"), workers]
            assert row.memory_bytes < replicated.memory_bytes


def test_the_large_model_fits_no_gpu_without_sharding(rows):
    """KAISA's factors are on every rank, 70 GB; sharded they fit 80 GB where the rest is divided among many."""
    for row in rows:
        if row.workload == "gpt_7b" and "kaisa" not in row.optimizer:
            fits = row.memory_bytes < row.gpu_memory_bytes
            assert fits == row.optimizer.endswith("_sharded"), row
        elif row.workload == "gpt_7b":
            fits = row.memory_bytes < row.gpu_memory_bytes
            assert fits == (row.optimizer.endswith("_sharded") and row.workers == 1024 and row.system != "Polaris"), row


@pytest.mark.parametrize(
    ("placement", "labels"),
    [
        ("owners", ("mkor_owners_ddp", "mkor_owners_sharded", "mkor_sharded", "kaisa_sharded", "kaisa_mem_opt")),
        ("blocks", ("mkor_windowed_sharded", "eva_sharded")),
        ("replicated", ("mkor_windowed", "kaisa")),
    ],
)
def test_a_label_with_suffixes_is_its_variant(placement: str, labels: tuple[str, ...]):
    assert {Setup.of(label).placement for label in labels} == {placement}
    assert Setup.of("mkor_owners_ddp").method == Setup.of("mkor").method
