"""Read configuration files strictly, check them against JSON Schemas, and report errors in one line.

PyYAML implements YAML 1.1, in which ``1:30:00`` is 5400, ``010`` is 8, ``1_000`` is 1000, ``yes`` is true,
``2026-01-01`` is a date and ``1e-3`` is text. Here only ``true``, ``false``, ``null`` and decimal numbers have a
meaning; everything else is text, which the schemas refuse where a number is due.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml
from yaml.composer import Composer, ComposerError
from yaml.constructor import ConstructorError

from workflow.bench.support import names
from workflow.bench.support.errors import ConfigError as ConfigError
from workflow.bench.support.errors import printable
from workflow.bench.support.reading import read_text

if TYPE_CHECKING:
    from jsonschema import SchemaError, ValidationError

ROOT: Final = Path(__file__).resolve().parents[3]
CONFIG: Final = ROOT / "config"
SCHEMAS: Final = ROOT / "workflow" / "schemas"

Key = Sequence[str | int]
"""The place of a value in a file: the names of keys and the indices of list items on the way to it."""


def error(file: Path | str, key: Key, value: Any, must: str) -> ConfigError:
    """Return a `ConfigError` with the message ``file: key = value: must``."""
    where = f"{shown_path(file)}: "
    if key:
        where += f"{shown_key(key)} = {shown_value(value)}: "
    return ConfigError(" ".join(f"{where}{cut(must, 500)}".split()))


def checked_stem(file: Path, kind: str) -> str:
    """Return the name of a file without its suffix.

    Raises:
        ConfigError: the name is not one of this kind (`names.name_rule`).
    """
    if rule := names.name_rule(kind, file.stem):
        raise ConfigError(f"{shown_path(file)}: its name, {shown_value(file.stem)}, {rule}")
    return file.stem


def refuse_folder(key: str, folder: Path | str, rule_of: Callable[[str], str | None] = names.folder_rule) -> None:
    """Raise `ConfigError` if a folder breaks a rule of `names`."""
    if rule := rule_of(str(folder)):
        raise ConfigError(f"{key} = {shown_value(str(folder))}: {rule}")


def shown_path(file: Path | str) -> str:
    """Return ``file`` as a user would type it: relative to the working directory if it is inside, else as it is."""
    path = Path(file)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def shown_key(key: Key) -> str:
    """Return a key as text, such as ``tiers.embedded[0].steps``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{cut(part, 80)}" for part in key).removeprefix(".")


def shown_value(value: Any) -> str:
    """Return ``value`` as JSON, cut to 80 characters."""
    return printable(cut(json.dumps(value, default=str, ensure_ascii=False), 80))


