"""What methods with one head for all labels share: its rows, their predictions, and streams.

Every label ever seen is a row of one linear layer on the features, and p(y | x) is the softmax over all rows. With a
task named it is the softmax over the rows of its labels: the probabilities of all labels, given that it is one of them.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from frcl.baselines.common import Baseline, Current, Finished, Saved, class_values, sampled_prediction
from frcl.baselines.memory import Memory
from frcl.baselines.options import SharedHeadOptions
from frcl.checks import check_like, check_stored, expect
from frcl.engine.program import CHUNK, Program, Values
from frcl.engine.train import AdamState, Optimiser, train
from frcl.errors import LabelError, OptionError, TaskError
from frcl.features import check_features, with_bias
from frcl.learners.mixture import over_labels
from frcl.learners.types import Beliefs, Prediction, StepLog
from frcl.likelihoods import Label, Likelihood, Softmax, all_labels
from frcl.regularisers.protocol import Kept
from frcl.seeding import fork

STREAM = "stream"  # in the place of the digest of its data: the task was opened by observe()


@dataclass
class Shared:
    """The labels of the rows, the one head [C, K] and the examples kept; `seen` counts those that came by."""

    labels: tuple[Label, ...] = ()
    head: Tensor | None = None
    memory: Memory | None = None
    seen: int = 0


O = TypeVar("O", bound=SharedHeadOptions)  # noqa: E741
Own = TypeVar("Own", bound=Shared)


class SharedHead(Baseline[O, Own]):
    """A network with one head whose rows are the labels of all tasks."""

    own_type = Shared
    stores_logits: ClassVar[bool] = False  # what the head said of an example is kept with it
    learns_at_once: ClassVar[bool] = True  # observe() takes a step; otherwise end_task() learns
    chunk: ClassVar[int] = CHUNK  # steps whose random numbers are drawn at once
    _opens, _way_out = "fit() or observe()", ", or end it by end_task() if it is a stream"

    @abstractmethod
    def _observed(self, x: Tensor, rows: Tensor) -> Values:
        """Learn from one minibatch of a stream, with the rows of its labels; the terms of the step."""

    # -- the head ----------------------------------------------------------------------------------------------------

    @property
    def _head(self) -> Tensor:
        assert self._own.head is not None
        return self._own.head

    def _rows(self, labels: Iterable[Label]) -> Tensor:
        """The rows of the head that belong to labels."""
        place = {label: row for row, label in enumerate(self._own.labels)}
        return torch.tensor([place[label] for label in labels], device=self.device)

    def _rows_of_task(self, task: int) -> Tensor:
        return self._rows(self._likelihoods[task].classes or ())

    def _begin(self, x: Tensor, y: Tensor, K: int) -> None:
        self._state.own = self._grown(self._now.likelihood.classes or (), K)

    def _grown(self, labels: Sequence[Label], K: int) -> Own:
        """What is kept, with a head that has a row for each of the labels too; a copy, which can be trained."""
        own, count = self._own, self.options.classes
        if count is not None and (wrong := [label for label in labels if label not in range(count)]):
            raise LabelError(
                f"label {wrong[0]!r} is not one of 0 to {count - 1}; raise classes={count}, or leave it out for a head "
                "that grows with the labels"
            )
        known = own.labels if count is None else tuple(range(count))
        new = [label for label in labels if label not in known]
        all_labels((*known, *new))  # of one kind
        missing = len(known) + len(new) - (0 if own.head is None else len(own.head))
        parts = [] if own.head is None else [own.head.detach()]
        parts += [self._new_head(K, missing)] if missing else []
        memory = None if own.memory is None else _wider(own.memory.opened(), missing)
        return replace(own, labels=(*known, *new), head=torch.cat(parts).clone(), memory=memory)

    def _finish(self) -> None:
        own = self._own
        memory = None if own.memory is None else own.memory.closed()
        self._state.own = replace(own, head=self._head.detach().clone(), memory=memory)

    def _pick(self, steps: int, examples: int) -> Tensor:
        """Every example once, in a random order, then all of them in another one, and so on."""
        B, task = self.options.batch_size, len(self._state.past)
        first = self.step - self.step % self.chunk
        places = range(first * B, (first + steps) * B)
        orders = {
            number: _order(self.options.seed, task, number, examples)
            for number in range(places[0] // examples, places[-1] // examples + 1)
        }
        whole, start = torch.cat(list(orders.values())), places[0] % examples
        return whole[start : start + len(places)].view(steps, B).to(self.device)

    # -- prediction --------------------------------------------------------------------------------------------------

    def _functions(self, Phi: Tensor, rows: Tensor) -> Tensor:
        """The functions [n, len(rows)] of some labels."""
        return Phi @ self._head[rows].mT

    def _predict(self, task: int, x: Tensor, shared: Callable[[], Tensor]) -> Prediction:
        f = self._functions(shared(), self._rows_of_task(task))
        return sampled_prediction(f[None], self._likelihoods[task])

    def _over_tasks(self, beliefs: Beliefs, in_task: Callable[[int], Prediction]) -> Prediction:
        """One softmax over the labels of all finished tasks, unless sums over all examples infer the task."""
        if self._inference.sums is not None:
            return super()._over_tasks(beliefs, in_task)
        return self._over_labels(with_bias(beliefs.asked.features()), range(self._answering), in_task)

    def _over_labels(
        self, Phi: Tensor, tasks: Sequence[int], in_task: Callable[[int], Prediction] | None
    ) -> Prediction:
        """p(y | x) over the labels of some tasks; a label of several tasks is as probable in each of them."""
        each = [self._likelihoods[task].classes or () for task in tasks]
        labels = list(dict.fromkeys(label for one in each for label in one))
        probs = self._functions(Phi, self._rows(labels)).softmax(1)
        member = torch.tensor([[label in one for label in labels] for one in each], device=Phi.device).to(probs)
        task_probs = probs @ (member / member.sum(0)).mT
        return over_labels(probs, labels, task_probs, None, in_task=in_task)

    @property
    def _answering(self) -> int:
        """While a stream is observed these are all, with the labels that it has shown so far."""
        current = self._state.current
        observed = current is not None and current.data_mark == STREAM and self.learns_at_once
        return self._count if observed else len(self._state.past)

    # -- streams -----------------------------------------------------------------------------------------------------

    def observe(self, x: Any, y: Any) -> StepLog:
        """Learn from one minibatch of a stream. No boundary has to be known, and labels may appear at any time.

        `end_task()` is there for those who want the labels of a part of the stream to be a task with a number.
        """
        inputs, before = self._inputs(x, y), self._state
        if before.current is not None and before.current.data_mark != STREAM:
            raise TaskError(f"task {len(before.past)} is still open: call fit() exactly as it began")
        if self._inference.sums is not None:
            raise OptionError('task_inference="exact" needs all examples of a task at once: use fit(), or "heads"')
        labels: list[Label] = class_values(y).tolist()
        try:
            if before.current is None or not set(labels) <= set(before.current.likelihood.classes or ()):
                self._open_stream(inputs, labels)
            with self._lock:
                rows = self._rows(labels)
                values = self._observed(inputs, rows)
                self._state.current = replace(self._now, N=self._now.N + len(inputs))
        except Exception:
            self._state = before
            raise
        return StepLog(len(before.past), self.step, *values)

    def _open_stream(self, x: Tensor, labels: Sequence[Label]) -> None:
        """Open a task of a stream, or give the open one further labels."""
        with self._changing() as state:
            now, old = state.current, state.optimiser
            K = check_features(self.net, x) + 1 if now is None else self._head.shape[1]
            seen = () if now is None else now.likelihood.classes or ()
            likelihood = Softmax(all_labels((*seen, *labels)))
            state.own = self._grown(likelihood.labels, K)
            state.current = Current(likelihood, 0.0, STREAM) if now is None else replace(now, likelihood=likelihood)
            state.input_shape, state.input_dtype = tuple(x.shape[1:]), x.dtype
            state.optimiser = self._new_optimiser()
            if old is not None:
                state.optimiser.restore(_padded(old.state(), state.optimiser))

    def _last_programs(self) -> Iterator[Program]:
        """What is to be learned at the end of a stream."""
        yield from ()

    def end_task(self) -> None:
        """End the part of a stream that is observed: its labels become a task with a number."""
        if self._state.current is None or self._now.data_mark != STREAM:
            raise TaskError("no stream is being observed; call observe() first")
        for program in self._last_programs():
            for _ in train([program]):
                pass
        with self._changing() as state:
            self._finish()
            now = self._now
            state.past = [*state.past, Finished(now.likelihood, int(now.N))]
            state.current = state.optimiser = None

    # -- what is kept ------------------------------------------------------------------------------------------------

    def _kept(self) -> Kept:
        own = self._own
        heads = [] if own.head is None else [own.head]
        return {"heads": heads, "points": [] if own.memory is None else own.memory.tensors()}

    def kept_inputs(self) -> list[Tensor]:
        memory = self._own.memory
        if memory is None:
            return []
        return [memory.x.inputs[memory.task == task] for task in range(len(self._state.past))]

    def _drop(self, number: int) -> None:
        """Examples of the task, and rows of labels that no other task has."""
        self._infer_tasks()
        state, own = self._state, self._own
        if not state.past:
            state.own = type(own)()
            return
        left = {label for task in state.past for label in task.likelihood.classes or ()}
        rows = [row for row, label in enumerate(own.labels) if label in left]
        labels, head = tuple(own.labels[row] for row in rows), self._head[rows]
        if self.options.classes is not None:  # these rows stay, but know nothing
            labels, head = own.labels, torch.zeros_like(self._head).index_copy(0, self._rows(labels), head)
            rows = list(range(len(labels)))
        state.own = replace(own, labels=labels, head=head, memory=_without(own.memory, number, rows))

    def _check(self, saved: Saved, tasks: Sequence[Likelihood], K: int) -> None:
        own, now, count = saved.own, saved.current, self.options.classes
        labels = {label for task in tasks for label in task.classes or ()}
        wanted = labels if count is None else set(range(count)) if tasks else set()
        expect(len(set(own.labels)) == len(own.labels) and set(own.labels) == wanted, "the labels of the head")
        expect(labels <= wanted, "a task has a label that the head does not have")
        expect((own.head is None) == (not tasks), "there is a head where there are tasks")
        expect(own.seen >= 0, f"{own.seen} examples were seen")
        expect(own.memory is None or bool(tasks), "examples of no task are kept")
        if own.head is not None:
            check_like(own.head, (len(own.labels), K), self.dtype, "the head")
        if own.memory is not None:
            self._check_memory(own.memory, saved, len(own.labels), len(tasks))
            expect(now is None or own.memory.x.table is None, "places of an open memory can be written")

    def _check_memory(self, memory: Memory, saved: Saved, C: int, tasks: int) -> None:
        m = len(memory.row) if memory.row.ndim else 0
        check_stored(memory.x, saved, self.dtype, "the examples kept")
        expect(1 <= m == len(memory.x.values) <= self.options.points, f"{m} examples are kept")
        expect(m <= saved.own.seen, f"{m} examples are kept of {saved.own.seen}")
        for values, most, what in ((memory.row, C, "rows"), (memory.task, tasks, "tasks")):
            check_like(values, (m,), torch.int64, f"{what} of the examples kept")
            expect(bool(((values >= 0) & (values < most)).all()), f"{what} of the examples kept")
        both = (memory.logits is not None, memory.known is not None)
        expect(both == (self.stores_logits,) * 2, "logits of the examples kept")
        if memory.logits is not None and memory.known is not None:
            check_like(memory.logits, (m, C), self.dtype, "logits of the examples kept")
            check_like(memory.known, (m,), torch.int64, "known rows of the examples kept")
            expect(bool(((memory.known >= 1) & (memory.known <= C)).all()), "known rows of the examples kept")


@lru_cache(maxsize=4)
def _order(seed: int, task: int, number: int, examples: int) -> Tensor:
    """The order in which the examples of a task are used for the `number`th time; remembered, for steps one by one."""
    with torch.inference_mode(False):
        return torch.randperm(examples, generator=fork(seed, f"order/{task}/{number}"))


def _wider(memory: Memory, more: int) -> Memory:
    """With columns for further labels, of which nothing was said."""
    if memory.logits is None or not more:
        return memory
    return memory._replace(logits=torch.nn.functional.pad(memory.logits, (0, more)))


def _without(memory: Memory | None, task: int, rows: Sequence[int]) -> Memory | None:
    """The examples of other tasks, for a head with these of its rows alone; None if there are none."""
    if memory is None or not bool((memory.task != task).any()):
        return None
    kept = memory.at((memory.task != task).nonzero()[:, 0])
    left = torch.tensor(rows, device=kept.row.device)
    kept = kept._replace(row=torch.searchsorted(left, kept.row), task=kept.task - (kept.task > task).long())
    if kept.logits is not None and kept.known is not None:
        kept = kept._replace(logits=kept.logits[:, left], known=torch.searchsorted(left, kept.known))
    return kept.closed()


def _padded(state: AdamState, new: Optimiser) -> AdamState:
    """Moments for a head with further rows, which have none yet."""

    def fitted(name: str, value: Tensor) -> Tensor:
        return torch.cat([value, value.new_zeros(len(new.params[name]) - len(value), *value.shape[1:])])

    moments = ({name: fitted(name, value) for name, value in own.items()} for own in (state.exp_avg, state.exp_avg_sq))
    return AdamState(state.steps, *moments)
