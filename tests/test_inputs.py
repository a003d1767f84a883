"""Networks with several inputs, tokens and patches; data from loaders; how long and how fast one task is learned."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import frcl
from frcl import FRCL, MLP, DataError, FRCLPlus, MultiInput, OptionError
from frcl.inputs import gathered

G = torch.Generator().manual_seed(8)
Y = torch.arange(120) % 2
X = torch.randn(120, 5, generator=G) + 2.0 * (2 * Y - 1)[:, None] * torch.randn(5, generator=G)


# -- networks ---------------------------------------------------------------------------------------------------------


class Encoder(nn.Module):
    """A small Vision Transformer: patches, positions, one layer of attention, the mean over patches."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(1, 16, 4, stride=4)
        self.positions = nn.Parameter(0.1 * torch.randn(4, 16, generator=torch.Generator().manual_seed(1)))
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)

    def forward(self, x):
        return self.layer(self.patches(x).flatten(2).mT + self.positions).mean(1)


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.lstm = nn.Embedding(20, 8), nn.LSTM(8, 16, batch_first=True)

    def forward(self, x):
        return self.lstm(self.embed(x))[0][:, -1]


class TwoInputs(nn.Module):
    """An image and two tokens."""

    def __init__(self):
        super().__init__()
        self.image, self.embed, self.last = nn.Linear(16, 12), nn.Embedding(6, 12), nn.Linear(24, 16)

    def forward(self, image, token):
        h = torch.cat([self.image(image.flatten(1)), self.embed(token).sum(1)], 1)
        return self.last(torch.relu(h))


def images(k):
    pattern = torch.randn(1, 8, 8, generator=torch.Generator().manual_seed(20 + k))
    return torch.randn(120, 1, 8, 8, generator=G) + 1.2 * (2 * Y - 1)[:, None, None, None] * pattern


def sentences(k):
    """Class 1 has other words than class 0; the words of the tasks differ."""
    return torch.randint(0, 5, (120, 6), generator=G) + 5 * Y[:, None] + 10 * k


def pairs(k):
    """The class shows in the image and in the tokens."""
    pattern = torch.randn(4, 4, generator=torch.Generator().manual_seed(30 + k))
    image = torch.randn(120, 4, 4, generator=G) + 0.7 * (2 * Y - 1)[:, None, None] * pattern
    return {"image": image, "token": torch.randint(0, 3, (120, 2), generator=G) + 3 * (Y[:, None] == k)}


@pytest.mark.parametrize(("make", "data"), [(Encoder, images), (Tokens, sentences), (TwoInputs, pairs)])
def test_other_networks_learn_two_tasks_and_keep_the_first(make, data):
    torch.manual_seed(0)
    net = make()
    tasks = [data(0), data(1)]
    if make is TwoInputs:
        net = MultiInput(net, {name: value[:2] for name, value in tasks[0].items()})
    learner = FRCLPlus(net, points=20, steps=150, batch_size=40, lr=5e-3)
    for x in tasks:
        learner.fit(x, Y)
    for number, x in enumerate(tasks):
        assert (learner.predict(x, task=number).labels == Y).float().mean() > 0.9


def test_the_fisher_information_of_a_network_that_cannot_be_batched_is_taken_one_by_one():
    class Branching(nn.Module):
        def __init__(self, *, looks):
            super().__init__()
            self.layer, self.looks = nn.Linear(5, 4), looks

        def forward(self, x):
            return self.layer(x) if not self.looks or float(x.sum()) < 1e9 else x[:, :4]

    kept = []
    for looks in (True, False):
        torch.manual_seed(1)
        learner = FRCLPlus(Branching(looks=looks), points=4, steps=3, curvature_structure="diagonal")
        learner.fit(X, Y)
        (curvature,) = [one for one in learner.regularisers if isinstance(one, frcl.Curvature)]
        kept.append(dict(frcl.trees.named_tensors(curvature.state())))
    assert kept[0]
    for name, value in kept[0].items():
        torch.testing.assert_close(value, kept[1][name])


