"""Compare the ways to infer the task on validation data, from one training.

python tools/task_inference.py split-mnist --points 40 --tasks 5 --steps 300
python tools/task_inference.py omniglot --tasks 10 --steps 300 --features 200,400,800
"""

import argparse
from collections.abc import Iterator, Sequence

from frcl.data.tasks import Benchmark
from frcl.exact.model import Tasks, stored_bytes
from frcl.experiment.config import Config, resolve
from frcl.experiment.environment import threads
from frcl.experiment.metrics import judge, means
from frcl.experiment.runner import benchmark_of, new_learner
from frcl.inference import TaskInference, task_inference
from frcl.learners.frcl import FRCL


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark")
    parser.add_argument("--method", default="frcl-plus", choices=("frcl", "frcl-plus"))
    parser.add_argument("--points", type=int, help="per task; the benchmark's own number by default")
    for name, default in (("tasks", 5), ("steps", 300), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--features", default="500", help="numbers of random features to compare, with commas")
    given = parser.parse_args(arguments)
    learner = {"steps": given.steps, "search_steps": 200, "task_inference": "summaries"}
    if given.points is not None:
        learner |= {"points": given.points, "points_per_class": None}
    config = resolve(
        given.benchmark,
        {"method": given.method, "seeds": [given.seed], "stream": {"tasks": given.tasks, "train_on": "train"}},
        {"learner": learner},
    )
    with threads(config.run.threads):
        compare(config, given.seed, [int(count) for count in given.features.split(",")])


def compare(config: Config, seed: int, counts: Sequence[int]) -> None:
    """Learn all tasks, then predict their validation data with each way."""
    benchmark = benchmark_of(config, seed)
    learner = new_learner(config, benchmark, seed)
    assert isinstance(learner, FRCL)
    for number in range(len(benchmark)):
        task = benchmark.task(number)
        learner.fit(task.train.x, task.train.y, size=task.size)
    points = learner.memory_parts()["points"]
    print(f"{points:,} bytes of points")
    print("| task_inference | features | bytes | accuracy % | task inferred % | NLL | ECE |")
    for way, count, inference, sums in ways_of(learner, benchmark, counts):
        learner._inference, learner._state.task_sums = inference, sums
        found, right = [], []
        for number in range(len(benchmark)):
            held = benchmark.task(number).validation
            p = learner.predict(held.x)
            assert p.task_probs is not None
            found.append(judge(p, held.y))
            right.append(float((p.task_probs.argmax(1) == number).double().mean()))
        mean, size = means(found), stored_bytes(sums) if sums.blocks else 0
        accuracy, inferred = 100 * (mean.accuracy or 0.0), 100 * sum(right) / len(right)
        row = f"{accuracy:.2f} | {inferred:.2f} | {mean.nll:.3f} | {mean.ece:.3f}"
        print(f"| {way} | {count} | {size:,} | {row} |", flush=True)


def ways_of(
    learner: FRCL, benchmark: Benchmark, counts: Sequence[int]
) -> Iterator[tuple[str, int, TaskInference, Tasks]]:
    """Each way with each number of features, and the sums over all examples that it keeps."""
    options = learner.options
    for count in counts:
        for way in ("summaries", "exact", "both"):
            inference, sums = task_inference(way, count, options.task_kind, options.seed), Tasks()
            if inference.sums is not None:
                for number, summary in enumerate(learner.tasks):
                    train = benchmark.task(number).train
                    y = summary.likelihood.encode(train.y, train.x.device, learner.dtype)
                    sums = inference.sums.ended(sums, train.x, y, summary.likelihood)
            yield way, count, inference, sums


if __name__ == "__main__":
    main()
