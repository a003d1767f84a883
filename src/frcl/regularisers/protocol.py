"""The protocol of a regulariser: what it adds to the loss, what it remembers of a task, what it costs; the paper's KL.

FRCL, FRCL+ and the methods beside them are a network, a last layer per task and a list of these.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, cast, get_type_hints

import torch
from torch import Tensor

from frcl import codec
from frcl.augment import Augment, Augmentation, PureAugment
from frcl.checks import Seen, check_like, expect
from frcl.errors import CheckpointError, DataError, OptionError
from frcl.features import FeatureMap
from frcl.graphs import inside_a_transform
from frcl.likelihoods import Likelihood
from frcl.options import NOT_NEGATIVE, POSITIVE, check_fields
from frcl.registry import Registry
from frcl.seeding import fork
from frcl.summary import prior_kl, prior_kl_terms
from frcl.trees import Params, Tree, named_tensors, shapes, tree_map

P = TypeVar("P", int, int | None)
Kept = dict[str, list[Tensor]]  # what is kept of past tasks, by kind (`learners/types.py`)


class PastTask(Protocol):
    """What a learner keeps of a finished task, as far as a regulariser may read it."""

    @property
    def likelihood(self) -> Likelihood: ...
    @property
    def likelihood_params(self) -> Params: ...
    @property
    def size(self) -> int: ...
    @property
    def head(self) -> Tensor | None: ...


@dataclass(frozen=True)
class Task:
    """The task that begins or has just ended."""

    features: FeatureMap
    theta: Params  # the shared weights that are trained, live
    fixed: Params  # the weights and buffers that are not
    past: Sequence[PastTask]  # what is kept of the tasks before it
    likelihood: Likelihood
    N: float  # its number of examples
    head: Tensor | None = None  # [C, K], the mean of its last layer; there when it has ended,
    likelihood_params: Params = field(default_factory=dict)  # with what its likelihood learned
    tasks_per_step: int | None = None  # how many past tasks a step uses at most; None: all
    examples: int | None = None  # how many of its examples will be at hand when it ends, known when it begins
    shared_head: bool = False  # whether labels that tasks have in common are one row of one head


class Step(NamedTuple):
    """What a penalty may read in one training step."""

    features: FeatureMap
    theta: Params  # all shared weights, trained and fixed
    head: Tensor  # [C, K], the mean of the current task's last layer
    heads: Tensor | None  # [T, C, K], those of past tasks where they are trained along; None: as they were kept
    x: Tensor  # the minibatch,
    y: Tensor  # its targets,
    Phi: Tensor  # [B, K], and its features
    Phi_z: Tensor | None  # [k, M, K], features at the inducing points of the past tasks in use
    tasks: Tensor | None  # [k], the past tasks in use; None: all of them
    past_tasks: int  # T, how many there are
    N: Tensor  # number of examples of the current task

    @property
    def scale(self) -> float:
        """T/k, by which a sum over the k tasks in use becomes an unbiased estimate of that over all T past tasks."""
        return 1.0 if self.tasks is None else self.past_tasks / len(self.tasks)


def number(default: float | None, *, positive: bool = False) -> Any:
    """A setting that must be a finite number, positive or at least not negative."""
    return field(default=default, metadata={"limits": POSITIVE if positive else NOT_NEGATIVE})


def remembered(make: Callable[[], Any] = dict, *, positive: bool = False) -> Any:
    """A field of state; `positive` where no number in it is negative."""
    return field(default_factory=make, init=False, repr=False, metadata={"positive": positive})


@dataclass
class Regulariser(ABC):
    """Holds on to past tasks while a new one is learned. Final classes are dataclasses: settings first, then state.

    State are the fields that no argument sets (`remembered`). `begin`, `end` and `load` replace it and never change a
    tensor in place, so that a shallow copy is a snapshot.
    """

    name: ClassVar[str]
    uses_heads: ClassVar[bool] = False  # reads heads of past tasks, which the learner then keeps
    uses_points: ClassVar[bool] = False  # reads features at the inducing points of past tasks
    fixed_if_frozen: ClassVar[bool] = False  # reads them once, where no weight of the network is trained
    carries: ClassVar[str] = ""  # the field of tensors that `follow` updates in place, if any
    knows: ClassVar[bool] = False  # reads of inputs what no step changes, `of_inputs`
    looks: ClassVar[bool] = False  # wants to see every minibatch after its step
    trains_heads = False  # heads of past tasks are trained along; a setting `train_heads` decides it where there is one
    batchable = True  # its constants may be stacked with other seeds'
    augment = cast("PureAugment | None", None)  # what changes minibatches, and stored examples that are replayed

    def __post_init__(self) -> None:
        """Refuse settings that do not fit their types and limits; whole numbers count from 1."""
        check_fields(self, f" of {self.name}")
        self.trains_heads = getattr(self, "train_heads", self.trains_heads)

    def begin(self, task: Task) -> None:  # noqa: B027
        """A task begins; one that this regulariser cannot keep is refused."""

    def constants(self, task: Task) -> Tree:
        """What the penalty reads besides the step: the same from the beginning of a task to its end."""
        return ()

    def of_inputs(self, task: Task, constants: Tree, x: Tensor) -> Tensor | None:
        """What the penalty reads of inputs x [n, ...] and no step changes, a row for each, or None.

        Where it is computed ahead, the penalty gets the rows of its minibatch in the place of what `draw` returns.
        """
        return None

    def draw(self, steps: int, past_tasks: int, generator: torch.Generator) -> Tree:
        """Everything random of the next steps, tensors [steps, ...]."""
        return ()

    @abstractmethod
    def penalty(self, step: Step, constants: Tree, draws: Tree) -> Tensor | None:
        """The weighted penalty in nats per example, or None where there is nothing to penalise.

        Pure: reads its arguments and settings alone. `draws` is a row of what `draw` returned.
        """

    def follow(  # noqa: B027
        self, carry: Params, constants: Tree, gradient: Params, before: Params, after: Params
    ) -> None:
        """A step moved θ from `before` to `after` down the gradient of the loss with all penalties; elementwise."""

    def look(self, x: Tensor, y: Tensor, generator: torch.Generator) -> None:  # noqa: B027
        """A step was taken on this minibatch; called where `looks` is true."""

    def end(self, task: Task, x: Tensor, y: Tensor, generator: torch.Generator) -> None:  # noqa: B027
        """The task has ended; x and y are its data, seen for the last time."""

    def forget(self, task: int, *, last: bool) -> None:
        """Take a past task out of the state: its entry of each list, and everything if it was the `last` one.

        What is no list is a sum over all tasks, which cannot be divided.
        """
        drop_task(self, [one for one in fields(self) if not one.init], task, last=last)

    def replace(self, task: int) -> None:
        """The task that has just ended is a past one, learned further: its new entries take the place of the old."""
        state = [one for one in fields(self) if not one.init]
        edit_lists(self, state, lambda each: [*each[:task], each[-1], *each[task + 1 : -1]])

    def kept(self, theta: Params) -> Kept:
        """What is kept of past tasks, by kind; θ is what a copy of the network would hold."""
        return {}

    def added_bytes(self, task: Task, x: Tensor) -> int:
        """Bytes that the end of a task of inputs like x at least adds to what is kept, known when the task begins."""
        return 0

    def kept_inputs(self) -> list[Tensor]:
        """Stored inputs of each past task, where there are any."""
        return []

    def head_variance(self, task: int, Phi: Tensor) -> Tensor | None:
        """Variance of the functions of a past task [n, C], where the regulariser is a posterior of its head."""
        return None

    def state(self) -> Tree:
        """Everything that must be saved: a tree of tensors and plain values."""
        return {one.name: getattr(self, one.name) for one in fields(self) if not one.init}

    def load(self, state: Tree) -> None:
        """Restore what `state` returned, also where named tuples have become dictionaries."""
        for one in fields(self):
            if not one.init:
                hint = get_type_hints(type(self))[one.name]
                setattr(self, one.name, codec.from_json(hint, state[one.name], f"{self.name}: {one.name}"))

    def check_state(self, weights: Mapping[str, Tensor], saved: Seen, past: Sequence[Any]) -> None:
        """Refuse loaded state that does not fit the network or the past tasks.

        A list has an entry for each past task, and what is by name belongs to weights of these names.
        """
        for item in (one for one in fields(self) if not one.init):
            value, what = getattr(self, item.name), f"{item.name!r} of {self.name}"
            if isinstance(value, list):
                expect(len(value) in (0, len(past)), f"{what} has {len(value)} entries for {len(past)} tasks")
            for name, tensor in named_tensors(value if isinstance(value, dict) else ()):
                expect(name in weights, f"{what} names a weight {name!r} that does not exist")
                check_like(tensor, self.shape_of(item.name, name, weights), weights[name].dtype, f"{name!r} in {what}")
            if item.metadata.get("positive"):
                expect(all(bool((one >= 0).all()) for _, one in named_tensors(value)), f"{what} is negative")

    def shape_of(self, part: str, weight: str, weights: Mapping[str, Tensor]) -> tuple[int, ...]:
        """The shape of what the state `part` has under the name of a weight: that of the weight."""
        return tuple(weights[weight].shape)

    def check_resumed(self, task: Task) -> None:  # noqa: B027
        """Refuse loaded state that does not belong to the task that is being learned."""


def check_beginning(theta: Params, task: Task) -> None:
    """Refuse loaded weights that cannot be those with which the task began, kept where there are past tasks."""
    if sorted(shapes(theta)) != sorted(shapes(task.theta) if task.past else []):
        raise CheckpointError("the state lacks the network as it was when the current task began")


def drop_task(kept: Any, state: Sequence[Field[Any]], task: int, *, last: bool) -> None:
    """Replace the lists among the fields `state` of a dataclass by lists without one task; all of them by defaults
    if it was the `last`."""
    edit_lists(kept, state, lambda each: [*each[:task], *each[task + 1 :]])
    for one in state if last else ():
        setattr(kept, one.name, one.default_factory() if callable(one.default_factory) else one.default)


def edit_lists(kept: Any, state: Sequence[Field[Any]], edit: Callable[[list[Any]], list[Any]]) -> None:
    """Replace the lists among the fields `state` of a dataclass, which have an entry for each task; empty ones stay."""
    for one in state:
        if isinstance(value := getattr(kept, one.name), list) and value:
            setattr(kept, one.name, edit(value))


REGULARISERS: Registry[type[Regulariser]] = Registry("regulariser", of=type[Regulariser])


def register(kind: type[Regulariser]) -> type[Regulariser]:
    """Class decorator: the regulariser can be saved and loaded by its name."""
    return REGULARISERS.add(kind.name, kind)


def to_json(regulariser: Regulariser) -> dict[str, Any]:
    """Name and settings."""
    return {"name": regulariser.name} | {f.name: getattr(regulariser, f.name) for f in fields(regulariser) if f.init}


def from_json(data: Mapping[str, Any]) -> Regulariser:
    """A fresh regulariser with the settings that `to_json` gave."""
    name, settings = data.get("name"), {key: value for key, value in data.items() if key != "name"}
    try:
        return REGULARISERS[str(name)](**settings)
    except TypeError as error:
        raise OptionError(f"regulariser {name!r}: {error}") from error


class PenaltyDraws(NamedTuple):
    """The randomness of penalties: past tasks in use [steps, k] (None: all), and what each regulariser drew."""

    tasks: Tensor | None
    own: tuple[Tree, ...]


def draw_penalties(
    regularisers: Sequence[Regulariser], steps: int, past_tasks: int, at_most: int | None, generator: torch.Generator
) -> PenaltyDraws:
    """Everything random of the penalties in the next steps; at most `at_most` past tasks are used per step."""
    used: Tensor | None = None
    if at_most is not None and past_tasks > at_most:
        order = torch.rand(steps, past_tasks, generator=generator, device=generator.device, dtype=torch.float64)
        used = order.argsort(1)[:, :at_most].contiguous()  # all different, each task as probable as any other
    return PenaltyDraws(used, tuple(one.draw(steps, past_tasks, generator) for one in regularisers))


def hooks(regularisers: Sequence[Regulariser], seed: int, task: int, augment: Augment | None = None) -> dict[str, Any]:
    """What a Program does for the regularisers after each step: `carry`, `follow` and `look`, where one needs them.

    And the `augment` of its minibatches, of which the regularisers are told. The trees that `follow` is given have the
    shared weights as `theta`, the constants have those of each regulariser as `regularisers`.
    """

    def follow(carry: Tree, constants: Tree, gradient: Tree, before: Tree, after: Tree) -> None:
        for i, regulariser in enumerate(regularisers):
            if carry[i]:
                regulariser.follow(carry[i], constants.regularisers[i], gradient.theta, before.theta, after.theta)

    def look(x: Tensor, y: Tensor, step: int) -> None:
        for i, regulariser in enumerate(regularisers):
            if regulariser.looks:
                regulariser.look(x, y, fork(seed, f"look/{i}/{task}/{step}"))

    if augment is not None and not callable(augment):
        raise OptionError(f"augment is a function of inputs and a generator, or frcl.CropFlip(); got {augment!r}")
    for one in regularisers:
        one.augment = augment if isinstance(augment, PureAugment) else None
    changes = None if augment is None else Augmentation(augment, seed, task)
    carry = tuple(getattr(one, one.carries) if one.carries else {} for one in regularisers)
    looks = any(one.looks for one in regularisers)
    told = {"follow": follow if any(carry) else None, "look": look if looks else None}
    return {"carry": carry, **told, "augment": changes}


def copied_regularisers(given: Sequence[Regulariser]) -> list[Regulariser]:
    """Copies of regularisers that a user gave; anything else is refused."""
    if not isinstance(given, Sequence) or not all(isinstance(one, Regulariser) for one in given):
        raise OptionError(f"regularisers is a list of regularisers, as in [frcl.FunctionalKL()]; got {given!r}")
    return [copy.deepcopy(one) for one in given]


# -- past tasks ------------------------------------------------------------------------------------------------------


def points_of(points: P, per_class: int | None, likelihood: Likelihood, examples: int | None = None) -> int | P:
    """The number M of examples kept of a task: `points`, or `per_class` of each class; refused if it has fewer."""
    M = points if per_class is None or likelihood.classes is None else per_class * len(likelihood.classes)
    if M is not None and examples is not None and examples < M:
        raise DataError(f"{examples} examples are fewer than the {M} to keep; lower points, or bring more data")
    return M


def stacked_points(inputs: Sequence[Tensor]) -> Tensor:
    """The inducing inputs of T tasks, [T, M, ...], padded to the largest M by copies of a task's own first input."""
    M = max(len(Z) for Z in inputs)  # padding is masked out, but a network may not accept an input made of zeros
    return torch.stack([torch.cat([Z, Z[:1].expand(M - len(Z), *Z.shape[1:])]) for Z in inputs])