def test_several_inputs_reach_the_network_as_they_were():
    seen = []

    class Spy(nn.Module):
        def forward(self, a, b, c):
            seen.append((a, b, c))
            return a.flatten(1)

    given = (torch.randn(4, 2, 3, generator=G), torch.arange(8).reshape(4, 2), torch.tensor([5, 6, 7, 1 << 24]))
    net = MultiInput(Spy(), given)
    net(net.pack(given))
    for ours, theirs in zip(seen[0], given, strict=True):
        assert torch.equal(ours, theirs)
        assert ours.dtype == theirs.dtype


def test_inputs_that_do_not_fit_are_refused():
    net = MultiInput(TwoInputs(), pairs(0))
    learner = FRCL(net, points=4, steps=1)
    good = pairs(0)
    for bad, message in (
        (good["image"], "expected a dict with image, token, not Tensor"),
        ((good["image"], good["token"]), "not tuple"),
        ({"image": good["image"]}, "expected the inputs image, token"),
        ({**good, "token": good["token"][:5]}, "number of examples"),
        ({**good, "token": good["token"][:, :1]}, "have shapes"),
        ({**good, "token": good["token"].float()}, "of integers has torch.float32"),
        ({**good, "token": good["token"] + (1 << 25)}, "values above 16777216"),
        ({**good, "image": good["image"] * torch.nan}, "NaN"),
    ):
        with pytest.raises(DataError, match=message):
            learner.fit(bad, Y)
    assert learner.tasks == ()
    with pytest.raises(DataError, match=r"frcl.MultiInput\(net, example\)"):
        FRCL(MLP(16, (4,)), points=4, steps=1).fit(good, Y)


def test_several_inputs_are_saved_and_loaded(tmp_path):
    learner = FRCL(MultiInput(TwoInputs(), pairs(0)), points=4, steps=2)
    x = pairs(0)
    learner.fit(x, Y)
    learner.save(tmp_path / "learner")
    again = frcl.load(tmp_path / "learner", MultiInput(TwoInputs(), pairs(0)))
    assert torch.equal(learner.predict(x).mean, again.predict(x).mean)


# -- data -------------------------------------------------------------------------------------------------------------


class Examples(Dataset):
    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        return X[i], int(Y[i])


def trained(*data, **options):
    learner = FRCL(MLP(5, (8, 4)), points=6, steps=10, batch_size=20)
    learner.fit(*data, **options)
    return learner.predict(X).mean


SOURCES = {
    "tensor dataset": lambda: TensorDataset(X, Y),
    "dataset": Examples,
    "loader": lambda: DataLoader(TensorDataset(X, Y), batch_size=32),
    "shuffling loader": lambda: DataLoader(TensorDataset(X, Y), batch_size=32, shuffle=True),
    "loader with workers": lambda: DataLoader(TensorDataset(X, Y), batch_size=32, shuffle=True, num_workers=2),
    "minibatches": lambda: [(X[i : i + 50], Y[i : i + 50]) for i in range(0, 120, 50)],
    "generator": lambda: ((X[i : i + 7].numpy(), Y[i : i + 7].tolist()) for i in range(0, 120, 7)),
}


@pytest.mark.parametrize("name", SOURCES)
def test_the_same_data_gives_the_same_result_however_it_comes(name):
    assert torch.equal(trained(SOURCES[name]()), trained(X, Y))


def test_labels_may_be_words_and_inputs_dictionaries():
    named = [({"a": X[:60], "b": X[60:]}, ["cat", "dog"] * 30)]
    x, y = gathered(named * 2)
    assert y == ["cat", "dog"] * 60
    assert torch.equal(x["b"], torch.cat([X[60:], X[60:]]))
    x, y = gathered([((X, X[:, :2]), Y)] * 2)
    assert [part.shape for part in x] == [(240, 5), (240, 2)]


@pytest.mark.parametrize(
    ("data", "message"),
    [(X, "no targets for data of type Tensor"), ({"x": X}, "type dict"), ("data", "type str"), (5, "type int"),
     ([], "no examples"), ([X], "not Tensor"), ([(X, Y, Y)], "not 3 parts")],
)  # fmt: skip
def test_other_data_is_refused_with_what_to_do(data, message):
    learner = FRCL(MLP(5, (4,)), points=2, steps=1)
    with pytest.raises(DataError, match=message) as caught:
        learner.fit(data)
    assert "a DataLoader, or an iterable of minibatches" in str(caught.value)


