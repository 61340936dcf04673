"""How a property is declared, and to whom it does not apply by intention."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from baselines.audit.subject import Subject
from baselines.audit.verdicts import Verdict, inapplicable

FIRST_STEP = "lr is the length of the first step alone, as documented."
COUNTED = "k counts the steps of all parameters, as in its authors' code."
DERIVED = "settings of 1-d parameters follow from the constructor's, as documented."
ONE_ESTIMATE = "all groups share one estimate of the distance, as documented."
SHADOW = "shadow_weight acts while the loss swings, as documented."
OWN_RATE = "with relative_step, its default, it computes its own rate, as documented."
DOCUMENTED: Mapping[tuple[str, str], str] = {
    ("torch.optim:Rprop", "a changed lr is used"): FIRST_STEP,
    ("torch.optim:Rprop", "a tensor lr is read at each step"): FIRST_STEP,
    ("muon", "gradients stay"): "as in its authors' code, Nesterov's momentum is written into .grad.",
    ("pytorch_optimizer:AdaFactor", "a changed lr is used"): OWN_RATE,
    ("pytorch_optimizer:AdaFactor", "a tensor lr is read at each step"): OWN_RATE,
    ("timm.optim:Mars", "groups override defaults"): DERIVED,
    ("pytorch_optimizer:MARS", "groups override defaults"): DERIVED,
    ("pytorch_optimizer:DAdaptAdaGrad", "groups are optimizers"): ONE_ESTIMATE,
    ("pytorch_optimizer:DAdaptAdan", "groups are optimizers"): ONE_ESTIMATE,
    ("pytorch_optimizer:DAdaptLion", "groups are optimizers"): ONE_ESTIMATE,
    ("pytorch_optimizer:MADGRAD", "late parameters start afresh"): COUNTED,
    ("pytorch_optimizer:EmoFact", "hyperparameters act"): SHADOW,
    ("pytorch_optimizer:EmoLynx", "hyperparameters act"): SHADOW,
    ("pytorch_optimizer:EmoNavi", "hyperparameters act"): SHADOW,
    ("pytorch_optimizer:AdamWSN", "hyperparameters act"): "subset_size acts in groups with sn=True, as documented.",
}
"""What optimizers do by intention, by target and property: such a property does not apply."""


@dataclass(frozen=True)
class Property:
    """One property of an optimizer."""

    name: str
    statement: str
    is_slow: bool
    """Whether it starts processes or compiles, which takes seconds."""
    find: Callable[[Subject], Verdict]

    def __str__(self) -> str:
        return self.name

    def verdict(self, subject: Subject) -> Verdict:
        """Return what is found of the property; torch's random numbers and threads stay as they are."""
        if (reason := DOCUMENTED.get((subject.target, self.name))) is not None:
            return inapplicable(reason)
        start = time.perf_counter()
        with subject.at_work():
            found = self.find(subject)
        return replace(found, seconds=time.perf_counter() - start)

    def check(self, subject: Subject) -> Verdict:
        """Return the verdict of a property that did not fail, for use in a test.

        Raises:
            AssertionError: the property failed; the message has the measured statement and the reproducer.
        """
        found = self.verdict(subject)
        if found.found == "failed":
            raise AssertionError(f"{self.statement} {subject}: {found.statement}\n\n{found.reproducer}")
        return found


class Theme:
    """A list of properties, to which a decorator adds functions.

    The function's name, with spaces, is the property's name, and the docstring's first line its statement.
    """

    def __init__(self) -> None:
        self.properties: list[Property] = []

    def add(self, find: Callable[[Subject], Verdict]) -> Callable[[Subject], Verdict]:
        """Declare a quick property."""
        return self._add(find, is_slow=False)

    def add_slow(self, find: Callable[[Subject], Verdict]) -> Callable[[Subject], Verdict]:
        """Declare a property that starts processes or compiles."""
        return self._add(find, is_slow=True)

    def _add(self, find: Callable[[Subject], Verdict], *, is_slow: bool) -> Callable[[Subject], Verdict]:
        statement = (find.__doc__ or "").strip().partition("\n")[0]
        self.properties.append(Property(find.__name__.replace("_", " "), statement, is_slow, find))
        return find
