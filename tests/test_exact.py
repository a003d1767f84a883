"""The exact Gaussian process on fixed features: formulas against scikit-learn and brute force, then the learner."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.datasets import load_digits
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import BayesianRidge, Ridge

import frcl
from frcl import MLP, ExactGP
from frcl.errors import CheckpointError, DataError, LabelError, NumericalError, OptionError, TaskError
from frcl.exact.fixed import LIMIT, STEPS, RandomFeatures, image_shape, smoothed, whole_features
from frcl.exact.linear import (
    POWERS,
    TEMPER,
    Sums,
    class_log_probs,
    class_model,
    degrees_of_freedom,
    leverage,
    losses_of_powers,
    narrowed,
    plus,
    solve,
    solve_by_evidence,
    sums_of,
    symmetric,
    triangle,
)
from frcl.exact.model import ExactModel, added, last_of_each_class
from frcl.seeding import fork


def examples(n=60, K=7, C=2, seed=0, noise=0.3):
    generator = torch.Generator().manual_seed(seed)
    Phi = torch.randn(n, K, generator=generator, dtype=torch.float64)
    W = torch.randn(K, C, generator=generator, dtype=torch.float64)
    return Phi, Phi @ W + noise * torch.randn(n, C, generator=generator, dtype=torch.float64)


def close(a, b, **tolerance):
    torch.testing.assert_close(torch.as_tensor(a).double(), torch.as_tensor(b).double(), **tolerance)


# -- formulas


@pytest.mark.parametrize("ridge", [0.01, 1.0, 30.0])
def test_weights_are_those_of_ridge_regression(ridge):
    Phi, Y = examples()
    linear = solve(sums_of(Phi, Y), torch.tensor(ridge, dtype=torch.float64))
    expected = Ridge(alpha=ridge, fit_intercept=False).fit(Phi.numpy(), Y.numpy())
    close(linear.weights, expected.coef_.T, rtol=1e-8, atol=1e-10)


def test_mean_variance_and_evidence_are_those_of_the_gaussian_process():
    """Brute force over all examples with the kernel (σ²/λ) φᵀφ'."""
    Phi, Y = examples(n=25, K=5, C=2)
    new = examples(n=8, K=5, seed=3)[0]
    linear = solve(sums_of(Phi, Y), torch.tensor(2.0, dtype=torch.float64))
    s, scale = linear.noise, linear.noise / 2.0
    K = scale * Phi @ Phi.mT + s * torch.eye(25, dtype=torch.float64)
    k = scale * new @ Phi.mT
    close(new @ linear.weights, k @ torch.linalg.solve(K, Y), rtol=1e-9, atol=1e-10)
    variance = scale * new.square().sum(1) - (k * torch.linalg.solve(K, k.mT).mT).sum(1)
    close(s * leverage(linear, new), variance, rtol=1e-8, atol=1e-10)
    log_p = sum(multivariate_normal(np.zeros(25), K.numpy()).logpdf(Y[:, c].numpy()) for c in range(2))
    close(linear.log_evidence, log_p, rtol=1e-9, atol=1e-9)


def test_the_noise_maximises_the_evidence_at_that_ridge():
    Phi, Y = examples(n=25, K=5, C=1)
    linear = solve(sums_of(Phi, Y), torch.tensor(2.0, dtype=torch.float64))

    def evidence(noise):
        K = noise / 2.0 * Phi @ Phi.mT + noise * torch.eye(25, dtype=torch.float64)
        return multivariate_normal(np.zeros(25), K.numpy()).logpdf(Y[:, 0].numpy())

    best = evidence(float(linear.noise))
    assert best > evidence(1.05 * float(linear.noise))
    assert best > evidence(0.95 * float(linear.noise))


def test_the_ridge_is_that_of_bayesian_ridge_regression():
    Phi, Y = examples(n=80, K=6, C=1, noise=1.0)
    linear = solve_by_evidence(sums_of(Phi, Y))
    other = BayesianRidge(
        fit_intercept=False, alpha_1=0, alpha_2=0, lambda_1=0, lambda_2=0, tol=1e-10, max_iter=5000
    ).fit(Phi.numpy(), Y[:, 0].numpy())
    assert math.isclose(float(linear.ridge), other.lambda_ / other.alpha_, rel_tol=0.05)
    assert math.isclose(float(linear.noise), 1 / other.alpha_, rel_tol=0.01)
    close(linear.weights[:, 0], other.coef_, rtol=5e-3, atol=1e-3)


