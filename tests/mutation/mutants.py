"""Mutants of a Python file: each changes one operator, constant, condition, return value or statement.

Annotations, docstrings, f-strings, the arguments of ``raise`` and of loggers, assertions, imports and ``dataclass``
decorators are left alone: they describe the program, or no test can notice a change.
"""

from __future__ import annotations

import ast
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
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
UNARY = {ast.Not: "not", ast.USub: "-", ast.Invert: "~", ast.UAdd: "+"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


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

    def __str__(self) -> str:
        return f"{self.module}:{self.line}: {self.key.change}: {self.key.source}"

    def apply(self, text: str) -> str:
        """Return the module's text with the change, its other lines where they were."""
        encoded, (start, end), replacement = text.encode(), self.span, self.replacement
        lines_kept = encoded[start:end].count(b"\n") - replacement.count("\n")
        at = len(replacement) - replacement.endswith(")")
        replacement = replacement[:at] + "\n" * lines_kept + replacement[at:]
        return (encoded[:start] + replacement.encode() + encoded[end:]).decode()


def mutants(root: Path, package: str, module: str, *, compiles: bool = True) -> list[Mutant]:
    """Return all mutants of a package's file, in the order of the syntax tree; compiles: only those that compile."""
    finder = _Finder(package, module, (root / module).read_text(encoding="utf-8"))
    finder.body(ast.parse(finder.text).body, "", top_level=True)
    if not compiles:
        return finder.found
    found = []
    for mutant in finder.found:
        with suppress(SyntaxError):
            compile(mutant.apply(finder.text), "mutant", "exec", dont_inherit=True)
            found.append(mutant)
    return found


class _Finder:
    def __init__(self, package: str, module: str, text: str) -> None:
        self.package, self.module, self.text = package, module, text
        self.starts = [0, *accumulate(len(line) for line in text.encode().splitlines(keepends=True))]
        self.found: list[Mutant] = []
        self.seen: Counter[tuple[str, str, str]] = Counter()
        self.function, self.top_level, self.lines = "", True, frozenset[int]()

    def add(self, node: Any, change: str, replacement: ast.AST | str) -> None:
        text = replacement if isinstance(replacement, str) else f"({ast.unparse(replacement)})"
        source = self.text.splitlines()[node.lineno - 1].strip()
        self.seen[self.function, source, change] += 1
        if (number := self.seen[self.function, source, change]) > 1:
            change = f"{change} ({number})"
        start = self.starts[node.lineno - 1] + node.col_offset
        end = self.starts[node.end_lineno - 1] + node.end_col_offset
        lines = self.lines | frozenset(range(node.lineno, node.end_lineno + 1))
        key = Key(self.module, self.function, source, change)
        self.found.append(Mutant(key, self.package, node.lineno, lines, self.top_level, (start, end), text))

    def body(self, statements: list[ast.stmt], function: str, *, top_level: bool) -> None:
        for statement in statements:
            self.function, self.top_level = function, top_level
            inner = [node for node in ast.walk(statement) if isinstance(node, ast.stmt) and node is not statement]
            last = min((node.lineno - 1 for node in inner), default=statement.end_lineno or 0)
            self.lines = frozenset(range(statement.lineno, max(last, statement.lineno) + 1))
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        function, top_level = self.function, self.top_level
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Assert) or _describes(node, top_level):
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
            self.add(node, f"{old}= -> {sign}=", ast.unparse(ast.AugAssign(node.target, new(), node.value)))
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
        tests = [*getattr(node, "ifs", ()), getattr(node, "guard", None)]
        tests += [node] if node is getattr(parent, "test", None) else []
        for test in tests:
            decided = isinstance(test, ast.Compare | ast.BoolOp | ast.Constant)
            negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
            if isinstance(test, ast.expr) and not decided and not negated:
                self.add(test, "condition -> not", f"(not ({ast.unparse(test)}))")
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

    def operator(self, node: ast.AST) -> None:
        if isinstance(node, ast.Compare):
            for place, operator in enumerate(node.ops):
                old, new, sign = SWAPS[type(operator)]
                ops: Any = [*node.ops[:place], new(), *node.ops[place + 1 :]]
                self.add(node, f"{old} -> {sign}", ast.Compare(node.left, ops, node.comparators))
        elif isinstance(node, ast.BoolOp):
            old, new, sign = SWAPS[type(node.op)]
            self.add(node, f"{old} -> {sign}", ast.BoolOp(new(), node.values))
        elif isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
            if not any(isinstance(part, ast.JoinedStr) or _is_string(part) for part in (node.left, node.right)):
                old, new, sign = SWAPS[type(node.op)]
                self.add(node, f"{old} -> {sign}", ast.BinOp(node.left, new(), node.right))
        elif isinstance(node, ast.UnaryOp):
            self.add(node, f"{UNARY[type(node.op)]} -> nothing", node.operand)
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if new_name := CALLS.get(name):
                owner = f"{ast.unparse(node.func.value)}." if isinstance(node.func, ast.Attribute) else ""
                function = ast.Name(f"{owner}{new_name}", ast.Load())
                self.add(node, f"{name} -> {new_name}", ast.Call(function, node.args, node.keywords))

    def constant(self, node: ast.Constant, parent: ast.AST) -> None:
        if isinstance(node.value, bool):
            if not (isinstance(parent, ast.keyword) and parent.arg == "strict"):
                self.add(node, f"{node.value} -> {not node.value}", ast.Constant(not node.value))
        elif isinstance(node.value, int | float):
            self.add(node, f"{node.value} -> {node.value + 1}", ast.Constant(node.value + 1))
        elif isinstance(node.value, str):
            # Texts that are compared, or are keys: not those that only a person reads.
            is_key = isinstance(parent, ast.Dict) and node in parent.keys
            if is_key or isinstance(parent, ast.Compare | ast.Subscript | ast.MatchValue | ast.Set):
                self.add(node, f"{node.value!r} -> {'XX' + node.value!r}", ast.Constant("XX" + node.value))


def _is_string(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _describes(node: ast.stmt, top_level: bool) -> bool:
    """Return whether a statement is for type checkers alone: an overload, an alias of types, or their imports."""
    if isinstance(node, FUNCTIONS):
        return any(ast.unparse(line) == "overload" for line in node.decorator_list)
    if isinstance(node, ast.If):
        return ast.unparse(node.test) in ("TYPE_CHECKING", "not TYPE_CHECKING")
    value = node.value if top_level and isinstance(node, ast.Assign) else None
    return isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr)


def _is_type(node: ast.AST, parent: ast.AST) -> bool:
    if node in (getattr(parent, "annotation", None), getattr(parent, "returns", None)):
        return True
    if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "dataclass":
        return True
    if isinstance(parent, ast.Call) and getattr(parent.func, "id", None) in ("isinstance", "issubclass"):
        return isinstance(node, ast.BinOp)
    return isinstance(node, ast.Subscript) and getattr(node.value, "id", None) in ("Literal", "Annotated")


def _is_text(node: ast.AST, parent: ast.AST) -> bool:
    """Return whether a node is an argument of a logger or a warning."""
    if not isinstance(parent, ast.Call) or node is parent.func or not isinstance(parent.func, ast.Attribute):
        return False
    return getattr(parent.func.value, "id", None) in ("logger", "warnings")
