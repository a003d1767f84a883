"""Several members of FRCL as one learner, trained as one program, their predictions averaged; and frcl.load."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from frcl.engine.program import Values
from frcl.errors import CheckpointError, OptionError
from frcl.files import apart, load_state, save_state, side_by_side
from frcl.learners.checkpoint import settings
from frcl.learners.deploy import Deployed, DeployedEnsemble, export, export_onnx
from frcl.learners.exact_gp import ExactGP, restored_exact_gp
from frcl.learners.frcl import FRCL
from frcl.learners.lockstep import finish, steps_of
from frcl.learners.networks import build, describe
from frcl.learners.options import FRCLKeywords, FRCLOptions
from frcl.learners.state import LearnerState
from frcl.learners.types import Accounts, OnStep, Parts, Prediction, StepLog, Summary, added
from frcl.likelihoods import Label
from frcl.options import changed, shows_options
from frcl.regularisers import Regulariser


@shows_options(FRCLOptions())
class Ensemble(Accounts):
    """Several FRCL learners in one. Member i is FRCL(net, seed=seed + i), and learns exactly as that would.

    Parameters
    ----------
    net : nn.Module or sequence of them
        One network, whose weights every member starts from, or one for each: then they differ more.
    members : int
        How many.
    points : int
        Inducing points kept per task, by each member; `memory` is a bound for each member too.
    regularisers, labels, device, options
        As for `FRCL`. Members cannot look for task boundaries, on which they would not agree.
    """

    def __init__(
        self, net: nn.Module | Sequence[nn.Module], members: int = 5, points: int | None = None, *,
        regularisers: Sequence[Regulariser] | None = None, labels: Sequence[Label] | None = None,
        device: str | torch.device | None = None, options: FRCLOptions | None = None,
        **keywords: Unpack[FRCLKeywords],
    ) -> None:  # fmt: skip
        if not isinstance(members, int | np.integer) or isinstance(members, bool) or members < 1:
            raise OptionError(f"members must be a whole number of at least 1, not {members!r}")
        nets = [net] * int(members) if isinstance(net, nn.Module) else list(net)
        if len(nets) != members:
            raise OptionError(f"there are {len(nets)} networks for {members} members; give one, or one for each")
        given: dict[str, Any] = dict(keywords) if points is None else {"points": points, **keywords}
        if "detector" in given:
            raise OptionError("members cannot look for task boundaries: they would not agree. Leave out detector.")
        chosen = changed(FRCLOptions() if options is None else options, given)
        self.members = []
        for i, one in enumerate(nets):
            own = changed(chosen, {"seed": chosen.seed + i})
            self.members.append(FRCL(one, regularisers=regularisers, labels=labels, device=device, options=own))
        for member in self.members:  # one lock for all, so that they are always seen at the same step
            member._lock = member._model.lock = self.members[0]._lock

    def __repr__(self) -> str:
        return f"Ensemble of {len(self.members)} members, each {self.members[0]!r}"

    def fit(
        self, x: Any, y: Any, *, likelihood: str | None = None, size: int | None = None, on_step: OnStep = None
    ) -> list[Summary]:
        """Learn one task with every member; `on_step` is given the mean of their logs.

        After an error they stand where they stood before, unless all of them stand at the same step of the task.
        """
        number = len(self.members[0].tasks)
        before = opened = [member._state for member in self.members]

        def tell(taken: list[list[Values]]) -> None:
            nonlocal opened
            opened = [member._state for member in self.members]
            if on_step is not None:
                for step, values in steps_of(taken, self.members[0].step):
                    loss, fit, now, past = (sum(terms) / len(values) for terms in zip(*values, strict=True))
                    on_step(StepLog(number, step, loss, fit, now, past))

        try:
            return finish([member.learn(x, y, likelihood=likelihood, size=size) for member in self.members], tell)
        except BaseException as error:
            stand = {(len(member.tasks), member.step) for member in self.members}
            if max(tasks for tasks, _ in stand) > number:  # some are closed: all are open again
                self._take(opened)
            elif len(stand) > 1 or (isinstance(error, Exception) and stand == {(number, 0)}):
                self._take(before)  # members that do not agree could not go on
            raise

    def _take(self, states: Sequence[LearnerState]) -> None:
        for member, state in zip(self.members, states, strict=True):
            member._state = state

    def _deployed(self, task: int | None) -> tuple[Deployed, Tensor]:
        each = [member._deployed(task) for member in self.members]
        return DeployedEnsemble([one for one, _ in each]), each[0][1]

    export, export_onnx = export, export_onnx

    def abandon_task(self) -> None:
        """Drop the task that is open, in every member."""
        self._all_or_none(lambda member: member.abandon_task())

    def forget(self, task: int, x: Any = None, y: Any = None) -> None:
        """Drop everything that is kept of a past task, in every member; see `FRCL.forget`."""
        self._all_or_none(lambda member: member.forget(task, x, y))

    def _all_or_none(self, action: Callable[[FRCL], None]) -> None:
        before = [member._state for member in self.members]
        try:
            for member in self.members:
                action(member)
        except BaseException:
            self._take(before)
            raise

    def predict(self, x: Any, task: int | Sequence[int] | Tensor | None = None) -> Prediction:
        """The mean of the members' distributions; variances are those within members and between them together."""
        with self.members[0]._lock:
            return _averaged([member.predict(x, task) for member in self.members])

    def mean(self, x: Any, task: int) -> Tensor:
        """The mean of the functions alone, over the members."""
        with self.members[0]._lock:
            return torch.stack([member.mean(x, task) for member in self.members]).mean(0)

    @property
    def tasks(self) -> tuple[tuple[Summary, ...], ...]:
        """The summaries of the tasks learned so far, by task: one of each member."""
        return tuple(zip(*(member.tasks for member in self.members), strict=True))

    def memory_parts(self) -> Parts:
        """Bytes that all members keep of past tasks by kind."""
        return added([member.memory_parts() for member in self.members])

    def state_dict(self) -> dict[str, Any]:
        """The states of all members side by side."""
        with self.members[0]._lock:
            states = [member.state_dict() for member in self.members]
        return {"meta": {"members": [state["meta"] for state in states]}, "tensors": side_by_side(states)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where the ensemble that gave `state` was; refused as a whole if it does not fit."""
        try:
            states = apart(state["meta"]["members"], state["tensors"])
        except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
            raise CheckpointError("this is not the state of an ensemble") from error
        if len(states) != len(self.members):
            raise CheckpointError(f"the state is of {len(states)} members; this ensemble has {len(self.members)}")
        before = [member.state_dict() for member in self.members]
        try:
            for member, own in zip(self.members, states, strict=True):
                member.load_state_dict(own)
        except CheckpointError:
            for member, kept in zip(self.members, before, strict=True):
                member.load_state_dict(kept)
            raise

    def save(self, path: str | Path) -> None:
        """Write the states to one file, atomically.

        `frcl.load` reads it, without a network where all members have the same one of frcl.
        """
        state, each = self.state_dict(), [describe(member.net) for member in self.members]
        same = all(one == each[0] for one in each)
        save_state(path, {**state["meta"], "network": each[0] if same else None}, state["tensors"])


def _averaged(each: Sequence[Prediction]) -> Prediction:
    """The equal mixture of what the members predict."""

    def average(name: str) -> Tensor | None:
        parts = [part for one in each if (part := getattr(one, name)) is not None]
        return torch.stack(parts).mean(0) if parts else None

    def spread(of: str, variance: str) -> Tensor | None:
        within = average(variance)  # members
        if within is None:
            return None
        return within + torch.stack([getattr(one, of) for one in each]).var(0, correction=0)

    def density(y: Any) -> Tensor:
        return torch.stack([one.log_predictive(y) for one in each]).logsumexp(0) - math.log(len(each))

    def in_task(number: int) -> Prediction:
        return _averaged([one.in_task(number) for one in each if one.in_task is not None])

    within = None if each[0].in_task is None else in_task
    of_functions: Any = {"mean": partial(average, "mean"), "variance": partial(spread, "mean", "variance")}
    return Prediction(
        **of_functions, probs=average("probs"), classes=each[0].classes, target_mean=average("target_mean"),
        target_variance=spread("target_mean", "target_variance"), density=density, task_probs=average("task_probs"),
        novelty=partial(average, "novelty"), in_task=within,
    )  # fmt: skip


def load(
    path: str | Path,
    net: nn.Module | Sequence[nn.Module] | None = None,
    *,
    allow: Sequence[str] = (),
    device: str | torch.device | None = None,
) -> FRCL | Ensemble | ExactGP:
    """The learner saved at `path`: an FRCL, or an Ensemble or an ExactGP if it was one.

    `net` is not needed where the network is one of frcl (MLP, ConvNet, CifarNet, ResNet18), or of a class whose full
    name is in `allow`: code is imported only if it is named there. Such a class takes no arguments, or keeps them,
    plain values by keyword, as its attribute `arguments`. Nor is it for a FrozenFront of such networks. Otherwise `net`
    is a network of the same shape, whose weights do not matter; for an Ensemble one, or one for each member. An ExactGP
    on random features needs none.
    """
    meta, tensors = load_state(path)
    description = meta.pop("network", None)
    if net is None and description is not None:
        prefix = "0/net/" if "members" in meta else "net/"
        own = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
        net = build(description, own, allow)
    return restored({"meta": meta, "tensors": tensors}, net, device=device, where=str(path))


def restored(
    state: dict[str, Any], net: nn.Module | Sequence[nn.Module] | None, *, device: str | torch.device | None = None,
    where: str = "the state",
) -> FRCL | Ensemble | ExactGP:  # fmt: skip
    """The learner that gave `state`, with a network of the same shape; `where` names it in messages."""
    meta = state["meta"]
    if isinstance(meta, dict) and "exact_gp" in meta:
        return restored_exact_gp(state, net, device)
    if net is None:
        raise CheckpointError(f"{where} holds a learner with a network; give one of the same shape")
    each = meta.get("members") if isinstance(meta, dict) else None
    if each is not None and not (isinstance(each, list) and each and all(isinstance(one, dict) for one in each)):
        raise CheckpointError(f"{where} is not the state of an ensemble")
    given = settings(meta if each is None else each[0])
    learner: FRCL | Ensemble
    if each is not None:
        del given["detector"]  # members have none
        learner = Ensemble(net, len(each), device=device, **given)
    elif not isinstance(net, nn.Module):
        raise CheckpointError(f"{where} holds one learner, not an ensemble; give one network")
    else:
        learner = FRCL(net, device=device, **given)
    learner.load_state_dict(state)
    return learner
