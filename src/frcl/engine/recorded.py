"""Steps as one CUDA graph: recorded once, replayed for a chunk of steps."""

from collections.abc import Generator, Sequence
from functools import partial

import torch
from torch import Tensor

from frcl.engine.program import Terms, Unit, Values, indivisible, refuse_non_finite
from frcl.features import network_failures
from frcl.graphs import TRIALS, Replay, captured, put_back, spread
from frcl.trees import named_tensors, tree_map


class Recorded:
    """A step of all units recorded as one CUDA graph and replayed; the terms stay on the device for a chunk."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self.units = units
        self._locks = [program.lock for unit in units for program in unit.programs]
        self.device = units[0].programs[0].x.device
        steps, terms = units[0].programs[0].chunk + TRIALS, len(Terms._fields)
        self.at = torch.zeros(1, dtype=torch.long, device=self.device)
        self.logs = [self.at.new_zeros(steps, len(unit.programs), terms, dtype=torch.float64) for unit in units]
        self._replay: Replay | None = None
        self._before: list[Tensor] = []

    def steps(self) -> Generator[list[list[Values]], None, None]:
        """The steps left of a chunk."""
        for unit in self.units:
            places = unit.load()
        with indivisible(self._locks):
            changes = self._changes()
            if not self._before:
                self._before = [torch.empty_like(tensor, requires_grad=False) for tensor in changes]
            put_back(self._before, [tensor.detach() for tensor in changes])
            try:
                self.at.fill_(places.start)
                if self._replay is None:
                    self._replay = captured(self._one, changes, self.device)
                with network_failures():
                    for _ in places:
                        self._replay()
                logs = torch.cat([log[places.start : places.stop] for log in self.logs], 1).cpu()  # [n, programs, 4]
                refuse_non_finite("loss", {"": logs[..., 0]})
                for unit in self.units:
                    refuse_non_finite("parameter", unit.optimiser.params)
            except BaseException:  # all of the chunk or nothing of it, also if it is interrupted
                put_back(changes, self._before)
                raise
            for unit in self.units:
                unit.count(places)
        yield [[tuple(terms) for terms in step] for step in logs.tolist()]

    def close(self) -> None:
        """Free the recording, which has memory of its own."""
        self._replay = None

    def _one(self) -> None:
        """One step of every unit, each on a branch of its own."""
        takes = [partial(self._take, unit, log) for unit, log in zip(self.units, self.logs, strict=True)]
        spread(takes, self.device)
        self.at += 1

    def _take(self, unit: Unit, log: Tensor) -> None:
        computed = unit.computed(tree_map(lambda value: value.index_select(0, self.at)[0], unit.drawn))
        log.index_copy_(0, self.at, unit.move(*computed)[None].double())

    def _changes(self) -> list[Tensor]:
        changes = [self.at, *self.logs]
        for unit in self.units:
            changes += [*unit.optimiser.changes(), *(value for _, value in named_tensors(unit.carry))]
        return changes
