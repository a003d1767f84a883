"""The ratios that are measured on the CPU, each of two functions timed in turn; and the time of a step by operator."""

import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from frcl.bench.direct import covariance_factors, direct_past_kl, direct_trace, plain_prediction, plain_training
from frcl.bench.measure import Goal, Measurement, Timed, clocked, in_turn
from frcl.engine.program import CHUNK, Program
from frcl.engine.train import train
from frcl.experiment import environment, runner
from frcl.experiment.config import resolve
from frcl.experiment.keeper import Observer
from frcl.features import MLP
from frcl.frozen import FrozenFront
from frcl.learners.frcl import FRCL
from frcl.learners.options import PLUS
from frcl.learners.types import Learner
from frcl.methods import METHODS, default_options, make_learner
from frcl.options import changed
from frcl.posterior import Posterior
from frcl.seeding import fork
from frcl.selection import random_start
from frcl.selection.trace import Swaps, trace_search
from frcl.summary import belief_from_weights, prior_kl, prior_kl_terms

Pair = tuple[Timed, Timed, str]  # two functions to compare, and a description of their sizes

NOISE = 1e-3  # σ²
TASK_STEPS = 2000  # of the task whose steps are timed, as in the paper
FEW, FEW_FISHER = 1000, 8  # examples of a past task and of its curvature; their number does not change the time
REGULARISERS = ("functional", "current_inputs", "memory_targets", "curvature", "train_heads")
PLUS_STEP = {name: getattr(PLUS, name) for name in REGULARISERS}  # turns a step of FRCL into one of FRCL+

UNLIKE = ("frcl", "frcl-plus", "exact-gp", "gdumb", "vcl-random", "vcl-kcenter")  # measured apart, or steps of another
BASELINES = tuple(name for name in METHODS if name not in UNLIKE)


@dataclass(frozen=True)
class Sizes:
    """The sizes of all measures; the defaults are those of Permuted-MNIST in the paper."""

    inputs: int = 784
    widths: tuple[int, ...] = (100, 100)
    classes: int = 10
    examples: int = 60_000
    batch: int = 128
    points: int = 200
    past: int = 9
    few_past: int = 2
    many_past: int = 50
    steps: int = CHUNK  # per timing
    proposals: int = 256  # of a search, per timing
    predicted: int = 10_000
    seeds: int = 10
    run_steps: int = 100  # per task, where whole runs are timed
    run_proposals: int = 1000  # per task, where whole runs are timed
    threads: int = 2
    wide: int = 1280  # features that are never trained, as those of a pre-trained network
    wide_classes: int = 100

    @property
    def features(self) -> int:
        return self.widths[-1] + 1

    def network(self) -> MLP:
        return MLP(self.inputs, self.widths)

    def plain_model(self) -> nn.Module:
        """The same network as a chain of torch's own modules, with a linear layer on top."""
        head = nn.utils.skip_init(nn.Linear, self.widths[-1], self.classes)
        nn.init.kaiming_uniform_(head.weight, generator=fork(0, "bench"))
        nn.init.zeros_(head.bias)
        return nn.Sequential(*self.network().layers, head)

    def data(self) -> tuple[Tensor, Tensor]:
        """Random inputs and labels: the times do not depend on them."""
        x = torch.rand(self.examples, self.inputs, generator=fork(0, "bench"))
        return x, torch.arange(self.examples) % self.classes

    def layers(self) -> str:
        return "-".join(map(str, (self.inputs, *self.widths)))

    def names(self) -> str:
        return f"{self.layers()}, batch {self.batch}, {self.classes} classes"

    def step(self) -> str:
        return f"{self.names()}, 1 of {self.past} past tasks × {self.points} points"


