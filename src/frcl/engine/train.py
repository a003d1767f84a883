"""How parameters are moved: by Adam, AdamW or SGD, along natural gradients; the training loop, eager or recorded.

Programs run in lockstep, or one minibatch of a stream at a time.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from frcl.distributed import Processes, processes
from frcl.engine.batching import Block, can_stack, why_not
from frcl.engine.natural import STEP_SIZE, natural_step
from frcl.engine.parallel import begin_together, joint, sharded
from frcl.engine.program import Program, Unit, Values, indivisible, refuse_non_finite
from frcl.engine.recorded import Recorded
from frcl.errors import TaskError
from frcl.features import network_failures
from frcl.options import NOT_NEGATIVE, POSITIVE, SHARE, MethodOptions, option
from frcl.trees import Params, Tree, in_one_block, named_tensors, tree_map, with_tensors

EAGER = 10  # minibatches of a stream before its step is recorded: a short task is not worth it
BETAS = (0.9, 0.999)
EPS = 1e-8
THETA = "theta/"  # where the weights of the network are among the parameters
Method = Literal["adam", "adamw", "sgd"]


class Rule(NamedTuple):
    """What is the same for all steps of a task.

    weight_decay is that of the network's weights alone: λθ added to their gradient, or with AdamW θ ← (1 − lr λ) θ.
    """

    method: Method = "adam"
    momentum: float = 0.9  # of SGD: b ← momentum · b + gradient, θ ← θ − lr · b
    weight_decay: float = 0.0
    backbone_lr: float | None = None  # for the network's weights; None: that of everything else
    clip_norm: float | None = None  # the largest norm of the gradient by all parameters together

    def clipped(self, gradients: Mapping[str, Tensor], names: Sequence[str], axes: int) -> Mapping[str, Tensor]:
        """g · min(1, clip_norm/‖g‖), ‖g‖ over these names together; with `axes` 1 for each program of a stack."""
        assert self.clip_norm is not None
        flat = [gradients[name].reshape(*gradients[name].shape[:axes], -1) for name in names]
        norm = torch.stack([one.double().square().sum(-1) for one in flat]).sum(0).sqrt()
        share = (self.clip_norm / (norm + 1e-6)).clamp_max(1.0)[..., None]
        each = zip(names, flat, strict=True)
        return {**gradients, **{name: (share.to(one) * one).view_as(gradients[name]) for name, one in each}}

    def move(
        self, params: Sequence[Tensor], gradients: Sequence[Tensor], moments: tuple[Sequence[Tensor], Sequence[Tensor]],
        count: Tensor, lr: float | Tensor, *, backbone: bool,
    ) -> None:  # fmt: skip
        """Move parameters in place, and their moments with them; `count` is the number of this step, from 1."""
        decay = self.weight_decay if backbone else 0.0
        if self.method == "sgd":
            for p, g, b in zip(params, gradients, moments[0], strict=True):
                b.mul_(self.momentum).add_(g + decay * p if decay else g)
                p.sub_(lr * b)
            return
        # the fused kernels of torch.optim.Adam(fused=True) and AdamW; torch.optim itself takes a second to import.
        # They ignore strides: everything must be contiguous.
        kernel: Any = torch._fused_adam_ if self.method == "adam" else torch._fused_adamw_
        kernel(
            list(params), [g.contiguous() for g in gradients], list(moments[0]), list(moments[1]), [],
            [count] * len(params), lr=lr, beta1=BETAS[0], beta2=BETAS[1], weight_decay=decay, eps=EPS, amsgrad=False,
            maximize=False,
        )  # fmt: skip


ADAM = Rule()


class AdamState(NamedTuple):
    """Moments by name and the number of steps: what has to be saved."""

    steps: int
    exp_avg: Params
    exp_avg_sq: Params


NATURAL = ("posterior/mean", "posterior/factor")


class Optimiser:
    """Moves the leaf tensors of a tree down a gradient, by a rule. `steps` is the one count of steps taken.

    Where `natural` is given, the number of examples N, the posterior takes natural-gradient steps instead.
    """

    def __init__(self, params: Tree, lr: float, natural: Tensor | None = None, rule: Rule = ADAM) -> None:
        self.tree = params
        self.params: Params = dict(named_tensors(params))
        self.lr, self.natural, self.rule = lr, natural, rule
        self.stacked = False  # whether all parameters have a leading axis, one entry for each program
        self.guard: float | None = None  # the largest gradient, in units of the usual one, that is taken as it is
        self.rise = 0.0  # over this many steps, the first ones, lr rises to its value
        self.decay: tuple[float, float] | None = None  # the last step, over how many steps before it lr falls to zero
        for p in self.params.values():
            p.data = p.data.contiguous()
        by_adam = {name: p for name, p in self.params.items() if natural is None or name not in NATURAL}
        apart = rule.weight_decay > 0 or rule.backbone_lr is not None
        groups: dict[object, list[str]] = {}  # names that are moved in one call: of one type, alike in rate and decay
        for name, p in by_adam.items():
            groups.setdefault((p.dtype, apart and name.startswith(THETA)), []).append(name)
        self._groups = list(groups.values())
        self.exp_avg = {name: torch.zeros_like(p, requires_grad=False) for name, p in by_adam.items()}
        self.exp_avg_sq = {name: torch.zeros_like(p, requires_grad=False) for name, p in by_adam.items()}
        self.steps = 0
        device = next((p.device for p in self.params.values()), torch.device("cpu"))
        self._count = torch.zeros((), device=device)  # `steps` as the kernel reads it, on the device

    def schedule(self, stop: int, warm_up: float, lr_decay: float) -> None:
        """Have lr rise over a share `warm_up` of `stop` steps, the first ones, and fall over a share of the last."""
        self.rise = warm_up * stop
        self.decay = (float(stop), lr_decay * stop) if lr_decay else None

    def apply(self, gradients: Mapping[str, Tensor]) -> None:
        """Move the parameters down a gradient; whoever calls this counts the step."""
        with torch.no_grad():
            self._count += 1
            share: float | Tensor = 1.0
            if self.decay is not None:  # a tensor, so that a step can be recorded
                last, over = self.decay
                share = ((last + 1 - self._count) / over).clamp(0.0, 1.0)
            if self.rise:
                share = share * (self._count / self.rise).clamp_max(1.0)
            if self.natural is not None:
                mean, factor = NATURAL
                natural_step(
                    self.params[mean], self.params[factor], gradients[mean], gradients[factor], self.natural,
                    STEP_SIZE * share,
                )  # fmt: skip
            if self.guard is not None:
                gradients = self._guarded(gradients, self.guard)
            if self.rule.clip_norm is not None:
                gradients = self.rule.clipped(gradients, list(self.exp_avg), int(self.stacked))
            for names in self._groups:
                backbone = names[0].startswith(THETA)
                lr = self.rule.backbone_lr if backbone and self.rule.backbone_lr is not None else self.lr
                moments = [self.exp_avg[n] for n in names], [self.exp_avg_sq[n] for n in names]
                self.rule.move(
                    [self.params[n] for n in names], [gradients[n] for n in names], moments, self._count, lr * share,
                    backbone=backbone,
                )  # fmt: skip

    def _guarded(self, gradients: Mapping[str, Tensor], guard: float) -> Mapping[str, Tensor]:
        """g · min(1, guard · u/‖g‖), u² the mean square of ‖g‖ in the steps before, by the second moments of Adam.

        From the eleventh step on. A minibatch unlike those before it, as after a switch that was not noticed, moves the
        weights no more than any other.
        """
        before = self._count - 1
        total = torch.stack([value.sum() for value in self.exp_avg_sq.values()]).sum()
        usual = (total / (1 - BETAS[1] ** before.clamp_min(1.0))).sqrt()
        norm = torch.stack([gradients[name].square().sum() for name in self.exp_avg]).sum().sqrt()
        share = torch.where((before >= 10) & (usual > 0), (guard * usual / norm.clamp_min(1e-12)).clamp_max(1.0), 1.0)
        return {**gradients, **{name: share.to(gradients[name]) * gradients[name] for name in self.exp_avg}}

    @staticmethod
    def joined(optimisers: Sequence[Optimiser]) -> Optimiser:
        """One optimiser over all of them with a leading axis; their own tensors become slices of its tensors."""
        first = optimisers[0]
        params = with_tensors(first.tree, in_one_block([one.params for one in optimisers]))
        natural = None if first.natural is None else torch.stack([one.natural for one in optimisers])  # type: ignore[misc]
        block = Optimiser(params, first.lr, natural, first.rule)
        block.exp_avg = in_one_block([one.exp_avg for one in optimisers])
        block.exp_avg_sq = in_one_block([one.exp_avg_sq for one in optimisers])
        block._count = first._count.clone()
        block.decay, block.rise, block.stacked = first.decay, first.rise, True
        for one in optimisers:
            one._count = block._count
        for value in block.params.values():
            value.requires_grad_(True)
        return block

    def changes(self) -> list[Tensor]:
        """Every tensor that a step writes."""
        return [*self.params.values(), *self.exp_avg.values(), *self.exp_avg_sq.values(), self._count]

    def settle(self) -> None:
        """Give everything memory of its own, where it is part of a stack."""
        for tensor in self.changes():
            tensor.data = tensor.data.clone()
        self._count = self._count.clone()

    def state(self) -> AdamState:
        return AdamState(self.steps, self.exp_avg, self.exp_avg_sq)

    def restore(self, state: AdamState) -> None:
        """Go on from a saved state; its moments must have the names and shapes of the parameters."""
        if not 0 <= state.steps < 2**31:
            raise ValueError(f"{state.steps} steps were taken")
        if any(bool((value < 0).any()) for value in state.exp_avg_sq.values()):
            raise ValueError("the second moment of Adam, a mean of squares, is negative")
        self.steps = state.steps
        self._count.fill_(state.steps)
        for own, saved in ((self.exp_avg, state.exp_avg), (self.exp_avg_sq, state.exp_avg_sq)):
            if own.keys() != saved.keys() or any(own[name].shape != saved[name].shape for name in own):
                raise ValueError("the moments of Adam do not have the names and shapes of the parameters")
            for name, value in saved.items():
                own[name].copy_(value)


def train(programs: Sequence[Program]) -> Generator[list[list[Values]], None, None]:
    """Take every step that the programs have left, all of them in lockstep.

    Yields after each step on the CPU, after each chunk of steps on CUDA: for each step taken since, the terms of each
    program. At that moment parameters, moments and streams belong to the last of these steps, and may be saved.
    """
    if not programs:
        return
    first = programs[0]
    if any((one.step, one.stop, one.first, one.chunk) != (first.step, first.stop, first.first, first.chunk)
           for one in programs):  # fmt: skip
        raise TaskError("learners that learn together stand at the same step of a task")
    if first.step >= first.stop:
        return
    if (group := processes()) is not None:
        begin_together(programs, group)
    own = programs if group is None else [sharded(program, group) for program in programs]
    units = [Unit(own[0])] if len(own) == 1 else _units(own)
    recorded = Recorded(units) if can_record(programs) else None
    try:
        while first.step < first.stop:
            yield from eager_steps(units, group) if recorded is None else recorded.steps()
    finally:
        if recorded is not None:
            recorded.close()
        if len(programs) > 1:
            with indivisible([program.lock for program in programs]):
                for program in programs:  # no tensor of it is part of a stack any more
                    program.optimiser.settle()
                    for _, value in named_tensors(program.carry):
                        value.data = value.data.clone()


def can_record(programs: Sequence[Program]) -> bool:
    """Whether their steps are recorded: on CUDA, in one process, with no augmentation but a pure one."""
    pure = all(one.augment is None or one.augment.is_pure for one in programs)
    return programs[0].x.is_cuda and processes() is None and pure


def eager_steps(units: Sequence[Unit], group: Processes | None) -> Generator[list[list[Values]], None, None]:
    """The steps left of a chunk, one by one, of all units or of none; one that is not finite is refused before it."""
    for unit in units:
        places = unit.load()  # of all the same
    for at in places:
        with indivisible([program.lock for unit in units for program in unit.programs]):
            draws = [tree_map(itemgetter(at), unit.drawn) for unit in units]
            with network_failures():
                pairs = list(zip(units, draws, strict=True))
                computed = [unit.computed(one) for unit, one in pairs] if group is None else joint(pairs, group)
            for terms, found in computed:
                refuse_non_finite("loss", {"": terms.loss})
                refuse_non_finite("gradient", found)
            moved = [unit.move(*one) for unit, one in zip(units, computed, strict=True)]
            for unit in units:
                unit.count(range(at, at + 1))
        yield [[tuple(terms) for one in moved for terms in one.tolist()]]


def one_step(program: Program) -> Values:
    """The next step of a program, not recorded; with several processes on a part of its data in each."""
    group = processes()
    if group is not None:
        if program.step == program.first:
            begin_together([program], group)
        program = sharded(program, group)
    with contextlib.closing(eager_steps([Unit(program)], group)) as steps:
        ((values,),) = next(steps)
    return values


class StreamSteps:
    """The same step for one minibatch at a time: a program whose data is replaced before each step.

    On CUDA the step is recorded once per task, for minibatches of one shape. A copy of a learner records it again.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self._static: tuple[Tensor, Tensor] | None = None  # the minibatch that the recorded step reads
        self.recorded: Recorded | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None

    def step(self, x: Tensor, y: Tensor) -> Values:
        """One step on a minibatch; one whose loss is not finite is refused before it is taken.

        Whether it is recorded depends on the number of steps and the shape alone: a resumed stream does the same.
        """
        program, static = self.program, self._static
        program.stop = program.step + 1
        fits = static is None or (static[0].shape, static[0].dtype) == (x.shape, x.dtype)
        if not (fits and program.step >= EAGER and can_record([program])):
            program.x, program.y = x, y
            return one_step(program)
        if static is None:
            static = self._static = x.clone(), y.clone()
        program.x, program.y = static
        program.x.copy_(x)
        program.y.copy_(y)
        if self.recorded is None:
            self.recorded = Recorded([Unit(program)])
        with contextlib.closing(self.recorded.steps()) as steps:
            ((values,),) = next(steps)
        return values


