"""Properties of the parameters and gradients that an optimizer meets."""

from __future__ import annotations

from baselines.audit.declared import Theme
from baselines.audit.subject import Subject
from baselines.audit.verdicts import Verdict, held, inapplicable

THEME = Theme()

NEEDS_CLASS = "only a class takes parameters without their model."
NEEDS_DENSE = "its gradients are sparse."
NEEDS_NO_CLOSURE = "it needs a closure, which makes the gradients."


def _reason(subject: Subject, *, plain: bool = False, gradients: bool = False) -> Verdict | None:
    """Return why a script on dense layers does not apply; gradients: it sets them itself, without a closure."""
    if not subject.takes_dense:
        return inapplicable(NEEDS_DENSE)
    if plain and not subject.is_class:
        return inapplicable(NEEDS_CLASS)
    if gradients and subject.by_closure:
        return inapplicable(NEEDS_NO_CLOSURE)
    return None


@THEME.add
def zeroed_gradients_are_as_good_as_none(subject: Subject) -> Verdict:
    """``zero_grad(set_to_none=False)`` trains to the same bits as ``zero_grad()``."""
    return _reason(subject) or subject.holds(
        """
        model, optimizer = new()
        optimizer.zero_grad = functools.partial(optimizer.zero_grad, set_to_none=False)
        change = (train(model, optimizer, range(8)) - train(*new(), range(8))).abs().max().item()
        assert change == 0, f"with zero_grad(set_to_none=False) the weights end {change:.2g} elsewhere"
        """,
        "functools, torch",
    )


@THEME.add
def no_gradients_no_step(subject: Subject) -> Verdict:
    """A step without any gradient leaves the weights as they are."""
    return _reason(subject, gradients=True) or subject.holds(
        """
        model, optimizer = new()
        before = train(model, optimizer, range(4))
        optimizer.zero_grad()
        optimizer.step()
        change = (train(model, optimizer, []) - before).abs().max().item()
        assert change == 0, f"a step without gradients changes the weights by {change:.2g}"
        """
    )


UNUSED = """
    def unused(model):
        model.register_parameter("unused", torch.nn.Parameter(torch.ones(5, 3, dtype=torch.float64)))
        return model
    """


@THEME.add
def unused_parameters_stay(subject: Subject) -> Verdict:
    """A parameter that never gets a gradient keeps its value."""
    return _reason(subject) or subject.holds(
        UNUSED
        + """
    model, optimizer = new(unused, torch.float64)
    train(model, optimizer, range(8))
    assert model.unused.eq(1).all(), f"a parameter without a gradient goes from 1 to {model.unused.mean().item():.6g}"
    """
    )


@THEME.add
def unused_parameters_change_nothing(subject: Subject) -> Verdict:
    """A parameter that never gets a gradient changes no other parameter's steps."""
    return _reason(subject) or subject.holds(
        UNUSED
        + f"""
    start, plain = (train(*new(dtype=torch.float64), range(steps)) for steps in (0, 8))
    error = ((train(*new(unused, torch.float64), range(8))[15:] - plain).norm() / (plain - start).norm()).item()
    assert error < {subject.tolerance}, f"beside an unused parameter the others move elsewhere, off by {{error:.2g}}"
    """,
        compares="numbers",
    )


@THEME.add
def late_parameters_start_afresh(subject: Subject) -> Verdict:
    """A parameter whose first gradient comes late takes the step that a new optimizer takes."""
    if not subject.is_plain:
        return inapplicable("its periods count the steps of all layers.")
    last, entries = ("bias", 4) if subject.task.model.count("False") == 0 else ("weight", 32)
    verdict = _reason(subject) or subject.holds(
        f"""
        model, optimizer = new(dtype=torch.float64)
        model[2].{last}.requires_grad_(False)
        train(model, optimizer, range(6))
        model.requires_grad_(True)
        pairs = (model, optimizer), new(lambda _: copy.deepcopy(model))
        late, first = ((-train(*pair, []) + train(*pair, [6]))[-{entries}:].norm() for pair in pairs)
        assert abs(late - first) <= 1e-3 * first, f"a first step is {{first:.3g}} long, after 6 of others {{late:.3g}}"
        """,
        "copy, torch",
        compares="numbers",
    )
    if verdict.found == "failed" and (counted := _counted(subject)):
        return inapplicable(f"the group counts steps ({counted}), for all its parameters: {verdict.statement}.")
    return verdict


def _counted(subject: Subject) -> str:
    """Return the entries of a parameter group that change while it trains."""
    model, optimizer = subject.new()
    subject.train(model, optimizer, range(1))
    before = {key: str(value) for key, value in optimizer.param_groups[0].items() if key != "params"}
    subject.train(model, optimizer, range(1, 6))
    return ", ".join(
        key for key, value in optimizer.param_groups[0].items() if key != "params" and before.get(key) != str(value)
    )


