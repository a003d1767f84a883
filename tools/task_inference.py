"""Compare the ways to infer the task on validation data, from one training.

python tools/task_inference.py split-mnist --points 40 --tasks 5 --steps 300
"""

import argparse
from collections.abc import Sequence

from frcl.experiment.config import Config, resolve
from frcl.experiment.environment import threads
from frcl.experiment.metrics import judge, means
from frcl.experiment.runner import benchmark_of, new_learner
from frcl.inference import task_inference
from frcl.learners.frcl import FRCL

WAYS = ("summaries", "exact", "both")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark")
    parser.add_argument("--method", default="frcl-plus", choices=("frcl", "frcl-plus"))
    for name, default in (("points", 40), ("tasks", 5), ("steps", 300), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args(arguments)
    learner = {"points": given.points, "steps": given.steps, "search_steps": 200, "task_inference": "both"}
    config = resolve(
        given.benchmark,
        {"method": given.method, "seeds": [given.seed], "stream": {"tasks": given.tasks, "train_on": "train"}},
        {"learner": learner},
    )
    with threads(config.run.threads):
        compare(config, given.seed)


def compare(config: Config, seed: int) -> None:
    """Learn all tasks, then predict their validation data with each way."""
    benchmark = benchmark_of(config, seed)
    learner = new_learner(config, benchmark, seed)
    assert isinstance(learner, FRCL)
    for number in range(len(benchmark)):
        task = benchmark.task(number)
        learner.fit(task.train.x, task.train.y, size=task.size)
    options = learner.options
    print("| task_inference | accuracy % | task inferred % | NLL | ECE |")
    for way in WAYS:
        learner._inference = task_inference(way, options.task_features, options.task_kind, options.seed)
        found, right = [], []
        for number in range(len(benchmark)):
            held = benchmark.task(number).validation
            p = learner.predict(held.x)
            assert p.task_probs is not None
            found.append(judge(p, held.y))
            right.append(float((p.task_probs.argmax(1) == number).double().mean()))
        mean = means(found)
        accuracy, inferred = 100 * (mean.accuracy or 0.0), 100 * sum(right) / len(right)
        print(f"| {way} | {accuracy:.2f} | {inferred:.2f} | {mean.nll:.3f} | {mean.ece:.3f} |", flush=True)


if __name__ == "__main__":
    main()
