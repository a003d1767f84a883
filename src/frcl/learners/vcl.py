"""Variational continual learning with a mean-field posterior (Nguyen, Li, Bui and Turner, 2018)."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frcl.engine import Optimiser, leaf
from frcl.errors import TaskError
from frcl.features import check_features, check_network
from frcl.learners.inputs import check_lengths, checked_inputs, checked_size, data_mark
from frcl.learners.plain import (
    OnStep,
    check_fits,
    check_task,
    class_spec,
    initial_head,
    minibatches,
    packed,
    sampled_prediction,
    tensor_bytes,
    under,
    unpacked,
)
from frcl.learners.plain_options import VCLOptions
from frcl.learners.records import Prediction, StepLog
from frcl.learners.targets import TargetSpec
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
from frcl.regularisers.protocol import HEAD, Heads, Params
from frcl.seeding import Streams, fork

CHUNK = 4096


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
        inputs = checked_inputs(x, self._shape, self._dtype, self.device)
        check_lengths(inputs, y)
        N = float(checked_size(size, len(inputs)))
        if self._open is None:
            spec = class_spec(y)
            labels = spec.encode(y, self.device, self._dtype)
            now = self._begin(spec, inputs, labels, N)
        else:
            now = self._open
            if now.mark != data_mark(inputs):
                number = len(self._specs) - 1
                raise TaskError(f"task {number} is still open: finish it with fit() on the data it began with")
            labels = self._specs[-1].encode(y, self.device, self._dtype)
        trained = torch.ones(len(inputs), dtype=torch.bool, device=self.device)
        trained[now.left_out] = False
        self._learn(now, inputs[trained], labels[trained], on_step)
        self._open = None

    def _learn(self, now: OpenTask, x: Tensor, y: Tensor, on_step: OnStep) -> None:
        options, task = self.options, len(self._specs) - 1
        for step, rows, targets in minibatches(x, y, options.batch_size, now.step, options.steps, self._streams):
            nll, kl_head, kl_shared = self._terms(now, rows, targets, task, self._streams["likelihood"])
            now.optimiser.step(nll + kl_head + kl_shared)
            now.step, self._adapted = step, {}
            if on_step is not None:
                on_step(_log(task, step, nll, kl_head, kl_shared))

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
        prior = isotropic(shared | head, options.prior_deviation)
        if self._specs:
            prior = prior.joined(detached(self._q().at(shared)))
        start = isotropic(shared | head, options.initial_deviation).log_deviation
        self._log_deviation |= {name: leaf(value) for name, value in start.items()}
        self._heads |= head
        self._specs.append(spec)
        self._shape = tuple(x.shape[1:])
        self._adapted = {}
        q = self._learned()
        trained_on = N * (1.0 - len(left_out) / len(x))
        self._open = OpenTask(q, prior, Optimiser(q.named(), options.rate), left_out, trained_on, data_mark(x))
        return self._open

    def _terms(
        self, now: OpenTask, x: Tensor, y: Tensor, task: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Expected negative log-likelihood, KL of the head and KL of the shared weights, in nats per example."""
        q, own = now.q, f"{HEAD}{task}"
        noise = standard_noise(q.mean, self.options.samples, generator)
        nll = expected_loss(lambda w: F.cross_entropy(self._model.logits(w, x, task), y), q, noise)
        kl_head = mean_field_kl(q.at([own]), now.prior) / now.N
        return nll, kl_head, mean_field_kl(q.at(name for name in q.mean if name != own), now.prior) / now.N

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
        q = self._belief(number)
        generator = fork(self.options.seed, "prediction")
        with torch.no_grad():
            logits = []
            for _ in range(self.options.predict_samples):
                noise = standard_noise(q.mean, 1, generator)
                weights = drawn(q, {name: value[0].to(self.device) for name, value in noise.items()})
                logits.append(torch.cat([self._model.logits(weights, rows, number) for rows in inputs.split(CHUNK)]))
            return sampled_prediction(torch.stack(logits), self._specs[number])

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
        generator = fork(options.seed, f"coreset/{task}", self.device)
        moving = MeanField(*({name: leaf(value) for name, value in part.items()} for part in q))
        now = OpenTask(moving, q, Optimiser(moving.named(), options.adapt_rate), y[:0], float(len(x)), "")
        for _ in range(options.adapt_steps):
            rows = torch.arange(len(x), device=self.device)
            if len(x) > options.batch_size:
                rows = torch.randint(len(x), (options.batch_size,), generator=generator, device=self.device)
            nll, kl_head, kl_shared = self._terms(now, x[rows], y[rows], task, generator)
            now.optimiser.step(nll + kl_head + kl_shared)
        return detached(moving)

    # -- keeping --------------------------------------------------------------------------------------------

    def memory_bytes(self) -> int:
        """Means and deviations of shared weights and heads, and the coresets."""
        if not self._specs:
            return 0
        kept = [value for part in self._q() for value in part.values()]
        return tensor_bytes([*kept, *(value for pair in self._coresets for value in pair)])

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
            tensors |= {f"prior/{name}": value for name, value in now.prior.named().items()}
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
        self._log_deviation = {name: leaf(value) for name, value in under(tensors, "log_deviation/").items()}
        count = len(under(tensors, "coreset/")) // 2
        self._coresets = [(tensors[f"coreset/{i}/x"], tensors[f"coreset/{i}/y"]) for i in range(count)]
        self._shape = None if meta["shape"] is None else tuple(meta["shape"])
        self._adapted, self._open = {}, None
        if meta["open"] is not None:
            prior = MeanField(under(tensors, "prior/mean/"), under(tensors, "prior/log_deviation/"))
            q = self._learned()
            optimiser = Optimiser(q.named(), self.options.rate)
            optimiser.restore(under(tensors, "adam/"))
            self._open = OpenTask(q, prior, optimiser, tensors["left_out"], **meta["open"])


def _log(task: int, step: int, nll: Tensor, kl_head: Tensor, kl_shared: Tensor) -> StepLog:
    fit, now, past = (float(value.detach()) for value in (nll, kl_head, kl_shared))
    return StepLog(task, step, fit + now + past, -fit, now, past)
