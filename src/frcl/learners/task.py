"""How a task begins and how it ends: fresh posterior in, summary out. Shared by fit() and observe()."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from frcl.engine.adam import Optimiser
from frcl.engine.program import Drawn, Program, exact_number, minibatch_rows, refuse_non_finite
from frcl.errors import DataError, OptionError
from frcl.features import check_features, fixed_parts, has_convolutions, in_chunks, is_stackable, network_failures
from frcl.learners.lockstep import Work
from frcl.learners.objective import Constants, Draws, Objective, Parameters, inducing_inputs
from frcl.learners.options import FRCLOptions
from frcl.learners.state import CurrentTask, LearnerState
from frcl.learners.types import Summary
from frcl.likelihoods import Likelihood
from frcl.posterior import Posterior, initial_posterior, triangular, weight_moments
from frcl.prior import kernel_features
from frcl.regularisers.functional import stacked_points
from frcl.regularisers.protocol import FeatureMap, Task
from frcl.regularisers.steps import draw_penalties, follow_of, look_of, trained_heads
from frcl.seeding import fork
from frcl.selection import CRITERIA, Selected, TaskData, TraceSearch, plan_by_inputs, run_searches, select_by_targets
from frcl.summary import FunctionBelief, belief_from_function, belief_from_weights, head_moments, make_head
from frcl.trees import Params, detached, leaf, tree_map

CHUNK = 16384  # inputs that pass through the network at once outside of training
CHUNK_OF_MAPS = 4096  # the same for a convolutional network on the CPU, whose maps are large
SPREAD = 2000  # examples over which variances are averaged when a task ends

Examples = tuple[Tensor, Tensor]  # inputs, encoded targets


@dataclass(frozen=True)
class Model:
    """The network with its options: what beginning, ending and predicting have in common."""

    net: nn.Module
    options: FRCLOptions
    dtype: torch.dtype
    device: torch.device

    @property
    def map(self) -> FeatureMap:
        return FeatureMap(self.net, self.options.feature_scale)

    def features(self, x: Tensor) -> Tensor:
        """Φ [n, K] under the current θ, without gradient."""
        theta = dict(self.net.named_parameters())
        return in_chunks(lambda rows: self.map(theta, rows), x, self.chunk)

    def theta(self) -> Params:
        """The weights of the network that are trained."""
        return {name: p for name, p in self.net.named_parameters() if p.requires_grad}

    @property
    def chunk(self) -> int:
        return CHUNK if self.device.type == "cuda" or not has_convolutions(self.net) else CHUNK_OF_MAPS

    def points(self, likelihood: Likelihood) -> int:
        """M of a task."""
        if self.options.points_per_class is None:
            return self.options.points
        if likelihood.classes is None:
            raise OptionError("points_per_class is for classification; set points for a regression task")
        return self.options.points_per_class * len(likelihood.classes)

    def predictive_draws(self, likelihood: Likelihood) -> Tensor:
        """The same Monte Carlo draws for every input and every call: a prediction does not depend on the batch."""
        generator = fork(self.options.seed, "prediction")
        shape = likelihood.draws_shape(1, training=False)
        return torch.randn(shape, generator=generator, dtype=self.dtype).to(self.device)

    def task(self, state: LearnerState, likelihood: Likelihood, N: float) -> Task:
        """The task being learned, as regularisers are told of it."""
        return Task(
            self.map, self.theta(), fixed_parts(self.net), state.past, likelihood, N,
            tasks_per_step=self.options.past_tasks_per_step,
        )  # fmt: skip


# -- checks ------------------------------------------------------------------------------------------------


def check_enough(model: Model, likelihood: Likelihood, examples: int) -> None:
    """Refuse a task with fewer examples than points."""
    if examples < model.points(likelihood):
        raise DataError(
            f"{examples} examples are fewer than the {model.points(likelihood)} inducing points to keep; "
            "lower points, or bring more data"
        )


def check_held_out(model: Model, likelihood: Likelihood, examples: int) -> None:
    """Refuse a task that has too few examples besides those held out, or no class probabilities to temper."""
    if model.options.held_out and likelihood.classes is None:
        raise OptionError("held_out is for the probabilities of classes; a regression task has none: set it to 0")
    held = held_out(model.options, examples)
    if held and examples >= model.points(likelihood) > examples - held:
        raise DataError(
            f"{examples} examples less {held} held out are fewer than the {model.points(likelihood)} inducing points "
            "to keep; lower points or held_out, or bring more data"
        )
    check_enough(model, likelihood, examples)


def check_opening(model: Model, likelihood: Likelihood, x: Tensor) -> int:
    """Refuse what a task cannot begin with; returns K."""
    options = model.options
    if options.inference == "function":
        check_enough(model, likelihood, len(x))
        if options.learn_inputs and not x.is_floating_point():
            raise OptionError("learn_inputs=True needs floating-point inputs; these are integers")
    if CRITERIA[options.selection].needs_classes and likelihood.classes is None:
        raise OptionError(f'selection="{options.selection}" counts wrong classes; a regression task has none')
    return check_features(model.net, x) + 1


# -- held-out examples --------------------------------------------------------------------------------------


def held_out(options: FRCLOptions, examples: int) -> int:
    """How many of a task's examples are not learned from."""
    return math.ceil(options.held_out * examples)


