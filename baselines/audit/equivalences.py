"""Properties of one optimizer told in two ways: groups, implementations, compilation, ranks and shards."""

from __future__ import annotations

from typing import Any

import baselines
from baselines.audit.declared import Theme
from baselines.audit.subject import Subject
from baselines.audit.verdicts import Verdict, inapplicable

THEME = Theme()

NEEDS_CLASS = "only a class takes groups of parameters."
OPTIONS: tuple[str, ...] = ("lr", "weight_decay", "momentum", "betas", "eps")
"""Hyperparameters that groups get values of their own for."""


def _group_values(subject: Subject) -> dict[str, Any]:
    """Return other values of hyperparameters that a group can have, each accepted."""
    found: dict[str, Any] = {}
    for name in OPTIONS:
        if name not in subject.signature:
            continue
        own = subject.value(name)
        if name == "betas" and isinstance(own, tuple | list) and all(isinstance(beta, float) for beta in own):
            found[name] = type(own)(0.9 * beta for beta in own)
        elif isinstance(own, float | int) and not isinstance(own, bool):
            found[name] = 0.8 * own if own else 0.05
    for name in [*found]:
        try:
            model, optimizer = subject.new(**{name: found[name]})
            if name not in optimizer.param_groups[0]:
                raise KeyError(name)
            subject.train(model, optimizer, range(2))
        except Exception:  # noqa: BLE001  (this value is not for use)
            del found[name]
    return found


def _no_groups(subject: Subject) -> Verdict | None:
    if not subject.is_class:
        return inapplicable(NEEDS_CLASS)
    if subject.by_closure or not subject.takes_dense:
        return inapplicable("it needs a closure or sparse gradients.")
    return None


def _groups(subject: Subject, settings: dict[str, dict[str, Any]]) -> Verdict:
    groups = '[{"params": [w], **settings[name]} for name, w in weights.items()]'
    return subject.holds(
        f"""
        def end(names):
            weights = {{name: torch.nn.Parameter(torch.ones(5, 4, dtype=torch.float64)) for name in names}}
            optimizer = {subject.construct(groups)}
            for step in range(8):
                for name, w in weights.items():
                    torch.manual_seed(2 * step + (name == "b"))
                    w.grad = torch.randn(5, 4, dtype=torch.float64)
                optimizer.step()
            return weights
        settings = {settings!r}
        both, apart = end("ab"), {{**end("a"), **end("b")}}
        error = max(((both[n] - apart[n]).norm() / (apart[n] - 1).norm()).item() for n in "ab")
        assert error < {subject.tolerance}, f"two groups move elsewhere than two optimizers, off by {{error:.2g}}"
        """,
        compares="numbers",
    )


@THEME.add
def groups_are_optimizers(subject: Subject) -> Verdict:
    """Two groups with hyperparameters of their own train like two optimizers."""
    if (reason := _no_groups(subject)) is not None:
        return reason
    values = _group_values(subject)
    verdict = _groups(subject, {"a": {}, "b": values})
    if verdict.found == "failed" and _groups(subject, {"a": {}, "b": {}}).found == "failed":
        return inapplicable("it couples all parameters, also with equal hyperparameters.")
    return verdict


@THEME.add
def groups_override_defaults(subject: Subject) -> Verdict:
    """Hyperparameters given in a group train like those given to the optimizer."""
    if (reason := _no_groups(subject)) is not None:
        return reason
    values = _group_values(subject)
    if not values:
        return inapplicable("its groups have none of the usual hyperparameters.")
    groups = f'[{{"params": [*model.parameters()], **{values!r}}}]'
    return subject.holds(
        f"""
        start, plain = (train(*new(dtype=torch.float64, **{values!r}), range(steps)) for steps in (0, 8))
        model, _ = new(dtype=torch.float64)
        optimizer = {subject.construct(groups)}
        error = ((train(model, optimizer, range(8)) - plain).norm() / (plain - start).norm()).item()
        assert error < {subject.tolerance}, f"hyperparameters in the group train elsewhere, off by {{error:.2g}}"
        """,
        compares="numbers",
    )