# -- one call of fit() ------------------------------------------------------------------------------------------------


def counted(**course):
    logs = []
    learner = FRCL(MLP(5, (8, 4)), points=6, steps=10, batch_size=20)
    learner.fit(X, Y, on_step=logs.append, **course)
    return len(logs), learner


def test_steps_and_epochs_and_lr_of_one_task():
    assert counted()[0] == 10
    assert counted(steps=3)[0] == 3
    assert counted(epochs=2)[0] == 12
    assert counted(epochs=0.1)[0] == 1
    slow = counted(lr=1e-6)[1]
    same = FRCL(MLP(5, (8, 4)), points=6, steps=10, batch_size=20, lr=1e-6)
    same.fit(X, Y)
    assert torch.equal(slow.predict(X).mean, same.predict(X).mean)
    slow.fit(X, Y)  # the next task has the lr of the options again
    same.fit(X, Y)
    assert not torch.equal(slow.predict(X).mean, same.predict(X).mean)


@pytest.mark.parametrize("course", [{"steps": 0}, {"steps": 2.0}, {"epochs": -1}, {"lr": 0.0}, {"lr": float("nan")},
                                    {"steps": 1, "epochs": 1}])  # fmt: skip
def test_a_course_that_makes_no_sense_is_refused(course):
    with pytest.raises(OptionError):
        counted(**course)


class Stop(Exception):
    pass


def interrupted(**course):
    """A learner that was stopped after step 4 of its task, saved, restored, and went on."""

    def stop(log):
        if log.step == 4:
            raise Stop

    first, second = (FRCL(MLP(5, (8, 4)), points=6, steps=10, batch_size=20) for _ in range(2))
    with pytest.raises(Stop):
        first.fit(X, Y, on_step=stop, **course)
    second.load_state_dict(first.state_dict())
    with pytest.raises(frcl.TaskError, match="exactly as it began"):
        second.fit(X, Y, **{**course, "steps": 9})
    second.fit(X, Y, **course)
    return second.predict(X).mean


def test_an_interrupted_course_goes_on_as_it_was():
    assert torch.equal(interrupted(steps=7, lr=0.02), trained(X, Y, steps=7, lr=0.02))


def shifted(x, generator):
    return x + 0.5 * torch.randn(x.shape, generator=generator)


def test_augmentation_is_seeded_and_only_for_training(global_random_state_untouched):
    once = trained(X, Y, augment=shifted)
    assert torch.equal(once, trained(X, Y, augment=shifted))
    assert not torch.equal(once, trained(X, Y))
    assert torch.equal(interrupted(augment=shifted), once)
    assert torch.equal(trained(X, Y, augment=lambda x, generator: x), trained(X, Y))
    learner = FRCL(MLP(5, (8, 4)), points=6, steps=10, batch_size=20)
    summary = learner.fit(X, Y, augment=shifted)
    assert all(any(torch.equal(z, x) for x in X) for z in summary.Z)


def test_every_step_has_its_own_randomness():
    seen = []

    def watch(x, generator):
        seen.append(torch.rand(1, generator=generator).item())
        return x

    learner = FRCL(MLP(5, (8, 4)), points=6, steps=5, batch_size=20)
    for _ in range(2):
        learner.fit(X, Y, augment=watch)
    assert len(set(seen)) == 10


def test_an_augmentation_that_changes_the_shape_is_refused():
    for wrong in (lambda x, g: x[:, :2], lambda x, g: x.double(), lambda x, g: None):
        learner = FRCL(MLP(5, (8, 4)), points=6, steps=5)
        with pytest.raises(DataError, match="augment gave"):
            learner.fit(X, Y, augment=wrong)
        assert learner.step == 0
        assert learner.tasks == ()


def test_a_bar_shows_the_progress(capsys):
    learner = FRCL(MLP(5, (8, 4)), points=6, steps=10, batch_size=20)
    logs = []
    learner.fit(X, Y, epochs=2, progress=True, on_step=logs.append)
    assert "12/12" in capsys.readouterr().out
    assert len(logs) == 12
