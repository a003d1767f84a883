"""Learning a task as work that several learners may do together: training steps and searches, one after another."""

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, TypeVar

from frcl.engine.program import Program, Values
from frcl.engine.train import train
from frcl.selection import TraceSearch, run_searches

Result = TypeVar("Result")
Work = Generator[Program | TraceSearch, Any, Result]
"""What `learn` of a learner gives: yields what is to be done, is sent the answer, and returns what fit() returns.

The answer to a TraceSearch is what it found. A Program is answered when all its steps have been taken.
"""


def together(works: Sequence[Work[Any]]) -> Generator[list[list[Values]], None, list[Any]]:
    """Do the work of several learners in lockstep; yields as `frcl.engine.train` does, returns what each returned.

    However it ends, all works are closed then: what they undo must not be undone later, in another state.
    """
    results: list[Any] = [None] * len(works)
    answers: dict[int, Any] = dict.fromkeys(range(len(works)))
    with contextlib.ExitStack() as ends:
        for work in works:
            ends.callback(work.close)
        while answers:
            wanted: dict[int, Program | TraceSearch] = {}
            for i, answer in answers.items():
                try:
                    wanted[i] = works[i].send(answer)
                except StopIteration as end:
                    results[i] = end.value
            answers = dict.fromkeys(wanted)
            yield from train([item for item in wanted.values() if isinstance(item, Program)])
            searches = {i: item for i, item in wanted.items() if isinstance(item, TraceSearch)}
            answers |= zip(searches, run_searches(list(searches.values())), strict=True)
    return results


def finish(works: Sequence[Work[Any]], on_steps: Callable[[list[list[Values]]], None] | None = None) -> list[Any]:
    """Do the work of several learners to the end; `on_steps` is told what `together` yields."""
    with contextlib.closing(together(works)) as steps:
        while True:
            try:
                taken = next(steps)
            except StopIteration as end:
                results: list[Any] = end.value
                return results
            if on_steps is not None:
                on_steps(taken)


def steps_of(taken: list[list[Values]], last: int) -> Iterator[tuple[int, list[Values]]]:
    """Numbers the steps just taken, of which the last has number `last`."""
    return enumerate(taken, last - len(taken) + 1)
