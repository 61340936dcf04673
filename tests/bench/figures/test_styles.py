"""The looks of methods: which of them are drawn together, and that those can be told apart, also without color."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import combinations

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from workflow.bench.analysis import styles
from workflow.bench.analysis.ladder import BASES, CENTRING, EXPERIMENT, RUNGS
from workflow.bench.figures import (
    fig03_step_breakdown,
    fig05_rank1_error,
    fig08_kfac_spectra,
    fig17_curves_appendix,
    fig18_factors,
)
from workflow.bench.figures.fig17_field import FAMILIES
from workflow.bench.plan.artefacts import BENCH
from workflow.bench.plan.experiment_files import label_of
from workflow.bench.support.config import CONFIG, read_mapping
from workflow.bench.support.source_code import read_literals

PROBES = sorted((BENCH / "probes").glob("[!_]*.py"))
LEAST = {"normal": 12.0, "deuteranopia": 8.5, "protanopia": 8.5}
"""The least distance of two methods of one panel, by vision (`distance`)."""
VISIONS = {
    "normal": np.eye(3),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
}
"""Matrices on linear RGB (Machado, Oliveira and Fernandes 2009, severity 1)."""
_LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_OKLAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def seen(color: str, vision: str) -> np.ndarray:
    """Return a color in Oklab (Ottosson 2020), times 100, as it is seen with a key of `VISIONS`."""
    rgb = np.array(to_rgb(color))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return 100 * _OKLAB @ np.cbrt(_LMS @ np.clip(VISIONS[vision] @ linear, 0, 1))


def distance(one: str, other: str, vision: str) -> float:
    """Return the distance of two colors in Oklab, times 100; neighboring patches differ visibly from about 2 on."""
    return float(np.linalg.norm(seen(one, vision) - seen(other, vision)))


def drawn_together() -> list[set[str]]:
    """Return the labels of each experiment over its tiers, those of each probe, and the families of the field.

    The labels of the experiments ``field_*`` are too many for one panel: their figure draws them by family. The ladder
    over one base optimizer is no panel of the ladder over the other.
    """
    experiments: dict[tuple[str, bool], set[str]] = {}
    for file in sorted((CONFIG / "experiments").glob("*.yaml")):
        for tier, blocks in read_mapping(file)["tiers"].items():
            if not file.stem.startswith("field_"):
                labels = {label_of(entry) for block in blocks for entry in block["optimizers"]}
                experiments.setdefault((file.stem, tier == "paper"), set()).update(labels)
    stand_ins = {"base", "base_sharded"}
    probes = [set(labels) - stand_ins for file in PROBES for labels in read_literals(file, ["OPTIMIZERS"]).values()]
    assert set(fig17_curves_appendix.EXPERIMENTS) <= {name for name, _ in experiments}
    # Centring alone is a row of figure 21, whose colors are those of the bases, and no label of a run.
    ladder = [{base, *(f"{rung}{suffix}" for rung in RUNGS if rung != CENTRING)} for base, suffix in BASES.items()]
    experiments.pop((EXPERIMENT, False), None)
    return [*experiments.values(), *ladder, *probes, *map(set, FAMILIES.values())]


def pairs(sets: Iterable[Collection[str]]) -> set[tuple[str, str]]:
    return {pair for labels in sets for pair in combinations(sorted(labels), 2)}


def test_no_two_methods_look_alike():
    seen = [(look.color, look.marker, str(look.line)) for look in styles.STYLES.values()]
    assert len(set(seen)) == len(seen)
    assert len({look.color for look in styles.STYLES.values()}) == len(styles.STYLES)


@pytest.mark.parametrize("vision", VISIONS)
def test_methods_of_one_panel_differ_in_color(vision):
    together = drawn_together()
    assert len(together) > 20
    near = {
        (one, other): distance(styles.style_of(one).color, styles.style_of(other).color, vision)
        for one, other in pairs(together)
    }
    assert {pair: apart for pair, apart in near.items() if apart < LEAST[vision]} == {}


@pytest.mark.parametrize("vision", VISIONS)
def test_mkor_with_both_sides_acting_stands_out_beside_mkor_and_kfac(vision):
    """Most figures of training show these three, with curves close to each other."""
    for one, other in (("mkor_normalized", "mkor"), ("mkor_normalized", "kaisa")):
        assert distance(styles.style_of(one).color, styles.style_of(other).color, vision) > LEAST["normal"], (
            one,
            other,
        )


def test_methods_of_one_panel_can_be_told_apart_in_gray():
    """Two methods of about the same lightness must differ in marker and line style."""
    for one, other in pairs(drawn_together()):
        look, second = styles.style_of(one), styles.style_of(other)
        if abs(seen(look.color, "normal")[0] - seen(second.color, "normal")[0]) < LEAST["deuteranopia"]:
            assert look.marker != second.marker, (one, other)
            assert look.line != second.line, (one, other)


@pytest.mark.parametrize("vision", VISIONS)
def test_parts_of_a_figure_that_are_no_methods_differ_in_color(vision):
    for parts in (fig05_rank1_error.APPROXIMATIONS, fig08_kfac_spectra.FACTORS, fig18_factors.FACTORS):
        for one, other in combinations(parts.values(), 2):
            assert distance(one.color, other.color, vision) > LEAST[vision], (one.name, other.name)
            assert one.marker != other.marker
    for (color, hatch), (second, other_hatch) in combinations(fig03_step_breakdown.PHASES.values(), 2):
        assert distance(color, second, vision) > LEAST[vision]
        assert hatch != other_hatch


def test_a_rung_of_the_ladder_looks_like_its_method():
    assert styles.style_of("kfac") == styles.style_of("kaisa")
    assert styles.style_of("kfac_adamw").color == styles.style_of("kaisa").color
    assert styles.style_of("kfac_adamw").name == "KFAC (KAISA) over AdamW"
    assert styles.style_of("mac_adamw").name == "MAC over AdamW"
    assert styles.style_of("mkor_adamw") == styles.STYLES["mkor_adamw"]


def test_an_unknown_method_gets_the_same_look_every_time():
    assert styles.style_of("my_new_method") == styles.style_of("my_new_method")
    assert styles.style_of("my_new_method").name == "my new method"
    assert styles.in_order(["my_new_method", "mkor", "sgd", "mkor"]) == ["sgd", "mkor", "my_new_method"]
