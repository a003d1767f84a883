"""Variational continual learning: what it minimises, how it predicts, its coresets, what it keeps."""

import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from frcl import MLP, ConvNet, DataError, OptionError, TaskError
from frcl.baselines.options import VCLOptions
from frcl.baselines.vcl import HEAD, VCL
from frcl.engine.program import Streams
from frcl.regularisers.mean_field import standard_draws
from frcl.seeding import fork, stream_seed
from streams import accuracy, blobs, same_tensors

CORESETS = ["none", "random", "kcenter"]
TASKS = [blobs((0, 1), 90, 1), blobs((4, 7, 9), 90, 2), blobs((-2, 3), 60, 3)]


def small(coreset: str = "none", net: nn.Module | None = None, **changes) -> VCL:
    given = {"steps": 40, "batch_size": 16, "points": 6, "adapt_steps": 10, "predict_samples": 8, **changes}
    return VCL(MLP(4, (16, 8), last="relu", seed=1) if net is None else net, VCLOptions(coreset=coreset, **given))


def log_std(tensors: dict[str, Tensor], name: str) -> Tensor:
    """log σ of a shared weight, or of the head of task 0."""
    return tensors["own/heads/0/log_std" if name == HEAD else f"own/log_std/{name}"]


def taught(coreset: str = "none", count: int = 2, **changes) -> VCL:
    learner = small(coreset, **changes)
    for x, y in TASKS[:count]:
        learner.fit(x, y)
    return learner


# -- what the learner minimises ---------------------------------------------------------------------------


def test_first_loss_is_the_likelihood_and_both_kls_over_the_number_trained_on():
    x, y = TASKS[0]
    logs = []
    learner = small("random", steps=1, initial_std=0.02, prior_std=2.0)
    before = {name: value.detach().clone() for name, value in learner.net.named_parameters()}
    learner.fit(x, y, size=900, on_step=logs.append)
    prior, N = Normal(0.0, 2.0), 900 * (90 - 6) / 90
    shared = sum(float(kl_divergence(Normal(v.double(), 0.02), prior).sum()) for v in before.values())
    assert logs[0].kl_past == pytest.approx(shared / N, rel=1e-5)
    head = learner.state_dict()["tensors"]["own/heads/0/mean"].double()
    assert logs[0].kl_now == pytest.approx(float(kl_divergence(Normal(head, 0.02), prior).sum()) / N, rel=1e-3)
    assert logs[0].loss == pytest.approx(-logs[0].log_likelihood + logs[0].kl_now + logs[0].kl_past, rel=1e-6)


def test_the_prior_of_a_task_is_the_posterior_of_the_one_before():
    learner = taught(count=1, initial_std=0.02, lr=1e-2)
    state, logs = learner.state_dict()["tensors"], []
    learner.fit(*TASKS[1], on_step=logs.append)
    expected = 0.0
    for name, _ in learner.net.named_parameters():
        mean, sigma = state[f"net/{name}"].double(), state[f"own/log_std/{name}"].double().exp()
        assert sigma.std() > 0, "deviations are learned"
        expected += float(kl_divergence(Normal(mean, 0.02), Normal(mean, sigma)).sum())
    assert logs[0].kl_past == pytest.approx(expected / 90, rel=1e-4)


def test_without_noise_the_likelihood_is_that_of_the_network():
    x, y = TASKS[0]
    logs = []
    learner = small(steps=1, batch_size=4096, initial_std=1e-9, lr=1e-12, samples=2)
    learner.fit(x, y, on_step=logs.append)
    state = learner.state_dict()["tensors"]
    with torch.no_grad():
        Phi = torch.cat([learner.net(x), torch.ones(len(x), 1)], 1)
        exact = nn.functional.cross_entropy(Phi @ state["own/heads/0/mean"].mT, y)
    assert -logs[0].log_likelihood == pytest.approx(float(exact), rel=0.05)  # the batch is drawn with replacement


def test_heads_of_old_tasks_and_frozen_weights_stay():
    net = MLP(4, (16, 8), seed=1)
    net.layers[1].weight.requires_grad_(False)
    learner = small(net=net)
    learner.fit(*TASKS[0])
    first = learner.state_dict()["tensors"]
    learner.fit(*TASKS[1])
    second = learner.state_dict()["tensors"]
    for name in ("own/heads/0/mean", "own/heads/0/log_std", "net/layers.1.weight"):
        assert torch.equal(first[name], second[name])
    assert torch.equal(second["net/layers.1.weight"], net.layers[1].weight)
    assert "own/log_std/layers.1.weight" not in second
    assert "own/log_std/layers.3.weight" in second
    assert not torch.equal(first["net/layers.3.weight"], second["net/layers.3.weight"])


