"""Ranges of hyperparameters, each declared once, in its annotation.

``damping: Annotated[float, POSITIVE, "the Tikhonov term"] = 1e-3`` states the type, the range and the meaning of a
dataclass field or a function's parameter. `checked_values` enforces it when the code runs. The plan enforces the same
annotations before anything runs. It loads this file without torch, so only the standard library may be imported here.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

LARGEST = 1e36
"""The largest magnitude of a real number; float32 holds 340 times as much."""


@dataclass(frozen=True, kw_only=True)
class Range:
    """An interval of numbers. A bound that is None does not apply."""

    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None
    finite: bool = True
    """Whether infinity within the bounds is refused."""
    largest: float = LARGEST
    """The largest magnitude of other numbers, which a message names only if it is exceeded."""

    def refusal(self, value: int | float) -> str | None:
        """Return what the value must be; None if it lies in the range."""
        # Range(above=0, at_most=1) has the bounds "greater than 0" and "at most 1".
        bounds = [(words, compare, getattr(self, name)) for name, words, compare in _BOUNDS]
        bounds = [(words, compare, bound) for words, compare, bound in bounds if bound is not None]
        # NaN satisfies no comparison, so with any bound it is refused here.
        if not all(compare(value, bound) for _, compare, bound in bounds):
            return "must be " + " and ".join(f"{words} {bound}" for words, _, bound in bounds)
        if value == math.inf and not self.finite:  # before ``largest``, which it exceeds
            return None
        if isinstance(value, float) and not math.isfinite(value):
            return "must be finite" if self.finite else "must be a number"
        # torch takes no integer of more than 64 bits.
        largest = min(self.largest, 2**63 - 1) if isinstance(value, int) else self.largest
        if abs(value) > largest:
            limit = f"must be at most {largest:g}" if value > 0 else f"must be at least {-largest:g}"
            return limit if self.finite else f"{limit}, or infinite"
        return None


_BOUNDS: tuple[tuple[str, str, Callable[[Any, Any], bool]], ...] = (
    ("above", "greater than", operator.gt),
    ("at_least", "at least", operator.ge),
    ("below", "less than", operator.lt),
    ("at_most", "at most", operator.le),
)

POSITIVE = Range(above=0)
NOT_NEGATIVE = Range(at_least=0)
AT_LEAST_1 = Range(at_least=1, largest=1e9)
"""Periods in steps, and counts."""
FRACTION = Range(above=0, at_most=1)
"""A part of a whole that is not empty."""
DECAY = Range(at_least=0, below=1)
"""The weight of the old value in a running mean."""
POSITIVE_DECAY = Range(above=0, below=1)


@dataclass(frozen=True)
class OneOf:
    """A choice of values; a torch dtype is given by its name."""

    values: tuple[Any, ...]

    def refusal(self, value: object) -> str | None:
        """Return what the value must be; None if it is one of the choices."""
        # The text of torch.bfloat16 is "torch.bfloat16"; the dtype itself is unknown here, without torch.
        if value in self.values or str(value).removeprefix("torch.") in self.values:
            return None
        return f"must be one of {', '.join(map(str, self.values))}"


@dataclass(frozen=True)
class Domain:
    """The values that a hyperparameter may take."""

    types: tuple[type, ...] = ()
    """Accepted types; an empty tuple accepts any. ``float`` also accepts integers; numbers exclude bools."""
    limit: Range | OneOf | None = None
    """A range applies to numbers only. None is accepted if ``types`` contains NoneType, whatever the limit."""
    meaning: str = ""
    """A description of the hyperparameter for error messages."""

    @classmethod
    def of(cls, annotation: Any) -> Domain:
        """Return the domain of an annotation: a class, a Literal, a union of these, or one of them Annotated.

        Any other annotation, such as ``list[int]``, accepts all values.
        """
        metadata = getattr(annotation, "__metadata__", ())
        # Annotated[float | None, POSITIVE, "the damping"] has the origin float | None, and the rest as metadata.
        inner = annotation.__origin__ if metadata else annotation
        limit = next((item for item in metadata if isinstance(item, Range | OneOf)), None)
        meaning = next((item for item in metadata if isinstance(item, str)), "")
        types: list[type] = []
        choices: list[Any] = []
        # Optional[float] has the origin Union, float | None has UnionType; both have the arguments float and NoneType.
        for member in get_args(inner) if get_origin(inner) in (Union, UnionType) else (inner,):
            if get_origin(member) is Literal:
                choices += get_args(member)
            elif isinstance(member, type) and get_origin(member) is None and member is not Any:
                types.append(member)
            else:
                # A member that cannot be checked makes any value possible, whatever the others are.
                return cls(meaning=meaning)
        # For Literal["a", "b"] | None the types are (NoneType, str), and the limit is a choice of "a" and "b".
        if choices:
            limit = OneOf(tuple(choices))
        return cls((*types, *dict.fromkeys(map(type, choices))), limit, meaning)

    def refusal(self, value: object, *, none: str = "None") -> str | None:
        """Return what the value must be, and its meaning; None if it is accepted.

        Args:
            value: the value to check.
            none: the word for None in the message; YAML writes null.
        """
        problem = self._problem(value, none)
        return f"{problem}: {self.meaning}" if problem and self.meaning else problem

    @property
    def is_real(self) -> bool:
        """Whether it contains real numbers."""
        return float in self.types

    def converted(self, value: Any) -> Any:
        """Return an accepted value, an integer as a float if the domain contains real numbers."""
        # So that 1 and 1.0 make equal hyperparameters, also in a text such as a saved state's.
        return float(value) if self.is_real and isinstance(value, int) and not isinstance(value, bool) else value

    def _problem(self, value: object, none: str) -> str | None:
        if value is None and NoneType in self.types:
            return None
        if self.types and not any(_is_instance(value, kind) for kind in self.types):
            # For float | None: "must be a number or None".
            words = {**_TYPE_WORDS, NoneType: none}
            names = [words.get(kind, f"a {kind.__module__}.{kind.__qualname__}") for kind in self.types]
            # The list of choices is more helpful than their type.
            choices = self.limit.refusal(value) if isinstance(self.limit, OneOf) else None
            return choices or f"must be {' or '.join(names)}"
        # A real number without a declared range may be infinite, but neither NaN nor beyond `LARGEST`.
        limit = self.limit or (Range(finite=False) if self.is_real else None)
        if isinstance(limit, Range):
            # A text in a domain such as float | str has no range.
            return limit.refusal(value) if isinstance(value, int | float) else None
        return limit.refusal(value) if limit else None


_TYPE_WORDS: Mapping[type, str] = {float: "a number", int: "an integer", bool: "true or false", str: "text"}


def _is_instance(value: object, kind: type) -> bool:
    if kind in (int, float):
        # bool is a subclass of int: without the second test, damping=True would mean 1.
        return isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
    return isinstance(value, kind)


def require(name: str, value: object, annotation: Any) -> None:
    """Check one value against an annotation, such as ``Annotated[float, POSITIVE]``.

    Raises:
        ValueError: the value is refused; the message gives its name.
    """
    _require(name, value, Domain.of(annotation))


def checked_values(owner: type | Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Check values of a dataclass's fields or a function's parameters, and return them.

    Integers become floats where the annotation has real numbers.

    Raises:
        ValueError: a value is refused; the message gives its name.
    """
    domains = _domains(owner)
    for name, value in values.items():
        _require(name, value, domains[name])
    return {name: domains[name].converted(value) for name, value in values.items()}


def _require(name: str, value: object, domain: Domain) -> None:
    if must := domain.refusal(value):
        # Python refuses to print integers of thousands of digits.
        is_long = isinstance(value, int) and value.bit_length() > 256
        raise ValueError(f"{name}={'an integer of hundreds of digits' if is_long else repr(value)} {must}.")


@cache
def _domains(owner: type | Callable[..., Any]) -> dict[str, Domain]:
    # get_type_hints evaluates annotations, which are text here, so it is called once for each class. Without
    # include_extras it would return float in place of Annotated[float, POSITIVE].
    return {name: Domain.of(hint) for name, hint in get_type_hints(owner, include_extras=True).items()}
