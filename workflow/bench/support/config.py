"""Read configuration files strictly, check them against JSON Schemas, and report errors in one line."""

from __future__ import annotations

import difflib
import json
import math
import unicodedata
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from workflow.bench.support import names, strict_yaml
from workflow.bench.support.errors import ConfigError as ConfigError
from workflow.bench.support.errors import printable

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
    return ConfigError(" ".join(f"{where}{_cut(must, 500)}".split()))


def checked_stem(file: Path, kind: str) -> str:
    """Return the name of a file without its suffix.

    Raises:
        ConfigError: the name is not one of this kind (`names.name_rule`).
    """
    rule = names.name_rule(kind, file.stem)
    if rule:
        raise ConfigError(f"{shown_path(file)}: its name, {shown_value(file.stem)}, {rule}")
    return file.stem


def refuse_folder(key: str, folder: Path | str, rule_of: Callable[[str], str | None] = names.folder_rule) -> None:
    """Raise `ConfigError` if a folder breaks a rule of `names`."""
    rule = rule_of(str(folder))
    if rule:
        raise ConfigError(f"{key} = {shown_value(str(folder))}: {rule}")


def shown_path(file: Path | str) -> str:
    """Return ``file`` as a user would type it: relative to the working directory if it is inside, else as it is."""
    path = Path(file)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def shown_key(key: Key) -> str:
    """Return a key as text, such as ``tiers.embedded[0].steps``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{_cut(part, 80)}" for part in key).removeprefix(".")


def shown_value(value: Any) -> str:
    """Return ``value`` as JSON, cut to 80 characters."""
    text = ""
    try:
        # In parts, because aliases of YAML can make a value of billions of characters.
        for part in json.JSONEncoder(default=str, ensure_ascii=False).iterencode(value):
            text += part
            if len(text) > 80:
                break
    except ValueError:  # Python refuses to print an integer of thousands of digits
        text += "(an integer of thousands of digits)"
    return printable(_cut(text, 80))


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return ``did you mean 'x'?`` with the most similar of ``known``, or the list of them if none is similar."""
    names = sorted(known)
    near = difflib.get_close_matches(str(word), names, n=1, cutoff=0.6)
    if near:
        return f"did you mean '{near[0]}'?"
    return f"known: {', '.join(names)}" if names else "none is known"


def read_yaml(file: Path) -> Any:
    """Return the content of a YAML file.

    Raises:
        ConfigError: the file is missing, too large or not YAML as `strict_yaml` reads it, or it contains a value that
            JSON cannot express, such as NaN, or text with a control character.
    """
    try:
        if file.exists() and not file.is_file():
            raise error(file, (), None, "must be a file")  # reading a FIFO would wait forever
        with file.open("rb") as opened:
            content = opened.read(strict_yaml.MAX_BYTES + 1)
        if len(content) > strict_yaml.MAX_BYTES:
            raise error(file, (), None, f"must have at most {strict_yaml.MAX_BYTES} bytes")
        value = strict_yaml.parse(content.decode("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{shown_path(file)}: no such file") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"{shown_path(file)}: cannot be read: {problem}") from None
    except yaml.YAMLError as problem:
        raise error(file, (), None, f"not valid YAML: {_without_excerpt(problem)}") from None
    refuse_odd_values(file, (), value)
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

    def check_unique(_: Any, expected: bool, items: Any, __: Any) -> Iterator[ValidationError]:
        """Check ``uniqueItems`` in linear time; the library compares every pair of a list that it cannot sort."""
        if not expected or not isinstance(items, list):
            return
        # JSON distinguishes true from 1, but not 1.0 from 1.
        distinct = {
            (isinstance(item, bool), item) if isinstance(item, Hashable) else json.dumps(item, sort_keys=True)
            for item in items
        }
        if len(distinct) < len(items):
            yield ValidationError("not unique")

    # JSON Schema accepts 1.0 as an integer, but a seed of 1.0 is a typing error.
    return validators.extend(
        Draft202012Validator,
        {"format": check_format, "uniqueItems": check_unique},
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
    if problem.validator == "required":
        missing = next(name for name in problem.validator_value if name not in problem.instance)
        must, description = f"the key '{missing}' is missing", properties.get(missing, {}).get("description", "")
    else:
        must, description = _rule(problem), constraint.get("description", "")
        if not must:
            rule = f"breaks the rule {problem.validator}: {problem.validator_value}"
            must, description = (f"must be {description}" if description else rule), ""
    return error(file, where, problem.instance, f"{must}: {description}" if description else must)


def _rule(problem: ValidationError | SchemaError) -> str:
    """Return a broken rule of a schema in words; nothing for a rule that only the schema's description explains."""
    limit = problem.validator_value
    match problem.validator:
        case "format":
            return problem.message
        case "type":
            kinds = [limit] if isinstance(limit, str) else limit
            return "must be " + " or ".join(_KINDS[kind] for kind in kinds)
        case "enum":
            return f"must be one of the known values; {did_you_mean(problem.instance, map(str, limit))}"
        case "minimum":
            return f"must be at least {limit}"
        case "exclusiveMinimum":
            return f"must be greater than {limit}"
        case "maximum":
            return f"must be at most {limit}"
        case "exclusiveMaximum":
            return f"must be less than {limit}"
        case "uniqueItems":
            return "must not contain the same value twice"
        case "minItems" | "minProperties" | "minLength":
            return "must not be empty" if limit == 1 else f"must contain at least {limit} values"
        case "maxItems":
            return f"must contain at most {limit} values"
        case "maxLength":
            return f"must have at most {limit} characters"
    return ""


def with_defaults(value: Mapping[str, Any], against: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checked mapping with its schema's defaults filled in, and integers as floats where a number is due."""
    complete = dict(value)
    for name, constraint in against.get("properties", {}).items():
        if name in value or "default" in constraint:
            given = value.get(name, constraint.get("default"))
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
