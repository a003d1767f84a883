"""The option `covariance` of the learner: learning, keeping, saving and counting."""

import pytest
import torch

import frcl
from frcl import FRCL, MLP, CheckpointError, OptionError

STRUCTURES = ("full", "shared", "diagonal", "lowrank")
G = torch.Generator().manual_seed(3)
CENTRES = 2.5 * torch.randn(2, 4, 6, generator=G)
Y = torch.arange(160) % 4
X = [centres[Y] + torch.randn(160, 6, generator=G) for centres in CENTRES]


def learner(structure, **options):
    given = {"points": 12, "steps": 150, "batch_size": 40, "lr": 5e-3, "covariance": structure, **options}
    return FRCL(MLP(6, (24, 12), seed=1), **given)


def accuracy(one, task):
    return float((one.predict(X[task], task=task).labels == Y).float().mean())


@pytest.mark.parametrize("structure", STRUCTURES)
def test_two_tasks_are_learned_and_the_first_is_kept(structure):
    one = learner(structure)
    for x in X:
        one.fit(x, Y)
    assert accuracy(one, 0) > 0.9
    assert accuracy(one, 1) > 0.9
    drift = one.past_divergences()
    free = learner(structure, functional=0.0)
    for x in X:
        free.fit(x, Y)
    assert drift[0] < 0.5 * free.past_divergences()[0]


@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_summary_has_the_size_that_the_docs_state(structure):
    one = learner(structure, steps=2)
    C, M, K = 4, 12, 13
    R = min(M, K)
    summary = one.fit(X[0], Y)
    numbers = {"full": C * M * R, "shared": M * R}.get(structure, M * R + C)
    assert summary.parts()["posterior"] == 4 * (C * M + numbers)
    assert summary.parts() == one.memory_parts()


@pytest.mark.parametrize("structure", ["shared", "lowrank"])
def test_a_task_goes_on_where_it_was_saved(structure, tmp_path):
    whole, part = learner(structure, steps=20), learner(structure, steps=20)
    for one in (whole, part):
        one.fit(X[0], Y)
    whole.fit(X[1], Y)

    class Stop(Exception):
        pass

    def stop(log):
        if log.step == 7:
            raise Stop

    with pytest.raises(Stop):
        part.fit(X[1], Y, on_step=stop)
    part.save(tmp_path / "learner")
    again = frcl.load(tmp_path / "learner", MLP(6, (24, 12), seed=1))
    again.fit(X[1], Y)
    for task in (0, 1):
        assert torch.equal(whole.predict(X[0], task=task).variance, again.predict(X[0], task=task).variance)


def test_a_state_whose_covariance_does_not_fit_is_refused():
    one = learner("lowrank", steps=3)
    one.start_task(labels=[0, 1, 2, 3])
    one.observe(X[0][:20], Y[:20])
    state = one.state_dict()
    name = min((key for key in state["tensors"] if key.endswith("low_rank")), key=len)  # the others are of Adam
    state["tensors"][name] = state["tensors"][name][:2]
    before = one.state_dict()
    with pytest.raises(CheckpointError):
        one.load_state_dict(state)
    assert one.state_dict()["meta"] == before["meta"]


@pytest.mark.parametrize("structure", ["shared", "diagonal", "lowrank"])
def test_members_of_an_ensemble_learn_as_each_would_alone(structure):
    options = {"points": 6, "steps": 12, "batch_size": 40, "covariance": structure}
    together = frcl.Ensemble(MLP(6, (8, 5)), members=2, **options)
    for x in X:
        together.fit(x, Y)
    alone = FRCL(MLP(6, (8, 5)), seed=1, **options)
    for x in X:
        alone.fit(x, Y)
    ours, theirs = (one.predict(X[0], task=0).variance for one in (together.members[1], alone))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_function_space_has_full_covariances_only():
    with pytest.raises(OptionError, match='covariance="diagonal" needs inference="weight"'):
        FRCL(MLP(6, (8,)), inference="function", covariance="diagonal")
    FRCL(MLP(6, (8,)), inference="function", covariance="full")


def test_the_automatic_choice_depends_on_features_and_classes():
    small, wide = FRCL(MLP(6, (8,)), points=4, steps=1), FRCL(MLP(6, (1100,)), points=4, steps=1)
    assert small.fit(X[0], Y).belief.factor.shape == (4, 4, 4)
    belief = wide.fit(X[0], Y).belief
    assert belief.factor.shape == (1, 4, 4)
    assert belief.scale.shape == (4,)


def test_wide_features_and_many_classes_keep_less_than_a_megabyte():
    """K = 1280, C = 100, M = 200, the head included."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(400) % 100
    x = torch.randn(400, 1280, generator=generator)
    summary = FRCL(torch.nn.Identity(), points=200, steps=1, selection="random", prediction="head").fit(x, y)
    kept = {kind: size for kind, size in summary.parts().items() if kind != "points"}
    assert kept == {"posterior": 4 * (100 * 200 + 200 * 200 + 100 + 100), "heads": 4 * 100 * 1281}
    assert sum(kept.values()) < 1_000_000
