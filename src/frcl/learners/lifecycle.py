"""How a task begins and how it ends: fresh posterior in, summary out. Shared by fit() and observe()."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from frcl.engine.adam import Optimiser
from frcl.engine.program import ROWS, Program, Terms, minibatch_rows
from frcl.engine.tensors import Params, exact_number, in_chunks, leaf, refuse_non_finite
from frcl.errors import DataError, OptionError
from frcl.features import (
    FIXED,
    check_features,
    features,
    fixed_parts,
    has_convolutions,
    is_stackable,
    network_failures,
)
from frcl.learners.holds import holds_of, make_holds, trained_heads
from frcl.learners.lockstep import Work
from frcl.learners.objective import (
    INPUTS,
    LIKELIHOOD,
    POSTERIOR,
    THETA,
    Memory,
    Noise,
    Objective,
    detached,
    posterior_of,
)
from frcl.learners.options import FRCLOptions
from frcl.learners.state import CurrentTask, LearnerState
from frcl.learners.targets import TargetSpec
from frcl.learners.types import Summary
from frcl.posterior import Posterior, initial_posterior, triangular, weight_moments
from frcl.regularisers.curvature import Anchor, next_anchor
from frcl.regularisers.fisher import diagonal_fisher, gaussian_fisher
from frcl.regularisers.functional import bank_of, sample_tasks
from frcl.regularisers.protocol import named, under
from frcl.regularisers.quadratic import FisherRecipe
from frcl.seeding import Streams, fork
from frcl.selection import Selected, TaskData, TraceSearch, plan_by_inputs, run_searches, select_by_targets
from frcl.summary import FunctionBelief, belief_from_function, belief_from_weights, head_moments, make_head

CHUNK = 16384  # inputs that pass through the network at once outside of training
CHUNK_OF_MAPS = 4096  # the same for a convolutional network on the CPU, whose maps are large
SPREAD = 2000  # examples over which variances are averaged when a task ends


@dataclass(frozen=True)
class Model:
    """The network with its options: what beginning, ending and predicting have in common."""

    net: nn.Module
    options: FRCLOptions
    dtype: torch.dtype
    device: torch.device

    def features(self, x: Tensor) -> Tensor:
        """Φ [n, K] under the current θ, without gradient, not times σ_w."""
        theta, scale = dict(self.net.named_parameters()), self.options.feature_scale
        return in_chunks(lambda rows: features(self.net, theta, rows, scale), x, self.chunk)

    def theta(self) -> Params:
        """The weights of the network that are trained."""
        return {name: p for name, p in self.net.named_parameters() if p.requires_grad}

    @property
    def chunk(self) -> int:
        return CHUNK if self.device.type == "cuda" or not has_convolutions(self.net) else CHUNK_OF_MAPS

    def points(self, target: TargetSpec) -> int:
        """M of a task."""
        if self.options.points_per_class is None:
            return self.options.points
        if target.labels is None:
            raise OptionError("points_per_class is for classification; set points for a regression task")
        return self.options.points_per_class * len(target.labels)

    def predictive_noise(self, target: TargetSpec) -> Tensor:
        """The same Monte Carlo noise for every input and every call: a prediction does not depend on company."""
        shape = target.likelihood.noise_shape(1, target.functions, False)
        generator = fork(self.options.seed, "prediction")
        return torch.randn(shape, generator=generator, dtype=self.dtype).to(self.device)


def check_enough(model: Model, target: TargetSpec, examples: int) -> None:
    """Refuse a task with fewer examples than points."""
    if examples < model.points(target):
        raise DataError(
            f"{examples} examples are fewer than the {model.points(target)} inducing points to keep; "
            "lower points, or bring more data"
        )


def held_out(options: FRCLOptions, examples: int) -> int:
    """How many of a task's examples are not learned from."""
    return math.ceil(options.held_out * examples)