def test_the_chosen_ridge_has_the_largest_evidence_on_a_fine_grid():
    """By the Cholesky factors of `solve`, where the search goes by eigenvalues."""
    Phi, Y = examples(n=80, K=6, C=3, noise=1.0)
    sums = sums_of(Phi, Y)
    best = solve_by_evidence(sums)
    grid = best.ridge * torch.logspace(-3, 3, 601, dtype=torch.float64)
    others = torch.stack([solve(sums, ridge).log_evidence for ridge in grid])
    assert best.log_evidence >= others.max() - 1e-3
    assert abs(int(others.argmax()) - 300) <= 2


def test_degrees_of_freedom_are_the_sum_of_the_leverages():
    Phi, Y = examples()
    sums = sums_of(Phi, Y)
    linear = solve(sums, torch.tensor(5.0, dtype=torch.float64))
    close(degrees_of_freedom(sums, linear), leverage(linear, Phi).sum(), rtol=1e-10, atol=1e-10)


def clusters(seed=0, n=400):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    centres = torch.tensor([[0.0, 0, 1], [2, 0, 1], [0, 2, 1]], dtype=torch.float64)
    noise = torch.randn(n, 3, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 0.5, 0.0])
    return centres[y] + noise, y


def test_class_means_and_scale_are_the_moments_of_the_functions_within_classes():
    Phi, y = clusters()
    Y = torch.nn.functional.one_hot(y, 3).double()
    sums = sums_of(Phi, Y)
    linear = solve(sums, torch.tensor(1.0, dtype=torch.float64))
    model, f = class_model(sums, linear), Phi @ linear.weights
    means = torch.stack([f[y == c].mean(0) for c in range(3)], 1)
    close(model.chol @ model.centres, means, rtol=1e-10, atol=1e-12)
    within = sum((f[y == c] - f[y == c].mean(0)).mT @ (f[y == c] - f[y == c].mean(0)) for c in range(3)) / len(f)
    variance = linear.noise * leverage(linear, Phi).mean()
    close(model.chol @ model.chol.mT, within + variance * torch.eye(3, dtype=torch.float64), rtol=1e-9, atol=1e-12)
    close(model.log_prior.exp(), [134 / 400, 133 / 400, 133 / 400])


def test_classes_are_those_of_linear_discriminant_analysis():
    Phi, y = clusters(n=3000)
    Y = torch.nn.functional.one_hot(y, 3).double()
    sums = sums_of(Phi, Y)
    linear = solve(sums, torch.tensor(1e-6, dtype=torch.float64))
    probs = class_log_probs(class_model(sums, linear), Phi).exp()
    close(probs.sum(1), torch.ones(3000))
    other = LinearDiscriminantAnalysis().fit(Phi[:, :2].numpy(), y.numpy()).predict(Phi[:, :2].numpy())
    assert float((probs.argmax(1).numpy() == other).mean()) > 0.99


def test_class_probabilities_follow_bayes_rule_with_a_tempered_student_t():
    from scipy.stats import multivariate_t

    Phi, y = clusters()
    sums = sums_of(Phi, torch.nn.functional.one_hot(y, 3).double())
    linear = solve(sums, torch.tensor(1.0, dtype=torch.float64))
    model, f = class_model(sums, linear), (Phi @ linear.weights)[:5]
    S, means = (model.chol @ model.chol.mT).numpy(), (model.chol @ model.centres).numpy()
    logs = [
        TEMPER * multivariate_t(means[:, c], S, df=3).logpdf(f.numpy()) + float(model.log_prior[c]) for c in range(3)
    ]
    close(class_log_probs(model, Phi[:5]), torch.tensor(np.array(logs)).mT.log_softmax(1), rtol=1e-8, atol=1e-8)


