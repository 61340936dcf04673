"""The optimizer that is audited: how it is built, and the texts of scripts that are run on it.

A property is a script of a few lines. The audit executes the very text that a failure prints, so that a failure is
always one that its reproducer shows.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, get_type_hints

import torch
from torch import Tensor
from torch.optim import Optimizer

import baselines
from baselines.audit.scripts import SCRIPT, TASKS, Task, here, in_process, one_line
from baselines.audit.verdicts import Verdict, held, inapplicable
from mkor_core import Method
from mkor_core.method import FollowsLoss

LONGEST_REPRODUCER = 20
"""Lines of a reproducer."""


class BadSubject(ValueError):
    """What cannot be audited; the message is one line."""


@dataclass(frozen=True)
class Hyperparameter:
    """An argument of the optimizer: its default, and the annotation, which is None if there is none."""

    default: Any
    hint: Any


class Subject:
    """An optimizer to audit.

    Args:
        target: ``package.module:Class`` of a `torch.optim.Optimizer` or of a `mkor_core.Method`, which preconditions
            SGD, or the file name of one of the harness's optimizers (`baselines.available`).
        hyperparameters: arguments in place of the defaults.

    Raises:
        BadSubject: there is no such class, or it trains none of the audit's models.
    """

    def __init__(self, target: str, hyperparameters: Mapping[str, Any] | None = None) -> None:
        self.target = target
        self.given = dict(hyperparameters or {})
        self._resolve()
        self._find_task()

    def __str__(self) -> str:
        return self.target

    def _resolve(self) -> None:
        """Set what depends on the kind of the target."""
        module_name, _, name = self.target.partition(":")
        if not name:
            try:
                self.method = baselines.method_class(module_name)
                module = baselines.module_of(module_name)
            except (ValueError, ModuleNotFoundError) as error:
                raise BadSubject(f"{error} Or give package.module:Class.") from error
            self.kind: Literal["optimizer", "method", "harness"] = "harness"
            self.imports = "from baselines import build"
            self.signature = _harness_signature(module, self.method)
            self.given.setdefault("lr", 0.05)
            return
        try:
            found = importlib.import_module(module_name)
            cls = getattr(found, name)
        except Exception as error:  # a module may raise whatever it likes
            raise BadSubject(f"{self.target} cannot be imported: {one_line(error)}") from error
        self.cls = cls
        self.imports = f"from {module_name} import {name}"
        if inspect.isclass(cls) and issubclass(cls, Method):
            self.kind, self.method = "method", cls
            self.imports += "\nfrom mkor_core import Preconditioner"
            self.signature = _method_signature(cls)
        elif inspect.isclass(cls) and issubclass(cls, Optimizer):
            self.kind, self.method = "optimizer", None
            self.signature = _optimizer_signature(cls)
            if "lr" in self.signature and self.signature["lr"].default is inspect.Parameter.empty:
                self.given.setdefault("lr", 0.01)
        else:
            raise BadSubject(f"{self.target} is neither a torch.optim.Optimizer nor a mkor_core.Method.")

    def _find_task(self) -> None:
        """Choose the model, whether steps take a closure, and a learning rate at which the weights stay finite."""
        follows = self.method is not None and issubclass(self.method, FollowsLoss)
        errors = []
        for task in TASKS:
            for by_closure in (True,) if follows else (False, True):
                self.task, self.by_closure = task, by_closure
                self._forget()
                try:
                    with self.at_work():
                        finite = self.train(*self.new(), range(30)).isfinite().all()
                        for divisor in () if finite or not self.lr else (10, 100, 1000):
                            rate = self.lr / divisor
                            if self.train(*self.new(lr=rate), range(30)).isfinite().all():
                                self.given["lr"] = rate
                                self._forget()
                                break
                    return
                except Exception as error:  # noqa: BLE001  (whatever the optimizer raises says why it does not train)
                    errors.append(one_line(error))
        raise BadSubject(f"{self.target} trains none of the audit's models: {errors[0]}")

    def _forget(self) -> None:
        for name in ("_functions", "is_repeatable", "draws", "moves_early", "rounding", "_has_hooks"):
            self.__dict__.pop(name, None)

    @property
    def lr(self) -> float:
        """The learning rate, 0 if there is none that is a number."""
        if self.kind == "method":
            return 0.05
        value = self.given.get("lr", self.signature["lr"].default if "lr" in self.signature else None)
        return float(value) if isinstance(value, float | int) else 0.0

    @property
    def is_plain(self) -> bool:
        """Whether it works on parameters and gradients alone, without hooks in the model."""
        return self.method is None and not self._has_hooks

    @cached_property
    def _has_hooks(self) -> bool:
        model, _ = self.new()
        return any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())

    @property
    def is_class(self) -> bool:
        """Whether it is a class that takes parameter groups."""
        return self.kind == "optimizer"

    @property
    def takes_dense(self) -> bool:
        """Whether gradients are dense."""
        return self.task is not TASKS[2]

    def value(self, name: str) -> Any:
        """Return the value of a hyperparameter in this audit."""
        return self.given.get(name, self.signature[name].default)

    # The text of a script.

    def construct(self, parameters: str, changes: str = "") -> str:
        """Return the expression that makes an optimizer of a class for parameters."""
        if changes:
            return f"{self.cls.__name__}({parameters}, **{{{_keywords(self.given)}{changes}}})"
        return f"{self.cls.__name__}({', '.join([parameters, *(f'{k}={v!r}' for k, v in self.given.items())])})"

    def text(self, body: str, imports: str = "torch", task: Task | None = None) -> str:
        """Return a script: imports, the functions ``new`` and ``train`` that the body uses, and the body."""
        chosen = task or self.task
        body = textwrap.dedent(body).strip("\n")
        own = body.replace("{batch}", chosen.batch).replace("{loss}", chosen.loss)
        parts = [f"import {imports}", self.imports]
        if "new(" in own:
            parts.append(self._new_text(chosen))
        if "train(" in own:
            parts.append(self._train_text(chosen))
        return "\n".join([*parts, own, ""])

    def _new_text(self, task: Task) -> str:
        lines = ["torch.manual_seed(0)", f"model = wrap({task.model}.to(dtype))"]
        if self.kind == "optimizer":
            lines.append(f"return model, {self.construct('model.parameters()', '**changes')}")
        elif self.kind == "harness":
            lines.append(f'return model, build("{self.target}", model, {{{_keywords(self.given)}**changes}})[0]')
        else:
            assert self.method is not None
            lines.append('optimizer = torch.optim.SGD(model.parameters(), lr=changes.pop("lr", 0.05))')
            method = f"{self.method.__name__}(**{{{_keywords(self.given)}**changes}})"
            lines += [f"Preconditioner(model, {method}).attach(optimizer)", "return model, optimizer"]
        return _function("new(wrap=lambda model: model, dtype=torch.float32, **changes)", lines)

    def _train_text(self, task: Task) -> str:
        loop = [f"x = {task.batch}[rows]"]
        if self.by_closure:
            loop += [
                "def closure():",
                "    optimizer.zero_grad()",
                f"    (loss := scale * {task.loss}).backward()",
                "    return loss",
                "optimizer.step(closure)",
            ]
        else:
            loop += ["optimizer.zero_grad()", f"(scale * {task.loss}).backward()", "optimizer.step()"]
        lines = ["for step in steps:", *(f"    {line}" for line in loop)]
        lines.append("return torch.cat([w.flatten() for w in model.state_dict().values()])")
        return _function("train(model, optimizer, steps, scale=1.0, rows=slice(None))", lines)

    # What a script does.

    def functions(self, task: Task | None = None) -> tuple[Callable[..., Any], Callable[..., Tensor]]:
        """Return a script's functions ``new`` and ``train``, of this task or another one."""
        chosen = task or self.task
        if chosen.name not in self._functions:
            found: dict[str, Any] = {}
            text = ["import torch", self.imports, self._new_text(chosen), self._train_text(chosen)]
            exec(compile("\n".join(text), SCRIPT, "exec"), found)
            self._functions[chosen.name] = found["new"], found["train"]
        return self._functions[chosen.name]

    @cached_property
    def _functions(self) -> dict[str, tuple[Callable[..., Any], Callable[..., Tensor]]]:
        return {}

    def new(self, *wrap: Any, **changes: Any) -> tuple[torch.nn.Module, Optimizer]:
        """Return a model and its optimizer, as a script's ``new`` does."""
        made: tuple[torch.nn.Module, Optimizer] = self.functions()[0](*wrap, **changes)
        return made

    def train(self, model: torch.nn.Module, optimizer: Optimizer, steps: Any, scale: float = 1.0) -> Tensor:
        """Train as a script's ``train`` does, and return all weights as a vector."""
        return self.functions()[1](model, optimizer, steps, scale)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Run what is inside on one thread, without warnings or output, and leave torch's random numbers alone."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with (
                torch.random.fork_rng(devices=[]),
                warnings.catch_warnings(),
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()),
            ):
                warnings.simplefilter("ignore")
                yield
        finally:
            torch.set_num_threads(threads)

    @cached_property
    def is_repeatable(self) -> bool:
        """Whether two runs from one seed give the same bits."""
        try:
            return torch.equal(self.train(*self.new(), range(12)), self.train(*self.new(), range(12)))
        except Exception:  # noqa: BLE001  (then a second optimizer is not like the first)
            return False

    @cached_property
    def rounding(self) -> float:
        """The relative change that rounding can make: 100 times that of a loss scaled by 1 + 2^-50, or 10 by 1 + 2^-22.

        Parameters are float64, but an optimizer may add up norms, or count steps, in float32. At least 1e-5.
        """
        try:
            start = self.train(*self.new(dtype=torch.float64), [])
            plain = self.train(*self.new(dtype=torch.float64), range(12)) - start
            others = [
                (factor, self.train(*self.new(dtype=torch.float64), range(12), 1 + change) - start)
                for factor, change in ((100, 2.0**-50), (10, 2.0**-22))
            ]
        except Exception:  # noqa: BLE001  (a script in float64 will say why)
            return 1e-5
        length = plain.norm().clamp(min=1e-300)
        return max(1e-5, *(factor * float((other - plain).norm() / length) for factor, other in others))

    @cached_property
    def moves_early(self) -> bool:
        """Whether the first steps in float64 move weights, to finite values."""
        try:
            start, end = (self.train(*self.new(dtype=torch.float64), range(steps)) for steps in (0, 6))
        except Exception:  # noqa: BLE001  (a script in float64 will say why)
            return True
        return bool(end.isfinite().all()) and not torch.equal(start, end)

    @cached_property
    def draws(self) -> bool:
        """Whether the first steps draw from torch's global random numbers."""
        model, optimizer = self.new()
        for step in range(4):
            self.train(model, optimizer, [step])
            after = torch.get_rng_state()
            self.train(model, torch.optim.SGD(model.parameters(), lr=0.0), [step])
            if not torch.equal(after, torch.get_rng_state()):
                return True
        return False

    @property
    def tolerance(self) -> str:
        """`rounding` as a short literal, rounded up to a power of ten."""
        return f"1e{int(torch.tensor(self.rounding).log10().ceil())}"

    def holds(
        self,
        body: str,
        imports: str = "torch",
        *,
        error: Literal["refused", "failed"] = "refused",
        compares: Literal["bits", "numbers", "nothing"] = "bits",
        in_processes: bool = False,
        task: Task | None = None,
    ) -> Verdict:
        """Run a script and return whether its assertions held.

        Args:
            body: the script after ``new`` and ``train``; ``{batch}`` and ``{loss}`` stand for the task's.
            imports: what follows ``import``.
            error: what an exception means: that the optimizer refuses the use, which is right, or a failure.
            compares: what the assertion compares: bits need runs that repeat themselves, and numbers runs in which
                rounding does not grow; otherwise a failure is none of the property's.
            in_processes: whether the script is run in a process of its own.
            task: another task than that of the subject.
        """
        script = self.text(body, imports, task)
        found, message = in_process(script) if in_processes else here(script)
        if found == "held":
            return held()
        if found == "raised" and error == "refused":
            return inapplicable(f"refused: {message}")
        if compares != "nothing" and not self.is_repeatable:
            return inapplicable("two equal runs differ (same bits).")
        if compares == "numbers" and not self.moves_early:
            return inapplicable("its first steps move no weight, or none to a finite one.")
        if compares == "numbers" and self.draws:
            return inapplicable("its steps draw random numbers, in the order of parameters.")
        if compares == "numbers" and self.rounding > 1e-2:
            return inapplicable(f"rounding alone may change the steps by a share of {self.rounding:.1g}.")
        return Verdict("failed", message, script)


