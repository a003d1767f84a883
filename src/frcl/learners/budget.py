"""Holding what is kept of all tasks within the option `memory`: summaries give up profiles and points."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from frcl.budget import Elimination, allowed_bytes, parsed_bytes, randomly_thinned, thinned
from frcl.errors import BudgetError
from frcl.features import network_failures, trained_parts
from frcl.inference import Exact
from frcl.learners.base import memory_of
from frcl.learners.options import FRCLOptions
from frcl.learners.state import CurrentTask, LearnerState
from frcl.learners.task import SPREAD, Model, spread_of
from frcl.learners.types import Summary, plural
from frcl.posterior import kernel_features
from frcl.seeding import fork
from frcl.summary import marginal, stored_inputs
from frcl.trees import detached, total_bytes

PROFILES = 0.5  # share of the bound that profiles may take before they go


def allowed(options: FRCLOptions, tasks: int) -> int:
    """Bytes that this number of tasks may take together, by the option `memory`."""
    assert options.memory is not None
    return allowed_bytes(parsed_bytes(options.memory), options.memory_growth, tasks)


def size_at(summary: Summary) -> Callable[[int], int]:
    """Bytes of m points and q(u) there: each point has its input, C means and C·min(m, R) numbers of the factors."""
    (C, M), factor, item = summary.belief.mean.shape, summary.belief.factor, summary.belief.mean.element_size()
    point, each, R = total_bytes(summary.points.values) // M + C * item, len(factor) * item, factor.shape[2]
    return lambda m: m * (point + each * min(m, R))


def freed(summary: Summary) -> int:
    """Bytes that are free when all points but one are gone."""
    size = size_at(summary)
    return size(summary.belief.M) - size(1)


def profile_bytes(summary: Summary) -> int:
    """Bytes of what the inputs of a task look like, by which a stream knows it when it returns."""
    return 0 if summary.profile is None else total_bytes(summary.profile.tensors())


def without_profiles(past: Sequence[Summary], excess: int, limit: float) -> tuple[list[Summary], int]:
    """The summaries, of which the oldest have given up their profiles, and the bytes to be freed that are left.

    Profiles go until `excess` bytes are free; no more than needed to take at most `limit` bytes together, where points
    can free the rest.
    """
    left, each = list(past), [profile_bytes(one) for one in past]
    room = sum(freed(one) for one in past)
    for number, own in enumerate(each):
        if excess <= 0 or (sum(each[number:]) <= limit and excess <= room):
            break
        left[number], excess = replace(past[number], profile=None), excess - own
    return left, excess


def reduced(summary: Summary, rows: Tensor) -> Summary:
    """The summary at some of its points, where q(u) is an exact marginal."""
    if len(rows) == summary.belief.M:
        return summary
    rows = rows.to(summary.belief.mean.device)
    points, belief = stored_inputs(summary.Z[rows]), marginal(summary.belief, rows)
    return replace(summary, points=points, belief=belief, before=None, after=None)


def check_memory(
    model: Model, state: LearnerState, current: CurrentTask, x: Tensor, y: Tensor, sums: Exact | None
) -> None:
    """Refuse to begin a task of inputs like x, with encoded targets y, for which there will be no room.

    `sums` are what infers the task of an input from all examples, if anything does. Of what regularisers add when the
    task ends only a part is known before, that of the weights.
    """
    options, q = model.options, current.params.posterior
    C, n, item = *q.mean.shape, q.mean.element_size()
    heads = any(one.uses_heads for one in state.regularisers) or options.prediction != "summary"
    copies = heads * (1 + any(one.trains_heads for one in state.regularisers))
    numbers = C + len(q.factor) + copies * C * n + sum(one.numel() for one in current.params.likelihood.values())
    own = total_bytes(stored_inputs(x[:1])) + item * numbers
    if sums is not None and len(state.task_sums.blocks) == len(state.past):
        columns = 1 if current.likelihood.classes is None else len(y.unique())
        with network_failures(), torch.no_grad():
            own += sums.least_bytes(state.task_sums, x, columns)
    task = model.task(state, current.likelihood, current.N)
    with network_failures():
        own += sum(one.added_bytes(task, x) for one in state.regularisers)
    if not state.past:  # what they have at once counts from the first task on
        own += sum(total_bytes(parts) for one in state.regularisers for parts in one.kept(task.theta).values())
    kept = sum(memory_of(state, state.kept(), task.theta).values())
    _refuse(options, len(state.past) + 1, _least(kept + own, state.past), "Use more memory.")


def _least(kept: int, past: Sequence[Summary]) -> int:
    """Bytes that are left of `kept` when each task has given up all that it can."""
    return kept - sum(freed(one) + profile_bytes(one) for one in past)


def _refuse(options: FRCLOptions, tasks: int, least: int, advice: str) -> None:
    if least > allowed(options, tasks):
        raise BudgetError(
            f"memory={options.memory!r} is {allowed(options, tasks):,} bytes for {plural(tasks, 'task')}, but one "
            f"point of each and what else is kept take {least:,}. {advice}"
        )


def within_memory(model: Model, state: LearnerState, current: CurrentTask, number: int, x: Tensor) -> Summary:
    """Let the summaries of `state`, in which task `number`, the current one, has just ended, give up what does not fit.

    The oldest profiles go first, then points in the order of `frcl.budget`, under the current θ. Returns the summary of
    the current task.
    """
    options, past = model.options, state.past
    kept = sum(memory_of(state, state.kept(), trained_parts(model.net)).values())
    kept += current.params.posterior.mean.element_size() * (options.held_out > 0)  # of a temperature to be chosen
    bound = allowed(options, len(past))
    advice = "The task stays open: abandon_task() drops it. Start again with more memory."
    _refuse(options, len(past), _least(kept, past), advice)
    state.past, excess = past, excess = without_profiles(past, kept - bound, PROFILES * bound)
    if excess <= 0:
        return past[number]
    size = [size_at(one) for one in past]
    with network_failures():
        if options.memory_drop == "random":
            generator = fork(options.seed, f"memory/{len(past)}")
            rows = randomly_thinned([one.belief.M for one in past], size, excess, generator)
        else:
            beliefs = [one.belief for one in past]
            each = model.features(torch.cat([one.Z for one in past])).split([q.M for q in beliefs])
            scaled = [kernel_features(Phi, q.prior_std) for Phi, q in zip(each, beliefs, strict=True)]
            tasks = [Elimination(Phi, q.u_noise) for Phi, q in zip(scaled, beliefs, strict=True)]
            rows = thinned(tasks, size, excess)
        state.past = [reduced(one, own) for one, own in zip(past, rows, strict=True)]
        last = state.past[number]
        if last.spread is not None and last is not past[number]:
            Phi = model.features(x[:: max(1, len(x) // SPREAD)])
            spread = spread_of(detached(current.params.posterior), Phi, model.features(last.Z), last.belief)
            state.past[number] = replace(last, spread=spread)
    return state.past[number]