def test_more_classes_than_features_cost_no_more_than_features():
    """The functions of 40 classes on 6 features, from matrices of 6 × 6, against those of 40 × 40."""
    generator = torch.Generator().manual_seed(2)
    y = torch.arange(400) % 40
    Phi = torch.randn(40, 6, generator=generator).double()[y] + 0.3 * torch.randn(400, 6, generator=generator).double()
    sums = sums_of(Phi, torch.nn.functional.one_hot(y, 40).double())
    linear = solve_by_evidence(sums)
    best = max((solve(sums, linear.ridge * factor) for factor in (0.5, 1.0, 2.0)), key=lambda one: one.log_evidence)
    assert best.ridge == linear.ridge
    close(
        linear.weights, torch.linalg.solve(sums.gram + linear.ridge * torch.eye(6), sums.cross), rtol=1e-8, atol=1e-10
    )
    model, f = class_model(sums, linear), Phi @ linear.weights
    assert model.chol.shape == (6, 6)
    means = torch.stack([f[y == c].mean(0) for c in range(40)])
    within = (f - means[y]).mT @ (f - means[y]) / 400
    S = within + linear.noise * leverage(linear, Phi).mean() * torch.eye(40)
    apart = f[:7, None] - means
    distance = torch.einsum("ncd,de,nce->nc", apart, torch.linalg.inv(S), apart)
    expected = -0.5 * TEMPER * 9 * (distance / 3).log1p() - math.log(40)
    close(class_log_probs(model, Phi[:7]), expected.log_softmax(1), rtol=1e-7, atol=1e-7)


def test_the_losses_of_powers_are_those_of_a_model_with_each_power():
    Phi, y = clusters()
    sums = sums_of(Phi, torch.nn.functional.one_hot(y, 3).double())
    linear = solve(sums, torch.tensor(1.0, dtype=torch.float64))
    losses = losses_of_powers(class_model(sums, linear), Phi[:50], y[:50])
    for power, loss in zip(POWERS, losses, strict=True):
        log_probs = class_log_probs(class_model(sums, linear, power), Phi[:50])
        close(loss, -sum(log_probs[i, y[i]] for i in range(50)), rtol=1e-9, atol=1e-9)


def test_the_last_examples_of_each_class_are_held_out():
    classes = torch.tensor([2, 0, 2, 2, 0, 2, 1, 0, 2])
    assert sorted(last_of_each_class(classes, 0.4).tolist()) == [5, 7, 8]
    assert len(last_of_each_class(classes, 0.1)) == 0


def test_no_features_no_posterior():
    zero = Sums(*(torch.zeros(shape, dtype=torch.float64) for shape in ((2, 2), (2, 1), (1,), ())))
    with pytest.raises(NumericalError, match="zero"):
        solve_by_evidence(zero)


# -- storage and features


def test_a_triangle_keeps_a_symmetric_matrix():
    A = torch.arange(9.0).reshape(3, 3)
    A = A + A.mT
    assert torch.equal(symmetric(narrowed(triangle(A)), 3), A.double())
    assert narrowed(triangle(A)).dtype == torch.int32
    assert narrowed(A * 2**40).dtype == torch.int64
    assert narrowed(A / 3).is_floating_point()


def test_dense_features_sample_the_arc_cosine_kernel():
    """E[max(wᵀa, 0) max(wᵀb, 0)] = (sin θ + (π − θ) cos θ) / 2π for unit vectors at the angle θ."""
    x = torch.tensor([[1.0, 0.0], [0.5, -2.0], [3.0, 1.0]])
    made = RandomFeatures((2,), 200_000)(x)
    unit = torch.nn.functional.pad(x.double(), (0, 1), value=1.0)
    unit = unit / unit.norm(dim=1, keepdim=True)
    angle = (unit @ unit.mT).clamp(-1, 1).arccos()
    expected = (angle.sin() + (math.pi - angle) * angle.cos()) / (2 * math.pi)
    close(made @ made.mT / made.shape[1], expected, rtol=0, atol=0.01)


