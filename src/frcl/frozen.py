"""Networks whose first part is never trained: its output is computed once for each input."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict

import torch
from torch import Tensor, nn

from frcl.batch_norm import freeze_batch_norm
from frcl.errors import NetworkError
from frcl.graphs import inside_a_transform
from frcl.trees import data_mark

LEAST = 16  # inputs from which on it pays to remember
LARGEST = 2 << 30  # bytes that are remembered, of all networks together
CHUNK = 256  # inputs that pass through the frozen part at once

_found: OrderedDict[tuple[object, ...], Tensor] = OrderedDict()  # the longest unused first
_lock = threading.Lock()


class FrozenFront(nn.Module):
    """rest(front(x)), where the weights of `front` are fixed and only those of `rest` are trained; both are copied.

    Parameters
    ----------
    front : nn.Module
        Put into evaluation mode, its batch norm frozen.
    rest : nn.Module, optional
        From what `front` gives to features [batch, K]; by default nothing more is done, and no weight is trained.

    Outside of training steps, what `front` gives for 16 or more inputs is remembered by their content, up to 2 GiB in
    all; learners pass the data of a task and its stored points through it before the first step.
    """

    def __init__(self, front: nn.Module, rest: nn.Module | None = None) -> None:
        super().__init__()
        for part in (front, rest):
            if not isinstance(part, nn.Module | None) or front is None:
                raise NetworkError(f"expected a network, an nn.Module; got {type(part).__name__}")
        self.front = freeze_batch_norm(front).eval().requires_grad_(False)
        self.rest = nn.Identity() if rest is None else copy.deepcopy(rest)
        self._mark: tuple[object, str] = ((), "")

    def train(self, mode: bool = True) -> FrozenFront:
        """Sets the mode of `rest`; `front` stays in evaluation mode."""
        super().train(mode)
        self.front.eval()
        return self

    def forward(self, x: Tensor, prepared: bool = False) -> Tensor:
        """Features of inputs, or with `prepared` of what `front` gave for them."""
        out: Tensor = self.rest(x if prepared else self._through_front(x))
        return out

    def prepare(self, x: Tensor) -> Tensor:
        """What `front` gives for the inputs, without gradient."""
        with torch.no_grad():
            return torch.cat([self._through_front(part) for part in x.split(CHUNK)])

    def _through_front(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling() or torch.is_grad_enabled() or inside_a_transform() or len(x) < LEAST:
            return self._computed(x)
        if x.is_cuda and torch.cuda.is_current_stream_capturing():
            return self._computed(x)
        key = (str(self.front), self._weights(), data_mark(x), str(x.device), torch.is_autocast_enabled(x.device.type))
        with _lock:
            if (known := _found.get(key)) is not None:
                _found.move_to_end(key)
                return known
        found = torch.cat([self._computed(part) for part in x.split(CHUNK)])
        if type(found) is Tensor and found.nbytes <= LARGEST:  # not one without values, as while a model is exported
            with _lock:
                _found[key] = found
                while sum(one.nbytes for one in _found.values()) > LARGEST:
                    _found.popitem(last=False)
        return found

    def _computed(self, x: Tensor) -> Tensor:
        out: Tensor = self.front(x)
        if not torch.compiler.is_compiling() and (not isinstance(out, Tensor) or len(out) != len(x)):
            given = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise NetworkError(f"the frozen part gave {given} for {len(x)} inputs; expected a tensor [{len(x)}, ...]")
        return out

    def _weights(self) -> str:
        """A digest of the weights of `front`, computed again when one of them has changed."""
        tensors = [*self.front.parameters(), *self.front.buffers()]
        versions = [(id(one), one._version) for one in tensors]
        if self._mark[0] != versions:
            self._mark = versions, data_mark(*tensors) if tensors else "none"
        return self._mark[1]