def _flag(subject: Subject, name: str) -> Verdict:
    if name not in subject.signature:
        return inapplicable(f"it has no {name}.")
    verdict, tolerance = inapplicable(""), max(1e-7, subject.rounding)
    for scale in (1.0, 1e-3, 100.0):
        verdict = subject.holds(
            f"""
            start = train(*new(dtype=torch.float64), [])
            plain = train(*new(dtype=torch.float64, {name}=False), range(8), {scale}) - start
            other = train(*new(dtype=torch.float64, {name}=True), range(8), {scale}) - start
            error = ((other - plain).norm() / plain.norm()).item()
            assert error < {tolerance!r}, f"{name}=True moves weights elsewhere, off by {{error:.2g}}"
            """,
            compares="numbers",
        )
        if verdict.found != "held":
            break
    return verdict


@THEME.add
def foreach_is_the_loop(subject: Subject) -> Verdict:
    """``foreach=True`` trains like the loop over parameters."""
    return _flag(subject, "foreach")


@THEME.add
def fused_is_the_loop(subject: Subject) -> Verdict:
    """``fused=True`` trains like the loop over parameters."""
    return _flag(subject, "fused")


@THEME.add
def capturable_is_the_loop(subject: Subject) -> Verdict:
    """``capturable=True`` trains like the loop over parameters, where the device allows it."""
    return _flag(subject, "capturable")


@THEME.add_slow
def compiled_is_eager(subject: Subject) -> Verdict:
    """A step under ``torch.compile`` (traced, without a code generator) trains like one that is not compiled."""
    if not subject.is_class:
        return inapplicable("hooks and closures of the harness are not compiled.")
    tolerance = max(1e-4, subject.rounding)  # torch.compile counts steps in float32
    return subject.holds(
        f"""
        start, plain = (train(*new(dtype=torch.float64), range(steps)) for steps in (0, 6))
        model, optimizer = new(dtype=torch.float64)
        optimizer.step = torch.compile(optimizer.step, backend="eager")
        error = ((train(model, optimizer, range(6)) - plain).norm() / (plain - start).norm()).item()
        assert error < {tolerance!r}, f"a compiled step moves weights elsewhere, off by {{error:.2g}}"
        """,
        compares="numbers",
        in_processes=True,
    )


def _limit(subject: Subject) -> Verdict | None:
    """Return the reason that a file of the harness gives for not training data-parallel."""
    limits = baselines.limits(subject.target) if subject.kind == "harness" else {}
    return inapplicable(limits["data_parallel"]) if "data_parallel" in limits else None


RANKS = """
    def work(rank, file):
        alone, start = (train(*new(dtype=torch.float64), range(steps)) for steps in (6, 0))
        torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
        TOGETHER
        error = ((together - alone).norm() / (alone - start).norm()).item()
        assert error < TOLERANCE, f"WHAT moves weights elsewhere than one process, off by {error:.2g}"
    torch.multiprocessing.start_processes(work, (tempfile.mktemp(),), 2, start_method="fork")
    """


def _on_ranks(subject: Subject, together: str, what: str) -> Verdict:
    text = RANKS.replace("TOGETHER", together).replace("TOLERANCE", repr(max(1e-7, subject.rounding)))
    return _limit(subject) or subject.holds(
        text.replace("WHAT", what), "tempfile, torch, torch.distributed.fsdp", compares="numbers", in_processes=True
    )


@THEME.add_slow
def ranks_are_one_process(subject: Subject) -> Verdict:
    """Two gloo ranks under DistributedDataParallel, which get half of a batch each, train like one process."""
    wrapped = "new(torch.nn.parallel.DistributedDataParallel, torch.float64)"
    return _on_ranks(subject, f"together = train(*{wrapped}, range(6), rows=slice(rank, None, 2))", "one of two ranks")


@THEME.add_slow
def shards_are_one_process(subject: Subject) -> Verdict:
    """A model under ``fully_shard`` on two ranks trains like one process, or is refused by an error."""
    mesh = 'torch.distributed.init_device_mesh("cpu", (2,))'
    wrap = f"lambda model: torch.distributed.fsdp.fully_shard(model, mesh={mesh})"
    return _on_ranks(
        subject,
        f"together = train(*new({wrap}, torch.float64), range(6), rows=slice(rank, None, 2)).full_tensor()",
        "fully_shard",
    )
