"""The method frcl-plus: FRCL with other defaults."""

from dataclasses import replace

import torch

from frcl.experiment.config import resolve
from frcl.experiment.runner import benchmark_of, new_learner
from frcl.learners.options import PLUS


def test_the_method_is_the_learner_with_other_defaults():
    config = resolve("split-mnist", {"method": "frcl-plus", "learner": {"curvature": 3}})
    frcl_config = resolve("split-mnist")
    names = ("lr_decay", "memory_targets", "train_heads", "prediction", "head_variance")
    preset = {name: getattr(PLUS, name) for name in names}
    own = {"curvature": 3.0, "feature_scale": 1.0, "current_inputs": 1.0}
    assert config.learner == replace(frcl_config.learner, **preset, **own)
    assert resolve("omniglot", {"method": "frcl-plus"}).learner.points_per_class == 2


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
    assert final["frcl-plus"] > final["frcl"] + 0.03
    assert final["frcl-plus"] > 0.95