def past_kl(size: Sizes) -> Pair:
    """Value and gradient of the KL of all past tasks, against autograd, task by task and class by class."""
    C, K, generator = size.classes, size.features, fork(0, "bench")
    randn = partial(torch.randn, generator=generator)
    Phi = randn(size.past, size.points, K)
    posteriors = [Posterior(randn(C, K), 0.1 * torch.eye(K) + 0.02 * randn(C, K, K)) for _ in Phi]
    beliefs = [belief_from_weights(q, Phi_z, NOISE) for q, Phi_z in zip(posteriors, Phi, strict=True)]
    terms, factors = prior_kl_terms(beliefs), [covariance_factors(belief) for belief in beliefs]
    moved = (Phi + 0.01 * randn(*Phi.shape)).requires_grad_()

    def with_gradient(value: Callable[[], Tensor]) -> Timed:
        return partial(clocked, lambda: torch.autograd.grad(value(), moved))

    ours = with_gradient(lambda: prior_kl(moved, terms).sum())
    direct = with_gradient(lambda: direct_past_kl(moved, beliefs, factors))
    return ours, direct, f"{size.past} tasks × {size.points} points, {K} features, {C} classes"


def frcl_step(size: Sizes, **options: Any) -> Pair:
    """A training step with one of the past tasks, against a plain step."""
    x, y = size.data()
    ours = timed_steps(size, learner_of(size, size.past, x, y, **options), x, y)
    return ours, plain_steps(size, size.plain_model(), x, y), size.step()


def plain_steps(size: Sizes, model: nn.Module, x: Tensor, y: Tensor) -> Timed:
    """Seconds per step of a network on the cross-entropy."""
    plain = plain_training(model, x, y, size.batch, 1e-3, fork(0, "batches"))
    return partial(clocked, lambda: [plain() for _ in range(size.steps)], size.steps)


def baseline_step(size: Sizes, method: str) -> Pair:
    """A training step of another method with one past task and its default options, against a plain step."""
    x, y = size.data()
    ours = timed_steps(size, baseline(size, method, x, y, past=1), x, y)
    how = f"{size.names()}, {method} with its default options, 1 past task"
    return ours, plain_steps(size, size.plain_model(), x, y), how


def baseline(size: Sizes, method: str, x: Tensor, y: Tensor, past: int, **options: Any) -> Learner:
    """A learner of a method with `past` tasks behind it, each trained for two steps."""
    steps, few = {"batch_size": size.batch, "steps": 2, **options}, max(FEW, size.points)
    learner = make_learner(size.network(), changed(default_options(method), steps), seed=0, method=method)
    for _ in range(past):
        learner.fit(x[:few], y[:few])
    return learner


def flat(size: Sizes, **options: Any) -> Pair:
    """The same step with many past tasks, against few."""
    x, y = size.data()
    many, few = (learner_of(size, past, x, y, **options) for past in (size.many_past, size.few_past))
    how = f"{size.names()}, 1 past task × {size.points} points per step, of {size.many_past} or of {size.few_past}"
    return timed_steps(size, many, x, y), timed_steps(size, few, x, y), how


def replay_flat(size: Sizes) -> Pair:
    """A step of replay with one of many buffers, against one of few."""
    x, y = size.data()

    past = (size.many_past, size.few_past)
    many, few = (baseline(size, "replay", x, y, count, past_tasks_per_step=1) for count in past)
    how = f"{size.names()}, 1 buffer per step, of {size.many_past} or of {size.few_past}"
    return timed_steps(size, many, x, y), timed_steps(size, few, x, y), how


