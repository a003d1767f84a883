"""A fresh network for each task: an upper bound that forgets nothing and shares nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from frcl.baselines.common import check_task
from frcl.baselines.options import SingleOptions
from frcl.baselines.penalised import Penalised
from frcl.errors import CheckpointError
from frcl.files import apart, side_by_side
from frcl.learners.accounting import Parts, added, parts_of
from frcl.learners.lockstep import OnStep, Work, run_alone
from frcl.learners.types import Prediction
from frcl.regularisers.replay import Nothing
from frcl.seeding import stream_seed


class Single:
    """One plain learner a task; each begins at the weights of the network given, with a seed of its own."""

    def __init__(self, net: nn.Module, options: SingleOptions, *, device: str | torch.device = "cpu") -> None:
        self.options = options
        self._net = net
        self._device = device
        self._learners: list[Penalised] = []
        self._open = False

    def fit(self, x: Any, y: Any, *, size: int | None = None, on_step: OnStep = None) -> None:
        """Learn one task with a network of its own."""
        run_alone(self.learn(x, y, size=size), len(self._learners) - self._open, self._steps, on_step)

    def learn(self, x: Any, y: Any, *, size: int | None = None) -> Work[None]:
        """What fit() does, as work that several learners may do together."""
        learner = self._learners[-1] if self._open else self._fresh(len(self._learners))
        if not self._open:
            learner.check(x, y)
            self._learners.append(learner)
            self._open = True
        yield from learner.learn(x, y, size=size)
        self._open = False

    def _steps(self) -> int:
        return self._learners[-1].step

    def _fresh(self, task: int) -> Penalised:
        options = replace(self.options, seed=stream_seed(self.options.seed, f"task/{task}"))
        return Penalised(self._net, options, Nothing(), device=self._device)

    def predict(self, x: Any, task: int | None = None) -> Prediction:
        """What the network of that task says."""
        return self._learners[check_task(task, len(self._learners))].predict(x, 0)

    def memory_bytes(self) -> int:
        """Every network with its head."""
        return sum(self.memory_parts().values())

    def memory_parts(self) -> Parts:
        """The same by kind."""
        networks = parts_of({"network": [p for one in self._learners for p in one.net.parameters()]})
        return added([networks, *(one.memory_parts() for one in self._learners)])

    def kept_inputs(self) -> list[Tensor]:
        """None: no example is kept."""
        return []

    def past_divergences(self) -> list[float]:
        """Not a measure that this method has."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """The states of all networks, side by side."""
        states = [one.state_dict() for one in self._learners]
        meta = {"open": self._open, "each": [state["meta"] for state in states]}
        return {"meta": meta, "tensors": side_by_side(states)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where the learner that gave `state` was."""
        try:
            each, is_open = apart(state["meta"]["each"], state["tensors"]), state["meta"]["open"]
        except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
            raise CheckpointError("this is not a state made by state_dict()") from error
        learners = []
        for i, own in enumerate(each):
            learner = self._fresh(i)
            learner.load_state_dict(own)
            learners.append(learner)
        self._learners, self._open = learners, is_open