def cut(text: str, length: int) -> str:
    """Return a text of at most ``length`` characters, of which the last three tell that more were cut off."""
    return text if len(text) <= length else f"{text[: length - 3]}..."


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return ``did you mean 'x'?`` with the most similar of ``known``, or the list of them if none is similar."""
    names = sorted(known)
    # 0.6 accepts a typing error in a short word, and not any word of the same length.
    near = difflib.get_close_matches(str(word), names, n=1, cutoff=0.6)
    if near:
        return f"did you mean '{near[0]}'?"
    return f"known: {', '.join(names)}" if names else "none is known"


def require_known(file: Path | str, key: Key, value: Any, what: str, known: Iterable[str]) -> None:
    """Raise `ConfigError`, ``what; did you mean ...``, unless a value is one of ``known``."""
    names = list(known)
    if value not in names:
        raise error(file, key, value, f"{what}; {did_you_mean(value, names)}")


_TAG: Final = "tag:yaml.org,2002:"
_DECIMAL: Final = r"(?:0|[1-9][0-9]*)"
_PLAIN: Final = {
    "null": r"(?:~|null|Null|NULL|)\Z",
    "bool": r"(?:true|True|TRUE|false|False|FALSE)\Z",
    "int": rf"[-+]?{_DECIMAL}\Z",
    "float": rf"[-+]?(?:{_DECIMAL}\.?|{_DECIMAL}?\.[0-9]+)(?:[eE][-+]?[0-9]+)?\Z|[-+]?\.(?:inf|nan)\Z",
    "merge": r"<<\Z",
}
"""What unquoted scalars other than text look like, by the name of their tag."""
_RESOLVERS: Final = {None: [(_TAG + name, re.compile(pattern)) for name, pattern in _PLAIN.items()]}


class _Composer(Composer, yaml.CBaseLoader):
    """Composes nodes in Python from the events of libyaml's parser, which is in all of PyYAML's wheels.

    Of PyYAML's own, the parser in Python takes 4 times as long, and the composer in C crashes the process on values
    nested deeply enough; that in Python raises `RecursionError`.
    """

    yaml_implicit_resolvers = _RESOLVERS

    def __init__(self, text: str) -> None:
        yaml.CBaseLoader.__init__(self, text)
        Composer.__init__(self)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()
        # A tag such as !!float would let a value mean something else than what it looks like.
        if getattr(event, "tag", None) is not None:
            raise ComposerError(None, None, "tags such as !!int are not allowed", event.start_mark)
        return super().compose_node(parent, index)


class _Dumper(yaml.SafeDumper):
    """Quotes text that `parse` would read as something else, and writes equal values in full, without aliases."""

    yaml_implicit_resolvers = _RESOLVERS

    def ignore_aliases(self, data: object) -> bool:
        return True


def parse(text: str) -> Any:
    """Return the value of a YAML text.

    Raises:
        yaml.YAMLError: the text is not YAML, has a key twice, a tag, or an integer of more than 64 bits.
        RecursionError: it is nested deeply, or a value contains itself.
    """
    # Not by `yaml.load`, whose constructors would read numbers as YAML 1.1 again.
    node = _Composer(text).get_single_node()
    return None if node is None else _constructed(node)


def _constructed(node: yaml.Node) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return [_constructed(item) for item in node.value]
    if isinstance(node, yaml.MappingNode):
        return _mapping(node)
    kind, text = node.tag.removeprefix(_TAG), node.value
    if kind == "int":
        # A seed, a count or a size beyond 64 bits would fail far from here, in NumPy or torch. Very long ones are not
        # even converted: Python refuses to.
        if len(text) > 20 or abs(int(text)) >= 2**63:
            raise ConstructorError(
                None, None, f"the integer {cut(text, 40)} does not fit into 64 bits", node.start_mark
            )
        return int(text)
    if kind == "float":
        return float(text.replace(".inf", "inf").replace(".nan", "nan"))
    return {"null": None, "bool": text.lower() == "true"}.get(kind, text)


def _mapping(node: yaml.MappingNode) -> dict[Any, Any]:
    """Return a mapping, in which ``<<: *anchor`` adds the entries of another one that it lacks itself."""
    merged: dict[Any, Any] = {}
    # PyYAML would let the last of two equal keys win in silence.
    own: dict[Any, Any] = {}
    for key, value in node.value:
        mark = key.start_mark
        if not isinstance(key, yaml.ScalarNode):
            raise ConstructorError(None, None, "a key must be text", mark)
        name, content = _constructed(key), _constructed(value)
        if key.tag == f"{_TAG}merge":
            if not isinstance(content, dict):
                raise ConstructorError(None, None, "<< takes over the keys of one mapping", mark)
            merged |= content
        elif name in own:
            raise ConstructorError(None, None, f"the key '{name}' appears twice", mark)
        else:
            own[name] = content
    return {**merged, **own}


def dump(value: Any) -> str:
    """Return a value as a YAML text that `parse` reads back."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=110)


def read_yaml(file: Path) -> Any:
    """Return the content of a YAML file.

    Raises:
        ConfigError: the file is missing, cannot be read, is not YAML as `parse` reads it, or contains a value that JSON
            cannot express, such as NaN, or text with a control character.
    """
    try:
        value = parse(read_text(file))
        refuse_odd_values(file, (), value)
    except FileNotFoundError:
        raise ConfigError(f"{shown_path(file)}: no such file") from None
    except OSError as problem:
        raise ConfigError(str(problem)) from None
    except yaml.YAMLError as problem:
        raise error(file, (), None, f"not valid YAML: {_without_excerpt(problem)}") from None
    except RecursionError:
        raise error(file, (), None, "values are nested too deeply, or an alias stands in its own anchor") from None
    return value


def read_mapping(file: Path) -> dict[str, Any]:
    """Return the content of a YAML file that is a mapping.

    Raises:
        ConfigError: as in `read_yaml`, or the content is not a mapping.
    """
    content = read_yaml(file)
    if not isinstance(content, dict):
        raise error(file, (), None, "must be a mapping of keys to values")
    return content


def _without_excerpt(problem: yaml.YAMLError) -> str:
    """Return a YAML error in one line, without the library's excerpt of the file."""
    mark = getattr(problem, "problem_mark", None)
    parts = [getattr(problem, name, None) for name in ("context", "problem")]
    text = ": ".join(filter(None, parts)) or str(problem)
    return f"{text}, line {mark.line + 1}" if mark else text


def refuse_odd_values(file: Path, key: tuple[str | int, ...], value: Any) -> None:
    """Raise `ConfigError` on a value that JSON cannot express, or that would not fit into a line of text."""
    if isinstance(value, float) and not math.isfinite(value):
        raise error(file, key, str(value), "must be a finite number")
    if isinstance(value, str) and not is_plain(value):
        raise error(file, key, value, "must be text without line breaks and control characters")
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not isinstance(name, str):
                raise error(file, key, str(name), "a key must be text; put it in quotes")
            if not is_plain(name):
                raise error(file, key, name, "a key must have no line breaks and control characters")
            refuse_odd_values(file, (*key, name), inner)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            refuse_odd_values(file, (*key, index), inner)


