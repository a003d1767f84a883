"""The method frcl-plus: FRCL with other defaults."""

from dataclasses import replace

import pytest
import torch

from frcl.data.registry import BENCHMARKS
from frcl.experiment.config import resolve
from frcl.experiment.runner import benchmark_of, new_learner
from frcl.learners.options import PLUS, FRCLOptions


def test_the_method_is_the_learner_with_other_defaults():
    config = resolve("split-mnist", {"method": "frcl-plus", "learner": {"curvature": 3}})
    frcl_config = resolve("split-mnist")
    preset = {name: value for name, value in vars(PLUS).items() if value != getattr(FRCLOptions(), name)}
    assert {"lr_decay", "current_inputs", "memory_targets", "prediction", "head_variance"} < preset.keys()
    assert config.learner == replace(frcl_config.learner, **{**preset, "curvature": 3.0})
    assert resolve("omniglot", {"method": "frcl-plus"}).learner.points_per_class == 2


@pytest.mark.parametrize("benchmark", list(BENCHMARKS))
def test_on_every_benchmark_it_is_what_it_is_from_python(benchmark):
    """No weight, prior or start of q differs by benchmark: points, steps, batch, lr, the search and p(k | x) do."""
    own = {"points", "points_per_class", "steps", "batch_size", "lr", "search_steps", "past_tasks_per_step", "seed"}
    own |= {"task_kind"}  # whether flat inputs are images
    own |= {"task_inference", "task_features"}  # permuted-mnist: no further memory
    for method, defaults in (("frcl", FRCLOptions()), ("frcl-plus", PLUS)):
        learner = resolve(benchmark, {"method": method}).learner
        changed = {name for name, value in vars(learner).items() if value != getattr(defaults, name)}
        assert changed <= own


@pytest.mark.slow
def test_two_points_per_task_are_enough_with_more_regularisers():
    """Split-Digits: what FRCL forgets with two points, FRCL+ does not."""
    final = {}
    for method in ("frcl", "frcl-plus"):
        config = resolve("split-digits", {"method": method, "learner": {"points": 2, "steps": 150}})
        benchmark = benchmark_of(config, 0)
        learner = new_learner(config, benchmark, 0)
        for number in range(len(benchmark)):
            learner.fit(benchmark.task(number).train.x, benchmark.task(number).train.y)
        splits = [benchmark.test_split(number) for number in range(len(benchmark))]
        each = [(learner.predict(s.x, i).labels == s.y).double().mean() for i, s in enumerate(splits)]
        final[method] = float(torch.stack(each).mean())
    assert final["frcl-plus"] > final["frcl"] + 0.02
    assert final["frcl-plus"] > 0.97
