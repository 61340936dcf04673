"""The paper's names of our optimizers."""

from __future__ import annotations

import pytest

from workflow.bench.analysis.wording import paper_name


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("sgd", "SGD"),
        ("lamb", "LAMB"),
        ("hylo", "HyLo"),
        ("eva", "Eva"),
        ("mkor", "MKOR"),
        ("mkor_bfloat16", "MKOR"),
        ("mkor_released", "MKOR"),
        ("mkor_released_600", "MKOR"),
        ("mkor_h", "MKOR-H"),
        ("kaisa_no_clip", "KAISA"),
        ("kaisa_1000", "KAISA"),
        ("soap", None),
        ("mkor_windowed", None),
    ],
)
def test_an_optimizer_has_the_papers_name(label, name):
    assert paper_name(label) == name
