"""An audit of optimizers: ``python -m baselines.audit torch.optim:AdamW``; docs/audit.md lists the properties.

In a test, with one case a property::

    @pytest.mark.parametrize("prop", properties(), ids=str)
    def test_my_optimizer(prop):
        prop.check(Subject("package.module:Class"))
"""

from __future__ import annotations

from baselines.audit import descent, equivalences, parameters, state
from baselines.audit.declared import Property
from baselines.audit.subject import BadSubject, Subject
from baselines.audit.verdicts import Verdict

__all__ = ["BadSubject", "Property", "Subject", "Verdict", "properties"]


def properties(*, slow: bool = True) -> list[Property]:
    """Return all properties; slow: also those that start processes or compile."""
    themes = (descent.THEME, state.THEME, parameters.THEME, equivalences.THEME)
    return [prop for theme in themes for prop in theme.properties if slow or not prop.is_slow]
