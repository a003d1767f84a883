"""Progressive networks (Rusu et al., 2016): one column per task, lateral connections from all columns before it.

A finished column never changes again, so nothing is forgotten; the price is memory and time, whose growth is linear in
the number of tasks for the columns and quadratic for the lateral connections and for learning through all tasks. What
the finished columns compute of an example has no gradient, so it is computed once, or for many steps at once; where
examples are augmented, in each step.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from frcl.baselines.common import CHUNK, Baseline, Saved, plain_terms
from frcl.baselines.options import ProgressiveOptions
from frcl.checks import check_like
from frcl.engine.ahead import of_examples, of_rows, steps_at_once
from frcl.engine.program import Drawn, Program, Terms
from frcl.errors import NetworkError, TaskError
from frcl.features import MLP, ConvNet, check_network
from frcl.learners.loaded import check_fits
from frcl.learners.types import Prediction
from frcl.likelihoods import Likelihood
from frcl.regularisers.protocol import Kept
from frcl.seeding import fork
from frcl.trees import Params, Tree, copied

Layered = MLP | ConvNet
Activations = list[Tensor]
"""What each layer with weights after the first reads, channels last, and the features: [B, …, n] each. Those of several
columns are one, with the columns side by side: [B, …, Σ n_j]."""
COLUMN_HEAD = "head"  # [C, K]: on the column's own features and the bias
LATERAL = "lateral/"  # + the place of the layer, or "head"; the blocks of the earlier columns side by side


def layered(net: nn.Module) -> Layered:
    """The network, if it is one whose hidden layers are known; any other is refused."""
    if not isinstance(net, MLP | ConvNet) or type(net).forward not in (MLP.forward, ConvNet.forward):
        raise NetworkError(
            f"progressive networks and progress & compress take frcl.MLP or frcl.ConvNet, not {type(net).__name__}: "
            "lateral connections join the hidden layers of several copies of the network, and of these two the hidden "
            "layers are known. Use one of them, or another method."
        )
    check_network(net)
    return net


@dataclass(frozen=True)
class Columns:
    """The architecture that all columns share; their weights are always passed in.

        h_l = f( W_l h_{l−1} + b_l + Σ_j U_l⁽ʲ⁾ h_{l−1}⁽ʲ⁾ )      j over the earlier columns (equation 1)

    The first layer sees the input only; the head is the last layer, and has laterals too. U starts at zero, so that a
    new column starts as a plain network. Between convolutions U is a 1×1 convolution. The adapters of the original (a
    scaling, a projection and a non-linearity on the way of U) are left out: they are there for networks with many
    columns.

    Parameters have the names that they have in the network; laterals are called "lateral/…", and the head "head".
    """

    net: Layered

    @property
    def joints(self) -> list[int]:
        """Places in `net.layers` of the layers that laterals lead to: those with weights, but the first."""
        return [i for i, module in enumerate(self.net.layers) if isinstance(module, nn.Linear | nn.Conv2d)][1:]

    def activations(self, own: Params, x: Tensor, earlier: Activations) -> Activations:
        """What a column computes of x, where earlier columns computed `earlier` of it; an empty list for none."""
        net, joints = self.net, self.joints
        h = x.reshape(-1, net.channels, net.size, net.size) if isinstance(net, ConvNet) else x
        read: Activations = []
        for i, module in enumerate(net.layers):
            prefix = f"layers.{i}."
            weights = {name.removeprefix(prefix): value for name, value in own.items() if name.startswith(prefix)}
            out: Tensor = functional_call(module, weights, (h,))
            if i in joints:
                if earlier:
                    out = out + lateral(own[f"{LATERAL}{i}"], earlier[len(read)]).movedim(-1, 1)
                read.append(h.movedim(1, -1))
            h = out
        return [*read, h]

    def frozen(self, columns: Sequence[Params], x: Tensor) -> Activations:
        """What columns 0, 1, … compute of x, each reading those before it; no gradient reaches them."""
        joined: Activations = []  # [B, …, columns, n] each: no copy for a new column
        with torch.no_grad():
            for i, own in enumerate(columns):
                found = self.activations(own, x, [part[..., :i, :].flatten(-2) for part in joined])
                if len(columns) == 1:
                    return found
                joined = joined or [h.new_empty(*h.shape[:-1], len(columns), h.shape[-1]) for h in found]
                for part, h in zip(joined, found, strict=True):
                    part[..., i, :] = h
        return [part.flatten(-2) for part in joined]

    def logits(self, own: Params, x: Tensor, earlier: Activations) -> Tensor:
        """[B, C] of a column's head."""
        Phi = self.activations(own, x, earlier)[-1]
        out = torch.cat([Phi, Phi.new_ones(len(Phi), 1)], 1) @ own[COLUMN_HEAD].mT
        return out + lateral(own[f"{LATERAL}head"], earlier[-1]) if earlier else out

    def logits_after(self, columns: Sequence[Params], own: Params, x: Tensor) -> Tensor:
        """[B, C] of the column that comes after these, which are frozen."""
        return self.logits(own, x, self.frozen(columns, x))

    def start(self, earlier: int, head: Tensor, generator: torch.Generator | None) -> Params:
        """A new column: weights He-uniform from `generator` (on the CPU), or for None the network's; laterals zero."""
        own = {name: value.detach().clone() for name, value in self.net.named_parameters()}
        for i, module in enumerate(self.net.layers if generator is not None else ()):
            for name, given in module.named_parameters() if isinstance(module, nn.Linear | nn.Conv2d) else ():
                value = torch.zeros_like(given, device="cpu", requires_grad=False)
                if name == "weight":
                    nn.init.kaiming_uniform_(value, nonlinearity="relu", generator=generator)
                if given.requires_grad:  # what the network holds fixed is taken from it as it is
                    own[f"layers.{i}.{name}"] = value.to(given.device)
        own[COLUMN_HEAD] = head.detach().clone()
        if earlier:
            for i in self.joints:
                W = own[f"layers.{i}.weight"]
                own[f"{LATERAL}{i}"] = W.new_zeros(len(W), earlier * W.shape[1], *[1] * (W.ndim - 2))
            own[f"{LATERAL}head"] = head.new_zeros(len(head), earlier * (head.shape[1] - 1))
        return own

    def split(self, own: Params) -> tuple[Params, Params]:
        """What an optimiser moves of a column, and the rest: what the network holds fixed."""
        fixed = {name: own[name] for name, given in self.net.named_parameters() if not given.requires_grad}
        return {name: value for name, value in own.items() if name not in fixed}, fixed

    def check_fits(self, stored: Params, earlier: int) -> None:
        """Refuse the column of another architecture, or one with another number of columns before it."""
        any_head = next(self.net.parameters()).detach().new_zeros(1, 1)
        check_fits(self.start(earlier, stored.get(COLUMN_HEAD, any_head), None), stored, "in a column, ")


