"""Learning a task as work that several learners may do together: training steps and searches, one after another."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
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
    """Do the work of several learners in lockstep; yields as `frcl.engine.train` does, returns what each returned."""
    results: list[Any] = [None] * len(works)
    answers: dict[int, Any] = dict.fromkeys(range(len(works)))
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


def alone(work: Work[Result]) -> Generator[list[Values], None, Result]:
    """The same for one learner: yields the terms of the steps just taken."""
    both = together([work])
    while True:
        try:
            taken = next(both)
        except StopIteration as end:
            result: Result = end.value[0]
            return result
        yield [step[0] for step in taken]


def at_once(work: Work[Result]) -> Result:
    """The result of work that has no steps, or whose steps nobody watches."""
    steps = alone(work)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result


def steps_of(taken: Sequence[Values], last: int) -> Iterator[tuple[int, Values]]:
    """Numbers the steps just taken, of which the last has number `last`."""
    return enumerate(taken, last - len(taken) + 1)
