"""The same on a GPU: learning, predicting, resuming bit for bit, moving to the CPU."""

import pytest
import torch

import frcl
from frcl import FRCL, MLP, BoundaryDetector, NumericalError
from frcl.selection import Recipe
from streams import accuracy, blobs, same_tensors, select_by_inputs, small_learner

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")


HELD = {
    "current_inputs": 1.0, "memory_targets": 1.0, "curvature": 1.0, "prediction": "corrected", "fisher_examples": 50,
}  # fmt: skip


def on_gpu(**options) -> FRCL:
    return small_learner(device="cuda", **options)


@pytest.mark.parametrize(
    "options",
    [
        {}, {"inference": "function"}, {"past_tasks_per_step": 1}, {"likelihood": "robustmax"}, {"search": "greedy"},
        HELD, {**HELD, "past_tasks_per_step": 1}, {**HELD, "train_heads": False},
    ],
)  # fmt: skip
def test_tasks_are_learned_and_kept(options):
    tasks = [blobs((0, 1, 2), 200, 1), blobs((3, 5, 9), 240, 2), blobs((7, 8, 9), 200, 3)]
    learner = on_gpu(steps=300, **{"points": 12, **options})
    for x, y in tasks:
        learner.fit(x, y)
    assert learner.net.layers[1].weight.is_cuda
    assert learner.tasks[0].Z.is_cuda
    for number, (x, y) in enumerate(tasks):
        assert accuracy(learner, x, y.cuda(), number) > 0.9


@pytest.mark.parametrize("selection", ["random", "trace", "predictive", "error", "elbo"])
def test_every_criterion(selection):
    summary = on_gpu(selection=selection, search_steps=30).fit(*blobs((0, 1, 2), 120, 1))
    assert summary.after <= summary.before


def test_the_two_devices_agree_on_an_objective():
    x, y = blobs((0, 1), 120, 1)
    logs = {}
    for device in ("cpu", "cuda"):
        learner = small_learner(device=device, steps=1, batch_size=120)
        learner.fit(x, y)
        learner.start_task(labels=(0, 1), size=120)
        logs[device] = learner.observe(x, y)
    assert learner.tasks[0].Z.is_cuda
    for term in ("kl_now", "log_likelihood"):
        assert getattr(logs["cpu"], term) == pytest.approx(getattr(logs["cuda"], term), rel=0.05)


def test_the_two_devices_agree_on_the_kl_of_a_summary(generator):
    from frcl.summary import belief_from_weights, prior_kl, prior_kl_terms
    from frcl.trees import tree_map
    from oracles import rand_posterior

    for M in (6, 30):
        belief = belief_from_weights(
            rand_posterior(3, 12, generator), torch.randn(M, 12, generator=generator).double(), 1e-3
        )
        moved = torch.randn(1, M, 12, generator=generator, dtype=torch.float64)
        terms = prior_kl_terms([belief])
        local = prior_kl(moved, terms)
        remote = prior_kl(moved.cuda(), tree_map(torch.Tensor.cuda, terms))
        torch.testing.assert_close(local, remote.cpu(), rtol=1e-8, atol=1e-8)


def test_selection_agrees_between_devices(generator):
    Phi = torch.randn(300, 20, generator=generator)
    for recipe in (Recipe("trace", "greedy"), Recipe("trace", "swap", 200)):
        results = [
            select_by_inputs(Phi.to(device), 12, recipe, 1e-3, torch.Generator().manual_seed(0))
            for device in ("cpu", "cuda")
        ]
        assert torch.equal(results[0].index, results[1].index)
        assert results[0].after == pytest.approx(results[1].after, rel=1e-5)


@pytest.mark.parametrize("stopped", [9, 14])  # before and after the step of a stream is recorded
@pytest.mark.parametrize("held", [{}, HELD, {**HELD, "past_tasks_per_step": 1}])
@pytest.mark.parametrize("detector", [None, {"window": 1}, {"window": 3, "rescore": True}])
def test_resume_is_bit_for_bit(detector, held, stopped, tmp_path):
    torch.backends.cuda.matmul.allow_tf32 = False
    x, y = blobs((0, 1, 2), 640, 5)

    def feed(learner: FRCL, start: int, stop: int) -> str:
        rows = [slice(32 * i, 32 * i + 32) for i in range(start, stop)]
        return repr([learner.observe(x[part], y[part]) for part in rows][stopped - start :])

    def make() -> FRCL:
        waits = {"warm_up": 2, "minimum_time": 2}  # so that tests are made
        watch = None if detector is None else BoundaryDetector(1e3, **waits, **detector)
        return on_gpu(steps=10, detector=watch, **held)

    whole, first = make(), make()
    for learner in (whole, first):
        for labels in ((0, 1), (2, 3, 4)):
            learner.fit(*blobs(labels, 90, 1))
    logs = feed(whole, 0, 20)
    feed(first, 0, stopped)
    first.save(tmp_path / "model.frcl")
    second = frcl.load(tmp_path / "model.frcl", MLP(4, (16, 8)), device="cuda")
    assert feed(second, stopped, 20) == logs
    assert same_tensors(whole.state_dict()["tensors"], second.state_dict()["tensors"])