def lateral(U: Tensor, earlier: Tensor) -> Tensor:
    """Σ_j U⁽ʲ⁾ h⁽ʲ⁾ at each place, [B, …, C], with U⁽ʲ⁾ side by side in U: [C, Σ n_j], or [C, Σ n_j, 1, 1] for maps."""
    return F.linear(earlier, U.flatten(1))


@dataclass
class Grown:
    """The column of each task, the open one included."""

    columns: list[Params] = field(default_factory=list)


class Progressive(Baseline[ProgressiveOptions, Grown]):
    """One column with a head for each task; task t is predicted from columns 0 to t.

    The first column starts at the weights of the network given, each later one at random weights of its own. No part of
    the loss is divided by N, so `size` decides nothing.
    """

    own_type = Grown

    def __init__(self, net: nn.Module, options: ProgressiveOptions, *, device: str | torch.device = "cpu") -> None:
        super().__init__(layered(net), options, device=device)
        self._model = Columns(layered(self.net))

    def _begin(self, x: Tensor, y: Tensor, K: int) -> None:
        number = len(self._state.past)
        generator = fork(self.options.seed, f"column/{number}") if number else None
        self._own.columns = [*self._own.columns, self._model.start(number, self._new_head(K), generator)]

    def _trained(self) -> Params:
        return self._model.split(self._own.columns[-1])[0]

    def _programs(self, x: Tensor, y: Tensor) -> Iterator[Program]:
        model, (*earlier, own), B = self._model, self._own.columns, self.options.batch_size
        augmented = self._changes is not None
        table = of_examples(lambda part: model.frozen(earlier, part), x, self._uses(self.options.steps))

        def draw(steps: int, rows: Tensor) -> Drawn:
            if augmented:  # the inputs of a step are not known yet
                return Drawn(rows, ())
            if table is not None:
                return Drawn(rows, of_rows(table, rows))
            computed = model.frozen(earlier, x[rows.flatten()])
            return Drawn(rows, [part.unflatten(0, (steps, B)) for part in computed])

        def loss(params: Params, constants: tuple[list[Params], Params], x: Tensor, y: Tensor, draws: Tree) -> Terms:
            known, fixed = constants
            before = list(draws) or model.frozen(known, x)
            return plain_terms(F.cross_entropy(model.logits({**fixed, **params}, x, before), y))

        constants = (earlier if augmented else [], model.split(own)[1])
        yield self._program(
            loss, constants, x, y, self.options.steps, draw, chunk=steps_at_once(model.frozen(earlier, x[:1]), B),
            share=lambda draws, rows: [part[rows] for part in draws],
        )  # fmt: skip

    def _finish(self) -> None:
        self._own.columns = [*self._own.columns[:-1], copied(self._own.columns[-1])]

    def _predict(self, task: int, x: Tensor, shared: Callable[[], Tensor]) -> Prediction:
        """From the task's own column and those before it, whose activations are in memory at once."""
        *earlier, own = self._own.columns[: task + 1]
        chunk = max(1, CHUNK // (task + 1))
        return self._point(task, x, lambda rows: self._model.logits_after(earlier, own, rows), chunk)

    def _drop(self, number: int) -> None:
        if number < len(self._state.past):
            raise TaskError("later columns read the column of this task; only the latest task can be forgotten")
        super()._drop(number)

    def _kept(self) -> Kept:
        return {"network": [value for column in self._own.columns for value in column.values()]}

    def _check(self, saved: Saved, tasks: Sequence[Likelihood], K: int) -> None:
        for i, (column, likelihood) in enumerate(zip(saved.own.columns, tasks, strict=True)):
            self._model.check_fits(column, i)
            check_like(column[COLUMN_HEAD], (likelihood.functions, K), self.dtype, "the head of a column")