@THEME.add
def gradients_stay(subject: Subject) -> Verdict:
    """A step leaves ``.grad`` as the backward pass made it."""
    if not subject.is_plain:
        return inapplicable("it replaces the gradients by its updates, as documented.")
    return _reason(subject, gradients=True) or subject.holds(
        """
        (model, optimizer), kept = new(), []
        grads = lambda: torch.cat([w.grad.flatten() for w in model.parameters()])
        optimizer.register_step_pre_hook(lambda *_: kept.append(grads()))
        train(model, optimizer, range(4))
        change = ((grads() - kept[-1]).norm() / kept[-1].norm()).item()
        assert change == 0, f"a step changes .grad, by a share of {change:.2g}"
        """
    )


@THEME.add
def layouts_of_weights(subject: Subject) -> Verdict:
    """A weight that is not contiguous trains as one that is."""
    return _reason(subject) or subject.holds(
        f"""
        def turn(model):
            model[0].weight.data = model[0].weight.data.T.contiguous().T
            return model
        start, plain = (train(*new(dtype=torch.float64), range(steps)) for steps in (0, 8))
        error = ((train(*new(turn, torch.float64), range(8)) - plain).norm() / (plain - start).norm()).item()
        assert error < {subject.tolerance}, f"a weight that is not contiguous moves elsewhere, off by {{error:.2g}}"
        """,
        compares="numbers",
    )


@THEME.add
def layouts_of_gradients(subject: Subject) -> Verdict:
    """A gradient that is not contiguous moves the weights as one that is."""
    if not subject.is_plain:
        return inapplicable("it replaces the gradients by its updates, as documented.")
    return _reason(subject, gradients=True) or subject.holds(
        f"""
        (model, optimizer), start = new(dtype=torch.float64), train(*new(dtype=torch.float64), [])
        weight, plain = model[0].weight, train(*new(dtype=torch.float64), range(8))
        turn = lambda *_: setattr(weight, "grad", weight.grad.T.contiguous().T)
        optimizer.register_step_pre_hook(turn)
        error = ((train(model, optimizer, range(8)) - plain).norm() / (plain - start).norm()).item()
        assert error < {subject.tolerance}, f"gradients not contiguous move weights elsewhere, off by {{error:.2g}}"
        """,
        compares="numbers",
    )


SHAPES = ((), (7,), (3, 4), (2, 3, 3, 3))


@THEME.add
def all_shapes_move(subject: Subject) -> Verdict:
    """Parameters of 0, 1, 2 and 4 dimensions move, or are refused by an error."""
    refused = []
    reason = None if subject.is_plain else inapplicable("it works on layers, and leaves other parameters to SGD.")
    for shape in SHAPES:
        verdict = (
            reason
            or _reason(subject)
            or subject.holds(
                f"""
        w = torch.nn.Parameter(torch.rand({shape}, generator=torch.manual_seed(0), dtype=torch.float64))
        start, (model, optimizer) = w.detach().clone(), new(lambda _: torch.nn.ParameterList([w]))
        for step in range(40):
            w.grad = w.detach().clone()
            optimizer.step({"lambda: w.detach().square().sum()" if subject.by_closure else ""})
        assert w.ne(start).any(), "a parameter of shape {shape} has not moved after 40 gradients"
        """,
                compares="nothing",
            )
        )
        if verdict.found == "failed":
            return verdict
        if verdict.found == "not applicable":
            refused.append(f"{shape} {verdict.statement}")
    if len(refused) == len(SHAPES):
        return inapplicable(refused[0].partition(") ")[2])
    return held("; ".join(refused))


@THEME.add
def empty_parameters(subject: Subject) -> Verdict:
    """A parameter without entries changes nothing else, or is refused by an error."""
    return _reason(subject, plain=True, gradients=True) or subject.holds(
        """
        model, optimizer = new(lambda _: torch.nn.ParameterList([torch.ones(2, 3), torch.ones(0, 3)]))
        for step in range(5):
            for w in model:
                w.grad = w.detach().clone()
            optimizer.step()
        assert model[0].isfinite().all(), "beside a parameter without entries, weights are no longer finite"
        """,
        compares="nothing",
    )


@THEME.add
def complex_parameters(subject: Subject) -> Verdict:
    """Both parts of a complex parameter shrink with a gradient equal to it, or it is refused by an error."""
    return _reason(subject, plain=True, gradients=True) or subject.holds(
        """
        w = torch.nn.Parameter(torch.full((2, 3), 1 + 2j, dtype=torch.complex128))
        model, optimizer = new(lambda _: torch.nn.ParameterList([w]))
        for step in range(40):
            w.grad = w.detach().clone()
            optimizer.step()
        moved = [part.item() for part in ((w.real - 1).mean(), (w.imag - 2).mean())]
        assert max(moved) < 0.1 * min(moved), f"the parts of 1 + 2j move by {moved} with a gradient equal to the weight"
        """,
        compares="nothing",
    )


