"""How a task begins and how it ends: fresh posterior in, summary out. Shared by fit() and observe()."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from frcl.augment import Augment
from frcl.engine.ahead import known_of, with_known
from frcl.engine.program import CHUNK as STEPS
from frcl.engine.program import Drawn, Program, StepLock, exact_number, refuse_non_finite
from frcl.engine.train import Optimiser
from frcl.errors import OptionError
from frcl.features import (
    FEATURE_SCALE,
    SIZE,
    STREAM_SIZE,
    FeatureMap,
    check_features,
    common_scale,
    fixed_parts,
    has_convolutions,
    in_chunks,
    is_stackable,
    network_failures,
    trained_parts,
    with_bias,
)
from frcl.learners.base import check_examples
from frcl.learners.held_out import held_rows
from frcl.learners.lockstep import Work
from frcl.learners.objective import Constants, Draws, Objective, Parameters, draws_of_rows, inducing_inputs
from frcl.learners.options import FRCLOptions
from frcl.learners.state import CurrentTask, LearnerState
from frcl.learners.types import Summary
from frcl.likelihoods import Likelihood
from frcl.posterior import Posterior, aligned_mean, initial_posterior, kernel_features, triangular, weight_moments
from frcl.regularisers.heads import trained_heads, with_trained_heads
from frcl.regularisers.protocol import Task, draw_penalties, hooks, stacked_points
from frcl.seeding import fork
from frcl.selection import (
    CRITERIA,
    Selected,
    TaskData,
    TraceSearch,
    plan_by_inputs,
    run_searches,
    select_by_targets,
)
from frcl.summary import (
    FunctionBelief,
    belief_from_function,
    belief_from_weights,
    head_moments,
    make_head,
    stored_inputs,
)
from frcl.trees import Params, detached, leaf, tree_map

CHUNK = 16384  # inputs that pass through the network at once outside of training
CHUNK_OF_MAPS = 4096  # the same for a convolutional network on the CPU, whose maps are large
SAMPLE = 1000  # examples over which the outputs of the network are measured when learning begins
SPREAD = 2000  # examples over which variances are averaged when a task ends

Examples = tuple[Tensor, Tensor]  # inputs, encoded targets


@dataclass
class Model:
    """The network with its options: what beginning, ending and predicting have in common."""

    net: nn.Module
    options: FRCLOptions
    dtype: torch.dtype
    device: torch.device
    lock: StepLock
    size: float = SIZE  # root mean square of the features on the first data
    draws: dict[tuple[int, ...], Tensor] = field(default_factory=dict)  # of predictions, by shape

    def __post_init__(self) -> None:
        options, self.map = self.options, FeatureMap(self.net, self.options.bfloat16)
        self.prior, self.recipe, self.rule = options.prior, options.recipe, options.rule
        # what the network's outputs are multiplied by; set from the first data of the first task
        self.scale = torch.ones((), dtype=self.dtype, device=self.device)
        self.stackable = is_stackable(self.net)
        self.chunk = CHUNK if self.device.type == "cuda" or not has_convolutions(self.net) else CHUNK_OF_MAPS

    @cached_property
    def map_ahead(self) -> FeatureMap:
        """The same for inputs that have passed through the frozen part of the network, where it has one."""
        return self.map.ahead()

    @property
    def weights(self) -> Params:
        """All weights of the network, and the scale of its outputs."""
        return {**dict(self.net.named_parameters()), FEATURE_SCALE: self.scale}

    @property
    def is_natural(self) -> bool:
        """Whether q takes natural-gradient steps: q(w) does where no weight of the network is trained."""
        options = self.options
        return options.inference == "weight" and options.covariance != "lowrank" and not trained_parts(self.net)

    def start_of_q(self, C: int, n: int, generator: torch.Generator) -> Posterior:
        """q as a task begins: C functions of n weights, or of n points in function space."""
        options, weights = self.options, self.options.inference == "weight"
        covariance = options.covariance if weights else "full"
        std = 1.0 if self.is_natural else options.initial_std
        spread = std / (self.size * math.sqrt(n) if weights else 1.0)
        return initial_posterior(
            C, n, spread, self.dtype, self.device, covariance, generator=generator,
            rank=min(options.rank, n) if covariance == "lowrank" else 0,
            random_mean=weights and options.initial_mean != "zero",
        )  # fmt: skip

    def features(self, x: Tensor) -> Tensor:
        """Φ [n, K] under the current θ, without gradient: `map`, with the weights that the network has."""
        with torch.no_grad():
            if x.shape[0] <= self.chunk:
                return with_bias(self.scale * self.map.outputs(x))
            return torch.cat([with_bias(self.scale * self.map.outputs(rows)) for rows in x.split(self.chunk)])

    def points(self, likelihood: Likelihood) -> int:
        """M of a task."""
        if self.options.points_per_class is None:
            return self.options.points
        if likelihood.classes is None:
            raise OptionError("points_per_class is for classification; set points for a regression task")
        return self.options.points_per_class * len(likelihood.classes)

    def predictive_draws(self, likelihood: Likelihood) -> Tensor:
        """The same Monte Carlo draws for every input and every call: a prediction does not depend on the batch."""
        shape = likelihood.draws_shape(1, training=False)
        if shape not in self.draws:
            generator = fork(self.options.seed, "prediction")
            with torch.inference_mode(False):
                draws = torch.randn(shape, generator=generator, dtype=self.dtype).to(self.device)
                self.draws[shape] = draws.movedim(0, -1).contiguous().movedim(-1, 0)  # in the order they are read
        return self.draws[shape]

    def task(self, state: LearnerState, likelihood: Likelihood, N: float) -> Task:
        """The task being learned, as regularisers are told of it."""
        theta, fixed = trained_parts(self.net), {**fixed_parts(self.net), FEATURE_SCALE: self.scale}
        at_most = self.options.past_tasks_per_step
        return Task(self.map, theta, fixed, state.past, likelihood, N, tasks_per_step=at_most)


# -- checks ------------------------------------------------------------------------------------------------


def check_opening(model: Model, likelihood: Likelihood, x: Tensor, examples: int) -> int:
    """Refuse what a task cannot begin with, of which `examples` will be at hand when it ends; returns K."""
    options, points = model.options, model.points(likelihood)
    if points > examples:
        raise OptionError(f"{points} points cannot be chosen from a window of {examples} examples")
    if options.inference == "function":
        check_examples(points, likelihood, len(x))
        if options.learn_inputs and not x.is_floating_point():
            raise OptionError("learn_inputs=True needs floating-point inputs; these are integers")
    if CRITERIA[options.selection].needs_classes and likelihood.classes is None:
        raise OptionError(f'selection="{options.selection}" counts wrong classes; a regression task has none')
    return check_features(model.net, x) + 1


def split(model: Model, likelihood: Likelihood, task: int, x: Tensor, y: Tensor) -> tuple[Examples, Examples | None]:
    """What is learned from, and what is held out; the same for the same data. Too few examples are refused."""
    count = math.ceil(model.options.held_out * len(x))
    check_examples(model.points(likelihood), likelihood, len(x), count)
    if not count:
        return (x, y), None
    held, learned = held_rows(y, count, fork(model.options.seed, f"held-out/{task}"))
    return (x[learned], y[learned]), (x[held], y[held])


# -- beginning ----------------------------------------------------------------------------------------------


def open_task(
    model: Model, likelihood: Likelihood, size: int, state: LearnerState, x: Tensor, y: Tensor, examples: int, *,
    stream: bool,
) -> CurrentTask:  # fmt: skip
    """Begin a task whose first data are x and y; N is `size`; `examples` are at hand when it ends."""
    n = check_opening(model, likelihood, x, examples)
    options = model.options
    if not state.past:
        with network_failures():
            outputs = in_chunks(model.net, x[:: max(1, len(x) // SAMPLE)], model.chunk)
            model.size = STREAM_SIZE if stream else SIZE
            model.scale.copy_(common_scale(outputs, model.size))
    learned = {name: leaf(v.to(model.device, model.dtype)) for name, v in likelihood.initial_parameters().items()}
    Z: Tensor | None = None
    trained_Z: Tensor | None = None
    if options.inference == "function":
        Phi, std = model.features(x), float(model.prior.setting)
        plan = _plan(model, likelihood, Phi, y, std, state.streams["selection"])
        found = plan if isinstance(plan, Selected) else run_searches([plan])[0]
        Z = x[found.index.to(model.device)].clone()
        n = len(Z)
        if options.learn_inputs:
            trained_Z, Z = leaf(Z), None
    q = model.start_of_q(likelihood.functions, n, state.streams["posterior"])
    starts = ("aligned",) if state.past else ("aligned", "auto")
    if not stream and options.inference == "weight" and not model.is_natural and options.initial_mean in starts:
        q = q._replace(mean=_aligned(model, likelihood, learned, x, y, q.mean))
    trains_heads = any(one.trains_heads for one in state.regularisers)
    heads = trained_heads(state.regularisers, state.past) if trains_heads else None
    params = Parameters(trained_parts(model.net), tree_map(leaf, q), learned, heads, trained_Z)
    N, task = float(size), replace(model.task(state, likelihood, float(size)), examples=examples)
    for regulariser in state.regularisers:
        regulariser.begin(task)
    natural = exact_number(N, model.dtype, model.device) if model.is_natural else None
    optimiser = Optimiser(params, options.lr, natural, model.rule)
    current = CurrentTask(likelihood, N, params, optimiser, Z=Z)
    state.current, state.declared = current, None
    state.input_shape, state.input_dtype = tuple(x.shape[1:]), x.dtype
    return current


def _aligned(model: Model, likelihood: Likelihood, learned: Params, x: Tensor, y: Tensor, otherwise: Tensor) -> Tensor:
    """`aligned_mean` of some examples, under the features with which the task begins."""
    std, rows = model.options.initial_std, slice(None, None, max(1, len(x) // SPREAD))
    with network_failures():
        Phi = model.features(x[rows])
    f = Phi.new_zeros(len(Phi), len(otherwise)).requires_grad_()
    draws = f.new_zeros(likelihood.draws_shape(len(f), training=True))
    with torch.enable_grad():
        log_p = likelihood.expected_log_prob(f, torch.full_like(f, std**2), y[rows], draws, learned)
        (gradient,) = torch.autograd.grad(log_p.sum(), f)
    return aligned_mean(Phi, gradient, std, otherwise)


def constants_of(model: Model, state: LearnerState, current: CurrentTask, features: FeatureMap) -> Constants:
    """What the objective of the current task reads besides its parameters; `features` are those of its inputs."""
    task = replace(model.task(state, current.likelihood, current.N), features=features)
    readers = [one for one in state.regularisers if one.uses_points and (task.theta or not one.fixed_if_frozen)]
    points = [one.points.inputs for one in state.past] if readers else []
    if features.prepared:
        points = [features.through_front(Z) for Z in points]
    return Constants(
        exact_number(current.N, model.dtype, model.device), len(state.past), detached(task.fixed),
        stacked_points(points) if points else None, current.Z, tuple(one.constants(task) for one in state.regularisers),
    )  # fmt: skip


def program_of(
    model: Model, state: LearnerState, current: CurrentTask, x: Tensor, y: Tensor, *, stream: bool = False,
    stop: int = 0, augment: Augment | None = None,
) -> Program:  # fmt: skip
    """The steps left of the current task: those of fit() up to `stop`, or one per minibatch of a stream."""
    options, likelihood, streams = model.options, current.likelihood, state.streams
    regularisers, tasks = state.regularisers, len(state.past)
    ahead = augment is None and not stream and options.inference == "weight"
    features = model.map_ahead if ahead else model.map
    stackable = is_stackable(model.net, prepared=True) if features.prepared else model.stackable
    if not stream and (options.warm_up or options.lr_decay):
        current.optimiser.schedule(stop, options.warm_up, options.lr_decay)
    program: Program

    def draw(steps: int) -> Drawn:
        batch, rows = len(program.x), None
        if not stream:
            batch = options.batch_size
            rows = torch.randint(len(x), (steps, batch), generator=streams["batches"], device=model.device)
        shape = likelihood.draws_shape(batch, training=True)
        generator = streams["likelihood"]
        draws = torch.randn((steps, *shape), generator=generator, dtype=model.dtype, device=model.device)
        past = draw_penalties(regularisers, steps, tasks, options.past_tasks_per_step, streams["past"])
        own = with_known(past.own, known, rows) if known and rows is not None else past.own
        return Drawn(rows, Draws(draws, past.tasks, own))

    constants, inputs = (
        constants_of(model, state, current, features),
        features.through_front(x) if features.prepared else x,
    )
    known: list[Tensor | None] = []
    if augment is None and not stream and any(one.knows for one in regularisers):
        task = replace(model.task(state, likelihood, current.N), features=features)
        known = known_of(regularisers, task, constants.regularisers, inputs, stop * options.batch_size)
    program = Program(
        net=model.net, loss=Objective(features, likelihood, options, regularisers, model.prior),
        optimiser=current.optimiser, constants=constants, x=inputs, y=y, draw=draw, streams=streams, stop=stop,
        **hooks(regularisers, options.seed, tasks, augment),
        stackable=stackable and all(one.batchable for one in regularisers),
        chunk=1 if stream else STEPS, lock=model.lock, share=partial(draws_of_rows, likelihood),
        signature=(
            repr({name: value for name, value in vars(options).items() if name != "seed"}), repr(regularisers),
            str(model.net), [one is None for one in known],
            [(one.name, one.functions) for one in (likelihood, *(p.likelihood for p in state.past))],
        ),
    )  # fmt: skip
    return program


# -- end ----------------------------------------------------------------------------------------------------


def close_task(model: Model, current: CurrentTask, state: LearnerState, x: Tensor, y: Tensor) -> Work[Summary]:
    """Turn the current task of `state` into a summary and have the regularisers remember it.

    `state` is a copy: where something fails or is interrupted the learner does not take it over.
    """
    summary = yield from _summarise(model, current, x, y, state.streams["selection"])
    task = replace(
        model.task(state, current.likelihood, current.N), features=replace(model.map, bfloat16=False),
        head=summary.head, likelihood_params=summary.likelihood_params,
    )  # fmt: skip
    if model.options.prediction == "summary" and not any(one.uses_heads for one in state.regularisers):
        summary = replace(summary, head=None)
    with network_failures():
        for regulariser in state.regularisers:
            regulariser.end(task, x, y, state.streams["selection"])
    trained = current.params.heads
    state.past = [*(state.past if trained is None else with_trained_heads(state.past, trained)), summary]
    state.current = None
    return summary


def _summarise(model: Model, current: CurrentTask, x: Tensor, y: Tensor, generator: torch.Generator) -> Work[Summary]:
    """What is kept of a task; in weight space its points are chosen among x. Nothing of x but Z is kept."""
    options, params, likelihood = model.options, detached(current.params), current.likelihood
    refuse_non_finite("parameter", current.optimiser.params)
    q, learned = params.posterior, {name: value.clone() for name, value in params.likelihood.items()}
    std = model.prior.std(q)
    if options.inference == "function":
        Z = inducing_inputs(params, current.Z)
        belief = belief_from_function(q, options.u_noise, std)
        head = make_head(model.features(Z), belief).weights.mT.to(q.mean)  # the mean of w that q(u) implies
        return Summary(stored_inputs(Z), belief, likelihood, learned, int(current.N), None, None, head)
    check_examples(model.points(likelihood), likelihood, len(x))
    Phi = model.features(x)
    plan = _plan(model, likelihood, Phi, y, std, generator, params, current.N)
    found: Selected = plan if isinstance(plan, Selected) else (yield plan)
    rows = found.index.to(model.device)
    belief = belief_from_weights(q, Phi[rows], options.u_noise, std)
    spread = None if options.prediction == "summary" else spread_of(q, Phi, Phi[rows], belief)
    return Summary(
        stored_inputs(x[rows]), belief, likelihood, learned, int(current.N), found.before, found.after,
        q.mean.clone(), spread,
    )  # fmt: skip


def spread_of(q: Posterior, Phi: Tensor, Phi_z: Tensor, belief: FunctionBelief) -> Tensor:
    """E_x var_q f_c(x) / E_x var f_c(x) through the summary, [C], over examples of the task; at most 1.

    A few points leave most of a function undetermined, of which q(w) was sure. A kept head has its mean from q(w), and
    by this ratio its variance too: on average over the task that of q(w), elsewhere as much larger as the summary says.
    """
    some = Phi[:: max(1, len(Phi) // SPREAD)]
    own = weight_moments(triangular(q), some).variance.mean(0)
    through = head_moments(make_head(Phi_z, belief), some).variance.mean(0)
    return (own / through.to(own)).clamp_max(1.0)


def _plan(
    model: Model, likelihood: Likelihood, Phi: Tensor, y: Tensor, std: float, generator: torch.Generator,
    params: Parameters | None = None, N: float = 0.0,
) -> Selected | TraceSearch:  # fmt: skip
    """The points of a task, or the search for them; a supervised criterion looks at what was learned, `params`."""
    options, recipe, M = model.options, model.recipe, model.points(likelihood)
    classes = y if options.start == "balanced" and likelihood.classes is not None else None
    if params is None or not recipe.is_supervised:
        return plan_by_inputs(kernel_features(Phi, std), M, recipe, options.u_noise, generator, classes)
    draws = model.predictive_draws(likelihood)
    task = TaskData(Phi, y, params.posterior, likelihood, params.likelihood, std, options.u_noise, draws, N)
    return select_by_targets(task, M, recipe, generator, classes)