# -- prediction ---------------------------------------------------------------------------------------------


def test_variance_of_a_linear_model_is_the_closed_form():
    """Without a network the functions are Gaussian: var f_c(x) = Σ_k φ_k(x)² σ_ck²."""
    learner = small(net=nn.Flatten(), predict_samples=20_000, initial_std=0.3, lr=1e-2)
    x, y = TASKS[1]
    learner.fit(x, y)
    state = learner.state_dict()["tensors"]
    Phi = torch.cat([x, torch.ones(len(x), 1)], 1)[:10]
    p = learner.predict(x[:10])
    torch.testing.assert_close(p.mean, Phi @ state["own/heads/0/mean"].mT, rtol=0, atol=0.05)
    sigma = state["own/heads/0/log_std"].exp()
    torch.testing.assert_close(p.variance, Phi.square() @ sigma.square().mT, rtol=0.06, atol=0)


class Branching(nn.Module):
    """Looks at its outputs, which no network can where several are computed as one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = MLP(4, (3,), seed=1)

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x)
        return out if bool((out.detach() < 1e6).all()) else -out


@pytest.mark.parametrize(
    "net",
    [MLP(4, (16, 8), seed=1), ConvNet(2, filters=(5,), seed=1), Branching(), nn.Flatten()],
    ids=lambda n: type(n).__name__,
)
def test_predictions_are_the_mean_over_networks_drawn_one_after_another(net):
    learner = small(net=net, steps=20, predict_samples=23, initial_std=0.3)
    x, y = blobs((0, 1), 2100, 1)
    x = x.reshape(-1, 2, 2) if isinstance(net, ConvNet) else x
    learner.fit(x[:50], y[:50])
    state, generator, logits = learner.state_dict()["tensors"], fork(0, "prediction"), []
    means = {name: state[f"net/{name}"] for name, _ in net.named_parameters()} | {HEAD: state["own/heads/0/mean"]}
    for _ in range(23):
        draws = standard_draws(means, 1, generator)
        w = {n: mean + log_std(state, n).exp() * draws[n][0] for n, mean in means.items()}
        head = w.pop(HEAD)
        Phi = torch.func.functional_call(net, w, (x,)).detach()
        logits.append(Phi @ head[:, :-1].mT + head[:, -1])
    p = learner.predict(x)
    torch.testing.assert_close(p.mean, torch.stack(logits).mean(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(p.variance, torch.stack(logits).var(0, correction=0), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(p.probs, torch.stack(logits).softmax(-1).mean(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("coreset", CORESETS)
def test_predictions_leave_the_learner_as_it_was(coreset, global_random_state_untouched):
    learner = taught(coreset)
    before = learner.state_dict()
    first = [learner.predict(x, task) for task, (x, _) in enumerate(TASKS[:2])]
    assert same_tensors(before["tensors"], learner.state_dict()["tensors"])
    assert before["meta"] == learner.state_dict()["meta"]
    with torch.inference_mode():
        again = learner.predict(TASKS[0][0], 0)
    assert torch.equal(first[0].probs, again.probs)


@pytest.mark.parametrize("coreset", ["random", "kcenter"])
def test_adapted_posteriors_are_kept_until_something_is_learned(coreset):
    learner, during = taught(coreset), []
    stale = learner.predict(TASKS[0][0], 0)
    learner.fit(*TASKS[2], on_step=lambda log: during.append(learner.predict(TASKS[0][0], 0).probs))
    assert not any(torch.equal(a, b) for a, b in itertools.pairwise(during))
    fresh = small(coreset)
    fresh.load_state_dict(learner.state_dict())
    with torch.inference_mode():
        expected = fresh.predict(TASKS[0][0], 0)
    assert torch.equal(learner.predict(TASKS[0][0], 0).probs, expected.probs)
    assert not torch.equal(stale.probs, expected.probs)


def test_predictions_are_adapted_to_the_coreset_of_their_task():
    """Other labels in the coreset of task 0 pull the predictions of task 0, and of no other task."""
    changes = {"points": 20, "adapt_steps": 200, "adapt_lr": 5e-3, "initial_std": 0.2}
    learner, misled = taught("random", **changes), small("random", **changes)
    state = learner.state_dict()
    wrong = 1 - state["tensors"]["own/coresets/0/y"]
    state["tensors"]["own/coresets/0/y"] = wrong
    misled.load_state_dict(state)
    rows = learner.kept_inputs()[0]
    right, pulled = (
        float(model.predict(rows, 0).probs.gather(1, wrong[:, None]).mean()) for model in (learner, misled)
    )
    assert pulled > right + 0.2
    assert torch.equal(learner.predict(TASKS[1][0], 1).probs, misled.predict(TASKS[1][0], 1).probs)


@pytest.mark.parametrize("points", [6, 20])
def test_adaptation_is_gradient_steps_with_the_posterior_as_the_prior(points):
    """The same steps by torch.optim.Adam on a loss put together by hand; batches of 16, the smaller coreset whole."""
    learner = taught("random", 1, points=points, adapt_steps=13, adapt_lr=1e-2, initial_std=0.1)
    tensors = learner.state_dict()["tensors"]
    x, y = tensors["own/coresets/0/x/values"], tensors["own/coresets/0/y"]
    mean = {name: tensors[f"net/{name}"].clone().requires_grad_() for name, _ in learner.net.named_parameters()}
    mean[HEAD] = tensors["own/heads/0/mean"].clone().requires_grad_()
    sigma = {name: log_std(tensors, name).clone().requires_grad_() for name in mean}
    prior = {name: Normal(mean[name].detach().clone(), sigma[name].detach().exp()) for name in mean}
    adam = torch.optim.Adam([*mean.values(), *sigma.values()], lr=1e-2)
    streams = Streams(stream_seed(0, "coreset/0"), torch.device("cpu"))
    for ahead in (10, 3):
        draws = standard_draws(mean, 3 * ahead, streams["likelihood"])
        rows = torch.arange(points).expand(ahead, points)
        if points > 16:
            rows = torch.randint(points, (ahead, 16), generator=streams["batches"])
        for step in range(ahead):
            loss = sum(kl_divergence(Normal(mean[n], sigma[n].exp()), prior[n]).sum() for n in mean) / points
            for sample in range(3 * step, 3 * step + 3):
                w = {n: mean[n] + sigma[n].exp() * draws[n][sample] for n in mean}
                Phi = torch.func.functional_call(learner.net, w, (x[rows[step]],), strict=False)
                logits = Phi @ w[HEAD][:, :-1].mT + w[HEAD][:, -1]
                loss = loss + nn.functional.cross_entropy(logits, y[rows[step]]) / 3
            adam.zero_grad()
            loss.backward()
            adam.step()
    found = learner._belief(0)
    for name in mean:
        torch.testing.assert_close(found.mean[name], mean[name].detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found.log_std[name], sigma[name].detach(), rtol=1e-4, atol=1e-5)


def test_adaptation_is_held_by_the_posterior():
    """With deviations near zero the KL to q allows no movement, however long the adaptation is."""
    plain, held = (taught("random", 1, adapt_steps=steps, initial_std=1e-6, lr=1e-5) for steps in (1, 200))
    x = TASKS[0][0]
    torch.testing.assert_close(plain.predict(x).probs, held.predict(x).probs, rtol=0, atol=1e-2)
    free = taught("random", 1, adapt_steps=200, initial_std=0.1, lr=1e-5)
    assert float((free.predict(x).probs - plain.predict(x).probs).abs().max()) > 0.1


# -- coresets -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["random", "kcenter"])
def test_a_coreset_for_each_task(kind):
    learner = taught(kind, 3, points_per_class=4)
    assert [len(Z) for Z in learner.kept_inputs()] == [8, 12, 8]


@pytest.mark.parametrize("kind", ["random", "kcenter"])
def test_minibatches_are_of_all_examples_but_the_coreset(kind):
    x, y = TASKS[0]
    learner = small(kind)
    program = next(learner.learn(x, y))
    seen = program.x[program.draw(100).rows.unique()]
    stored = {tuple(row) for row in learner.kept_inputs()[0].tolist()}
    assert len(seen) == 84
    assert not stored & {tuple(row) for row in seen.tolist()}


@pytest.mark.parametrize("kind", ["random", "kcenter"])
def test_a_coreset_is_not_trained_on(kind):
    """Wrong labels in the coreset leave the posterior as it is, bit for bit; wrong labels elsewhere do not."""
    x, y = TASKS[0]
    learner = taught(kind, 1)
    stored = (x[:, None] == learner.kept_inputs()[0]).all(2).any(1)
    assert int(stored.sum()) == 6
    wrong_inside, wrong_outside = small(kind), small(kind)
    wrong_inside.fit(x, torch.where(stored, 1 - y, y))
    wrong_outside.fit(x, torch.where(stored, y, 1 - y))
    posteriors = [
        {n: v for n, v in one.state_dict()["tensors"].items() if n.startswith(("net/", "own/heads/", "own/log_std/"))}
        for one in (learner, wrong_inside, wrong_outside)
    ]
    assert same_tensors(posteriors[0], posteriors[1])
    assert not same_tensors(posteriors[0], posteriors[2])


@pytest.mark.parametrize(
    ("changes", "word"), [({"points": 60}, "points=60"), ({"points_per_class": 30}, "per_class=30")]
)
def test_a_coreset_that_leaves_nothing_is_refused(changes, word):
    learner = taught("random", 1, **changes)
    before = learner.state_dict()
    with pytest.raises(DataError, match=word):
        learner.fit(*TASKS[2])
    assert same_tensors(before["tensors"], learner.state_dict()["tensors"])
    assert before["meta"] == learner.state_dict()["meta"]


def test_options_are_checked():
    with pytest.raises(OptionError, match="coreset"):
        VCLOptions(coreset="kcentre")
    with pytest.raises(OptionError, match="initial_std"):
        VCLOptions(initial_std=0.0)


# -- keeping ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coreset", CORESETS)
def test_resume_in_the_middle_of_a_task_is_bit_for_bit(coreset):
    states = []
    whole = taught(coreset, 1)
    whole.fit(*TASKS[1], on_step=lambda log: states.append(whole.state_dict()) if log.step == 17 else None)
    resumed = small(coreset)
    resumed.load_state_dict(states[0])
    with pytest.raises(TaskError, match="still open"):
        resumed.fit(*TASKS[2])
    for learner in (resumed, whole):
        learner.fit(*(TASKS[1] if learner is resumed else TASKS[2]))
    resumed.fit(*TASKS[2])
    assert same_tensors(whole.state_dict()["tensors"], resumed.state_dict()["tensors"])
    assert torch.equal(whole.predict(TASKS[1][0], 1).probs, resumed.predict(TASKS[1][0], 1).probs)
    assert len(whole.kept_inputs()) == (0 if coreset == "none" else 3)


@pytest.mark.parametrize("coreset", CORESETS)
def test_memory_is_what_is_kept(coreset):
    learner = taught(coreset, 3)
    shared = 4 * 16 + 16 + 16 * 8 + 8
    heads = (2 + 3 + 2) * 9
    stored = 0 if coreset == "none" else 3 * 6 * (4 * 4 + 8)
    assert learner.memory_bytes() == 2 * 4 * (shared + heads) + stored
    assert small(coreset).memory_bytes() == 0


# -- learning -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coreset", CORESETS)
def test_tasks_are_learned_and_held(coreset):
    tasks = [blobs((3 * i, 3 * i + 1, 3 * i + 2), 300, i, dim=16) for i in range(3)]
    learner = small(coreset, MLP(16, (40, 20), seed=1), steps=200, batch_size=64, points=20, adapt_steps=50)
    for x, y in tasks:
        learner.fit(x[:200], y[:200])
    for number, (x, y) in enumerate(tasks):
        assert accuracy(learner, x[200:], y[200:], number) > 0.9


@pytest.mark.slow
def test_the_kl_is_what_holds_a_task():
    """Three products of signs, each of its own two coordinates; size = 10⁹ takes the KL away, all else alike."""
    x = torch.randn(900, 6, generator=torch.Generator().manual_seed(0))
    tasks = [
        (x[300 * i : 300 * (i + 1)], (x[:, 2 * i] * x[:, 2 * i + 1] > 0)[300 * i : 300 * (i + 1)]) for i in range(3)
    ]
    lost = {}
    for size in (None, 10**9):
        learner = small(net=MLP(6, (60, 30), last="relu", seed=1), steps=250, batch_size=64, lr=5e-3)
        learner.fit(*tasks[0], size=size)
        at_first = accuracy(learner, *tasks[0], task=0)
        assert at_first > 0.9
        for x_i, y_i in tasks[1:]:
            learner.fit(x_i, y_i, size=size)
        lost[size] = at_first - accuracy(learner, *tasks[0], task=0)
    assert lost[None] < 0.1
    assert lost[10**9] > 0.2
