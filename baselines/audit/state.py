"""Properties of an optimizer's state: that it is complete, its own, and the only thing that a step depends on."""

from __future__ import annotations

from baselines.audit.declared import Theme
from baselines.audit.subject import Subject
from baselines.audit.verdicts import Verdict, held, inapplicable

THEME = Theme()

RESUMED = """
    model, optimizer = new({changes})
    train(model, optimizer, range({at}))
    again, loaded = new({changes}{others})
    again.load_state_dict(model.state_dict())
    loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    change = (train(again, loaded, range({at}, 12)) - train(model, optimizer, range({at}, 12))).abs().max().item()
    assert change == 0, f"training that is resumed after {at} steps ends {{change:.2g}} elsewhere"
    """
"""Saved after some steps, loaded into a new optimizer, and continued; ``others`` differ in that one at first."""


@THEME.add
def same_bits(subject: Subject) -> Verdict:
    """Two runs from the same seed give the same bits."""
    return subject.holds(
        """
        change = (train(*new(), range(12)) - train(*new(), range(12))).abs().max().item()
        assert change == 0, f"two runs from the same seed differ by {change:.2g}"
        """,
        error="failed",
        compares="nothing",
    )


@THEME.add
def random_numbers_stay(subject: Subject) -> Verdict:
    """A step draws nothing from torch's global random numbers, on which data and dropout depend."""
    return subject.holds(
        """
        model, optimizer = new()
        for step in range(12):
            train(model, optimizer, [step])
            after, x = torch.get_rng_state(), {batch}
            assert torch.equal(after, torch.get_rng_state()), f"step {step} draws from the global random numbers"
        """,
        error="failed",
        compares="nothing",
    )


@THEME.add
def hosts_agree(subject: Subject) -> Verdict:
    """A step does not depend on the host's name, the process's number, the number of cores, or the time."""
    return subject.holds(
        """
        here = train(*new(), range(8))
        with mock.patch("os.getpid", lambda: 7), mock.patch("socket.gethostname", lambda: "a"), \\
             mock.patch("time.time", lambda: 1e9), mock.patch("os.cpu_count", lambda: 3):
            change = (train(*new(), range(8)) - here).abs().max().item()
        assert change == 0, f"with another host name, process number, number of cores and time: by {change:.2g}"
        """,
        "torch, os, socket, unittest.mock as mock",
    )


@THEME.add_slow
def processes_agree(subject: Subject) -> Verdict:
    """Processes with other hash seeds give the same bits."""
    return subject.holds(
        """
        if len(sys.argv) > 1:
            print(train(*new(), range(8)).tolist())
        else:
            run = lambda seed: subprocess.check_output(  # noqa
                [sys.executable, __file__, "x"], env={**os.environ, "PYTHONHASHSEED": seed})
            assert run("1") == run("2"), "processes with other values of PYTHONHASHSEED end with other weights"
        """,
        "os, subprocess, sys, torch",
        in_processes=True,
    )


@THEME.add
def resumes(subject: Subject) -> Verdict:
    """Training that is saved, loaded into a new optimizer and continued ends at the same bits, wherever it is cut."""
    for at in (1, 4, 7, 10):
        verdict = subject.holds(RESUMED.format(at=at, changes="", others=""), "copy, torch", error="failed")
        if verdict.found != "held":
            return verdict
    return held()


@THEME.add
def resumes_in_bfloat16(subject: Subject) -> Verdict:
    """A resume is bitwise if parameters are bfloat16: loading does not round a state of float32."""
    trains = subject.holds(
        "assert train(*new(dtype=torch.bfloat16), range(12)).isfinite().all(), 'it is not finite'", compares="nothing"
    )
    if trains.found == "failed":
        return inapplicable("training in bfloat16 is not finite.")
    text = RESUMED.format(at=4, changes="dtype=torch.bfloat16", others="")
    return subject.holds(text, "copy, torch", error="failed" if trains.found == "held" else "refused")


@THEME.add
def hyperparameters_are_saved(subject: Subject) -> Verdict:
    """An optimizer that was built with another learning rate goes on with the saved one."""
    if not subject.lr:
        return inapplicable("it has no learning rate that is a number.")
    others = f"lr={subject.lr / 4!r}"
    return subject.holds(RESUMED.format(at=4, changes="", others=others), "copy, torch", error="failed")


@THEME.add
def loads_safely(subject: Subject) -> Verdict:
    """``torch.load(..., weights_only=True)`` reads a saved state."""
    return subject.holds(
        """
        model, optimizer = new()
        train(model, optimizer, range(4))
        torch.save(optimizer.state_dict(), file := io.BytesIO())
        torch.load(io.BytesIO(file.getvalue()), weights_only=True)
        """,
        "io, torch",
        error="failed",
        compares="nothing",
    )


CHECKPOINT = """
    model, optimizer = new()
    options, _ = dcp.StateDictOptions(flatten_optimizer_state_dict={flat}), train(model, optimizer, range(4))
    saved = copy.deepcopy(dcp.get_state_dict(model, optimizer, options=options))
    again, loaded = new()
    dcp.set_state_dict(again, loaded, model_state_dict=saved[0], optim_state_dict=saved[1], options=options)
    ends = train(again, loaded, range(4, 12)), train(model, optimizer, range(4, 12))
    assert torch.equal(*ends), "training that is resumed through set_state_dict ends at other weights"
    """
CHECKPOINT_IMPORTS = "copy, torch, torch.distributed.checkpoint.state_dict as dcp"


@THEME.add
def distributed_checkpoint(subject: Subject) -> Verdict:
    """A resume through get_state_dict and set_state_dict of torch.distributed.checkpoint is bitwise."""
    return subject.holds(CHECKPOINT.format(flat=False), CHECKPOINT_IMPORTS)


@THEME.add
def flat_distributed_checkpoint(subject: Subject) -> Verdict:
    """A resume through set_state_dict with ``flatten_optimizer_state_dict`` is bitwise."""
    return subject.holds(CHECKPOINT.format(flat=True), CHECKPOINT_IMPORTS)


COPIED = """
    model, optimizer = new()
    train(model, optimizer, range(4))
    again, other = {copy}
    copied = train(again, other, range(4, 12))
    change = (copied - train(model, optimizer, range(4, 12))).abs().max().item()
    assert change == 0, f"{name} and its original end {{change:.2g}} apart after the same steps"
    """
NO_COPIES = "it is attached to its model by hooks, which copies do not have."


@THEME.add
def deep_copies_are_equal(subject: Subject) -> Verdict:
    """A deep copy of the model and the optimizer goes on as they do, and shares no state with them."""
    return _copied(subject, "copy.deepcopy((model, optimizer))", "a deep copy", "copy, torch")


@THEME.add
def pickles_are_equal(subject: Subject) -> Verdict:
    """A pickle of the model and the optimizer goes on as they do."""
    return _copied(subject, "pickle.loads(pickle.dumps((model, optimizer)))", "a pickle's copy", "pickle, torch")


def _copied(subject: Subject, copy: str, name: str, imports: str) -> Verdict:
    if not subject.is_plain:
        return inapplicable(NO_COPIES)
    return subject.holds(COPIED.format(copy=copy, name=name), imports)