def test_convolutional_features_are_the_same_for_flat_and_shaped_images():
    x = torch.rand(3, 64, generator=torch.Generator().manual_seed(0))
    flat, shaped = RandomFeatures((64,), 50, "conv"), RandomFeatures((1, 8, 8), 50, "conv")
    assert torch.equal(flat(x), shaped(x.view(3, 1, 8, 8)))
    assert flat(x).shape == (3, 50)
    by_hand = torch.nn.functional.unfold(x.view(3, 1, 8, 8).double(), 3)  # [3, 9, 36]
    maps = (flat.get_buffer("weights").flatten(1) @ by_hand).abs().view(3, -1, 6, 6)
    close(flat(x), maps.view(3, -1, 3, 2, 3, 2).mean((3, 5)).flatten(1)[:, :50], rtol=1e-10, atol=1e-12)
    many = torch.rand(150, 64, generator=torch.Generator().manual_seed(1))
    assert torch.equal(flat(many), torch.cat([flat(one) for one in many.split(1)]))
    for shape in ((65,), (1, 100), (100, 2), (3, 2, 9), (3, 2, 9, 9)):
        with pytest.raises(DataError, match="dense"):
            image_shape(shape)


@pytest.mark.parametrize(
    ("shape", "kind"),
    [((64,), "dense"), ((1, 100), "dense"), ((100, 1), "dense"), ((5, 1, 1), "dense"), ((8, 8), "image"),
     ((1, 8, 8), "image"), ((3, 9, 4), "image"), ((2, 3, 4, 5), "dense")],
)  # fmt: skip
def test_inputs_are_images_where_filters_fit(shape, kind):
    random = RandomFeatures(shape, 50)
    assert random.kind == kind
    assert whole_features(random(torch.rand(2, *shape))).shape == (2, 51)


@pytest.mark.parametrize(("shape", "levels"), [((1, 8, 8), 9), ((3, 13, 10), 12), ((1, 3, 3), 1)])
def test_features_of_images_know_the_brightness(shape, levels):
    """Oracle: region by region; and images that differ in their brightness alone differ in these features alone."""
    random, channels = RandomFeatures(shape, 50), shape[0]
    x = torch.rand(4, *shape, generator=torch.Generator().manual_seed(0)).double()
    assert (random.filtered, random(x).shape) == (50 - levels, (4, 50))
    regions, weights = random.regions, random.get_buffer("weights")
    maps = torch.nn.functional.conv2d(x, weights, stride=random.stride).abs()
    filtered = torch.nn.functional.adaptive_avg_pool2d(maps, regions).flatten(1)[:, : 50 - levels]
    means = torch.nn.functional.adaptive_avg_pool2d(x, regions)
    by_region = [means[:, c, i, j] for i in range(regions) for j in range(regions) for c in range(channels)]
    level = torch.stack(by_region[:levels], 1)
    contrast = filtered.square().mean(1, keepdim=True)
    expected = level / (contrast + level.square().mean(1, keepdim=True)).sqrt()
    close(random(x), torch.cat([filtered / contrast.sqrt(), expected], 1), rtol=1e-9, atol=1e-9)
    brighter = random(x + 0.5)
    close(brighter[:, :-levels], random(x)[:, :-levels], rtol=1e-9, atol=1e-9)
    assert bool((brighter[:, -levels:].mean(1) > random(x)[:, -levels:].mean(1)).all())


def test_smooth_features_are_roots_of_means_of_smoothed_filters():
    from scipy.ndimage import gaussian_filter

    x = torch.rand(2, 2, 56, 56, generator=torch.Generator().manual_seed(0))
    rough, smooth = (RandomFeatures((2, 56, 56), 27, kind).get_buffer("weights") for kind in ("conv", "smooth"))
    image = torch.zeros(1, 1, 14, 14, dtype=torch.float64)
    image[0, 0, 5, 6] = 3.0
    by_scipy = gaussian_filter(image[0, 0].numpy(), 2.0, mode="constant", radius=6)
    spread = smoothed(image, 2.0)[0, 0]
    close(spread / spread.sum(), by_scipy / by_scipy.sum(), rtol=1e-10, atol=1e-12)
    expected = smoothed(torch.randn(rough.shape, generator=fork(0, "features/smooth"), dtype=torch.float64), 2.0)
    expected = expected - expected.mean((1, 2, 3), keepdim=True)
    close(smooth, expected / expected.flatten(1).norm(dim=1)[:, None, None, None], rtol=1e-10, atol=1e-12)
    maps = torch.nn.functional.conv2d(x.double(), smooth, stride=2).abs()
    means = torch.nn.functional.adaptive_avg_pool2d(maps, 3).flatten(1)
    close(RandomFeatures((2, 56, 56), 27, "smooth")(x), means.sqrt(), rtol=1e-10, atol=1e-12)