def of_tasks(tree: Tree, index: Tensor | None) -> Tree:
    """The entries of some tasks; a single one is not copied where its number can be read on the host."""
    if index is None:
        return tree
    alone = len(index) == 1 and index.device.type == "cpu" and not inside_a_transform()
    at = slice(int(index), int(index) + 1) if alone else index
    return tree_map(lambda part: part[at], tree)


class Unmoved(NamedTuple):
    """Divergences of past tasks [T] where no weight of the network is trained: they stay as they are."""

    each: Tensor


@register
@dataclass
class FunctionalKL(Regulariser):
    """The paper's: weight · Σ_i KL(q(u_i) ‖ p_θ(u_i)) / N over past tasks (equation 4), whole or sub-sampled (2.2)."""

    weight: float = number(1.0)
    name: ClassVar[str] = "functional-kl"
    uses_points: ClassVar[bool] = True
    fixed_if_frozen: ClassVar[bool] = True

    def constants(self, task: Task) -> Tree:
        past: Sequence[Any] = task.past  # with inducing inputs Z, and a belief about the function there
        if not past:
            return ()
        terms = prior_kl_terms([one.belief for one in past])
        if task.theta:
            return terms
        with torch.no_grad():
            Phi = [task.features(task.fixed, task.features.inputs(one.points.inputs)) for one in past]
            return Unmoved(prior_kl(stacked_points(Phi), terms))

    def penalty(self, step: Step, constants: Tree, draws: Tree) -> Tensor | None:
        if isinstance(constants, Unmoved):
            each: Tensor = of_tasks(constants, step.tasks).each
        elif not constants or step.Phi_z is None:
            return None
        else:
            each = prior_kl(step.Phi_z, of_tasks(constants, step.tasks))
        return self.weight * (each.sum() * step.scale / step.N)