def is_plain(text: str) -> bool:
    """Return whether every character is printable or a space, such as a no-break space."""
    return all(character.isprintable() or unicodedata.category(character) == "Zs" for character in text)


@cache
def schema(name: str) -> dict[str, Any]:
    """Return the schema ``workflow/schemas/<name>.schema.yaml``.

    Raises:
        ConfigError: the file is no JSON Schema.
    """
    from jsonschema import Draft202012Validator, SchemaError

    file = schema_file(name)
    content = read_mapping(file)
    try:
        Draft202012Validator.check_schema(content)
    except SchemaError as problem:
        raise _in_one_line(problem, file, ()) from None
    return content


def schema_file(name: str) -> Path:
    """Return the file of a schema."""
    return SCHEMAS / f"{name}.schema.yaml"


@cache
def _validator() -> Any:
    """Return the class that checks values. Measuring on a bare machine reads no configuration and lacks jsonschema."""
    from jsonschema import Draft202012Validator, ValidationError, validators

    def check_format(_: Any, kind: str, value: object, __: Any) -> Iterator[ValidationError]:
        """Check the keyword ``format`` of a schema: the rules of `names`."""
        rule = names.rule_of_format(kind, value) if isinstance(value, str) else None
        if rule:
            yield ValidationError(rule)

    # JSON Schema accepts 1.0 as an integer, but a seed of 1.0 is a typing error.
    return validators.extend(
        Draft202012Validator,
        {"format": check_format},
        type_checker=Draft202012Validator.TYPE_CHECKER.redefine(
            "integer", lambda _, value: isinstance(value, int) and not isinstance(value, bool)
        ),
    )


def check(value: Any, against: Mapping[str, Any], file: Path | str, key: Key = ()) -> None:
    """Check a value against a schema.

    Args:
        value: the value to check.
        against: the JSON Schema.
        file: the file that contains the value, for the message.
        key: the place of the value in the file.

    Raises:
        ConfigError: the first place at which the value breaks the schema.
    """
    # The library reports mistakes in no order that it promises.
    errors = sorted(_validator()(against).iter_errors(value), key=lambda problem: list(map(str, problem.path)))
    if errors:
        raise _in_one_line(errors[0], file, tuple(key))


def _in_one_line(problem: ValidationError | SchemaError, file: Path | str, key: tuple[str | int, ...]) -> ConfigError:
    """Return a schema error as one line, with the description of the value that the schema gives."""
    where = (*key, *problem.absolute_path)
    constraint = problem.schema if isinstance(problem.schema, Mapping) else {}
    properties = constraint.get("properties", {})
    if problem.validator == "additionalProperties":
        unknown = next(name for name in problem.instance if name not in properties)
        must = f"unknown key; {did_you_mean(unknown, properties)}"
        return error(file, (*where, unknown), problem.instance[unknown], must)
    description = constraint.get("description", "")
    if problem.validator == "required":
        missing = next(name for name in problem.validator_value if name not in problem.instance)
        must, description = f"the key '{missing}' is missing", properties.get(missing, {}).get("description", "")
    elif not (must := _rule(problem)):
        # A rule such as oneOf says nothing by itself: the schema's description is the message.
        rule = f"breaks the rule {problem.validator}: {problem.validator_value}"
        must, description = (f"must be {description}" if description else rule), ""
    return error(file, where, problem.instance, f"{must}: {description}" if description else must)


def _rule(problem: ValidationError | SchemaError) -> str:
    """Return a broken rule of a schema in words; nothing for a rule that only the schema's description explains."""
    limit, rule = problem.validator_value, str(problem.validator)
    if rule == "format":
        return problem.message
    if rule == "type":
        return "must be " + " or ".join(_KINDS[kind] for kind in ([limit] if isinstance(limit, str) else limit))
    if rule == "enum":
        return f"must be one of the known values; {did_you_mean(problem.instance, map(str, limit))}"
    if rule in ("minItems", "minProperties", "minLength"):
        return "must not be empty" if limit == 1 else f"must contain at least {limit} values"
    return _RULES.get(rule, "").format(limit)


def with_defaults(value: Mapping[str, Any], against: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checked mapping with its schema's defaults filled in, and integers as floats where a number is due."""
    complete = dict(value)
    for name, constraint in against.get("properties", {}).items():
        if name in value or "default" in constraint:
            given = value.get(name, constraint.get("default"))
            # So that a rate written as 1 and as 1.0 gives runs of one id.
            is_real = constraint.get("type") == "number" and isinstance(given, int)
            complete[name] = float(given) if is_real else given
    return complete


_KINDS: Final = {
    "integer": "an integer",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "null",
}
_RULES: Final = {
    "minimum": "must be at least {}",
    "exclusiveMinimum": "must be greater than {}",
    "maximum": "must be at most {}",
    "exclusiveMaximum": "must be less than {}",
    "uniqueItems": "must not contain the same value twice",
    "maxItems": "must contain at most {} values",
    "maxLength": "must have at most {} characters",
}