def test_features_are_rounded_for_each_input_by_itself():
    features = torch.tensor([[3.0, -4.0], [300.0, -400.0], [0.0, 0.0]])
    rms = math.sqrt(12.5)
    row = [round(3 / rms * STEPS), round(-4 / rms * STEPS), STEPS]
    assert whole_features(features).tolist() == [row, row, [0, 0, STEPS]]
    assert float(whole_features(torch.eye(200)).max()) == LIMIT
    with pytest.raises(NumericalError, match="finite"):
        whole_features(torch.full((1, 2), math.inf))


# -- the learner


def digit_tasks():
    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)
    return [
        (x[torch.isin(y, torch.tensor(pair))], y[torch.isin(y, torch.tensor(pair))])
        for pair in ((0, 1), (2, 3), (4, 5))
    ]


TASKS = digit_tasks()
X = torch.cat([x[:40] for x, _ in TASKS])


def taught(tasks=TASKS, **options):
    learner = ExactGP(**{"features": 60, **options})
    for x, y in tasks:
        learner.fit(x, y)
    return learner


def same(first, second, atol=1e-6):
    a, b = first.predict(X), second.predict(X)
    assert a.classes == b.classes
    for name in ("mean", "variance", "probs", "novelty"):
        close(getattr(a, name), getattr(b, name), rtol=0, atol=atol)


@pytest.mark.parametrize("kind", ["dense", "image", "conv", "smooth"])
def test_the_order_of_tasks_and_minibatches_does_not_matter(kind):
    forward, backward = taught(kind=kind), taught(TASKS[::-1], kind=kind)
    same(forward, backward)
    assert torch.equal(forward._model.tasks.gram, backward._model.tasks.gram)
    pieces = ExactGP(60, kind=kind)
    for number, (x, y) in enumerate(TASKS):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
        for some in order.split(37):
            pieces.observe(x[some], y[some], task=number)
    same(forward, pieces)
    assert torch.equal(forward._model.tasks.gram, pieces._model.tasks.gram)


def test_tasks_give_the_posterior_of_one_fit_on_the_union():
    union = ExactGP(60)
    union.fit(torch.cat([x for x, _ in TASKS]), torch.cat([y for _, y in TASKS]))
    same(taught(), union)