@THEME.add
def sparse_gradients(subject: Subject) -> Verdict:
    """Sparse gradients lower the loss of their rows, or are refused by an error."""
    if not subject.is_class:
        return inapplicable(NEEDS_CLASS)
    if subject.by_closure:
        return inapplicable(NEEDS_NO_CLOSURE)
    verdict = _rows(subject, "sparse")
    if verdict.found == "failed" and _rows(subject, "dense").found == "failed":
        return inapplicable("dense gradients do not lower this loss either.")
    return verdict


def _rows(subject: Subject, gradients: str) -> Verdict:
    return subject.holds(
        f"""
        model, optimizer = new(lambda _: torch.nn.Embedding(6, 4, sparse={gradients == "sparse"}))
        losses = []
        for step in range(40):
            model.zero_grad()
            losses.append(model(torch.tensor([1, 3, 1])).square().sum())
            losses[-1].backward()
            optimizer.step()
        first, last = losses[0].item(), losses[-1].item()
        assert last < first, f"with {gradients} gradients the loss goes from {{first:.6g}} to {{last:.6g}}"
        """,
        compares="nothing",
    )


PRECISION = """
    step, (model, optimizer) = 0, new(dtype=DTYPE, OPTIONS)
    x = {batch}
    before = {loss}.item()
    train(model, optimizer, [0])
    assert {w.dtype for w in model.parameters()} == {DTYPE}, "parameters of DTYPE have another dtype after a step"
    train(model, optimizer, [0] * 99)
    assert {loss}.item() < before, f"in DTYPE the loss goes from {before:.4g} to {{loss}.item():.4g} in 100 steps"
    """


@THEME.add
def trains_in_float64(subject: Subject) -> Verdict:
    """In float64 the loss falls, and parameters keep their precision."""
    return _precision(subject, "torch.float64")


@THEME.add
def trains_in_bfloat16(subject: Subject) -> Verdict:
    """In bfloat16 the loss falls, and parameters keep their precision, or it is refused by an error."""
    return _precision(subject, "torch.bfloat16")


def _precision(subject: Subject, dtype: str) -> Verdict:
    verdict = held()
    for factor in (1, 10, 0.1, 100) if subject.lr else (1,):
        options = f"lr={subject.lr * factor:.3g}" if subject.lr else ""
        text = PRECISION.replace("DTYPE", dtype).replace(", OPTIONS", f", {options}" if options else "")
        verdict = subject.holds(text, compares="nothing")
        if verdict.found == "held":
            return verdict
    return verdict


@THEME.add
def no_hidden_nan(subject: Subject) -> Verdict:
    """After a step with gradients that are not finite, the weights show it, or weights and state recover."""
    for value in ("nan", "inf"):
        verdict = _reason(subject) or subject.holds(
            f"""
            model, optimizer = new()
            train(model, optimizer, range(3))
            train(model, optimizer, [3], float("{value}"))
            finite = train(model, optimizer, range(4, 16)).isfinite().all()
            kept = [name for state in optimizer.state.values() for name, value in state.items()
                    if torch.is_tensor(value) and not value.isfinite().all()]
            assert not (finite and kept), f"12 steps after gradients of {value} weights are finite, not {{kept[0]}}"
            """,
            compares="nothing",
        )
        if verdict.found != "held":
            return verdict
    return held()


@THEME.add
def order_of_parameters(subject: Subject) -> Verdict:
    """Parameters given in the reverse order train alike."""
    # Norms of all parameters are added up in another order, on which a comparison with 0 may depend.
    tolerance = max(1e-2, subject.rounding)
    return _reason(subject, plain=True) or subject.holds(
        f"""
        def reverse(model):
            weights = [*model.parameters()][::-1]
            model.parameters = lambda: iter(weights)
            return model
        start, plain = (train(*new(dtype=torch.float64), range(steps)) for steps in (0, 8))
        error = ((train(*new(reverse, torch.float64), range(8)) - plain).norm() / (plain - start).norm()).item()
        assert error < {tolerance!r}, f"in the reverse order parameters move elsewhere, off by {{error:.2g}}"
        """,
        compares="numbers",
    )


@THEME.add
def parameters_are_independent(subject: Subject) -> Verdict:
    """Another parameter's gradient does not turn a parameter's steps; it may change their length."""
    if (reason := _reason(subject, plain=True, gradients=True)) is not None:
        return reason
    for which in (0, 1):
        verdict = subject.holds(
            f"""
            moves = []
            for seed in (1, 2):
                weights = torch.nn.ParameterList([torch.zeros(5, 4, dtype=torch.float64) for _ in range(2)])
                model, optimizer = new(lambda _: weights)
                for index, w in enumerate(weights):
                    torch.manual_seed(0 if index == {which} else seed)
                    w.grad = torch.randn(5, 4, dtype=torch.float64)
                for step in range(10):
                    optimizer.step()
                moves.append(weights[{which}].detach().flatten())
            cosine = torch.nn.functional.cosine_similarity(*moves, 0).item()
            assert cosine > 0.99 or not moves[0].any(), f"cosine {{cosine:.3g}} of steps beside another gradient"
            """,
            compares="numbers",
        )
        if verdict.found != "held":
            return verdict
    return held()
