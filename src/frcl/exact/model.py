"""A linear model on fixed features, learned by adding up sums task by task and solved when it is asked."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from frcl.errors import CheckpointError, NumericalError, TaskError
from frcl.exact.linear import (
    LARGEST_EXACT,
    POWERS,
    TEMPER,
    Classes,
    Linear,
    Sums,
    class_log_probs,
    class_model,
    degrees_of_freedom,
    leverage,
    losses_of_powers,
    minus,
    narrowed,
    plus,
    solve_by_evidence,
    sums_of,
    symmetric,
    triangle,
)
from frcl.few import array_of, arrays, is_few, quiet
from frcl.trees import total_bytes

CHUNK = 1024  # examples whose features are held at once
NUMBERS = 2**25  # of inputs that are held at once, in float64
Features = Callable[[Tensor], Tensor]  # inputs [n, ...] → whole numbers [n, K]


@dataclass(frozen=True)
class Block:
    """What is kept of one task, beside its part of the common gram matrix."""

    cross: Tensor  # [K, C] of its own targets
    squares: Tensor  # [C]
    examples: Tensor  # N, []
    gram: Tensor | None = None  # its own part, where it is kept


@dataclass(frozen=True)
class Tasks:
    """The gram matrix of all examples, and a block for each task; nothing of this is changed in place."""

    gram: Tensor | None = None  # [K, K]; None before the first example
    blocks: tuple[Block, ...] = ()


@dataclass(eq=False)
class Believed:
    """What the model believes about inputs; what is a function is computed when it is first asked for.

    The leverage of an example in the model of the others is h/(1 − h), h its leverage in the model of all. Novelty is
    the leverage of an input over this, at the mean of h over the N examples, freedom/N.
    """

    log_probs: Tensor | None  # of the classes, [n, C]; None where the targets are numbers
    noise: Tensor  # σ², []
    usual: Tensor  # freedom/(N − freedom), []
    functions: Callable[[], Tensor]
    leverages: Callable[[], Tensor]

    @cached_property
    def mean(self) -> Tensor:
        """Of the functions, [n, C]."""
        return self.functions()

    @cached_property
    def leverage(self) -> Tensor:
        """h of each input, [n]."""
        return self.leverages()

    @property
    def variance(self) -> Tensor:
        """Of each of the functions, [n]; without the noise."""
        return self.noise * self.leverage

    @property
    def novelty(self) -> Tensor:
        """How unlike the examples, [n]: about one for further examples like them."""
        return self.leverage / self.usual


class Solution(NamedTuple):
    """What follows from the sums of all tasks."""

    tasks: Tasks
    linear: Linear
    classes: Classes | None
    usual: Tensor  # freedom/(N − freedom), []
    few: Classes | None  # the classes as arrays, on a CPU


def added(tasks: Tasks, number: int, new: Sums, *, own_gram: bool) -> Tasks:
    """With more examples of a task: a known one, whose targets may have become more, or the next one."""
    gram = new.gram if tasks.gram is None else tasks.gram + new.gram
    if float(gram.diagonal().max()) >= LARGEST_EXACT:
        raise NumericalError("the sums over all examples are too large to be exact; begin another learner")
    block = Block(new.cross, new.squares, new.examples, new.gram if own_gram else None)
    if number < len(tasks.blocks):
        old = tasks.blocks[number]
        more = new.cross.shape[1] - old.cross.shape[1]
        block = Block(
            F.pad(old.cross, (0, more)) + new.cross, F.pad(old.squares, (0, more)) + new.squares,
            old.examples + new.examples, None if old.gram is None else old.gram + new.gram,
        )  # fmt: skip
    return Tasks(gram, (*tasks.blocks[:number], block, *tasks.blocks[number + 1 :]))


def without(tasks: Tasks, number: int, old: Sums | None) -> Tasks:
    """As if a task had never been added; `old` are its sums where its gram matrix was not kept."""
    if len(tasks.blocks) == 1:
        return Tasks()
    block = tasks.blocks[number]
    gram = block.gram if old is None else old.gram
    if gram is None or tasks.gram is None:
        raise TaskError(
            "the gram matrices of single tasks are not kept: give the task's data again, or choose per_task=True"
        )
    if old is not None and not (_same(old.cross, block.cross) and _same(old.squares, block.squares)):
        raise TaskError(f"these are not exactly the examples of task {number}; give all of its data, and no other")
    return Tasks(tasks.gram - gram, (*tasks.blocks[:number], *tasks.blocks[number + 1 :]))


def _same(one: Tensor, other: Tensor) -> bool:
    """Equal, apart from the rounding of numeric targets."""
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-9, atol=1e-9)


def all_sums(tasks: Tasks, *, classes: bool) -> Sums:
    """The sums of all tasks: classes of different tasks are different columns, numbers share theirs."""
    blocks = tasks.blocks
    if tasks.gram is None or not blocks:
        raise TaskError("nothing has been learned yet; call fit() first")
    crosses, squares = [block.cross for block in blocks], [block.squares for block in blocks]
    count = torch.stack([block.examples for block in blocks]).sum()
    if classes:
        return Sums(tasks.gram, torch.cat(crosses, 1), torch.cat(squares), count)
    return Sums(tasks.gram, torch.stack(crosses).sum(0), torch.stack(squares).sum(0), count)


def stored(tasks: Tasks) -> Tasks:
    """As it is kept: lower triangles, and whole numbers in 32 bits where they fit."""

    def gram(one: Tensor | None) -> Tensor | None:
        return None if one is None else narrowed(triangle(one))

    blocks = [Block(narrowed(b.cross), narrowed(b.squares), narrowed(b.examples), gram(b.gram)) for b in tasks.blocks]
    return Tasks(gram(tasks.gram), tuple(blocks))


def restored(kept: Tasks) -> Tasks:
    """The inverse of `stored`; parts that do not belong together are refused."""
    sizes = {len(block.cross) for block in kept.blocks}
    if len(sizes) > 1 or (kept.gram is None) != (not sizes):
        raise CheckpointError("the sums in this state do not belong together")

    def gram(one: Tensor | None, K: int) -> Tensor | None:
        if one is not None and one.shape != (K * (K + 1) // 2,):
            raise CheckpointError(f"the state has a triangle of {one.numel()} numbers for {K} features")
        return None if one is None else symmetric(one, K)

    blocks = []
    for b in kept.blocks:
        if b.cross.ndim != 2 or b.squares.shape != b.cross.shape[1:] or b.examples.ndim:
            raise CheckpointError("the sums in this state do not belong together")
        blocks.append(Block(b.cross.double(), b.squares.double(), b.examples.double(), gram(b.gram, len(b.cross))))
    return Tasks(gram(kept.gram, *sizes) if sizes else None, tuple(blocks))


def stored_bytes(tasks: Tasks) -> int:
    """Bytes of what `stored` gives."""
    kept = stored(tasks)
    parts = [kept.gram, *(part for b in kept.blocks for part in (b.cross, b.squares, b.examples, b.gram))]
    return total_bytes([part for part in parts if part is not None])


def last_of_each_class(classes: Tensor, share: float) -> Tensor:
    """The rows of the last examples of each class, this share of them, rounded down.

    Copies of an example that follow one another stay on one side, but for the first that is held out.
    """
    rows = [(classes == one).nonzero()[:, 0] for one in classes.unique()]
    return torch.cat([own[len(own) - int(share * len(own)) :] for own in rows])


@dataclass(eq=False)
class ExactModel:
    """The sums of all tasks and the posterior, which is solved once after every change."""

    features: Features
    classes: bool = True  # whether targets are indicators of classes
    tasks: Tasks = Tasks()
    power: float = TEMPER  # of the class probabilities
    _solved: Solution | None = field(default=None, repr=False)

    def of(self, x: Tensor, Y: Tensor) -> Sums:
        """The sums of examples x, Y [n, C]."""
        total: Sums | None = None
        with torch.no_grad():
            rows = self._at_once(x)
            for some, targets in zip(x.split(rows), Y.double().split(rows), strict=True):
                part = sums_of(self.features(some), targets)
                total = part if total is None else plus(total, part)
        assert total is not None
        return total

    def losses(self, x: Tensor, Y: Tensor, new: Sums, share: float) -> list[float]:
        """−Σ log p(class | x) for each of POWERS on a share of a new task's examples, learned from all the others.

        x, Y [n, C] are the examples of the task, and `new` their sums.
        """
        classes = Y.argmax(1)
        rows = last_of_each_class(classes, share)
        if not len(rows):
            return [0.0] * len(POWERS)
        number, rest = len(self.tasks.blocks), minus(new, self.of(x[rows], Y[rows]))
        sums = all_sums(added(self.tasks, number, rest, own_gram=False), classes=True)
        model = class_model(sums, solve_by_evidence(sums))
        columns = sum(len(block.squares) for block in self.tasks.blocks) + classes[rows]
        at_once = self._at_once(x)
        parts = zip(x[rows].split(at_once), columns.split(at_once), strict=True)
        found = [losses_of_powers(model, self.features(some), own) for some, own in parts]
        each: list[float] = torch.stack(found).sum(0).tolist()
        return each

    def believe(self, x: Tensor) -> Believed:
        """Mean, variance and class probabilities of all inputs, under all that was added; and their novelty."""
        solution = self._solve()
        if is_few(x) and solution.linear.chol.is_cpu:
            return self._of_few(self.features(x), solution)
        linear, classes, parts = solution.linear, solution.classes, []
        for some in x.split(self._at_once(x)):
            Phi = self.features(some)
            log_probs = Phi.new_empty(0) if classes is None else class_log_probs(classes, Phi)
            parts.append((log_probs, Phi @ linear.weights, leverage(linear, Phi)))
        log_probs, f, h = (torch.cat(each) for each in zip(*parts, strict=True))
        return Believed(None if classes is None else log_probs, linear.noise, solution.usual, lambda: f, lambda: h)

    @quiet
    def _of_few(self, Phi: Tensor, solution: Solution) -> Believed:
        linear, few = solution.linear, solution.few
        log_probs = None if few is None else torch.from_numpy(class_log_probs(few, array_of(Phi)))
        functions, leverages = lambda: Phi @ linear.weights, lambda: leverage(linear, Phi)
        return Believed(log_probs, linear.noise, solution.usual, functions, leverages)

    def _at_once(self, x: Tensor) -> int:
        """The number of inputs whose features are held at once: fewer than CHUNK where the inputs are large."""
        return max(1, min(CHUNK, NUMBERS // x[0].numel()))

    @property
    def noise(self) -> Tensor:
        """σ², the variance of the targets around the functions."""
        return self._solve().linear.noise

    def _solve(self) -> Solution:
        if self._solved is None or self._solved.tasks is not self.tasks:
            sums = all_sums(self.tasks, classes=self.classes)
            linear = solve_by_evidence(sums)
            model = class_model(sums, linear, self.power) if self.classes else None
            few, freedom = arrays(model) if model and linear.chol.is_cpu else None, degrees_of_freedom(sums, linear)
            least = torch.finfo(freedom.dtype).eps * sums.examples
            usual = freedom / (sums.examples - freedom).clamp(min=least)
            self._solved = Solution(self.tasks, linear, model, usual, few)
        return self._solved
