"""Mutants of a Python file: each changes one operator, constant, condition, return value or statement.

Annotations, docstrings, f-strings, the arguments of ``raise`` and of loggers, assertions, imports and ``dataclass``
decorators are left alone: they describe the program, or no test can notice a change.
"""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

SWAPS: dict[type[ast.AST], tuple[str, type[ast.AST], str]] = {
    ast.Lt: ("<", ast.LtE, "<="),
    ast.LtE: ("<=", ast.Lt, "<"),
    ast.Gt: (">", ast.GtE, ">="),
    ast.GtE: (">=", ast.Gt, ">"),
    ast.Eq: ("==", ast.NotEq, "!="),
    ast.NotEq: ("!=", ast.Eq, "=="),
    ast.Is: ("is", ast.IsNot, "is not"),
    ast.IsNot: ("is not", ast.Is, "is"),
    ast.In: ("in", ast.NotIn, "not in"),
    ast.NotIn: ("not in", ast.In, "in"),
    ast.And: ("and", ast.Or, "or"),
    ast.Or: ("or", ast.And, "and"),
    ast.Add: ("+", ast.Sub, "-"),
    ast.Sub: ("-", ast.Add, "+"),
    ast.Mult: ("*", ast.Div, "/"),
    ast.Div: ("/", ast.Mult, "*"),
    ast.FloorDiv: ("//", ast.Div, "/"),
    ast.Mod: ("%", ast.Div, "/"),
    ast.Pow: ("**", ast.Mult, "*"),
    ast.MatMult: ("@", ast.Mult, "*"),
    ast.BitAnd: ("&", ast.BitOr, "|"),
    ast.BitOr: ("|", ast.BitAnd, "&"),
}
CALLS = {"max": "min", "any": "all", "amax": "amin", "maximum": "minimum", "argmax": "argmin", "floor": "ceil"}
CALLS |= {new: old for old, new in CALLS.items()}
STATEMENTS = {ast.Raise: "pass", ast.Break: "continue", ast.Continue: "break"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
TEXT_CALLS = ("logger", "warnings")


class Key(NamedTuple):
    """Identifies a mutant, however lines are shifted."""

    module: str
    """The file's path from the root."""
    function: str
    """The qualified name of the function or class around the change; empty at the top of the module."""
    source: str
    """The text of the line in which the changed expression starts."""
    change: str
    """Such as ``< -> <=``; a second equal change in the same line of source is ``< -> <= (2)``."""


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    key: Key
    package: str
    """The configured folder, in which the file is, at any depth."""
    line: int
    statement: frozenset[int]
    """The lines of the statement, without those of the statements inside it."""
    top_level: bool
    """Whether the change is outside of every function."""
    span: tuple[int, int]
    """The bytes that are replaced."""
    replacement: str

    @property
    def module(self) -> str:
        """The file's path from the root."""
        return self.key.module

    @property
    def place(self) -> str:
        """The file and line."""
        return f"{self.module}:{self.line}"

    def __str__(self) -> str:
        return f"{self.place}: {self.key.change}: {self.key.source}"

    def apply(self, text: str) -> str:
        """Return the module's text with the change, its other lines where they were."""
        encoded, (start, end) = text.encode(), self.span
        lines_kept = encoded[start:end].count(b"\n") - self.replacement.count("\n")
        replacement = self.replacement
        if lines_kept > 0:
            at = len(replacement) - replacement.endswith(")")
            replacement = replacement[:at] + "\n" * lines_kept + replacement[at:]
        return (encoded[:start] + replacement.encode() + encoded[end:]).decode()


def mutants(root: Path, package: str, module: str) -> list[Mutant]:
    """Return all mutants of a package's file that compile, in the order of the syntax tree."""
    finder = _Finder(package, module, (root / module).read_text(encoding="utf-8"))
    finder.body(ast.parse(finder.text).body, "", top_level=True)
    return [mutant for mutant in finder.found if _compiles(mutant.apply(finder.text))]


def _compiles(text: str) -> bool:
    try:
        compile(text, "mutant", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


class _Finder:
    def __init__(self, package: str, module: str, text: str) -> None:
        self.package, self.module, self.text = package, module, text
        self.found: list[Mutant] = []
        self.seen: Counter[tuple[str, str, str]] = Counter()
        self.function, self.top_level, self.lines = "", True, frozenset[int]()

    @cached_property
    def starts(self) -> list[int]:
        lines = self.text.encode().splitlines(keepends=True)
        return [0, *accumulate(len(line) for line in lines)]

    def add(self, node: Any, change: str, replacement: ast.AST | str) -> None:
        text = replacement if isinstance(replacement, str) else f"({ast.unparse(replacement)})"
        source = self.text.splitlines()[node.lineno - 1].strip()
        self.seen[self.function, source, change] += 1
        if (number := self.seen[self.function, source, change]) > 1:
            change = f"{change} ({number})"
        span = (
            self.starts[node.lineno - 1] + node.col_offset,
            self.starts[node.end_lineno - 1] + node.end_col_offset,
        )
        lines = self.lines | frozenset(range(node.lineno, node.end_lineno + 1))
        key = Key(self.module, self.function, source, change)
        self.found.append(Mutant(key, self.package, node.lineno, lines, self.top_level, span, text))

    def body(self, statements: list[ast.stmt], function: str, *, top_level: bool) -> None:
        for statement in statements:
            self.function, self.top_level = function, top_level
            inner = [node for node in ast.walk(statement) if isinstance(node, ast.stmt) and node is not statement]
            last = min((node.lineno - 1 for node in inner), default=statement.end_lineno or 0)
            self.lines = frozenset(range(statement.lineno, max(last, statement.lineno) + 1))
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        function, top_level = self.function, self.top_level
        if isinstance(node, FUNCTIONS) and any(ast.unparse(line) == "overload" for line in node.decorator_list):
            return
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Assert) or _is_alias(node, top_level):
            return
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "not TYPE_CHECKING"):
            return
        if replacement := STATEMENTS.get(type(node)):
            self.add(node, f"{type(node).__name__.lower()} -> {replacement}", replacement)
        if isinstance(node, ast.Raise):
            return
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            self.add(node, "call -> pass", "pass")
        if isinstance(node, ast.Return) and node.value and not isinstance(node.value, ast.Constant):
            self.add(node, "return -> return None", "return None")
        if isinstance(node, ast.AugAssign) and type(node.op) in SWAPS:
            old, new, sign = SWAPS[type(node.op)]
            change = ast.AugAssign(node.target, new(), node.value)
            self.add(node, f"{old}= -> {sign}=", ast.unparse(change))
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.stmt):
                self.expression(child, node)
        name = getattr(node, "name", None)
        inside = f"{function}.{name}".strip(".") if name else function
        blocks = [getattr(node, block, []) for block in ("body", "orelse", "finalbody")]
        blocks += [part.body for block in ("handlers", "cases") for part in getattr(node, block, [])]
        for block in blocks:
            self.body(block, inside, top_level=top_level and not isinstance(node, FUNCTIONS))

    def expression(self, node: ast.AST, parent: ast.AST) -> None:
        if isinstance(node, ast.JoinedStr) or _is_type(node, parent) or _is_text(node, parent):
            return
        if node is getattr(parent, "test", None) and not isinstance(parent, ast.Assert):
            self.condition(node)
        for test in (*getattr(node, "ifs", ()), getattr(node, "guard", None)):
            self.condition(test)
        self.operator(node)
        if isinstance(node, ast.Constant):
            self.constant(node, parent)
        if isinstance(node, ast.Slice):
            for bound, which in ((node.lower, "lower"), (node.upper, "upper")):
                if bound is not None and not isinstance(bound, ast.Constant):
                    self.add(bound, f"{which} bound -> none", "")
        # The texts of a tuple that a value is compared with count as compared.
        compared = isinstance(parent, ast.Compare) and isinstance(node, ast.Tuple | ast.List)
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.stmt):
                self.expression(child, parent if compared else node)

    def condition(self, test: ast.AST | None) -> None:
        decided = (ast.Compare, ast.BoolOp, ast.Constant)
        if isinstance(test, ast.expr) and not isinstance(test, decided) and not _is_not(test):
            self.add(test, "condition -> not", f"(not ({ast.unparse(test)}))")

    def operator(self, node: ast.AST) -> None:
        if isinstance(node, ast.Compare):
            for place, operator in enumerate(node.ops):
                old, new, sign = SWAPS[type(operator)]
                ops: Any = [*node.ops[:place], new(), *node.ops[place + 1 :]]
                self.add(node, f"{old} -> {sign}", ast.Compare(node.left, ops, node.comparators))
        elif isinstance(node, ast.BoolOp):
            old, new, sign = SWAPS[type(node.op)]
            self.add(node, f"{old} -> {sign}", ast.BoolOp(new(), node.values))
        elif isinstance(node, ast.BinOp) and type(node.op) in SWAPS and not _joins_text(node):
            old, new, sign = SWAPS[type(node.op)]
            self.add(node, f"{old} -> {sign}", ast.BinOp(node.left, new(), node.right))
        elif isinstance(node, ast.UnaryOp):
            sign = {ast.Not: "not", ast.USub: "-", ast.Invert: "~", ast.UAdd: "+"}[type(node.op)]
            self.add(node, f"{sign} -> nothing", node.operand)
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if new_name := CALLS.get(name):
                function = (
                    ast.Attribute(node.func.value, new_name, ast.Load())
                    if isinstance(node.func, ast.Attribute)
                    else ast.Name(new_name, ast.Load())
                )
                self.add(node, f"{name} -> {new_name}", ast.Call(function, node.args, node.keywords))

    def constant(self, node: ast.Constant, parent: ast.AST) -> None:
        if isinstance(node.value, bool):
            if not (isinstance(parent, ast.keyword) and parent.arg == "strict"):
                self.add(node, f"{node.value} -> {not node.value}", ast.Constant(not node.value))
        elif isinstance(node.value, int | float):
            self.add(node, f"{node.value} -> {node.value + 1}", ast.Constant(node.value + 1))
        elif isinstance(node.value, str) and _selects(node, parent):
            self.add(node, f"{node.value!r} -> {'XX' + node.value!r}", ast.Constant("XX" + node.value))


