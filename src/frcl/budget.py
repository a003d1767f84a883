"""A bound on the memory of all tasks together: which points go when it is exceeded.

Features Φ in this file are kernel features, σ_w φ(x), as in `selection/trace.py`.
"""

import heapq
import re
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from frcl.errors import OptionError
from frcl.linalg import cholesky, inverse_lower

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def parsed_bytes(memory: int | str) -> int:
    """A number of bytes, given as such or as text with a unit: 2_000_000, "2 MB", "1.5 MiB"."""
    if isinstance(memory, int):
        return memory
    found = re.fullmatch(r"\s*(\d+(?:_\d+)*(?:\.\d+)?)\s*([A-Za-z]*)\s*", memory)
    size = 0 if found is None or found[2].upper() not in UNITS else int(float(found[1]) * UNITS[found[2].upper()])
    if size < 1:
        raise OptionError(f'memory={memory!r} is no number of bytes; write 2_000_000, "2 MB" or "2 MiB"')
    return size


def allowed_bytes(memory: int, growth: float, tasks: int) -> int:
    """memory · T^growth: what T tasks may take together; growth 0 is a fixed total, 1 a fixed size per task."""
    return int(memory * tasks**growth)


class Elimination:
    """The points of one task, of which the one that the trace term misses least may go, again and again.

    T(S) = tr(K_Z − K_ZS K̃_S⁻¹ K_SZ) is what the points S that are left do not explain of all points Z that there were
    at the beginning, K̃_S = K_S + σ² I. With A = K̃_S⁻¹ and B = A K_SZ K_ZS A the loss of point j, as a share of the
    variance of the task, is

        [T(S∖j) − T(S)] / tr K_Z = B_jj / (A_jj tr K_Z),

    and without it A' = A − a aᵀ/A_jj, B' = B − (a bᵀ + b aᵀ)/A_jj + a aᵀ B_jj/A_jj², a and b being column j of A and B.
    """

    def __init__(self, Phi: Tensor, u_noise: float) -> None:
        Phi = Phi.double()
        K = Phi @ Phi.mT
        root = inverse_lower(cholesky(K, u_noise))
        self.A = root.mT @ root
        half = self.A @ K
        self.B = half @ half.mT
        self.total = K.trace()
        self.left = torch.ones(len(K), dtype=torch.bool, device=K.device)

    def losses(self) -> Tensor:
        """The loss of each point, [M]; infinite for those that are gone."""
        share = self.B.diagonal() / (self.A.diagonal() * self.total)
        return torch.where(self.left, share.clamp_min(0.0), torch.inf)

    def remove(self, j: int) -> None:
        """Point j is gone: its rows and columns are zero, those of the others are as if it had never been there."""
        a, b, pivot = self.A[j], self.B[j], self.A[j, j]
        both = torch.outer(a, b) / pivot
        self.B = self.B - both - both.mT + torch.outer(a, a) * (b[j] / pivot**2)
        self.A = self.A - torch.outer(a, a) / pivot
        self.left = self.left.index_fill(0, torch.tensor([j], device=self.left.device), value=False)


def thinned(tasks: Sequence[Elimination], size: Sequence[Callable[[int], int]], excess: int) -> list[Tensor]:
    """The rows that each task keeps, so that `excess` bytes are freed where that is possible; at least one per task.

    Greedy: the next point to go is the one with the least loss per byte. size[i] are the bytes of task i by its number
    of points.
    """
    counts = [int(one.left.sum()) for one in tasks]
    queue: list[tuple[float, int, int]] = []

    def offer(i: int) -> None:
        if counts[i] > 1:
            loss, j = tasks[i].losses().min(0)
            heapq.heappush(queue, (float(loss) / (size[i](counts[i]) - size[i](counts[i] - 1)), i, int(j)))

    for i in range(len(tasks)):
        offer(i)
    while excess > 0 and queue:
        _, i, j = heapq.heappop(queue)
        tasks[i].remove(j)
        excess -= size[i](counts[i]) - size[i](counts[i] - 1)
        counts[i] -= 1
        offer(i)
    return [one.left.nonzero()[:, 0] for one in tasks]


def randomly_thinned(
    counts: Sequence[int], size: Sequence[Callable[[int], int]], excess: int, generator: torch.Generator
) -> list[Tensor]:
    """The same with random points and equal shares: always a random point of the task that takes most bytes goes."""
    left = [torch.randperm(count, generator=generator) for count in counts]
    now = list(counts)
    queue = [(-size[i](count), i) for i, count in enumerate(counts) if count > 1]
    heapq.heapify(queue)
    while excess > 0 and queue:
        _, i = heapq.heappop(queue)
        excess -= size[i](now[i]) - size[i](now[i] - 1)
        now[i] -= 1
        if now[i] > 1:
            heapq.heappush(queue, (-size[i](now[i]), i))
    return [one[:count].sort().values for one, count in zip(left, now, strict=True)]
