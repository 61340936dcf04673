"""Times of collectives on published links, by hand, and the file of systems."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from workflow.bench.probes import _links
from workflow.bench.probes._links import Assumed, Gpu, Messages, System
from workflow.bench.support.config import ConfigError

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
COLLECTIVES = (_links.all_reduce_seconds, _links.gather_seconds, _links.broadcast_seconds)


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


@pytest.mark.parametrize("seconds", COLLECTIVES)
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
