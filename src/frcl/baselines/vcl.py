"""Variational continual learning with a mean-field posterior (Nguyen, Li, Bui and Turner, 2018)."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frcl.baselines.common import (
    check_fits,
    check_task,
    class_spec,
    initial_head,
    labels_again,
    packed,
    sampled_prediction,
    unpacked,
)
from frcl.baselines.options import VCLOptions
from frcl.engine.adam import Optimiser
from frcl.engine.program import ROWS, Program, Terms, minibatch_rows
from frcl.engine.tensors import Params, exact_number, leaf, refuse_non_finite
from frcl.engine.train import train
from frcl.features import FIXED, check_features, check_network, fixed_parts, is_stackable
from frcl.learners.accounting import Parts, parts_of
from frcl.learners.inputs import check_lengths, checked_inputs, checked_size, data_mark
from frcl.learners.lockstep import OnStep, Work, run_alone
from frcl.learners.targets import TargetSpec
from frcl.learners.types import Prediction
from frcl.regularisers.mean_field import (
    MeanField,
    coreset_rows,
    detached,
    drawn,
    expected_loss,
    isotropic,
    mean_field_kl,
    standard_noise,
)
from frcl.regularisers.protocol import HEAD, Heads, named, under
from frcl.seeding import Streams, fork, stream_seed

CHUNK, DRAWS = 1024, 10  # inputs, and drawn networks that they pass through, at once
STEPS_AHEAD = 10  # steps whose noise is drawn at once: `samples` numbers for each weight and step
PRIOR, NOISE = "prior/", "noise/"  # prefixes of a program's constants and of what it draws


@dataclass
class OpenTask:
    """What there is only while a task is being learned."""

    q: MeanField  # of the shared weights and the task's head: what is learned
    prior: MeanField  # of the same weights
    optimiser: Optimiser
    left_out: Tensor  # rows of the data that are the coreset
    N: float  # examples that are trained on
    mark: str
    step: int = 0


class VCL:
    """A Gaussian q with independent weights over the shared network and one head a task.

    Task t minimises over the shared weights and the head of task t, in nats per example,

        E_q[−log p(y | x, w)] + KL(q_t ‖ q_{t−1})/N + KL(q(head) ‖ N(0, σ₀²))/N,      q_0 = N(0, σ₀²).

    Means begin at the network's own weights and go on from task to task. Deviations begin every task anew at
    `initial_deviation`, where the authors' code goes on from the last task's: a new task is then learned with little
    noise.
    With a coreset some examples of each task are left out of its training and stored. To predict for a task, a copy of
    q is first trained on the task's coreset, with q itself as the prior; predictions never change the learner.
    """

    def __init__(self, net: nn.Module, options: VCLOptions, *, device: str | torch.device = "cpu") -> None:
        check_network(net)
        self.device = torch.device(device)
        self.net = copy.deepcopy(net).to(self.device)  # its trainable weights are the means
        self.options = options
        self._model = Heads(self.net)
        self._streams = Streams(options.seed, self.device)
        self._specs: list[TargetSpec] = []
        self._heads: Params = {}  # their means
        self._log_deviation: Params = {}  # of shared weights and heads
        self._coresets: list[tuple[Tensor, Tensor]] = []
        self._shape: tuple[int, ...] | None = None
        self._open: OpenTask | None = None
        self._adapted: dict[int, MeanField] = {}  # q after the coreset of a task, until something is learned

    # -- learning -----------------------------------------------------------------------------------------

    def fit(self, x: Any, y: Any, *, size: int | None = None, on_step: OnStep = None) -> None:
        """Learn one task; called again with the same data after an interruption, goes on where it stopped."""
        task = len(self._specs) - (self._open is not None)
        run_alone(self.learn(x, y, size=size), task, lambda: self._open.step if self._open else 0, on_step)

    def learn(self, x: Any, y: Any, *, size: int | None = None) -> Work[None]:
        """What fit() does, as work that several learners may do together."""
        inputs = checked_inputs(x, self._shape, self._dtype, self.device)
        check_lengths(inputs, y)
        N = float(checked_size(size, len(inputs)))
        if self._open is None:
            spec = class_spec(y)
            labels = spec.encode(y, self.device, self._dtype)
            now = self._begin(spec, inputs, labels, N)
        else:
            now = self._open
            labels = labels_again(self._specs, now.mark, inputs, y)
        yield self._program(now, inputs, labels)
        refuse_non_finite(now.optimiser.params)
        self._open = None

    def _program(self, now: OpenTask, x: Tensor, y: Tensor) -> Program:
        """The steps left of the task that is open, on the examples that are not its coreset."""
        trained = torch.ones(len(x), dtype=torch.bool, device=self.device)
        trained[now.left_out] = False
        among, options, streams = trained.nonzero()[:, 0], self.options, self._streams

        def rows(steps: int) -> Tensor:
            return among[minibatch_rows(len(among), options.batch_size, steps, streams, self.device)]

        def advance() -> None:
            now.step += 1
            self._adapted = {}

        return self._steps(now, len(self._specs) - 1, (x, y), rows, streams, options.steps, advance)

    def _steps(
        self,
        now: OpenTask,
        task: int,
        data: tuple[Tensor, Tensor],
        rows: Callable[[int], Tensor],
        streams: Streams,
        stop: int,
        advance: Callable[[], None],
    ) -> Program:
        """Steps that bring q of a task nearer to the posterior; `rows` says which examples each of n steps sees."""
        samples, like, (x, y) = self.options.samples, now.q.mean, data

        def draw(steps: int) -> Params:
            noise = standard_noise(like, steps * samples, streams["likelihood"])
            return {ROWS: rows(steps)} | {NOISE + n: v.unflatten(0, (steps, samples)) for n, v in noise.items()}

        fixed = {name: value.detach() for name, value in fixed_parts(self.net).items()}
        return Program(
            net=self.net, loss=_Loss(self._model, task), optimiser=now.optimiser, x=x, y=y, draw=draw, streams=streams,
            constants={
                "N": exact_number(now.N, self._dtype, self.device),
                **named(PRIOR, now.prior.named()), **named(FIXED, fixed),
            },
            step=now.step, stop=stop, advance=advance, stackable=is_stackable(self.net), chunk=STEPS_AHEAD,
            signature=("vcl", replace(self.options, seed=0), task, self._specs[task].functions, str(self.net)),
        )  # fmt: skip

    def _begin(self, spec: TargetSpec, x: Tensor, y: Tensor, N: float) -> OpenTask:
        K = check_features(self.net, x) + 1
        options, own = self.options, f"{HEAD}{len(self._specs)}"
        left_out = coreset_rows(
            options.coreset, x, y, options.points, options.points_per_class, self._streams["selection"]
        )
        if len(left_out):
            self._coresets.append((x[left_out].clone(), y[left_out].clone()))
        head = {own: leaf(initial_head(spec.functions, K, self._streams, self._dtype, self.device))}
        shared = self._shared()
        prior = isotropic(shared | head, options.prior_std)
        if self._specs:
            prior = prior.joined(detached(self._q().at(shared)))
        start = isotropic(shared | head, options.initial_std).log_std
        self._log_deviation |= {name: leaf(value) for name, value in start.items()}
        self._heads |= head
        self._specs.append(spec)
        self._shape = tuple(x.shape[1:])
        self._adapted = {}
        q = self._learned()
        trained_on = N * (1.0 - len(left_out) / len(x))
        self._open = OpenTask(q, prior, Optimiser(q.named(), options.lr), left_out, trained_on, data_mark(x, y))
        return self._open

    def _shared(self) -> Params:
        """Means of the shared weights."""
        return {name: p for name, p in self.net.named_parameters() if p.requires_grad}

    def _q(self) -> MeanField:
        """The posterior of shared weights and all heads."""
        return MeanField({**self._shared(), **self._heads}, self._log_deviation)

    def _learned(self) -> MeanField:
        """The part of q that the current task learns."""
        return self._q().at([*self._shared(), f"{HEAD}{len(self._specs) - 1}"])

    @property
    def _dtype(self) -> torch.dtype:
        return next((p.dtype for p in self.net.parameters() if p.is_floating_point()), torch.float32)

    # -- prediction -----------------------------------------------------------------------------------------

    def predict(self, x: Any, task: int | None = None) -> Prediction:
        """Class probabilities, the mean over networks drawn from q, the same at every call."""
        number = check_task(task, len(self._specs))
        inputs = checked_inputs(x, self._shape, self._dtype, self.device)
        weights = self._drawn_weights(self._belief(number))
        with torch.no_grad():
            logits = [self._logits(some, inputs, number) for some in weights]
            return sampled_prediction(torch.cat(logits), self._specs[number])

    def _drawn_weights(self, q: MeanField) -> Iterator[Params]:
        """The networks that predict, [DRAWS, ...] of them at a time, the same at every call and on every device."""
        generator, left = fork(self.options.seed, "prediction"), self.options.predict_samples
        while left:
            noise = [standard_noise(q.mean, 1, generator) for _ in range(min(left, DRAWS))]
            left -= len(noise)
            yield drawn(q, {name: torch.cat([one[name] for one in noise]).to(self.device) for name in q.mean})

    def _logits(self, weights: Params, x: Tensor, task: int) -> Tensor:
        """[S, n, C] of S networks; as one where that is quicker and the network allows it."""

        def one(weight: Params, rows: Tensor) -> Tensor:
            return self._model.logits(weight, rows, task)

        if is_stackable(self.net):
            with contextlib.suppress(RuntimeError):  # a network that cannot be batched
                return torch.cat([torch.vmap(one, (0, None))(weights, rows) for rows in x.split(CHUNK)], 1)
        each = [
            dict(zip(weights, some, strict=True)) for some in zip(*(w.unbind() for w in weights.values()), strict=True)
        ]
        return torch.stack([torch.cat([one(weight, rows) for rows in x.split(CHUNK)]) for weight in each])

    def _belief(self, task: int) -> MeanField:
        """What a task is predicted with: q, or a copy of it adapted to the task's coreset."""
        q = self._q().at([*self._shared(), f"{HEAD}{task}"])
        if not self._coresets:
            return q
        if task not in self._adapted:
            with torch.inference_mode(False), torch.enable_grad():
                self._adapted[task] = self._adapt(detached(q), task)
        return self._adapted[task]

    def _adapt(self, q: MeanField, task: int) -> MeanField:
        """q after `adapt_steps` on the coreset of a task with q as the prior; its random numbers are its own."""
        options, (x, y) = self.options, self._coresets[task]
        streams = Streams(stream_seed(options.seed, f"coreset/{task}"), self.device)
        moving = MeanField(*({name: leaf(value) for name, value in part.items()} for part in q))
        now = OpenTask(moving, q, Optimiser(moving.named(), options.adapt_lr), y[:0], float(len(x)), "")

        def rows(steps: int) -> Tensor:
            if len(x) <= options.batch_size:
                return torch.arange(len(x), device=self.device).expand(steps, -1)
            return minibatch_rows(len(x), options.batch_size, steps, streams, self.device)

        program = self._steps(now, task, (x, y), rows, streams, options.adapt_steps, lambda: None)
        for _ in train([program]):
            pass
        return detached(moving)

    # -- keeping --------------------------------------------------------------------------------------------

    def memory_bytes(self) -> int:
        """Means and deviations of shared weights and heads, and the coresets."""
        return sum(self.memory_parts().values())

    def memory_parts(self) -> Parts:
        """The same by kind: q, whose means are the network itself, and the points of the coresets."""
        if not self._specs:
            return {}
        kept = {"posterior": [value for part in self._q() for value in part.values()]}
        return parts_of(kept | {"points": [value for pair in self._coresets for value in pair]})

    def kept_inputs(self) -> list[Tensor]:
        """The coreset of each task."""
        return [x for x, _ in self._coresets]

    def past_divergences(self) -> list[float]:
        """Not a measure that this method has."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what happens next, copied."""
        tensors: Params = {f"net/{name}": value for name, value in self.net.state_dict().items()}
        tensors |= {f"heads/{name}": value for name, value in self._heads.items()}
        tensors |= {f"log_deviation/{name}": value for name, value in self._log_deviation.items()}
        for i, (x, y) in enumerate(self._coresets):
            tensors |= {f"coreset/{i}/x": x, f"coreset/{i}/y": y}
        meta: dict[str, Any] = {
            "specs": [spec.to_json() for spec in self._specs],
            "shape": None if self._shape is None else list(self._shape),
            "open": None,
        }
        if self._open is not None:
            now = self._open
            meta["open"] = {"step": now.step, "mark": now.mark, "N": now.N}
            tensors |= named(PRIOR, now.prior.named())
            tensors |= {f"adam/{name}": value for name, value in now.optimiser.state().items()}
            tensors["left_out"] = now.left_out
        return packed(self.options, self._streams, self.device, meta, tensors)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where the learner that gave `state` was."""
        meta, tensors, streams = unpacked(state, self.options, self.device)
        network = under(tensors, "net/")
        check_fits(self.net, network)
        self.net.load_state_dict(network)
        self._streams = streams
        self._specs = [TargetSpec.from_json(data) for data in meta["specs"]]
        self._heads = {name: leaf(value) for name, value in under(tensors, "heads/").items()}
        self._log_deviation = {name: leaf(value) for name, value in under(tensors, "log_std/").items()}
        count = len(under(tensors, "coreset/")) // 2
        self._coresets = [(tensors[f"coreset/{i}/x"], tensors[f"coreset/{i}/y"]) for i in range(count)]
        self._shape = None if meta["shape"] is None else tuple(meta["shape"])
        self._adapted, self._open = {}, None
        if meta["open"] is not None:
            prior = _field(under(tensors, PRIOR))
            q = self._learned()
            optimiser = Optimiser(q.named(), self.options.lr)
            optimiser.restore(under(tensors, "adam/"))
            self._open = OpenTask(q, prior, optimiser, tensors["left_out"], **meta["open"])


@dataclass(frozen=True)
class _Loss:
    """Expected negative log-likelihood, KL of the head and KL of the shared weights, in nats per example."""

    model: Heads
    task: int

    def __call__(self, params: Params, constants: Params, x: Tensor, y: Tensor, noise: Params) -> Terms:
        q, prior, fixed = _field(params), _field(under(constants, PRIOR)), under(constants, FIXED)

        def nll_of(weights: Params) -> Tensor:
            return F.cross_entropy(self.model.logits(fixed | weights, x, self.task), y)

        nll = expected_loss(nll_of, q, under(noise, NOISE))
        own = f"{HEAD}{self.task}"
        kl_head = mean_field_kl(q.at([own]), prior) / constants["N"]
        shared = q.at(name for name in q.mean if name != own)
        kl_shared = (nll.new_zeros(()) + mean_field_kl(shared, prior)) / constants["N"]
        return Terms(nll + kl_head + kl_shared, -nll, kl_head, kl_shared)


def _field(named_parts: Params) -> MeanField:
    """What `MeanField.named` put together."""
    return MeanField(under(named_parts, "mean/"), under(named_parts, "log_std/"))