def held_rows(y: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """`count` random rows of examples with classes y to hold out, and the others, which contain every class."""
    rows = torch.randperm(len(y), generator=generator).to(y.device)
    held, learned = rows[:count], rows[count:]
    missing = torch.isin(y[held], y[learned], invert=True)
    if bool(missing.any()):
        back = [int((y[held] == label).nonzero()[0, 0]) for label in y[held][missing].unique()]
        stays = torch.ones(count, dtype=torch.bool, device=y.device)
        stays[back] = False
        held, learned = held[stays], torch.cat([learned, held[~stays]])
    return held, learned.sort().values


def split(options: FRCLOptions, task: int, x: Tensor, y: Tensor) -> tuple[Examples, Examples | None]:
    """What is learned from, and what is held out; the same for the same data."""
    count = held_out(options, len(x))
    if not count:
        return (x, y), None
    held, learned = held_rows(y, count, fork(options.seed, f"held-out/{task}"))
    return (x[learned], y[learned]), (x[held], y[held])


# -- beginning ----------------------------------------------------------------------------------------------


def open_task(
    model: Model, likelihood: Likelihood, size: int, state: LearnerState, x: Tensor, y: Tensor
) -> CurrentTask:
    """A fresh posterior for a task whose first data are x and y; N is `size`."""
    n = check_opening(model, likelihood, x)
    for regulariser in state.regularisers:
        regulariser.check(likelihood, y)
    options = model.options
    learned = {name: leaf(v.to(model.device, model.dtype)) for name, v in likelihood.initial_parameters().items()}
    Z: Tensor | None = None
    trained_Z: Tensor | None = None
    if options.inference == "function":
        plan = _plan_by_inputs(
            model, likelihood, model.features(x), y, float(options.prior_std), state.streams["selection"]
        )
        found = plan if isinstance(plan, Selected) else run_searches([plan])[0]
        Z = x[found.index.to(model.device)].clone()
        n = len(Z)
        if options.learn_inputs:
            trained_Z, Z = leaf(Z), None
    q = initial_posterior(likelihood.functions, n, options.initial_scale, model.dtype, model.device)
    heads = trained_heads(state.regularisers, state.past)
    params = Parameters(model.theta(), tree_map(leaf, q), learned, heads, trained_Z)
    task = model.task(state, likelihood, float(size))
    for regulariser in state.regularisers:
        regulariser.begin(task)
    return CurrentTask(likelihood=likelihood, N=float(size), optimiser=Optimiser(params, options.lr), Z=Z)


def objective_of(model: Model, state: LearnerState, likelihood: Likelihood) -> Objective:
    """The objective of a task with the learner's regularisers."""
    return Objective(model.map, likelihood, model.options, state.regularisers)


def constants_of(model: Model, state: LearnerState, current: CurrentTask) -> Constants:
    """What the objective of the current task reads besides its parameters."""
    task = model.task(state, current.likelihood, current.N)
    uses_points = bool(state.past) and any(one.uses_points for one in state.regularisers)
    return Constants(
        N=exact_number(current.N, model.dtype, model.device),
        past_tasks=len(state.past),
        fixed=detached(task.fixed),
        points=stacked_points([summary.Z for summary in state.past]) if uses_points else None,
        Z=current.Z,
        regularisers=tuple(one.constants(task) for one in state.regularisers),
    )


def program_of(
    model: Model, state: LearnerState, current: CurrentTask, x: Tensor, y: Tensor, *, stream: bool = False
) -> Program:
    """The steps left of the current task: all that fit() has to do, or one for each minibatch of a stream."""
    options, likelihood, streams = model.options, current.likelihood, state.streams
    regularisers, tasks = state.regularisers, len(state.past)
    if not stream:
        current.optimiser.decays(options.steps, options.lr_decay)
    program: Program

    def draw(steps: int) -> Drawn:
        rows = None if stream else minibatch_rows(len(x), options.batch_size, steps, streams, model.device)
        batch = len(program.x) if stream else options.batch_size
        shape = likelihood.draws_shape(batch, training=True)
        generator = streams["likelihood"]
        draws = torch.randn((steps, *shape), generator=generator, dtype=model.dtype, device=model.device)
        past = draw_penalties(regularisers, steps, tasks, options.past_tasks_per_step, streams["past"])
        return Drawn(rows, Draws(draws, past.tasks, past.own))

    program = Program(
        net=model.net, loss=objective_of(model, state, likelihood), optimiser=current.optimiser,
        constants=constants_of(model, state, current), x=x, y=y, draw=draw, streams=streams, stop=options.steps,
        carry=tuple(one.carry() for one in regularisers),
        follow=follow_of(regularisers),
        look=look_of(regularisers, options.seed, tasks),
        stackable=is_stackable(model.net) and all(one.batchable for one in regularisers),
        chunk=1 if stream else CHUNK_OF_STEPS,
        signature=(
            repr(replace(options, seed=0)), tasks, repr(likelihood), repr(regularisers), str(model.net),
            _signature(state),
        ),
    )  # fmt: skip
    return program


CHUNK_OF_STEPS = 100  # steps of fit() whose random numbers are drawn at once


def _signature(state: LearnerState) -> object:
    """What two learners must have in common besides options and shapes: the points and targets of past tasks."""
    return [(len(summary.Z), summary.likelihood.name, summary.likelihood.functions) for summary in state.past]


# -- end ----------------------------------------------------------------------------------------------------


def close_task(model: Model, current: CurrentTask, state: LearnerState, x: Tensor, y: Tensor) -> Work[Summary]:
    """Turn the current task of `state` into a summary and have the regularisers remember it.

    `state` is a snapshot: where something fails or is interrupted the learner does not take it over.
    """
    summary = yield from _summarise(model, current, x, y, state.streams["selection"])
    task = replace(
        model.task(state, current.likelihood, current.N), head=summary.head, likelihood_params=summary.likelihood_params
    )
    if model.options.prediction == "summary" and not any(one.uses_heads for one in state.regularisers):
        summary = replace(summary, head=None)
    with network_failures():
        for regulariser in state.regularisers:
            regulariser.end(task, x, y, state.streams["selection"])
    state.past = [*state.summaries(), summary]
    state.current = None
    return summary


def _summarise(model: Model, current: CurrentTask, x: Tensor, y: Tensor, generator: torch.Generator) -> Work[Summary]:
    """What is kept of a task; in weight space its points are chosen among x. Nothing of x but Z is kept."""
    options, params, likelihood = model.options, detached(current.params), current.likelihood
    refuse_non_finite(params)
    q = params.posterior
    before: float | None = None
    after: float | None = None
    spread: Tensor | None = None
    std = options.prior.std(triangular(q))
    if options.inference == "function":
        Z = inducing_inputs(params, current.Z)
        belief = belief_from_function(q, options.u_noise, std)
    else:
        check_enough(model, likelihood, len(x))
        Phi = model.features(x)
        plan = _plan(model, current, params, std, Phi, y, generator)
        found: Selected = plan if isinstance(plan, Selected) else (yield plan)
        rows = found.index.to(model.device)
        Z, before, after = x[rows], found.before, found.after
        belief = belief_from_weights(q, Phi[rows], options.u_noise, std)
        if options.prediction != "summary":
            spread = spread_of(q, Phi, Phi[rows], belief)
    head = _mean_head(model, q, Z, belief).clone()
    learned = {name: value.clone() for name, value in params.likelihood.items()}
    return Summary(Z.clone(), belief, likelihood, learned, int(current.N), before, after, head, spread)


def spread_of(q: Posterior, Phi: Tensor, Phi_z: Tensor, belief: FunctionBelief) -> Tensor:
    """E_x var_q f_c(x) / E_x var f_c(x) through the summary, [C], over examples of the task; at most 1.

    A few points leave most of a function undetermined, of which q(w) was sure. A kept head has its mean from q(w), and
    by this ratio its variance too: on average over the task that of q(w), elsewhere as much larger as the summary says.
    """
    some = Phi[:: max(1, len(Phi) // SPREAD)]
    own = weight_moments(triangular(q), some).variance.mean(0)
    through = head_moments(make_head(Phi_z, belief), belief, some).variance.mean(0)
    return (own / through.to(own)).clamp_max(1.0)


def _mean_head(model: Model, q: Posterior, Z: Tensor, belief: FunctionBelief) -> Tensor:
    """The mean of w [C, K] at the end of a task: that of q(w); in function space the one that q(u) implies."""
    if model.options.inference == "weight":
        return q.mean
    return make_head(model.features(Z), belief).weights.mT.to(q.mean)


def _plan(
    model: Model, current: CurrentTask, params: Parameters, std: float, Phi: Tensor, y: Tensor,
    generator: torch.Generator,
) -> Selected | TraceSearch:  # fmt: skip
    options, likelihood = model.options, current.likelihood
    if not options.recipe.is_supervised:
        return _plan_by_inputs(model, likelihood, Phi, y, std, generator)
    draws = model.predictive_draws(likelihood)
    task = TaskData(
        Phi, y, params.posterior, likelihood, params.likelihood, std, options.u_noise, draws, float(current.N)
    )
    return select_by_targets(
        task, model.points(likelihood), options.recipe, generator, _start_classes(model, likelihood, y)
    )


def _plan_by_inputs(
    model: Model, likelihood: Likelihood, Phi: Tensor, y: Tensor, std: float, generator: torch.Generator
) -> Selected | TraceSearch:
    options, classes = model.options, _start_classes(model, likelihood, y)
    M = model.points(likelihood)
    return plan_by_inputs(kernel_features(Phi, std), M, options.recipe, options.u_noise, generator, classes)


def _start_classes(model: Model, likelihood: Likelihood, y: Tensor) -> Tensor | None:
    return y if model.options.start == "balanced" and likelihood.classes is not None else None
