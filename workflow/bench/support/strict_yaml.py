"""YAML 1.2 as configuration files need it: scalars mean what they look like, and no key appears twice.

PyYAML implements YAML 1.1, in which ``1:30:00`` is 5400, ``010`` is 8, ``1_000`` is 1000, ``yes`` is true,
``2026-01-01`` is a date and ``1e-3`` is text. Here only ``true``, ``false``, ``null`` and decimal numbers have a
meaning; everything else is text, which the schemas refuse where a number is due.
"""

from __future__ import annotations

import re
from typing import Any, Final

import yaml
from yaml.constructor import ConstructorError

MAX_INTEGER: Final = 2**63 - 1
"""The largest magnitude of an integer: seeds, sizes and steps reach numpy and torch, which have 64 bits."""

_TAG: Final = "tag:yaml.org,2002:"
_DECIMAL: Final = r"(?:0|[1-9][0-9]*)"
_PLAIN: Final = (
    ("null", r"(?:~|null|Null|NULL|)\Z", ("~", "n", "N", "")),
    ("bool", r"(?:true|True|TRUE|false|False|FALSE)\Z", "tTfF"),
    ("int", rf"[-+]?{_DECIMAL}\Z", "-+0123456789"),
    (
        "float",
        rf"(?:[-+]?(?:{_DECIMAL}\.?|{_DECIMAL}?\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z",
        "-+.0123456789",
    ),
    ("merge", r"<<\Z", "<"),
)
"""Plain scalars other than text: their tag, pattern, and possible first characters ("" for the empty scalar)."""


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for name, pattern, first in _PLAIN:
        for character in first:
            resolvers.setdefault(character, []).append((_TAG + name, re.compile(pattern)))
    return resolvers


class _Loader(yaml.CSafeLoader):
    """PyYAML's safe loader on libyaml, which is in all of its wheels; the one in Python takes ten times as long."""

    yaml_implicit_resolvers = _resolvers()

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._flattened: set[int] = set()

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Refuse duplicate keys, then replace ``<<: *anchor`` by the entries of the other mapping.

        A mapping's own entries override those. The method may be called again for a node that is flattened already,
        which then has a key from both.
        """
        if id(node) in self._flattened:
            return
        self._flattened.add(id(node))
        keys: set[object] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ConstructorError(None, None, "a key must be text", key.start_mark)
            if key.tag == f"{_TAG}merge":
                continue
            name = self.construct_object(key)
            if name in keys:
                raise ConstructorError(None, None, f"the key '{name}' appears twice", key.start_mark)
            keys.add(name)
        super().flatten_mapping(node)

    def construct_integer(self, node: yaml.ScalarNode) -> int:
        """Return the value of an integer."""
        value = int(node.value)
        if abs(value) > MAX_INTEGER:
            shown = node.value if len(node.value) <= 40 else f"{node.value[:37]}..."
            raise ConstructorError(None, None, f"the integer {shown} does not fit into 64 bits", node.start_mark)
        return value


_Loader.add_constructor(f"{_TAG}int", _Loader.construct_integer)


class _Dumper(yaml.SafeDumper):
    """Quotes text that `_Loader` would read as something else, and writes equal values in full, without aliases."""

    yaml_implicit_resolvers = _resolvers()

    def ignore_aliases(self, data: object) -> bool:
        return True


def parse(text: str) -> Any:
    """Return the value of a YAML text.

    Raises:
        yaml.YAMLError: the text is not YAML, has a key twice or one that is no text, or an integer that is too long.
    """
    return yaml.load(text, _Loader)


def dump(value: Any) -> str:
    """Return a value as a YAML text that `parse` reads back."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=110)
