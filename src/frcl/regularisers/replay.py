"""Stored examples: the paper's BASELINE (Appendix C) and learning on all data so far.

    penalty = (1/N) Σ_i (N_i/M_i) Σ_{j ≤ M_i} −log p(ỹ_ij | x̃_ij)      nats per example, over past tasks i

An unbiased estimate of the loss on all data of past tasks; all heads are trained on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, pad

from frcl.errors import DataError
from frcl.regularisers.functional import padded, sample_tasks
from frcl.regularisers.protocol import Kept, Moment, Params, Place, Plain
from frcl.selection import random_start


@dataclass
class Buffer(Plain):
    """Keeps M examples of each task, balanced over its classes; M None keeps all, and a step draws `batch` of them."""

    points: int | None
    per_class: int | None = None
    tasks_per_step: int | None = None
    batch: int | None = None  # examples drawn from each buffer in a step; None: the whole buffer
    x: list[Tensor] = field(default_factory=list)
    y: list[Tensor] = field(default_factory=list)
    sizes: list[float] = field(default_factory=list)  # N_i
    trains_old_heads: bool = True

    def __post_init__(self) -> None:
        self.stackable = self.points is not None or self.per_class is not None

    def check(self, y: Tensor) -> None:
        M = self._points(y)
        if M is not None and len(y) < M:
            raise DataError(f"{len(y)} examples are fewer than the {M} to keep; lower points, or bring more data")

    def _points(self, y: Tensor) -> int | None:
        return self.points if self.per_class is None else self.per_class * int(y.max() + 1)

    def constants(self) -> Params:
        """Every buffer by itself; where a step looks at some of them only, all in one block, padded."""
        if not self.x:
            return {}
        sizes = self.x[0].new_tensor(self.sizes, dtype=torch.float64)
        if not self._samples():
            parts = {f"x/{i}": x for i, x in enumerate(self.x)} | {f"y/{i}": y for i, y in enumerate(self.y)}
            return parts | {"sizes": sizes}
        M = max(len(x) for x in self.x)
        counts = self.y[0].new_tensor([len(y) for y in self.y])
        return {"x": padded(self.x, M), "y": padded(self.y, M), "sizes": sizes, "counts": counts}

    def _samples(self) -> bool:
        return self.tasks_per_step is not None and len(self.x) > self.tasks_per_step

    def draw(self, steps: int, generator: torch.Generator) -> Params:
        drawn: Params = {}
        looked_at = sample_tasks(len(self.x), self.tasks_per_step, steps, generator)
        if looked_at is not None:
            drawn["tasks"] = looked_at
        if self.batch is not None:
            for i, x in enumerate(self.x):
                drawn[f"buffer/{i}"] = torch.randint(
                    len(x), (steps, self.batch), generator=generator, device=generator.device
                )
        return drawn

    def penalty(self, at: Place, params: Params, constants: Params, x: Tensor, noise: Params) -> Tensor:
        if "sizes" not in constants:
            return x.new_zeros(())
        estimate = self._sampled if "tasks" in noise else self._all
        return estimate(at, params, constants, noise) / constants["N"]

    def _all(self, at: Place, params: Params, constants: Params, noise: Params) -> Tensor:
        """Σ_i N_i × the mean loss on buffer i, or on the examples drawn from it."""
        drawn = []
        for i in range(at.task):
            rows, labels = constants[f"x/{i}"], constants[f"y/{i}"]
            if (own := noise.get(f"buffer/{i}")) is not None:
                rows, labels = rows[own], labels[own]
            drawn.append((rows, labels))
        Phi = at.model.features(params, torch.cat([rows for rows, _ in drawn]))
        parts = Phi.split([len(rows) for rows, _ in drawn])
        losses = [
            cross_entropy(part @ params[f"head/{i}"].mT, labels)
            for i, (part, (_, labels)) in enumerate(zip(parts, drawn, strict=True))
        ]
        each = torch.stack(losses)
        return (constants["sizes"].to(each.dtype) * each).sum()

    def _sampled(self, at: Place, params: Params, constants: Params, noise: Params) -> Tensor:
        """The same estimated from some buffers; what stands in the padding of points and classes counts for nothing."""
        tasks = noise["tasks"]
        x, y, counts = (constants[name][tasks] for name in ("x", "y", "counts"))
        heads = [params[f"head/{i}"] for i in range(at.task)]
        C = max(head.shape[0] for head in heads)
        block = torch.stack([pad(head, (0, 0, 0, C - head.shape[0])) for head in heads])
        absent = torch.stack([pad(head.new_zeros(len(head)), (0, C - len(head)), value=-torch.inf) for head in heads])
        Phi = at.model.features(params, x.flatten(0, 1)).unflatten(0, x.shape[:2])
        log_p = (Phi @ block[tasks].mT + absent[tasks][:, None]).log_softmax(-1)  # [k, M, C]
        loss = -log_p.gather(-1, y[..., None])[..., 0]
        real = torch.arange(x.shape[1], device=x.device) < counts[:, None]
        means = torch.where(real, loss, 0.0).sum(1) / counts
        return (constants["sizes"][tasks].to(means.dtype) * means).sum() * (at.task / len(tasks))

    def end(self, now: Moment, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        M = self._points(y)
        rows = torch.arange(len(x)) if M is None else random_start(len(x), M, generator, y)
        self.x.append(x[rows.to(x.device)].clone())
        self.y.append(y[rows.to(y.device)].clone())
        self.sizes.append(now.N)

    def kept(self) -> Kept:
        return {"points": [*self.x, *self.y]}

    def state(self) -> Params:
        parts = {f"x/{i}": value for i, value in enumerate(self.x)}
        parts |= {f"y/{i}": value for i, value in enumerate(self.y)}
        return parts | {"sizes": torch.tensor(self.sizes, dtype=torch.float64)}

    def load(self, state: Params) -> None:
        self.sizes = state["sizes"].tolist()
        self.x = [state[f"x/{i}"].clone() for i in range(len(self.sizes))]
        self.y = [state[f"y/{i}"].clone() for i in range(len(self.sizes))]


class Nothing(Plain):
    """No protection."""

    def penalty(self, at: Place, params: Params, constants: Params, x: Tensor, noise: Params) -> Tensor:
        return x.new_zeros(())

    def end(self, now: Moment, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        """Nothing to keep."""

    def kept(self) -> Kept:
        return {}

    def state(self) -> Params:
        return {}

    def load(self, state: Params) -> None:
        """Nothing to put back."""
