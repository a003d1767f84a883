"""A step as one thing: no other thread and no Ctrl-C comes between an update and its count."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any


class StepLock:
    """Held by a thread while it takes a step of a learner, opens or closes a task, predicts, or packs the state.

    Re-entrant and fair: a thread that waits goes before one that comes back. Otherwise a loop of steps, which lets go
    for microseconds, would keep all others waiting. A copy of a learner has a lock of its own.
    """

    def __init__(self) -> None:
        self._turn, self._lock = threading.Lock(), threading.RLock()

    def __enter__(self) -> None:
        lock: Any = self._lock
        if lock._is_owned():
            lock.acquire()
            return
        try:
            with self._turn:
                lock.acquire()
        except BaseException:
            if lock._is_owned():
                lock.release()
            raise

    @property
    def __exit__(self) -> Callable[..., None]:
        """The lock's own, which is not written in Python: no interruption comes before it lets go."""
        return self._lock.__exit__

    def __deepcopy__(self, memo: dict[int, Any]) -> StepLock:
        return StepLock()

    def __reduce__(self) -> tuple[type[StepLock], tuple[()]]:
        return StepLock, ()


class Indivisible:
    """A context that holds some locks, and in which Ctrl-C (SIGINT) waits until its end; pressed again, it does not.

    Python runs handlers of signals in the main thread alone; in other threads there is nothing to put off.
    """

    def __init__(self, locks: Sequence[StepLock] = ()) -> None:
        self._locks = list(dict.fromkeys(locks))
        self._held = 0
        self._handler: Callable[[int, FrameType | None], Any] | None = None
        self._pressed: tuple[int, FrameType | None] | None = None

    def __enter__(self) -> None:
        self._handler = self._pressed = None
        if threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):
                self._handler = handler
                signal.signal(signal.SIGINT, self._note)
        try:
            for lock in self._locks:
                lock.__enter__()
                self._held += 1
        except BaseException:
            self.__exit__()
            raise

    def _note(self, number: int, frame: FrameType | None) -> None:
        again, self._pressed = self._pressed, (number, frame)
        if again is not None and self._handler is not None:
            self._pressed = None
            self._handler(number, frame)

    def __exit__(self, *_: object) -> None:
        while self._held:
            self._held -= 1
            self._locks[self._held].__exit__(None, None, None)
        if self._handler is None:
            return
        if signal.getsignal(signal.SIGINT) == self._note:
            signal.signal(signal.SIGINT, self._handler)
        if self._pressed is not None:
            self._handler(*self._pressed)
