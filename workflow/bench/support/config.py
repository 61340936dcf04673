"""Configuration files: read strictly, checked against JSON Schema, refused in one line."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml
from jsonschema import Draft202012Validator, ValidationError, validators

ROOT: Final = Path(__file__).resolve().parents[3]
CONFIG: Final = ROOT / "config"
SCHEMAS: Final = ROOT / "workflow" / "schemas"

Key = Sequence[str | int]


class ConfigError(ValueError):
    """Bad input from a user: one line that names the file, the key, the value and what would do."""


def error(file: Path | str, key: Key, value: Any, must: str) -> ConfigError:
    """Return the `ConfigError` that says: ``file: key = value: what would do``."""
    where = f"{shown_path(file)}: "
    if key:
        where += f"{shown_key(key)} = {shown_value(value)}: "
    return ConfigError(" ".join(f"{where}{must}".split()))


def shown_path(file: Path | str) -> str:
    """Return ``file`` as a user would type it: relative to the working directory where it lies inside."""
    path = Path(file)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def shown_key(key: Key) -> str:
    """Return a key's path as ``tiers.embedded[0].steps``."""
    return re.sub(r"^\.", "", "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key))


def shown_value(value: Any) -> str:
    """Return ``value`` as short JSON."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return ``did you mean 'x'?`` for the nearest of ``known``, else the list of what is known."""
    names = sorted(known)
    near = difflib.get_close_matches(str(word), names, n=1, cutoff=0.6)
    if near:
        return f"did you mean '{near[0]}'?"
    return f"known: {', '.join(names)}" if names else "none is known"


class _Loader(yaml.SafeLoader):
    """YAML whose ``1e-3`` is a number, and whose keys stand once; ``<<: *anchor`` takes over another mapping's."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._flat: set[int] = set()

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Put what ``<<`` stands for in its place, once; what a mapping says itself counts more."""
        if id(node) in self._flat:
            return
        self._flat.add(id(node))
        keys: list[Any] = []
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            found = self.construct_object(key, deep=True)
            if found in keys:
                twice = f"the key '{found}' stands twice, line {key.start_mark.line + 1}"
                raise yaml.constructor.ConstructorError(None, None, twice, None)
            keys.append(found)
        super().flatten_mapping(node)


# YAML 1.1 takes 1e-3 for text, since it has no point; everyone who writes it means the number.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?"
        r"|[0-9][0-9_]*[eE][-+]?[0-9]+|\.inf|\.Inf|\.INF|\.nan|\.NaN|\.NAN|[-+]\.(?:inf|Inf|INF))$"
    ),
    list("-+0123456789."),
)


def read_yaml(file: Path) -> Any:
    """Return what ``file`` holds.  Raises `ConfigError` where it is absent, no YAML, or holds NaN or infinity."""
    try:
        value = yaml.load(file.read_text(encoding="utf-8"), _Loader)
        _refuse_odd_values(file, (), value)
    except FileNotFoundError:
        raise ConfigError(f"{shown_path(file)}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"{shown_path(file)}: cannot be read: {problem}") from None
    except RecursionError:
        raise ConfigError(f"{shown_path(file)}: a value contains itself, or is nested too deep") from None
    except yaml.YAMLError as problem:
        raise error(file, (), None, f"is no valid YAML: {_without_excerpt(problem)}") from None
    except ValueError as problem:  # a date such as 2026-13-45 fails inside the YAML library
        if isinstance(problem, ConfigError):
            raise
        raise error(file, (), None, f"is no valid YAML: {problem}") from None
    return value


def read_mapping(file: Path) -> dict[str, Any]:
    """Return what ``file`` holds.  Raises `ConfigError` as `read_yaml` does, and where it is no mapping."""
    content = read_yaml(file)
    if not isinstance(content, dict):
        raise error(file, (), None, "must be a mapping of keys to values")
    return content


def _without_excerpt(problem: yaml.YAMLError) -> str:
    mark = getattr(problem, "problem_mark", None)
    said = getattr(problem, "problem", None) or str(problem)
    return f"{said}, line {mark.line + 1}" if mark else said


def _refuse_odd_values(file: Path, key: tuple[str | int, ...], value: Any) -> None:
    """Refuse what YAML can say and JSON cannot."""
    if isinstance(value, float) and not math.isfinite(value):
        raise error(file, key, str(value), "must be a finite number")
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not isinstance(name, str):
                raise error(file, key, str(name), "a key must be text; put it in quotes")
            _refuse_odd_values(file, (*key, name), inner)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _refuse_odd_values(file, (*key, index), inner)


@cache
def schema(name: str) -> dict[str, Any]:
    """Return the schema ``workflow/schemas/<name>.schema.yaml``."""
    content = read_yaml(SCHEMAS / f"{name}.schema.yaml")
    Draft202012Validator.check_schema(content)
    return content


# An integer is an integer: JSON Schema would let 1.0 pass, and a seed of 1.0 is a slip.
_Validator = validators.extend(
    Draft202012Validator,
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine(
        "integer", lambda _, value: isinstance(value, int) and not isinstance(value, bool)
    ),
)


def check(value: Any, against: Mapping[str, Any], file: Path | str, key: Key = ()) -> None:
    """Raise `ConfigError` on the first place where ``value``, found in ``file`` at ``key``, breaks a schema."""
    errors = sorted(_Validator(against).iter_errors(value), key=lambda problem: list(map(str, problem.path)))
    if errors:
        raise _in_one_line(errors[0], file, tuple(key))


def _in_one_line(problem: ValidationError, file: Path | str, key: tuple[str | int, ...]) -> ConfigError:
    where = (*key, *problem.absolute_path)
    value, rule, limit = problem.instance, problem.validator, problem.validator_value
    constraint = problem.schema if isinstance(problem.schema, Mapping) else {}
    about = constraint.get("description", "")
    if rule == "additionalProperties":
        known = constraint.get("properties", {})
        unknown = next(name for name in value if name not in known)
        return error(file, (*where, unknown), value[unknown], f"unknown key; {did_you_mean(unknown, known)}")
    if rule == "required":
        missing = next(name for name in limit if name not in value)
        about = constraint.get("properties", {}).get(missing, {}).get("description", "")
        return error(file, where, value, f"the key '{missing}' is missing{f': {about}' if about else ''}")
    match rule:
        case "type":
            kinds = [limit] if isinstance(limit, str) else limit
            must = "must be " + " or ".join(_KINDS[kind] for kind in kinds)
        case "enum":
            must = f"must be one of the known values; {did_you_mean(value, map(str, limit))}"
        case "minimum":
            must = f"must be at least {limit}"
        case "exclusiveMinimum":
            must = f"must be greater than {limit}"
        case "maximum":
            must = f"must be at most {limit}"
        case "exclusiveMaximum":
            must = f"must be less than {limit}"
        case "uniqueItems":
            must = "must not hold the same value twice"
        case "minItems" | "minProperties" | "minLength":
            must = "must not be empty"
        case _:
            must = f"must be {about}" if about else f"breaks the rule {rule}: {limit}"
            about = ""
    return error(file, where, value, f"{must}{f': {about}' if about else ''}")


def with_defaults(value: Mapping[str, Any], against: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checked mapping with its schema's defaults filled in, and 1 as 1.0 where a number is due."""
    filled = {}
    for name, constraint in against.get("properties", {}).items():
        if name in value or "default" in constraint:
            given = value.get(name, constraint.get("default"))
            real = constraint.get("type") == "number" and isinstance(given, int)
            filled[name] = float(given) if real else given
    return {**value, **filled}


_KINDS: Final = {
    "integer": "an integer",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "null",
}
