"""What each process of tests/test_distributed.py learns, and the same by one process: small tasks, every method."""

import sys
from dataclasses import fields, replace
from pathlib import Path

import torch

import frcl
from frcl.distributed import data_parallel
from frcl.methods import METHODS, default_options, make_learner
from frcl.trees import named_tensors

SMALL = {"steps": 6, "batch_size": 7, "points": 8, "compress_steps": 6, "adapt_steps": 4, "window": 50}
OTHERS = {
    "two seeds in one block": lambda: together(),
    "a stream": lambda: stream(),
    "fixed features": lambda: fixed_features(),
    "augmented": lambda: augmented(),
    "Monte Carlo draws": lambda: fitted(frcl.FRCL(net(), **SMALL_FRCL, likelihood="softmax")),
    "function space": lambda: fitted(frcl.FRCL(net(), **SMALL_FRCL, inference="function")),
    "bounded memory": lambda: fitted(frcl.FRCL(net(), **SMALL_FRCL, memory="2 kB")),
    "float32": lambda: fitted(frcl.FRCLPlus(frcl.MLP(6, [8], seed=1), **SMALL_FRCL, past_tasks_per_step=1)),
}
SMALL_FRCL = {"steps": 6, "batch_size": 7, "points": 8}


def net():
    return frcl.MLP(6, [8], seed=1).double()


def examples(task):
    generator = torch.Generator().manual_seed(task)
    x = torch.randn(60, 6, generator=generator)
    return x, (x[:, task] + 0.3 * x[:, 3] > 0).long() + 2 * task


def fitted(learner, *, tasks=3):
    for task in range(tasks):
        learner.fit(*examples(task))
    return [learner]


def by_method(name):
    options = default_options(name)
    known = {one.name for one in fields(options)}
    chosen = replace(options, **{key: value for key, value in SMALL.items() if key in known})
    return fitted(make_learner(net(), chosen, seed=0, method=name))


def together():
    ensemble = frcl.Ensemble(net(), members=2, **SMALL_FRCL)
    return fitted(ensemble, tasks=2)


def stream():
    learner = frcl.FRCL(net(), points=8, window=30)
    for task in range(2):
        x, y = examples(task)
        learner.start_task(labels=y.unique().tolist(), size=60)
        for rows in torch.arange(60).split(11):
            learner.observe(x[rows], y[rows])
        learner.end_task()
    return [learner]


def fixed_features():
    """Where no weight of the network is trained q takes natural-gradient steps."""
    return fitted(frcl.FRCL(net().requires_grad_(False), **SMALL_FRCL), tasks=2)


def augmented():
    learner = frcl.FRCL(net(), **SMALL_FRCL)
    learner.fit(*examples(0), augment=lambda x, generator: x + torch.randn(x.shape, generator=generator, dtype=x.dtype))
    return [learner]


def outcome(learners):
    """Weights, what is kept, and predictions with and without a task, by name."""
    found, x = {}, examples(0)[0]
    for i, learner in enumerate(learners):
        for name, value in learner.state_dict()["tensors"].items():
            found[f"{i}/state/{name}"] = value
        found[f"{i}/without a task"] = learner.predict(x).probs
        found[f"{i}/task 0"] = learner.predict(x, task=0).probs
    return found


CASES = [*METHODS, *OTHERS]


def learned(case):
    return outcome(OTHERS[case]() if case in OTHERS else by_method(case))


if __name__ == "__main__":
    with data_parallel() as group:
        every = {case: learned(case) for case in CASES}
    torch.save(dict(named_tensors(every)), Path(sys.argv[1]) / f"{group.rank}.pt")