def wide_step(size: Sizes) -> Pair:
    """A training step on fixed features with a past task behind it, against a plain step of a linear layer on them."""
    features = torch.rand(max(FEW, size.points), size.wide, generator=fork(0, "bench"))
    y = torch.arange(len(features)) % size.wide_classes
    learner = FRCL(
        FrozenFront(nn.Identity()), points=size.points, batch_size=size.batch, u_noise=NOISE, steps=2, search_steps=2
    )
    learner.fit(features, y)
    head = nn.utils.skip_init(nn.Linear, size.wide, size.wide_classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    ours, other = timed_steps(size, learner, features, y), plain_steps(size, head, features, y)
    sizes = f"{size.wide} features, {size.wide_classes} classes, batch {size.batch}"
    return ours, other, f"{sizes}, 1 past task × {size.points} points"


def timed_steps(size: Sizes, learner: Learner, x: Tensor, y: Tensor) -> Timed:
    """Seconds per step of the next task, as the engine takes the steps."""
    steps = endless_steps(learner, x, y)
    return partial(clocked, lambda: deque(islice(steps, size.steps), maxlen=0), size.steps)


def learner_of(size: Sizes, past: int, x: Tensor, y: Tensor, **options: Any) -> FRCL:
    """FRCL with `past` tasks behind it, each trained for two steps."""
    few = {"past_tasks_per_step": 1, "search_steps": 2, "fisher_examples": FEW_FISHER, **options}
    learner = baseline(size, "frcl", x, y, past, points=size.points, u_noise=NOISE, **few)
    assert isinstance(learner, FRCL)
    return learner


def endless_steps(learner: Any, x: Tensor, y: Tensor) -> Iterator[Any]:
    """The steps of the next task, of which there are to be `TASK_STEPS`, without end."""
    learner.options = changed(learner.options, {"steps": TASK_STEPS})
    program = next(learner.learn(x, y))
    assert isinstance(program, Program)
    program.stop = sys.maxsize
    return train([program])


def trace_swap(size: Sizes) -> Pair:
    """One proposal of a search, against computing the criterion again from all features."""
    generator = fork(0, "bench")
    Phi = torch.randn(size.examples, size.features, generator=generator, dtype=torch.float64)
    start = random_start(size.examples, size.points, generator)

    def proposals() -> float:
        with torch.inference_mode():
            swaps = Swaps([trace_search(Phi, start, NOISE, size.proposals, generator)])
            return clocked(swaps.run, size.proposals)

    how = f"N = {size.examples:,}, {size.points} points, {size.features} features"
    return proposals, partial(clocked, lambda: float(direct_trace(Phi, start, NOISE))), how


def prediction(size: Sizes) -> Pair:
    """The mean of an old task's functions, against the network with a linear layer."""
    x, y = size.data()
    learner, model, inputs = learner_of(size, 2, x, y), size.plain_model(), x[: size.predicted].clone()
    how = f"{len(inputs):,} inputs, {size.layers()}, {size.classes} outputs"
    other = partial(clocked, lambda: plain_prediction(model, inputs))
    return partial(clocked, lambda: learner.mean(inputs, 0)), other, how


def one_example(size: Sizes, task: int | None = 0, **options: Any) -> Pair:
    """A prediction of one example in an old task, with its label, against the network with a linear layer.

    In CPU time of the thread: a call takes microseconds, so that another process would count for many of them.
    """
    x, y = size.data()
    learner, model, one = learner_of(size, 2, x, y, **options), size.plain_model(), x[:1].clone()

    def ours() -> None:
        for _ in range(size.steps):
            _ = learner.predict(one, task).labels

    def other() -> None:
        for _ in range(size.steps):
            plain_prediction(model, one)

    how = f"1 input, {size.layers()}, {size.points} points, {size.classes} classes, CPU time"
    first, second = (partial(clocked, work, size.steps, time.thread_time) for work in (ours, other))
    return first, second, how


def no_task(size: Sizes, **options: Any) -> Pair:
    """A prediction without the task, against one pass through the network and the predictions of all tasks.

    The tasks cannot be told apart, so that each of them is predicted in full.
    """
    x, y = size.data()
    learner, inputs = learner_of(size, size.past + 1, x, y, **options), x[: size.predicted].clone()

    def in_every_task() -> object:
        with torch.no_grad():
            beliefs = learner._beliefs(inputs)
            return [beliefs.within(task, None) for task in range(size.past + 1)]

    tasks = f"{size.past + 1} tasks × {size.points} points, {size.classes} classes"
    how = f"{len(inputs):,} inputs, {size.layers()}, {tasks}"
    return partial(clocked, lambda: learner.predict(inputs)), partial(clocked, in_every_task), how


def ten_seeds(size: Sizes) -> Pair:
    """Whole runs of Split-Digits, all seeds as one program, against one after another."""

    def run(together: int, steps: int = size.run_steps) -> object:
        learner = {"steps": steps, "search_steps": size.run_proposals}
        options = {"seeds_together": together, "threads": size.threads}
        config = resolve("split-digits", {"seeds": list(range(size.seeds)), "learner": learner, "run": options})
        with tempfile.TemporaryDirectory() as folder:
            return runner.run(config, Path(folder) / "run", Observer())

    run(size.seeds, 1)  # loads the data and the libraries
    how = f"Split-Digits, {size.seeds} seeds, {size.run_steps} steps per task"
    return partial(clocked, partial(run, size.seeds)), partial(clocked, partial(run, 1)), how


@dataclass(frozen=True)
class Case:
    """One ratio: its limit, how its two sides are built, and how often they are timed."""

    goal: Goal
    make: Callable[[Sizes], Pair]
    repeats: int
    quick: int
    warm_ups: int = 1

    def count(self, repeat: int | None, quick: bool) -> int:
        """The number of repetitions."""
        return repeat or (self.quick if quick else self.repeats)

    def measure(self, size: Sizes, repeats: int, advance: Callable[[], object]) -> Measurement:
        """The ratio, on `size.threads` threads."""
        with environment.threads(size.threads):
            ours, other, how = self.make(size)
            sides = {"ours": ours, "other": other}
            in_turn(sides, self.warm_ups, lambda: None)
            return self.goal.measured(in_turn(sides, repeats, advance), how)


CASES = (
    Case(Goal("past-kl", "past KL with its gradient, times faster than direct", 5, at_least=True), past_kl, 15, 3),
    Case(Goal("frcl-step", "a step of FRCL, relative to a step on the cross-entropy", 4), frcl_step, 15, 3),
    Case(
        Goal("plus-step", "a step of FRCL+, relative to a step on the cross-entropy", 4.5),
        partial(frcl_step, **PLUS_STEP),
        15,
        3,
    ),
    *(
        Case(
            Goal(f"{method}-step", f"a step of {method}, relative to one on the cross-entropy", 1.5),
            partial(baseline_step, method=method),
            15,
            3,
        )
        for method in BASELINES
    ),
    Case(Goal("wide-step", "a step of FRCL on wide features, relative to a linear layer's", 3), wide_step, 15, 3),
    Case(Goal("flat", "a step with many past tasks, relative to one with few", 1.15), flat, 15, 3),
    Case(Goal("plus-flat", "FRCL+ with many past tasks, relative to few", 1.15), partial(flat, **PLUS_STEP), 15, 3),
    Case(Goal("replay-flat", "replay with many past tasks, relative to few", 1.15), replay_flat, 15, 3),
    Case(Goal("trace-swap", "a swap proposal, times faster than direct", 50, at_least=True), trace_swap, 9, 3),
    Case(Goal("prediction", "the mean of an old task, relative to network and linear layer", 1.2), prediction, 31, 5),
    Case(Goal("one-example", "one example predicted, relative to network and linear layer", 5), one_example, 31, 5),
    Case(
        Goal("plus-one-example", "the same of FRCL+, relative to network and linear layer", 5),
        partial(one_example, **PLUS_STEP, prediction="head", head_variance=0.1),
        31,
        5,
    ),
    Case(
        Goal("one-example-no-task", "the same, the task inferred among two, relative to network and linear layer", 20),
        partial(one_example, task=None),
        31,
        5,
    ),
    Case(Goal("no-task", "a prediction without the task, relative to network and all heads", 2), no_task, 5, 1),
    Case(
        Goal("no-task-images", "the same with the features of images", 2),
        partial(no_task, task_inference="exact", task_kind="image", task_features=400),
        5,
        1,
    ),
    Case(Goal("ten-seeds", "ten seeds together, relative to one after another", 0.5), ten_seeds, 3, 1, warm_ups=0),
)


def profile_step(size: Sizes) -> Any:
    """The time of FRCL's steps by operator, as torch's profiler sums it up."""
    from torch.profiler import ProfilerActivity, profile

    with environment.threads(size.threads):
        steps, *_ = frcl_step(size)
        steps()
        with profile(activities=[ProfilerActivity.CPU]) as recorded:
            steps()
    return recorded.key_averages()
