"""Steps of our methods and of the same methods in Avalanche, timed in turn in one process (extra `frcl[avalanche]`).

Both sides have the same network, minibatches of the same size, Adam and one past task behind them. Only steps are
timed: what a method does at the end of a task, as the Fisher information of EWC, is left out on both sides. Avalanche
reads its minibatches with its own data loader, and has one head for all labels.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from frcl.bench.cpu import FEW, Case, Pair, Sizes, baseline, timed_steps
from frcl.bench.measure import Goal
from frcl.errors import OptionError

MEMORY = 200  # examples kept of all tasks together, where a method has such a memory
OPTIONS: dict[str, dict[str, Any]] = {"er": {"points": MEMORY}, "derpp": {"points": MEMORY}}


def strategy_of(method: str, model: nn.Module, **common: Any) -> Any:
    """Avalanche's strategy for a method of ours; `common` has the settings that all of them have."""
    from avalanche.training import supervised
    from avalanche.training.plugins import ReplayPlugin

    own: dict[str, Callable[[], Any]] = {
        "finetune": lambda: supervised.Naive(model=model, **common),
        "ewc": lambda: supervised.EWC(model=model, ewc_lambda=1.0, mode="online", decay_factor=1.0, **common),
        "si": lambda: supervised.SynapticIntelligence(model=model, si_lambda=0.1, **common),
        "lwf": lambda: supervised.LwF(model=model, alpha=1.0, temperature=2.0, **common),
        "agem": lambda: supervised.AGEM(model=model, patterns_per_exp=MEMORY, sample_size=128, **common),
        "er": lambda: supervised.Naive(
            model=model, **{**common, "plugins": [*common["plugins"], ReplayPlugin(MEMORY, batch_size_mem=32)]}
        ),
        "derpp": lambda: supervised.DER(model=model, mem_size=MEMORY, batch_size_mem=32, alpha=0.5, beta=0.5, **common),
    }
    return own[method]()


METHODS = ("finetune", "ewc", "si", "lwf", "agem", "er", "derpp")


def avalanche_steps(size: Sizes, method: str) -> Callable[[], float]:
    """Seconds per step of Avalanche in the second experience of a stream, one epoch of it each time."""
    try:
        from avalanche.benchmarks import tensors_benchmark
        from avalanche.core import SupervisedPlugin
        from avalanche.training.plugins import EvaluationPlugin
    except ImportError as error:
        raise OptionError(f"Avalanche cannot be imported ({error}): pip install 'frcl[avalanche]'") from error

    class Watch(SupervisedPlugin):  # type: ignore[misc]
        """The time from the first minibatch of an epoch to the last."""

        seconds = began = 0.0

        def before_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
            self.began = time.perf_counter()

        def after_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
            self.seconds = time.perf_counter() - self.began

    x, y = size.data()
    watch, model, count = Watch(), size.plain_model(), size.batch * size.steps
    common = {
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-3, fused=True), "criterion": nn.CrossEntropyLoss(),
        "train_mb_size": size.batch, "train_epochs": 1, "plugins": [watch], "evaluator": EvaluationPlugin(loggers=[]),
    }  # fmt: skip
    strategy = strategy_of(method, model, **common)
    few: list[tuple[Tensor, Tensor]] = [(x[:FEW], y[:FEW]), (x[:count], y[:count])]
    first, second = tensors_benchmark(train_tensors=few, test_tensors=few[:1], task_labels=[0, 0]).train_stream
    strategy.train(first)

    def timed() -> float:
        strategy.train(second)
        return watch.seconds / (len(few[1][0]) / size.batch)

    return timed


def beside_avalanche(size: Sizes, method: str) -> Pair:
    """A step of one of our methods, against a step of it in Avalanche."""
    x, y = size.data()
    ours = timed_steps(size, baseline(size, method, x, y, past=1, **OPTIONS.get(method, {})), x, y)
    return ours, avalanche_steps(size, method), f"{size.names()}, 1 past task"


CASES = tuple(
    Case(Goal(f"{method}-peer", f"a step of {method}, relative to a step of it in Avalanche", 1.0),
         partial(beside_avalanche, method=method), 5, 1)
    for method in METHODS
)  # fmt: skip
