"""YAML as configuration files need it: of limited size, and with scalars that mean what they look like.

PyYAML implements YAML 1.1, in which ``1:30:00`` is 5400, ``010`` is 8, ``1_000`` is 1000, ``yes`` is true,
``2026-01-01`` is a date and ``1e-3`` is text. Here only ``true``, ``false``, ``null`` and decimal numbers have a
meaning; everything else is text, which the schemas refuse where a number is due. An alias counts as all the values that
it repeats, because a few lines of aliases can stand for billions of values.
"""

from __future__ import annotations

import re
from typing import Any, Final

import yaml
from yaml.composer import Composer, ComposerError
from yaml.constructor import ConstructorError

MAX_BYTES: Final = 1_000_000
"""The size of the largest file that is read."""
MAX_VALUES: Final = 50_000
"""The largest number of keys, scalars, lists and mappings in a file, with aliases expanded."""
MAX_DEPTH: Final = 40
"""How deeply lists and mappings may be nested."""
MAX_INTEGER: Final = 2**63 - 1
"""The largest magnitude of an integer."""

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


class _Loader(Composer, yaml.CSafeLoader):
    """PyYAML's safe loader on libyaml's parser, which is in all of its wheels; that in Python takes 4 times as long.

    The composer is PyYAML's in Python, in which `compose_node` can be overridden.
    """

    yaml_implicit_resolvers = _resolvers()

    def __init__(self, text: str) -> None:
        yaml.CSafeLoader.__init__(self, text)
        Composer.__init__(self)
        self._values = 0
        self._depth = 0
        self._sizes: dict[int, int] = {}
        """Values in each complete node, by the node's ``id``."""
        self._flattened: set[int] = set()

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node, and count its values.

        Raises:
            ComposerError: the text has too many values or too deep ones, a value that contains itself, or a tag.
        """
        event: Any = self.peek_event()
        mark = event.start_mark
        if isinstance(event, yaml.AliasEvent):
            node = super().compose_node(parent, index)
            if id(node) not in self._sizes:
                raise ComposerError(None, None, f"the value of '&{event.anchor}' contains itself", mark)
            self._count(self._sizes[id(node)], mark)
            return node
        if event.tag is not None:
            raise ComposerError(None, None, "tags such as !!int are not allowed", mark)
        if self._depth == MAX_DEPTH:
            raise ComposerError(None, None, f"values must be nested at most {MAX_DEPTH} deep", mark)
        before = self._values
        self._count(1, mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        self._sizes[id(node)] = self._values - before
        return node

    def _count(self, number: int, mark: Any) -> None:
        self._values += number
        if self._values > MAX_VALUES:
            too_many = f"a file may contain at most {MAX_VALUES} values, those that aliases repeat included"
            raise ComposerError(None, None, too_many, mark)

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
        """Return the value of an integer, which is limited because Python refuses to print or read very long ones."""
        value = int(node.value) if len(node.value) <= len(str(-MAX_INTEGER)) else MAX_INTEGER + 1
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
        yaml.YAMLError: the text is not YAML, or breaks a limit of this module.
    """
    return yaml.load(text, _Loader)


def dump(value: Any) -> str:
    """Return a value as a YAML text that `parse` reads back."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=110)
