"""Several replicas of FRCL as one learner: trained as one program, their predictions averaged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from frcl.engine.program import Values
from frcl.errors import CheckpointError, FrclError, OptionError
from frcl.files import apart, save_state, side_by_side
from frcl.learners.accounting import Parts, added
from frcl.learners.lockstep import OnStep, Work, finish, steps_of
from frcl.learners.options import FRCLOptions, changed
from frcl.learners.targets import TargetSpec
from frcl.learners.types import Prediction, StepLog, Summary


class Member(Protocol):
    """What an ensemble needs of a replica: FRCL has it."""

    @property
    def step(self) -> int: ...
    @property
    def tasks(self) -> tuple[Summary, ...]: ...
    def learn(self, x: Any, y: Any, *, likelihood: str | None = None, size: int | None = None) -> Work[Summary]: ...
    def predict(self, x: Any, task: int | None = None) -> Prediction: ...
    def mean(self, x: Any, task: int | None = None) -> Tensor: ...
    def target(self, task: int | None = None) -> TargetSpec: ...
    def abandon_task(self) -> None: ...
    def memory_parts(self) -> Parts: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def replicated(
    make: Callable[..., Member], net: nn.Module | Sequence[nn.Module], *args: Any, members: int, **options: Any
) -> Ensemble:
    """The ensemble whose replica i is make(net, ..., seed=seed + i)."""
    if not isinstance(members, int | np.integer) or isinstance(members, bool) or members < 1:
        raise OptionError(f"replicas must be a whole number of at least 1, not {members!r}")
    nets = [net] * int(members) if isinstance(net, nn.Module) else list(net)
    if len(nets) != members:
        raise OptionError(f"there are {len(nets)} networks for {members} replicas; give one, or one for each")
    if options.pop("detector", None) is not None:
        raise OptionError("replicas cannot look for task boundaries: they would not agree. Leave out detector.")
    seed = changed(FRCLOptions(), {"seed": options.pop("seed", 0)}).seed
    return Ensemble([make(one, *args, seed=seed + i, **options) for i, one in enumerate(nets)])


class Ensemble:
    """What `FRCL(net, members=n)` gives: replica i is FRCL(net, seed=seed + i), and learns exactly as that would.

    `net` is one network, whose weights every replica starts from, or one for each: then they differ more. Replicas
    cannot look for task boundaries, on which they would not agree.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = list(members)

    def fit(
        self,
        x: Any,
        y: Any,
        *,
        likelihood: str | None = None,
        size: int | None = None,
        on_step: OnStep = None,
    ) -> list[Summary]:
        """Learn one task with every replica; `on_step` is given the mean of their logs.

        After an error they stand where they stood before, unless all of them have taken steps of the task.
        """
        number, before = len(self.members[0].tasks), self.state_dict()

        def tell(taken: list[list[Values]]) -> None:
            if on_step is not None:
                for step, values in steps_of(taken, self.members[0].step):
                    loss, fit, now, past = (sum(terms) / len(values) for terms in zip(*values, strict=True))
                    on_step(StepLog(number, step, loss, fit, now, past))

        try:
            return finish([member.learn(x, y, likelihood=likelihood, size=size) for member in self.members], tell)
        except BaseException as error:
            states = {(len(member.tasks), member.step) for member in self.members}
            if len(states) > 1 or (isinstance(error, FrclError) and states == {(number, 0)}):
                self.load_state_dict(before)  # replicas that do not agree could not go on
            raise

    def abandon_task(self) -> None:
        """Drop the task that is open, in every replica."""
        for member in self.members:
            member.abandon_task()

    def predict(self, x: Any, task: int | None = None) -> Prediction:
        """The mean of the replicas' probabilities; the variance is that within them and between them together."""
        each = [member.predict(x, task) for member in self.members]
        means = torch.stack([one.mean for one in each])
        variance = torch.stack([one.variance for one in each]).mean(0) + means.var(0, correction=0)
        noise = None if each[0].noise is None else torch.stack([one.noise for one in each if one.noise is not None])
        averaged = None if noise is None else noise.mean(0)
        if each[0].probs is None:
            return Prediction(means.mean(0), variance, None, None, None, averaged)
        probs = torch.stack([one.probs for one in each if one.probs is not None]).mean(0)
        labels = self.members[0].target(task).decode(probs.argmax(1))
        return Prediction(means.mean(0), variance, probs, labels, each[0].classes, averaged)

    def mean(self, x: Any, task: int | None = None) -> Tensor:
        """The mean of the functions alone, over the replicas."""
        return torch.stack([member.mean(x, task) for member in self.members]).mean(0)

    @property
    def tasks(self) -> tuple[tuple[Summary, ...], ...]:
        """The summaries of the tasks learned so far, by task: one of each replica."""
        return tuple(zip(*(member.tasks for member in self.members), strict=True))

    def memory_bytes(self) -> int:
        """Bytes that all replicas keep of past tasks."""
        return sum(self.memory_parts().values())

    def memory_parts(self) -> Parts:
        """The same by kind."""
        return added([member.memory_parts() for member in self.members])

    def state_dict(self) -> dict[str, Any]:
        """The states of all replicas side by side."""
        states = [member.state_dict() for member in self.members]
        return {"meta": {"members": [state["meta"] for state in states]}, "tensors": side_by_side(states)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where the ensemble that gave `state` was; refused as a whole if it does not fit."""
        try:
            states = apart(state["meta"]["members"], state["tensors"])
        except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
            raise CheckpointError("this is not the state of an ensemble") from error
        if len(states) != len(self.members):
            raise CheckpointError(f"the state is of {len(states)} replicas; this ensemble has {len(self.members)}")
        before = [member.state_dict() for member in self.members]
        try:
            for member, own in zip(self.members, states, strict=True):
                member.load_state_dict(own)
        except CheckpointError:
            for member, kept in zip(self.members, before, strict=True):
                member.load_state_dict(kept)
            raise

    def save(self, path: str | Path) -> None:
        """Write the states to one file, atomically; `frcl.load` reads it."""
        state = self.state_dict()
        save_state(path, state["meta"], state["tensors"])