def held_rows(y: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """So many rows of examples with classes y, drawn to be held out, and the others; these have some of every class."""
    rows = torch.randperm(len(y), generator=generator).to(y.device)
    held, learned = rows[:count], rows[count:]
    missing = torch.isin(y[held], y[learned], invert=True)
    if bool(missing.any()):
        back = [int((y[held] == label).nonzero()[0, 0]) for label in y[held][missing].unique()]
        stays = torch.ones(count, dtype=torch.bool, device=y.device)
        stays[back] = False
        held, learned = held[stays], torch.cat([learned, held[~stays]])
    return held, learned.sort().values


Examples = tuple[Tensor, Tensor]  # inputs, encoded targets


def split(options: FRCLOptions, task: int, x: Tensor, y: Tensor) -> tuple[Examples, Examples | None]:
    """What is learned from, and what is held out; the same of the same data, whenever it is asked for."""
    count = held_out(options, len(x))
    if not count:
        return (x, y), None
    held, learned = held_rows(y, count, fork(options.seed, f"held-out/{task}"))
    return (x[learned], y[learned]), (x[held], y[held])


def check_held_out(model: Model, target: TargetSpec, examples: int) -> None:
    """Refuse a task that has too few examples besides those held out, or no class probabilities to temper."""
    if model.options.held_out and not target.is_classification:
        raise OptionError("held_out is for the probabilities of classes; a regression task has none: set it to 0")
    held = held_out(model.options, examples)
    if held and examples >= model.points(target) > examples - held:
        raise DataError(
            f"{examples} examples less {held} held out are fewer than the {model.points(target)} inducing points to "
            "keep; lower points or held_out, or bring more data"
        )
    check_enough(model, target, examples)


def check_opening(model: Model, target: TargetSpec, x: Tensor) -> int:
    """Refuse what a task cannot begin with; returns K."""
    options = model.options
    if options.inference == "function":
        check_enough(model, target, len(x))
        if options.learn_inputs and not x.is_floating_point():
            raise OptionError("learn_inputs=True needs floating-point inputs; these are integers")
    if options.selection == "error" and not target.is_classification:
        raise OptionError('selection="error" counts wrong classes; a regression task has none')
    return check_features(model.net, x) + 1


def open_task(model: Model, target: TargetSpec, size: int, state: LearnerState, x: Tensor, y: Tensor) -> CurrentTask:
    """A fresh posterior for a task whose first data are x and y; N is `size`."""
    n = check_opening(model, target, x)
    options, theta = model.options, model.theta()
    params: Params = named(THETA, theta)
    for name, value in target.likelihood.initial_parameters(target.functions).items():
        params[LIKELIHOOD + name] = leaf(value.to(model.device, model.dtype))
    Z: Tensor | None = None
    if options.inference == "function":
        plan = _plan_by_inputs(model, target, model.features(x), y, state.streams["selection"])
        found = plan if isinstance(plan, Selected) else run_searches([plan])[0]
        Z = x[found.index.to(model.device)].clone()
        n = len(Z)
        if options.learn_inputs:
            params[INPUTS], Z = leaf(Z), None
    q = initial_posterior(target.functions, n, options.initial_scale, model.dtype, model.device)
    params |= {POSTERIOR + name: leaf(value) for name, value in q._asdict().items()}
    holds = make_holds(options, state.past, theta, theta, state.anchor)
    params |= {name: leaf(value) for name, value in trained_heads(options, holds).items()}
    return CurrentTask(
        target=target,
        objective=Objective(model.net, target.likelihood, options),
        params=params,
        optimiser=Optimiser(params, options.lr),
        memory=Memory(float(size), state.bank, Z, holds),
    )


BANK, HOLDS = "bank/", "holds/"  # prefixes of the past summaries, and of what else holds, among a program's constants


def program_of(
    model: Model, current: CurrentTask, x: Tensor, y: Tensor, streams: Streams, advance: Callable[[], None]
) -> Program:
    """The steps that fit() has left of the current task, as the engine takes them."""
    options, target, objective, memory = model.options, current.target, current.objective, current.memory
    tasks, smallest = (memory.past.tasks, memory.past.smallest) if memory.past else (0, 0)
    current.optimiser.falls(options.steps, options.lr_decay)
    constants: Params = {"N": exact_number(float(memory.N), model.dtype, x.device)}
    constants |= {FIXED + name: value.detach() for name, value in fixed_parts(model.net).items()}
    if memory.past is not None:
        constants |= named(BANK, memory.past.tensors())
    if memory.Z is not None:
        constants["Z"] = memory.Z
    if memory.holds is not None:
        constants |= named(HOLDS, memory.holds.tensors())

    def draw(steps: int) -> Params:
        shape = target.likelihood.noise_shape(options.batch_size, target.functions, True)
        drawn = {
            ROWS: minibatch_rows(len(x), options.batch_size, steps, streams, model.device),
            "likelihood": torch.randn(
                (steps, *shape), generator=streams["likelihood"], dtype=model.dtype, device=model.device
            ),
        }
        looked_at = sample_tasks(tasks, options.past_tasks_per_step, steps, streams["past"])
        return drawn if looked_at is None else drawn | {"tasks": looked_at}

    def loss(params: Params, known: Params, rows: Tensor, targets: Tensor, noise: Params) -> Terms:
        past = bank_of(under(known, BANK), smallest) if tasks else None
        whole = params | named(THETA, under(known, FIXED))
        held = Memory(known["N"], past, known.get("Z"), holds_of(under(known, HOLDS)))
        return objective(whole, held, (rows, targets), Noise(noise["likelihood"], noise.get("tasks")))

    return Program(
        net=model.net, loss=loss, optimiser=current.optimiser, constants=constants,
        x=x, y=y, draw=draw, streams=streams, step=current.step, stop=options.steps, advance=advance,
        stackable=is_stackable(model.net),
        signature=(repr(replace(options, seed=0)), target.functions, str(target.likelihood), smallest, str(model.net)),
    )  # fmt: skip


def summarise(model: Model, current: CurrentTask, x: Tensor, y: Tensor, generator: torch.Generator) -> Work[Summary]:
    """What is kept of a task; in weight space its points are chosen among x. Nothing of x but Z is held on to."""
    params = detached(current.params)
    refuse_non_finite(params)
    q, learned = posterior_of(params), under(params, LIKELIHOOD)
    before: float | None = None
    after: float | None = None
    spread: Tensor | None = None
    if model.options.inference == "function":
        Z = current.objective.inducing_inputs(params, current.memory)
        belief = belief_from_function(q, model.options.u_noise)
    else:
        check_enough(model, current.target, len(x))
        Phi = model.features(x)
        plan = _plan(model, current.target, q, learned, Phi, y, float(current.memory.N), generator)
        found: Selected = plan if isinstance(plan, Selected) else (yield plan)
        rows = found.index.to(model.device)
        Z, before, after = x[rows], found.before, found.after
        belief = belief_from_weights(q, Phi[rows], model.options.u_noise)
        if model.options.prediction != "summary":
            spread = spread_of(model, q, Phi, Phi[rows], belief)
    return Summary(
        Z=Z.clone(),
        belief=belief,
        target=current.target,
        likelihood_params={name: value.clone() for name, value in learned.items()},
        size=int(current.memory.N),
        before=before,
        after=after,
        head=mean_head(model, q, Z, belief).clone() if model.options.keeps_heads else None,
        spread=spread,
    )


def spread_of(model: Model, q: Posterior, Phi: Tensor, Phi_z: Tensor, belief: FunctionBelief) -> Tensor:
    """E_x var_q f_c(x) / E_x var f_c(x) through the summary, [C], over examples of the task; at most 1.

    A few points leave most of a function open, of which q(w) was sure. A kept head has its mean from q(w), and by this
    ratio its variance too: on average over the task that of q(w), elsewhere as much larger as the summary says.
    """
    scale = model.options.prior_std
    some = Phi[:: max(1, len(Phi) // SPREAD)]
    own = weight_moments(triangular(q), some).variance.mean(0)
    through = head_moments(make_head(scale * Phi_z, belief), belief, scale * some).variance.mean(0)
    return (own / through.to(own)).clamp_max(1.0)


def mean_head(model: Model, q: Posterior, Z: Tensor, belief: FunctionBelief) -> Tensor:
    """The mean of w [C, K] at the end of a task: that of q(w); in function space what q(u) says of it, Φ_Zᵀ K̃⁻¹ μ_u."""
    if model.options.inference == "weight":
        return q.mean
    scale = model.options.prior_std
    return (scale * make_head(scale * model.features(Z), belief).weights.mT).to(q.mean)


def anchor_after(
    model: Model, current: CurrentTask, summary: Summary, x: Tensor, y: Tensor, state: LearnerState
) -> Anchor | None:
    """The anchor on θ after a task with examples x, y: it gains N × the Fisher information of the task's likelihood.

    Of the likelihood at the mean head; for classes that of the softmax, for one function of the Bernoulli distribution.
    """
    options, theta = model.options, model.theta()
    if not options.curvature or not theta:
        return state.anchor
    head = mean_head(model, posterior_of(detached(current.params)), summary.Z, summary.belief)
    rows = FisherRecipe(examples=options.fisher_examples).rows(x, state.streams["selection"])

    def outputs(params: Params, some: Tensor) -> Tensor:
        f = features(model.net, params, some, options.feature_scale) @ head.mT
        return torch.cat([f, torch.zeros_like(f)], 1) if current.target.is_classification and f.shape[1] == 1 else f

    with network_failures():
        if current.target.is_classification:
            fisher = diagonal_fisher(outputs, theta, x[rows], y[rows])
        else:
            precision = summary.likelihood_params["log_noise"].neg().exp()
            fisher = gaussian_fisher(outputs, theta, x[rows], precision)
    information = {name: float(current.memory.N) * value for name, value in fisher.items()}
    return next_anchor(state.anchor, theta, information, options.curvature_decay)


def _plan(
    model: Model,
    target: TargetSpec,
    q: Posterior,
    params: Params,
    Phi: Tensor,
    y: Tensor,
    size: float,
    generator: torch.Generator,
) -> Selected | TraceSearch:
    options = model.options
    if not options.recipe.is_supervised:
        return _plan_by_inputs(model, target, Phi, y, generator)
    noise_mc = model.predictive_noise(target)
    scale = options.prior_std
    task = TaskData(Phi, y, q, target.likelihood, params, scale, options.u_noise, noise_mc, size)
    classes = _start_classes(model, target, y)
    return select_by_targets(task, model.points(target), options.recipe, generator, classes)


def _plan_by_inputs(
    model: Model, target: TargetSpec, Phi: Tensor, y: Tensor, generator: torch.Generator
) -> Selected | TraceSearch:
    options, M = model.options, model.points(target)
    classes = _start_classes(model, target, y)
    return plan_by_inputs(options.prior_std * Phi, M, options.recipe, options.u_noise, generator, classes)


def _start_classes(model: Model, target: TargetSpec, y: Tensor) -> Tensor | None:
    return y if model.options.start == "balanced" and target.is_classification else None