@pytest.mark.parametrize("watch", [{}, {"window": 3, "rescore": True}])
@pytest.mark.parametrize("held", [{}, HELD])
@pytest.mark.parametrize("past_tasks_per_step", [None, 1])
def test_a_recorded_stream_does_what_an_eager_one_does(past_tasks_per_step, held, watch, monkeypatch):
    torch.backends.cuda.matmul.allow_tf32 = False
    x, y = blobs((0, 1, 2), 640, 5)
    scores, states = {}, {}
    for eager in (10, 1000):
        monkeypatch.setattr("frcl.engine.train.EAGER", eager)
        detector = BoundaryDetector(1e3, warm_up=2, minimum_time=2, **watch)
        learner = on_gpu(steps=10, detector=detector, past_tasks_per_step=past_tasks_per_step, **held)
        for part in ((0, 1), (1, 2)):
            learner.fit(*blobs(part, 90, 1))
        logs = [learner.observe(x[at : at + 32], y[at : at + 32]) for at in range(0, 640, 32)]
        learner.observe(x[:7], y[:7])  # another shape is taken eagerly
        logs.append(learner.observe(x[:32], y[:32]))
        scores[eager] = [(log.loss, log.kl_past, log.statistic) for log in logs]
        states[eager] = {name: value.cpu() for name, value in learner.state_dict()["tensors"].items()}
        assert (learner._state.current.stream.recorded is None) == (eager > 10)
    torch.testing.assert_close(scores[10], scores[1000], rtol=1e-3, atol=1e-4, equal_nan=True)
    for name, value in states[10].items():
        if value.is_floating_point():
            torch.testing.assert_close(value, states[1000][name], rtol=1e-3, atol=1e-4)


def test_a_stream_that_diverges_is_refused_before_its_step():
    x, y = blobs((0, 1, 2), 640, 5)
    learner = on_gpu()
    for at in range(0, 480, 32):
        learner.observe(x[at : at + 32], y[at : at + 32])
    before = learner.state_dict()["tensors"]
    with pytest.raises(NumericalError, match="not taken"):
        learner.observe(x[:32] * 1e30, y[:32])
    assert same_tensors(before, learner.state_dict()["tensors"])


def test_a_model_moves_to_the_cpu_and_goes_on_there(tmp_path):
    x, y = blobs((0, 1, 2), 120, 1)
    learner = on_gpu(steps=100)
    learner.fit(x, y)
    learner.save(tmp_path / "model.frcl")
    local = frcl.load(tmp_path / "model.frcl", MLP(4, (16, 8)), device="cpu")
    torch.testing.assert_close(local.predict(x).mean, learner.predict(x).mean.cpu(), rtol=1e-3, atol=1e-3)
    local.fit(x, y)
    assert accuracy(local, x, y, 1) > 0.9


def test_a_run_on_the_gpu(tmp_path):
    from frcl.experiment import runner
    from frcl.experiment.config import resolve
    from frcl.experiment.keeper import Observer

    layer = {"seeds": [0], "device": "cuda", "stream": {"tasks": 3}, "learner": {"steps": 200, "points": 10}}
    result = runner.run(resolve("split-digits", layer), tmp_path / "run", Observer())
    assert result.average_accuracy.mean > 0.9
    assert result.environment["device"].startswith("cuda")
    assert result.peak_memory_bytes > 0


@pytest.mark.parametrize("count", [1, 3])
def test_convolutions_repeat_and_resume_bit_for_bit(count):
    """Also where several seeds are branches of one graph; the state is saved within the second task."""
    from frcl import ConvNet
    from frcl.learners.lockstep import together

    generator = torch.Generator().manual_seed(0)
    tasks = [(torch.rand(120, 12, 12, generator=generator), torch.arange(120) % 3) for _ in range(2)]

    def learners() -> list[FRCL]:
        net = ConvNet(12, filters=(8, 8))
        return [FRCL(net, points=9, seed=i, steps=150, batch_size=16, device="cuda") for i in range(count)]

    def learn(group, task, states=None):
        for done, _ in enumerate(together([one.learn(*task) for one in group])):
            if states is not None and done == 0:
                states += [one.state_dict() for one in group]

    first, second, resumed, states = learners(), learners(), learners(), []
    for group, kept in ((first, states), (second, None)):
        learn(group, tasks[0])
        learn(group, tasks[1], kept)
    for one, state in zip(resumed, states, strict=True):
        one.load_state_dict(state)
    learn(resumed, tasks[1])
    for a, b, c in zip(first, second, resumed, strict=True):
        assert same_tensors(a.state_dict()["tensors"], b.state_dict()["tensors"])
        assert same_tensors(a.state_dict()["tensors"], c.state_dict()["tensors"])