def _function(head: str, lines: list[str]) -> str:
    return "\n".join([f"def {head}:", *(f"    {line}" for line in lines)])


def _keywords(values: Mapping[str, Any]) -> str:
    """Return the entries of a dictionary's display, each followed by a comma."""
    return "".join(f'"{key}": {value!r}, ' for key, value in values.items())


def _hints(owner: Any) -> dict[str, Any]:
    try:
        return get_type_hints(owner, include_extras=True)
    except Exception:  # noqa: BLE001  (annotations that cannot be evaluated are as good as none)
        return {}


def _optimizer_signature(cls: type[Optimizer]) -> dict[str, Hyperparameter]:
    """Return a class's arguments, and where they are passed on as ``**keywords``, those of its bases."""
    found: dict[str, Hyperparameter] = {}
    for base in cls.__mro__[: cls.__mro__.index(Optimizer)]:
        if "__init__" not in vars(base):
            continue
        made = vars(base)["__init__"]
        hints = _hints(made)
        parameters = [*inspect.signature(made).parameters.values()][2:]  # without self and the parameters
        named = [one for one in parameters if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)]
        found = {one.name: Hyperparameter(one.default, hints.get(one.name)) for one in named} | found
        if not any(one.kind is one.VAR_KEYWORD for one in parameters):
            break
    return found


def _method_signature(cls: type[Method]) -> dict[str, Hyperparameter]:
    hints = _hints(cls)
    return {field.name: Hyperparameter(field.default, hints.get(field.name)) for field in fields(cls)}


def _harness_signature(module: Any, method: type[Method] | None) -> dict[str, Hyperparameter]:
    if method is not None:
        return {**_method_signature(method), "lr": Hyperparameter(0.05, float)}
    make = getattr(module, "optimizer", None) or module.optimizer_for
    hints = _hints(make)
    parameters = inspect.signature(make).parameters.values()
    return {
        one.name: Hyperparameter(0.05 if one.name == "lr" else one.default, hints.get(one.name))
        for one in parameters
        if one.kind is one.KEYWORD_ONLY
    }
