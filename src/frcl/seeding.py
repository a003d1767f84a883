"""One root seed, named random streams forked from it; nothing here touches the global state."""

from __future__ import annotations

import copy
import hashlib

import torch
from torch import Tensor

STREAMS = ("posterior", "batches", "likelihood", "past", "selection", "window")


def stream_seed(seed: int, name: str) -> int:
    """A 63-bit seed that depends on the root seed and the stream's name alone."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def fork(seed: int, name: str, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh generator for the stream `name` of the root seed."""
    return torch.Generator(device=device).manual_seed(stream_seed(seed, name))


class Streams(dict[str, torch.Generator]):
    """The named generators of one learner, with a state that can be saved and put back.

    Random numbers of several steps may be drawn ahead: `hold` remembers the state before them, and until `release` that
    is the state that is saved.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        super().__init__({name: fork(seed, name, device) for name in STREAMS})
        self._held: dict[str, Tensor] | None = None

    def hold(self) -> None:
        """Remember the state: what is drawn from here on is for steps not yet taken. First go back to the last hold."""
        if self._held is not None:
            self.restore(self._held)
        self._held = self.state()

    def release(self) -> None:
        """All steps drawn for have been taken."""
        self._held = None

    def state(self) -> dict[str, Tensor]:
        """The state that belongs to the last step taken."""
        if self._held is not None:
            return {name: value.clone() for name, value in self._held.items()}
        return {name: generator.get_state() for name, generator in self.items()}

    def copy(self) -> Streams:
        """Streams that go on from the state that is saved, and leave these where they are."""
        twin = copy.deepcopy(self)
        if twin._held is not None:
            twin.restore(twin._held)
        return twin

    def restore(self, state: dict[str, Tensor]) -> None:
        for name, generator in self.items():
            generator.set_state(state[name].to("cpu", torch.uint8))
        self._held = None