def test_the_posterior_is_that_of_a_ridge_regression_on_the_features():
    learner = taught()
    Phi, y = learner.features(torch.cat([x for x, _ in TASKS])), torch.cat([y for _, y in TASKS])
    Y = torch.nn.functional.one_hot(y, 6).double()
    learner.predict(X)
    ridge = float(learner._model._solve()[1].ridge)
    expected = Ridge(alpha=ridge, fit_intercept=False).fit(Phi.numpy(), Y.numpy()).predict(learner.features(X).numpy())
    close(learner.predict(X).mean, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("per_task", [False, True])
def test_a_forgotten_task_leaves_no_trace(per_task):
    learner = taught(per_task=per_task)
    learner.forget(1, *(() if per_task else TASKS[1]))
    rest = taught([TASKS[0], TASKS[2]])
    same(learner, rest)
    p = learner.predict(X)
    assert p.task_probs.shape == (len(X), 2)
    with pytest.raises(TaskError, match="labels"):
        learner.forget(1, *TASKS[1])
    close(learner.predict(X, task=1).probs, rest.predict(X, task=1).probs)


def test_only_the_data_of_a_task_can_be_forgotten():
    learner = taught()
    before = learner.state_dict()["tensors"]
    with pytest.raises(TaskError, match="per_task"):
        learner.forget(1)
    with pytest.raises(TaskError, match="exactly"):
        learner.forget(1, TASKS[1][0][1:], TASKS[1][1][1:])
    with pytest.raises(TaskError, match="labels"):
        learner.forget(1, *TASKS[0])
    after = learner.state_dict()["tensors"]
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_saved_learner_continues_exactly(tmp_path):
    learner = taught(TASKS[:2])
    learner.save(tmp_path / "gp.frcl")
    loaded = frcl.load(tmp_path / "gp.frcl")
    for one in (learner, loaded):
        one.fit(*TASKS[2])
    same(learner, loaded, atol=0)
    kept = learner.state_dict()["tensors"]
    assert all(tensor.dtype == torch.int32 for tensor in kept.values())
    assert learner.memory_bytes() == sum(4 * tensor.numel() for tensor in kept.values())
    assert learner.memory_bytes() == 4 * (61 * 62 // 2 + 61 * 6 + 6 + 3)
    with pytest.raises(CheckpointError, match="other options"):
        ExactGP(61).load_state_dict(learner.state_dict())


def test_a_frozen_network_gives_the_features(tmp_path):
    net = MLP(64, (40,), last="relu", seed=3)
    learner = ExactGP(net)
    for x, y in TASKS:
        learner.fit(x, y)
    close(learner.features(X), whole_features(net(X).detach()), rtol=0, atol=0)
    assert float((learner.predict(X).labels == torch.cat([y[:40] for _, y in TASKS])).double().mean()) > 0.9
    learner.save(tmp_path / "gp.frcl")
    assert learner.memory_bytes() == 4 * (41 * 42 // 2 + 41 * 6 + 6 + 3)  # the network is not of the data
    other = MLP(64, (40,), last="relu", seed=4)
    for given in ((), (net,), (other,)):  # the weights are in the file
        loaded = frcl.load(tmp_path / "gp.frcl", *given)
        assert torch.equal(loaded.predict(X).probs, learner.predict(X).probs)
        assert not any(p.requires_grad for p in loaded.net.parameters())
        assert loaded.memory_bytes() == learner.memory_bytes()
    before = loaded.predict(X).probs
    doctored = learner.state_dict()
    doctored["meta"]["state"]["losses"] = [1.0]
    next(value for name, value in doctored["tensors"].items() if name.startswith("net/")).add_(1)
    for state, message in ((doctored, "losses"), (ExactGP(MLP(64, (41,))).state_dict(), "does not fit this network"),
                           (ExactGP(60).state_dict(), "other options or features")):  # fmt: skip
        with pytest.raises(CheckpointError, match=message):
            loaded.load_state_dict(state)
    assert torch.equal(loaded.predict(X).probs, before)


class Flat(torch.nn.Linear):
    """A network that only the user has."""

    def __init__(self):
        super().__init__(64, 12)


def test_a_frozen_network_of_ones_own_is_made_from_the_file_where_that_is_allowed(tmp_path):
    learner = ExactGP(Flat())
    learner.fit(*TASKS[0])
    learner.save(tmp_path / "gp.frcl")
    with pytest.raises(CheckpointError, match=r"allow=\['test_exact\.Flat'\]"):
        frcl.load(tmp_path / "gp.frcl")
    loaded = frcl.load(tmp_path / "gp.frcl", allow=["test_exact.Flat"])
    assert torch.equal(loaded.predict(X).probs, learner.predict(X).probs)
    closed = ExactGP(torch.nn.Sequential(torch.nn.Linear(64, 12)))
    closed.fit(*TASKS[0])
    closed.save(tmp_path / "gp.frcl")
    with pytest.raises(CheckpointError, match="give one of the same shape"):
        frcl.load(tmp_path / "gp.frcl")
    loaded = frcl.load(tmp_path / "gp.frcl", torch.nn.Sequential(torch.nn.Linear(64, 12)))
    assert torch.equal(loaded.predict(X).probs, closed.predict(X).probs)


def test_the_size_is_given_in_features_or_bytes():
    assert ExactGP(features=7).options.count == 7
    for memory in (100, 630_000, 630_003):
        K = ExactGP(memory=memory).options.count + 1
        assert 4 * K * (K + 1) // 2 <= memory < 4 * (K + 1) * (K + 2) // 2
    with pytest.raises(OptionError):
        ExactGP(features=0)


def many_classes(examples, seed=0):
    """Ten tasks of 8 classes that overlap, with more noise in some classes than in others."""
    generator = torch.Generator().manual_seed(7)
    centres, spread = torch.randn(80, 6, generator=generator), 0.2 + torch.rand(80, 1, generator=generator)
    y = torch.arange(80).repeat(examples)
    return centres[y] + spread[y] * torch.randn(len(y), 6, generator=torch.Generator().manual_seed(seed)), y


def test_the_power_is_chosen_on_examples_that_are_held_out_and_then_added():
    """The sums are those of all examples; the power is the best for examples not learned, over all labels so far."""
    (x, y), (x_new, y_new) = many_classes(20), many_classes(10, seed=1)
    plain, chosen = ExactGP(60, seed=1), ExactGP(60, seed=1, held_out=0.25)
    losses = torch.zeros(len(POWERS), dtype=torch.float64)
    for k in range(10):
        own = y // 8 == k
        rows, held = own & (torch.arange(len(y)) < 1200), own & (torch.arange(len(y)) >= 1200)
        others = ExactGP(60, seed=1)
        others.load_state_dict(plain.state_dict())
        others.fit(x[rows], y[rows])
        losses += losses_of_powers(others._model._solve()[2], others.features(x[held]), y[held])
        for learner in (plain, chosen):
            learner.fit(x[own], y[own])
    for name, tensor in plain.state_dict()["tensors"].items():
        assert torch.equal(chosen.state_dict()["tensors"][name], tensor), "all examples are added in the end"
    assert chosen._model.power == POWERS[int(losses.argmin())]
    assert chosen._model.power not in (POWERS[0], POWERS[-1])
    nll = [float(-learner.predict(x_new).log_predictive(y_new).mean()) for learner in (plain, chosen)]
    assert nll[1] < nll[0]
    again = ExactGP(60, seed=1, held_out=0.25)
    again.load_state_dict(chosen.state_dict())
    assert torch.equal(again.predict(x_new).probs, chosen.predict(x_new).probs)
    close(again.predict(x_new).mean, plain.predict(x_new).mean)


def test_prediction_over_all_labels_and_in_a_task():
    learner = taught()
    p = learner.predict(X)
    truth = torch.cat([y[:40] for _, y in TASKS])
    assert p.classes == (0, 1, 2, 3, 4, 5)
    assert float((p.labels == truth).double().mean()) > 0.93
    close(p.task_probs, p.probs.view(-1, 3, 2).sum(-1), rtol=0, atol=1e-6)
    one = learner.predict(X, task=1)
    assert one.classes == (2, 3)
    assert one.task_probs is None
    close(one.probs, p.probs[:, 2:4] / p.probs[:, 2:4].sum(1, keepdim=True), rtol=1e-3, atol=1e-4)
    each = learner.predict(X, task=torch.arange(3).repeat_interleave(40))
    assert each.classes == p.classes
    close(each.probs[40:80, 2:4], one.probs[40:80], rtol=0, atol=1e-6)
    assert float(each.probs[:40, 2:].max()) == 0
    close(p.log_predictive(truth), p.probs.gather(1, truth[:, None])[:, 0].log(), rtol=1e-5, atol=1e-6)


def test_one_label_in_two_tasks_is_one_label_and_two_columns():
    x, y = TASKS[0]
    learner = taught([(x, y), (1 - x, y)])
    p = learner.predict(torch.cat([x, 1 - x]))
    assert p.classes == (0, 1)
    assert float((p.labels == torch.cat([y, y])).double().mean()) > 0.98
    assert float((p.task_probs.argmax(1) == torch.arange(2).repeat_interleave(len(x))).double().mean()) > 0.99


@pytest.mark.parametrize(("kept", "most"), [(1000, 1.5), (8, 2.5)])
def test_strange_inputs_are_novel_and_further_familiar_ones_are_not(kept, most):
    """With many examples, and with fewer examples than features, through which the functions can pass exactly."""
    p = taught([(x[40:][:kept], y[40:][:kept]) for x, y in TASKS]).predict(torch.cat([X, X.flip(1).roll(7, 1)]))
    known, strange = p.novelty[: len(X)], p.novelty[len(X) :]
    assert 0.7 < float(known.mean()) < most
    assert float(strange.median()) > 2 * float(known.median())


def test_novelty_is_one_for_an_example_that_was_left_out(generator):
    """Orthogonal examples of one length have one leverage: the model of all tells that of the others."""
    n = 12
    Phi = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64)).Q
    Y = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    whole = ExactModel(lambda x: x, classes=False)
    whole.tasks = added(whole.tasks, 0, whole.of(Phi, Y), own_gram=False)
    ridge = whole._solve()[1].ridge
    others = Phi[1:].mT @ Phi[1:] + ridge * torch.eye(n)
    left_out = Phi[:1] @ torch.linalg.solve(others, Phi[0])
    own = Phi[:1] @ torch.linalg.solve(Phi.mT @ Phi + ridge * torch.eye(n), Phi[0])
    close(whole.believe(Phi).novelty, (own / left_out).expand(n), rtol=1e-4, atol=0)


def test_regression_with_variance():
    """Against a brute-force Gaussian process; the variance grows away from the data."""
    x = torch.linspace(-2, 2, 80)[:, None]
    y = torch.sin(2 * x[:, 0]) + 0.05 * torch.randn(80, generator=torch.Generator().manual_seed(0))
    learner = ExactGP(features=100)
    learner.fit(x[:40], y[:40])
    learner.fit(x[40:], y[40:])
    new = torch.tensor([[-1.0], [0.3], [1.5], [6.0]])
    p = learner.predict(new)
    assert p.probs is None
    Phi, phi, (linear, noise) = (
        learner.features(x),
        learner.features(new),
        (learner._model._solve()[1], learner._model.noise),
    )
    K = noise / linear.ridge * Phi @ Phi.mT + noise * torch.eye(80, dtype=torch.float64)
    k = noise / linear.ridge * phi @ Phi.mT
    close(p.target_mean[:, 0], (k @ torch.linalg.solve(K, y.double())), rtol=0, atol=1e-5)
    variance = noise / linear.ridge * phi.square().sum(1) - (k * torch.linalg.solve(K, k.mT).mT).sum(1)
    close(p.variance[:, 0], variance, rtol=1e-4, atol=1e-7)
    close(p.target_variance[:, 0], variance + noise, rtol=1e-4, atol=1e-7)
    assert float((p.target_mean[:3, 0] - torch.sin(2 * new[:3, 0])).abs().max()) < 0.1
    assert float(p.variance[3, 0]) > 10 * float(p.variance[1, 0])
    expected = torch.distributions.Normal(p.target_mean[:, 0], p.target_variance[:, 0].sqrt()).log_prob(
        torch.zeros(4) + 0.5
    )
    close(p.log_predictive(torch.full((4,), 0.5)), expected, rtol=1e-4, atol=1e-4)


def test_errors_leave_the_learner_as_it_was():
    learner = ExactGP(10)
    with pytest.raises(TaskError, match="fit"):
        learner.predict(X)
    learner = taught(TASKS[:1])
    before = learner.state_dict()
    for x, y, error in (
        (TASKS[0][0], TASKS[0][1].double() + 0.5, DataError),
        (TASKS[0][0], np.array(["a"] * len(TASKS[0][0])), LabelError),
        (TASKS[0][0], TASKS[0][1][:-1], DataError),
        (TASKS[0][0][:, :10], TASKS[0][1], DataError),
    ):
        with pytest.raises(error):
            learner.fit(x, y)
    after = learner.state_dict()
    assert before["meta"] == after["meta"]
    assert all(torch.equal(before["tensors"][name], after["tensors"][name]) for name in before["tensors"])


def test_sums_add_up():
    Phi, Y = examples()
    for one, other in zip(plus(sums_of(Phi[:20], Y[:20]), sums_of(Phi[20:], Y[20:])), sums_of(Phi, Y), strict=True):
        close(one, other)