def _units(programs: Sequence[Program]) -> Sequence[Unit]:
    """One block if they fit together and can be batched, else each by itself."""
    if can_stack(programs):
        if not (reason := why_not(programs)):
            return [Block(programs)]
        warnings.warn(f"these networks cannot be batched over seeds, which run side by side: {reason}", stacklevel=3)
    return [Unit(program) for program in programs]


@dataclass(frozen=True)
class OptimiserOptions(MethodOptions):
    """Steps, and how the parameters are moved by each of them."""

    steps: int = option(1000, "gradient steps of fit() per task")
    batch_size: int = option(128, "minibatch size of fit()")
    lr: float = option(1e-3, "learning rate", POSITIVE)
    backbone_lr: float | None = option(None, "learning rate of the network's weights; None: lr", POSITIVE)
    optimiser: Method = option("adam", "Adam, AdamW, or stochastic gradient descent with momentum")
    momentum: float = option(0.9, "of 'sgd'", SHARE)
    weight_decay: float = option(
        0.0, "of the network's weights: added to their gradient times them; 'adamw': apart from it", NOT_NEGATIVE
    )
    clip_norm: float | None = option(None, "largest norm of a gradient, which is scaled down to it", POSITIVE)
    warm_up: float = option(0.0, "fit(): over this share of the steps, the first ones, lr rises from zero", SHARE)
    lr_decay: float = option(0.0, "fit(): over this share of the steps, the last ones, lr falls to zero", SHARE)

    bfloat16: bool = option(
        False, "the network's passes in bfloat16 (torch.autocast); everything after its features stays as it is"
    )

    @property
    def rule(self) -> Rule:
        """How parameters are moved."""
        return Rule(self.optimiser, self.momentum, self.weight_decay, self.backbone_lr, self.clip_norm)