def _is_not(node: ast.AST) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def _is_type(node: ast.AST, parent: ast.AST) -> bool:
    if node in (getattr(parent, "annotation", None), getattr(parent, "returns", None)):
        return True
    if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "dataclass":
        return True
    if isinstance(parent, ast.Call) and getattr(parent.func, "id", None) in ("isinstance", "issubclass"):
        return isinstance(node, ast.BinOp)
    return isinstance(node, ast.Subscript) and getattr(node.value, "id", None) in ("Literal", "Annotated")


def _is_alias(node: ast.stmt, top_level: bool) -> bool:
    value = getattr(node, "value", None) if top_level and isinstance(node, ast.Assign) else None
    return isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr)


def _is_text(node: ast.AST, parent: ast.AST) -> bool:
    return (
        isinstance(parent, ast.Call)
        and node is not parent.func
        and isinstance(parent.func, ast.Attribute)
        and getattr(parent.func.value, "id", None) in TEXT_CALLS
    )


def _joins_text(node: ast.BinOp) -> bool:
    parts = (node.left, node.right)
    return any(
        isinstance(part, ast.JoinedStr) or (isinstance(part, ast.Constant) and isinstance(part.value, str))
        for part in parts
    )


def _selects(node: ast.Constant, parent: ast.AST) -> bool:
    """Whether text is compared with, or is a key: not one that only a person reads."""
    if isinstance(parent, ast.Dict):
        return node in parent.keys
    return isinstance(parent, ast.Compare | ast.Subscript | ast.MatchValue | ast.Set)
