"""Small problems that a learner solves in a second."""

import torch
from torch import Tensor

from frcl import FRCL, MLP
from frcl.selection import Selected, plan_by_inputs, run_searches
from frcl.selection.trace import trace_search


def blobs(labels: tuple, n: int, seed: int, dim: int = 4) -> tuple[Tensor, Tensor]:
    """One Gaussian blob per label, apart from each other; centres depend on the seed."""
    g = torch.Generator().manual_seed(seed)
    centres = 2.0 * torch.randn(len(labels), dim, generator=g)
    which = torch.arange(n) % len(labels)
    x = centres[which] + 0.4 * torch.randn(n, dim, generator=g)
    return x, torch.tensor(labels)[which]


def small_learner(**options) -> FRCL:
    given = {"points": 6, "steps": 60, "batch_size": 32, "lr": 5e-3, "search_steps": 50, **options}
    return FRCL(MLP(4, (16, 8), seed=1), **given)


def accuracy(learner: FRCL, x: Tensor, y: Tensor, task: int | None = None) -> float:
    return float((learner.predict(x, task=task).labels == y).float().mean())


def same_tensors(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def trace_swaps(Phi, start, u_noise, steps, generator) -> Selected:
    """The paper's search, planned and run."""
    return run_searches([trace_search(Phi, start, u_noise, steps, generator)])[0]


def select_by_inputs(*given) -> Selected:
    """`plan_by_inputs`, and the search if there is one."""
    plan = plan_by_inputs(*given)
    return plan if isinstance(plan, Selected) else run_searches([plan])[0]
