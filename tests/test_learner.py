"""FRCL as its users meet it: tasks of all kinds, predictions, what is kept and what is forgotten."""

import dataclasses
import gc
import math
import types

import numpy as np
import pytest
import torch
from torch import nn

import frcl
from frcl import FRCL, MLP
from oracles import direct_prediction, direct_prior_kl, direct_trace
from streams import accuracy, blobs, same_tensors, small_learner


def test_tasks_of_different_sizes_are_learned_and_not_forgotten():
    tasks = [blobs((0, 1), 200, 1), blobs((3, 5, 9), 240, 2), blobs((-1, 1), 200, 3), blobs((7, 8, 9, 10, 11), 300, 4)]
    learner = small_learner(steps=300, points=12)
    for x, y in tasks:
        learner.fit(x, y)
    for number, (x, y) in enumerate(tasks):
        assert accuracy(learner, x, y, number) > 0.95
    assert [summary.likelihood.functions for summary in learner.tasks] == [1, 3, 1, 5]
    assert [summary.Z.shape for summary in learner.tasks] == [(12, 4)] * 4


def product_of_signs(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A task that needs its own hidden features: the sign of a product of two random projections."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(400, 4, generator=g)
    a, b = torch.randn(2, 4, generator=g)
    return x, ((x @ a) * (x @ b) > 0).long()


def test_the_regulariser_is_what_holds_old_tasks(monkeypatch):
    first, *others = [product_of_signs(seed) for seed in (1, 2, 3)]

    def first_task_at_the_end() -> float:
        learner = small_learner(steps=300, points=40)
        learner.fit(*first)
        for x, y in others:
            learner.fit(x, y)
        return accuracy(learner, *first, task=0)

    held = first_task_at_the_end()
    monkeypatch.setattr("frcl.regularisers.protocol.prior_kl", lambda Phi, terms: 0.0 * Phi.sum((1, 2)))
    assert held > 0.95
    assert first_task_at_the_end() < 0.9


def test_predictions_have_what_they_promise():
    x, y = blobs((2, 4, 7), 150, 1)
    learner = small_learner()
    learner.fit(x, y)
    p = learner.predict(x[:20])
    assert p.mean.shape == p.variance.shape == p.probs.shape == (20, 3)
    torch.testing.assert_close(p.probs.sum(1), torch.ones(20))
    assert (p.variance > 0).all()
    assert p.classes == (2, 4, 7)
    assert torch.equal(p.labels, torch.tensor([2, 4, 7])[p.probs.argmax(1)])
    binary = small_learner()
    binary.fit(*blobs((0, 1), 80, 1))
    q = binary.predict(x[:5])
    assert q.mean.shape == (5, 1)
    assert q.probs.shape == (5, 2)


def test_a_prediction_does_not_depend_on_company_or_on_earlier_predictions():
    x, y = blobs((0, 1, 2), 150, 1)
    learner = small_learner()
    learner.fit(x, y)
    together = learner.predict(x)
    alone = learner.predict(x[3:4])
    torch.testing.assert_close(together.probs[3:4], alone.probs, rtol=1e-5, atol=1e-6)
    before = learner.state_dict()
    learner.predict(x)
    assert same_tensors(before["tensors"], learner.state_dict()["tensors"])


def test_large_inputs_are_predicted_in_pieces(monkeypatch):
    x, y = blobs((0, 1, 2), 150, 1)
    learner = small_learner()
    learner.fit(x, y)
    whole = learner.predict(x)
    monkeypatch.setattr(learner._model, "chunk", 16)
    pieces = learner.predict(x)
    torch.testing.assert_close(whole.probs, pieces.probs, rtol=1e-5, atol=1e-6)
    assert torch.equal(whole.labels, pieces.labels)


def test_label_values_of_any_kind():
    x, y = blobs((0, 1, 2), 90, 1)
    names = np.array(["cat", "dog", "owl"])[y.numpy()]
    learner = small_learner()
    learner.fit(x.numpy(), names)
    p = learner.predict(x)
    assert p.classes == ("cat", "dog", "owl")
    assert float((p.labels == names).mean()) > 0.9
    learner.fit(x, (y > 0))  # booleans
    assert learner.predict(x, task=1).classes == (0, 1)
    learner.fit(x.tolist(), (y * 100 - 50).tolist())  # plain lists
    assert learner.predict(x, task=2).classes == (-50, 50, 150)
    with pytest.raises(frcl.TaskError, match="some labels are strings and others numbers"):
        learner.predict(x)


def test_plus_minus_one_and_zero_one_are_the_same_task():
    x, y = blobs((0, 1), 100, 3)
    results = []
    for labels in (y, 2 * y - 1):
        learner = small_learner()
        learner.fit(x, labels)
        results.append(learner.predict(x).probs)
    assert torch.equal(*results)


def test_regression_and_classification_in_one_learner():
    g = torch.Generator().manual_seed(0)
    x = torch.rand(300, 4, generator=g) * 2 - 1
    targets = torch.stack([x[:, 0] + 0.5, x[:, 1] * x[:, 2]], 1) + 0.05 * torch.randn(300, 2, generator=g)
    learner = small_learner(steps=1000, points=30, lr=3e-3)
    learner.fit(x, targets)
    xb, yb = blobs((0, 1, 2), 200, 2)
    learner.fit(xb, yb)
    p = learner.predict(x, task=0)
    assert p.probs is None
    assert p.labels is None
    noise = learner.tasks[0].likelihood_params["log_noise"].exp()
    assert noise.shape == (2,)
    assert torch.equal(p.target_mean, p.mean)
    torch.testing.assert_close(p.target_variance, p.variance + noise)
    error = (p.mean - targets).square().mean(0)
    assert (error < 0.25 * targets.var(0)).all()
    assert accuracy(learner, xb, yb, 1) > 0.95
    one_output = small_learner(steps=20)
    one_output.fit(x, targets[:, 0])
    assert one_output.predict(x).mean.shape == (300, 1)


@pytest.mark.parametrize("options", [{}, {"learn_inputs": True}, {"selection": "random"}])
def test_function_space_inference(options):
    tasks = [blobs((0, 1), 200, 1), blobs((0, 1, 2), 200, 2)]
    learner = small_learner(inference="function", **{"steps": 500, "points": 15, **options})
    starts = []
    for x, y in tasks:
        summary = learner.fit(x, y)
        data = {tuple(row) for row in x.tolist()}
        starts.append(all(tuple(row) in data for row in summary.Z.tolist()))
        assert summary.belief.posterior_noise == 0.0
    assert starts == [not options.get("learn_inputs", False)] * 2
    for number, (x, y) in enumerate(tasks):
        assert accuracy(learner, x, y, number) > 0.9


@pytest.mark.parametrize("selection", ["random", "trace", "predictive", "error", "elbo"])
@pytest.mark.parametrize("start", ["uniform", "balanced"])
def test_stored_points_are_those_that_the_search_returned(selection, start, monkeypatch):
    import frcl.learners.base as work
    import frcl.learners.task as task
    from frcl.selection import Selected

    returned = []

    def spy(original):
        def wrapped(*args):
            answer = original(*args)
            returned.extend(found for found in (answer if isinstance(answer, list) else [answer]))
            return answer

        return wrapped

    monkeypatch.setattr(task, "plan_by_inputs", spy(task.plan_by_inputs))
    monkeypatch.setattr(task, "select_by_targets", spy(task.select_by_targets))
    monkeypatch.setattr(work, "run_searches", spy(work.run_searches))
    x, y = blobs((0, 1, 2), 120, 1)
    learner = small_learner(
        selection=selection, start=start, search_steps=40, steps=30, initial_mean="random"
    )  # which leaves errors to mend
    summary = learner.fit(x, y)
    (found,) = [one for one in returned if isinstance(one, Selected)]
    assert torch.equal(summary.Z, x[found.index])
    assert (summary.before, summary.after) == (found.before, found.after)
    assert summary.after <= summary.before
    assert summary.after < summary.before or selection == "random"
    at_points = learner.predict(summary.Z)
    torch.testing.assert_close(at_points.mean, summary.belief.mean.T, rtol=0.05, atol=0.05)


def test_greedy_search():
    summary = small_learner(search="greedy").fit(*blobs((0, 1, 2), 120, 1))
    assert summary.after < summary.before


def test_points_per_class():
    learner = small_learner(points_per_class=3, start="balanced", selection="random", steps=5)
    learner.fit(*blobs((0, 1), 50, 1))
    summary = learner.fit(*blobs((0, 1, 2, 3), 60, 2))
    assert [s.belief.M for s in learner.tasks] == [6, 12]
    nearest = torch.cdist(summary.Z, blobs((0, 1, 2, 3), 60, 2)[0]).argmin(1)
    assert torch.bincount(blobs((0, 1, 2, 3), 60, 2)[1][nearest]).tolist() == [3, 3, 3, 3]


def test_past_data_poisoned_after_the_task_changes_nothing():
    tasks = [blobs((0, 1), 120, 1), blobs((0, 1, 2), 120, 2)]

    def learn(poison: bool) -> dict:
        learner = small_learner(steps=40)
        data = [(x.clone(), y.clone()) for x, y in tasks]
        for x, y in data:
            learner.fit(x, y)
            if poison:
                x.fill_(math.nan)
                y.fill_(-99)
        for x, y in [blobs((0, 1), 64, 3)]:
            learner.start_task(labels=(0, 1))
            for _ in range(5):
                batch = x[:32].clone(), y[:32].clone()
                learner.observe(*batch)
                if poison:
                    batch[0].fill_(math.nan)
            learner.end_task()
        return learner.state_dict()["tensors"]

    assert same_tensors(learn(False), learn(True))


def reachable_storages(thing: object) -> set[int]:
    """Where the tensors lie that can be reached from an object."""
    seen, found, todo = set(), set(), [thing]
    while todo:
        item = todo.pop()
        if id(item) in seen or isinstance(item, type | types.ModuleType | types.FunctionType):
            continue
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            found.add(item.untyped_storage().data_ptr())
        todo += gc.get_referents(item)
    return found


@pytest.mark.parametrize("stream", [False, True])
def test_no_reference_to_past_data_is_left(stream):
    """Nothing that can be reached from the learner shares memory with the data that it was given."""
    learner = small_learner(steps=3)
    x, y = blobs((0, 1), 120, 1)
    rows = x.clone()
    if stream:
        learner.observe(x, y)
        learner.end_task()
    else:
        learner.fit(x, y)
    assert not {x.untyped_storage().data_ptr(), y.untyped_storage().data_ptr()} & reachable_storages(learner)
    learner.leak = x  # the check would see it
    assert x.untyped_storage().data_ptr() in reachable_storages(learner)
    del learner.leak
    size = max(
        t.numel() for t in learner.state_dict()["tensors"].values() if t.ndim == 2 and t.shape[1:] == rows.shape[1:]
    )
    assert size <= max(6 * 4, 16 * 4)


def test_the_network_given_is_not_changed_and_the_learned_one_is_its_own():
    net = MLP(4, (16, 8), seed=1)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    learner = FRCL(net, points=4, steps=5)
    learner.fit(*blobs((0, 1), 60, 1))
    assert same_tensors(before, net.state_dict())
    assert not torch.equal(before["layers.1.weight"], learner.net.state_dict()["layers.1.weight"])


def test_frozen_parameters_stay():
    net = MLP(4, (16, 8), seed=1)
    net.layers[1].weight.requires_grad_(False)
    learner = FRCL(net, points=4, steps=5)
    learner.fit(*blobs((0, 1), 60, 1))
    assert torch.equal(net.layers[1].weight, learner.net.layers[1].weight)
    assert not torch.equal(net.layers[3].weight, learner.net.layers[3].weight)


def test_any_module_with_any_input_shape_and_integer_inputs():
    g = torch.Generator().manual_seed(0)
    tokens = torch.randint(20, (80, 6), generator=g)
    labels = (tokens[:, 0] > 9).long()

    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(20, 8)

        def forward(self, x):
            return self.table(x)[:, 0]

    learner = FRCL(Words(), points=5, steps=200, lr=0.02)
    learner.fit(tokens, labels)
    assert learner.tasks[0].Z.dtype == torch.int64
    assert accuracy(learner, tokens, labels) > 0.9
    images = FRCL(frcl.ConvNet(8, filters=(4, 4)), points=3, steps=2)
    images.fit(torch.rand(30, 8, 8, generator=g), torch.arange(30) % 3)
    assert images.tasks[0].Z.shape == (3, 8, 8)


def test_scales_reach_every_part_of_the_learner():
    """σ_w and the scale of the features are not one: prediction, score and divergence against the printed formulas."""
    x, y = blobs((0, 1, 2), 90, 1)
    options = {"prior_std": 2.0, "u_noise": 1e-2}
    learner = FRCL(MLP(4, (16, 8), seed=1).double(), points=6, steps=30, search_steps=20, **options)
    learner.fit(x, y)
    learner.start_task(labels=(0, 1, 2), size=90)
    learner.observe(x[:30], y[:30])
    s = learner.feature_scale
    assert abs(s - 1.0) > 0.1

    def phi(inputs):
        with torch.no_grad():
            return torch.cat([s * learner.net(inputs.double()), torch.ones(len(inputs), 1, dtype=torch.float64)], 1)

    kept = learner.tasks[0]
    mean, variance = direct_prediction(2.0 * phi(x), 2.0 * phi(kept.Z), kept.belief)
    p = learner.predict(x, task=0)
    torch.testing.assert_close(p.mean, mean, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(p.variance, variance, rtol=1e-6, atol=1e-8)
    expected = float(direct_prior_kl(2.0 * phi(kept.Z), kept.belief))
    assert learner.past_divergences() == [pytest.approx(expected)]

    now = learner.predict(x, task=1)
    score = learner.familiarity(x)
    k = 4.0 * phi(x).square().sum(1, keepdim=True)
    torch.testing.assert_close(
        score, 0.25 * ((now.variance + now.mean**2) / k + (k + now.mean**2) / now.variance - 2), rtol=1e-6, atol=1e-9
    )
    Phi = 2.0 * phi(x)
    chosen = [int((x.double() == row).all(1).nonzero()[0]) for row in kept.Z]
    fresh = FRCL(MLP(4, (16, 8), seed=1).double(), points=6, steps=30, search_steps=20, **options)
    summary = fresh.fit(x, y)
    with torch.no_grad():
        Phi = 2.0 * torch.cat([s * fresh.net(x.double()), torch.ones(90, 1, dtype=torch.float64)], 1)
    assert summary.after == pytest.approx(direct_trace(Phi, torch.tensor(chosen), 1e-2), rel=1e-6)


def test_options_of_the_start_are_used():
    x, y = blobs((0, 1, 2), 90, 1)
    learner = small_learner(initial_std=0.7, samples=5, predict_samples=9, steps=1)
    learner.start_task(labels=(0, 1, 2))
    learner.observe(x, y)
    current = learner._state.current
    assert float(current.params.posterior.factor[0, 0, 0].detach()) == pytest.approx(0.7 / 9, abs=0.01)  # K = 9
    assert current.likelihood.draws_shape(4, training=True) == (5, 4, 3)
    assert current.likelihood.draws_shape(1, training=False) == (9, 1, 3)
    regression = small_learner(target_noise=0.5, steps=1)
    regression.fit(x, x[:, 0])
    p = regression.predict(x)
    torch.testing.assert_close(p.target_variance - p.variance, torch.full((90, 1), 0.5), rtol=0.02, atol=0)


def test_a_network_that_does_not_take_zeros():
    """Tasks with different numbers of points are padded; the padding must be inputs that the network knows."""

    class Logarithm(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = MLP(4, (16, 8), seed=1)

        def forward(self, x):
            return self.inner(x.log())

    learner = FRCL(Logarithm(), points_per_class=3, steps=20, search_steps=5)
    for seed, labels in ((1, (0, 1)), (2, (0, 1, 2)), (3, (0, 1))):
        x, y = blobs(labels, 90, seed)
        learner.fit(x.abs() + 0.1, y)
    assert len(learner.tasks) == 3


def test_predicting_under_inference_mode_does_not_spoil_training():
    from frcl.linalg import gauss_hermite

    gauss_hermite.cache_clear()
    x, y = blobs((0, 1), 90, 1)
    learner = small_learner(steps=3)
    learner.fit(x, y)
    gauss_hermite.cache_clear()
    with torch.inference_mode():
        learner.predict(x)
    learner.fit(x, y)


def test_heads_follow_a_network_that_is_changed_from_outside():
    x, y = blobs((0, 1), 90, 1)
    learner = small_learner(steps=3)
    learner.fit(x, y)
    before = learner.predict(x).mean
    with torch.no_grad():
        learner.net.layers[-1].weight.mul_(3.0)
    after = learner.predict(x)
    assert not torch.equal(before, after.mean)
    fresh = small_learner(steps=3)  # has no head yet
    fresh.load_state_dict(learner.state_dict())
    assert torch.equal(after.mean, fresh.predict(x).mean)
    assert torch.equal(after.variance, fresh.predict(x).variance)


def test_heads_follow_a_network_that_learns_another_task():
    x, y = blobs((0, 1), 90, 1)
    learner, seen = small_learner(steps=4), []
    learner.fit(x, y)

    def look(log) -> None:
        fresh = small_learner(steps=4)
        fresh.load_state_dict(learner.state_dict())
        seen.append((learner.predict(x, task=0).mean, fresh.predict(x, task=0).mean))

    learner.fit(*blobs((0, 1), 90, 2), on_step=look)
    assert len(seen) == 4
    assert all(torch.equal(ours, fresh) for ours, fresh in seen)


def test_what_start_task_says_holds_for_fit_too():
    x, y = blobs((0, 1), 90, 1)
    learner = small_learner(steps=2)
    learner.start_task(labels=(0, 1, 2), size=999)
    summary = learner.fit(x, y)
    assert summary.size == 999
    assert summary.likelihood.classes == (0, 1, 2)


def test_float64_networks_stay_float64():
    x, y = blobs((0, 1), 60, 1)
    learner = FRCL(MLP(4, (8,)).double(), points=4, steps=3)
    learner.fit(x, y)
    assert learner.predict(x).mean.dtype == torch.float64


def test_same_seed_same_result_other_seed_another(global_random_state_untouched):
    def learn(seed: int) -> dict:
        learner = small_learner(seed=seed, steps=20)
        learner.fit(*blobs((0, 1, 2), 90, 1))
        learner.fit(*blobs((0, 1), 90, 2))
        return learner.state_dict()["tensors"]

    assert same_tensors(learn(0), learn(0))
    assert not same_tensors(learn(0), learn(1))


def test_heads_are_cached_until_the_network_moves(monkeypatch):
    import frcl.learners.predict as module

    made = []
    original = module.make_head
    monkeypatch.setattr(module, "make_head", lambda *args: made.append(1) or original(*args))
    x, y = blobs((0, 1), 90, 1)
    learner = small_learner(steps=3)
    learner.fit(x, y)
    first = learner.predict(x, task=0)
    learner.predict(x, task=0)
    assert len(made) == 1
    learner.fit(*blobs((0, 1), 90, 2))
    second = learner.predict(x, task=0)
    assert len(made) == 2
    assert not torch.equal(first.mean, second.mean)


def test_subsampling_past_tasks_still_holds_them():
    tasks = [blobs((0, 1), 150, seed) for seed in range(1, 6)]
    learner = small_learner(steps=250, points=10, past_tasks_per_step=1)
    for x, y in tasks:
        learner.fit(x, y)
    assert sum(accuracy(learner, x, y, i) for i, (x, y) in enumerate(tasks)) / 5 > 0.95


def test_step_logs_add_up():
    logs = []
    learner = small_learner(steps=7)
    learner.fit(*blobs((0, 1), 60, 1))
    learner.fit(*blobs((0, 1, 2), 60, 2), on_step=logs.append)
    assert [log.step for log in logs] == list(range(1, 8))
    assert {log.task for log in logs} == {1}
    for log in logs:
        assert log.loss == pytest.approx(-log.log_likelihood + log.kl_now + log.kl_past, abs=1e-5)
        assert log.kl_past > 0


def test_size_stands_for_n():
    def kl_weight_in_loss(size):
        logs = []
        small_learner(steps=1).fit(*blobs((0, 1), 60, 1), size=size, on_step=logs.append)
        return logs[0].kl_now

    assert kl_weight_in_loss(None) == pytest.approx(kl_weight_in_loss(60))
    assert kl_weight_in_loss(600) == pytest.approx(kl_weight_in_loss(60) / 10, rel=1e-5)


def test_bytes_kept():
    learner = small_learner(points=5, steps=2)
    learner.fit(*blobs((0, 1, 2), 60, 1))
    assert learner.memory_bytes() == 4 * (5 * 4 + 3 * 5 + 3 * 5 * 5)


def test_records_are_frozen():
    learner = small_learner(steps=2)
    summary = learner.fit(*blobs((0, 1), 60, 1))
    with pytest.raises(dataclasses.FrozenInstanceError):
        summary.size = 3


def test_interrupted_fit_goes_on_with_the_same_data():
    x, y = blobs((0, 1, 2), 90, 1)

    class Stop(Exception):
        pass

    def stop(log):
        if log.step == 11:
            raise Stop

    whole, broken = small_learner(steps=30), small_learner(steps=30)
    whole.fit(x, y)
    with pytest.raises(Stop):
        broken.fit(x, y, on_step=stop)
    assert broken.predict(x, task=0).probs.shape == (90, 3)
    with pytest.raises(frcl.TaskError, match="still open"):
        broken.fit(x + 1, y)
    with pytest.raises(frcl.TaskError, match="opened by fit"):
        broken.end_task()
    broken.fit(x, y)
    assert same_tensors(whole.state_dict()["tensors"], broken.state_dict()["tensors"])


@pytest.mark.parametrize("points_per_class", [3, 12])
def test_divergences_of_tasks_with_different_numbers_of_points(points_per_class):
    """Each is the KL of its own summary, whatever the other tasks have: padding counts for nothing."""
    learner = small_learner(points_per_class=points_per_class, steps=20)
    for seed, labels in ((1, (0, 1)), (2, (0, 1, 2, 3)), (3, (0, 1, 2))):
        learner.fit(*blobs(labels, 120, seed))
    assert len({len(summary.Z) for summary in learner.tasks}) == 3
    for found, summary in zip(learner.past_divergences(), learner.tasks, strict=True):
        with torch.no_grad():
            out = learner.feature_scale * learner.net(summary.Z).double()
        Phi = summary.belief.prior_std * torch.cat([out, out.new_ones(len(out), 1)], 1)
        assert found == pytest.approx(float(direct_prior_kl(Phi, summary.belief)), rel=1e-5)
