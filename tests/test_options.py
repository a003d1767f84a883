"""Options: one list for Python, help(), editors and the type checker."""

import inspect
import os
import pydoc
import subprocess
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import get_type_hints

import pytest
import torch

import frcl
from frcl import FRCL, MLP, Ensemble, ExactGP, FRCLOptions, FRCLPlus, OptionError
from frcl.learners.exact_gp import ExactGPKeywords, ExactGPOptions
from frcl.learners.options import PLUS, FRCLKeywords
from frcl.options import changed, described
from streams import blobs

ROOT = Path(__file__).resolve().parents[1]
LEARNERS = [(FRCL, FRCLOptions()), (FRCLPlus, PLUS), (Ensemble, FRCLOptions())]
SHOWN = [*LEARNERS, (ExactGP, ExactGPOptions())]


def net() -> MLP:
    return MLP(4, (3,))


def make(kind, **options):
    return kind(net(), **options)


def options_of(learner) -> FRCLOptions:
    return learner.members[0].options if isinstance(learner, Ensemble) else learner.options


@pytest.mark.parametrize(
    ("keywords", "options", "own"),
    [(FRCLKeywords, FRCLOptions, "points"), (ExactGPKeywords, ExactGPOptions, "features")],
)
def test_keywords_for_the_type_checker_are_the_fields(keywords, options, own):
    hints, names = get_type_hints(options), [item.name for item in fields(options)]
    assert {own: int, **get_type_hints(keywords)} == {name: hints[name] for name in names}
    assert list(get_type_hints(keywords)) == [name for name in names if name != own]
    assert not keywords.__required_keys__


@pytest.mark.parametrize(("kind", "defaults"), SHOWN, ids=["FRCL", "FRCLPlus", "Ensemble", "ExactGP"])
def test_signature_and_help_list_every_option(kind, defaults):
    parameters, own = inspect.signature(kind).parameters, "features" if kind is ExactGP else "points"
    assert not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    assert next(iter(parameters)) == ("features" if kind is ExactGP else "net")
    assert len(set(parameters)) == len(parameters)
    shown, doc = pydoc.render_doc(kind, renderer=pydoc.plaintext), kind.__doc__
    for name, text, default, description in described(defaults):
        assert description, f"{name} has no description"
        if name != own:
            assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
            assert parameters[name].default == default
        assert f"    {name}: {text} = {default!r}\n        {description}\n" in doc
        assert f"{name}: {text} = {default!r}" in shown
        assert description in shown


def test_a_learner_made_with_all_its_defaults_is_the_default_one():
    for kind, defaults in LEARNERS:
        assert options_of(make(kind)) == options_of(make(kind, **asdict(defaults))) == defaults
    assert ExactGP().options == ExactGP(**asdict(ExactGPOptions())).options == ExactGPOptions()


@pytest.mark.parametrize("kind", [FRCL, FRCLPlus, Ensemble])
@pytest.mark.parametrize(
    ("word", "near"), [("pionts", "points"), ("step", "steps"), ("lr_decy", "lr_decay"), ("u_nois", "u_noise")]
)
def test_a_misspelt_keyword_is_refused_with_the_nearest_one(kind, word, near):
    with pytest.raises(OptionError, match=f"unknown option '{word}'; did you mean '{near}'"):
        make(kind, **{word: 3})


@pytest.mark.parametrize("kind", [FRCL, FRCLPlus, Ensemble])
def test_a_word_like_no_other_is_refused_with_all_of_them(kind):
    with pytest.raises(OptionError, match=r"unknown option 'zzz'; known are steps, batch_size, lr"):
        make(kind, zzz=3)


@pytest.mark.parametrize("kind", [FRCL, Ensemble])
def test_options_at_once_and_changed_by_keywords(kind):
    given = FRCLOptions(points=7, lr=0.5, selection="random")
    assert options_of(make(kind, options=given)) == given
    made = options_of(make(kind, options=given, lr=0.25, points=9))
    assert made == FRCLOptions(points=9, lr=0.25, selection="random")
    assert given == FRCLOptions(points=7, lr=0.5, selection="random")
    assert options_of(kind(net(), points=9)).points == 9
    with pytest.raises(OptionError, match="lr must be a positive number"):
        make(kind, options=given, lr=-1.0)


def test_points_may_come_by_position():
    assert FRCL(net(), 3).options.points == FRCLPlus(net(), 3).options.points == 3
    assert Ensemble(net(), 2, 3).members[1].options.points == 3


def test_keywords_change_the_options_of_plus():
    made = FRCLPlus(net(), lr=0.5, curvature=0.0).options
    assert made == changed(PLUS, {"lr": 0.5, "curvature": 0.0})
    assert made.memory_targets == PLUS.memory_targets > 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lr": "fast"}, "lr must be a number, not 'fast'"),
        ({"lr": None}, "lr must be a number, not None"),
        ({"steps": True}, "steps must be a whole number of at least 1, not True"),
        ({"steps": 1.5}, "steps must be a whole number of at least 1, not 1.5"),
        ({"learn_inputs": 1}, "learn_inputs must be True or False, not 1"),
        ({"inference": "both"}, "inference='both' is unknown; choose one of weight, function"),
        ({"search": None}, "search=None is unknown; choose one of swap, greedy"),
        ({"past_tasks_per_step": "all"}, "past_tasks_per_step must be a whole number of at least 1 or None"),
        ({"lr_decay": 1.5}, "lr_decay must be a share from 0 to 1, not 1.5"),
        ({"held_out": 0.6}, "held_out must be a share from 0 to 0.5, not 0.6"),
        ({"functional": -1}, "functional must be a number that is not negative"),
        ({"seed": -1}, "seed must be a whole number, not negative"),
    ],
    ids=str,
)
def test_wrong_values_are_refused(given, message):
    with pytest.raises(OptionError, match=message):
        FRCLOptions(**given)


def test_learners_say_what_they_are():
    learner = FRCL(net(), points=5, steps=3, curvature=1.0)
    assert (
        repr(learner) == "FRCL(MLP, points=5, regularisers=[functional-kl, curvature]; 0 tasks learned, 0 bytes kept)"
    )
    x, y = blobs((0, 1), 60, 1)
    learner.fit(x, y)
    assert "; 1 task learned, " in repr(learner)
    assert f"{learner.memory_bytes():,} bytes kept" in repr(learner)
    learner.observe(x, y)
    assert "1 task learned, learning task 1 (step 1)" in repr(learner)
    assert repr(Ensemble(net(), 2)).startswith("Ensemble of 2 members, each FRCL(MLP, points=40, ")
    assert repr(FRCLPlus(net())).startswith("FRCLPlus(MLP, points=40, regularisers=[current-inputs, memory-targets, ")
    assert repr(FRCLPlus(net(), 7, lr=0.1)).startswith("FRCLPlus(MLP, points=7, ")
    assert repr(FRCLPlus(net(), curvature=0.0)).startswith("FRCL(MLP, ")
    assert repr(FRCL(net(), options=PLUS, regularisers=[])) == "FRCL(MLP, points=40; 0 tasks learned, 0 bytes kept)"


SCRIPT = """\
import torch

import frcl

net: torch.nn.Module = frcl.MLP(4, (3,))
frcl.FRCL(net, 3, steps=5, lr=0.1, prior_std="learned", inference="weight")
frcl.FRCL(net, pionts=3)  # wrong
frcl.FRCL(net, lr="fast")  # wrong
frcl.FRCL(net, inference="both")  # wrong
frcl.FRCL(net, options=frcl.FRCLOptions(points=3), detector=frcl.BoundaryDetector(3.0))
frcl.FRCLOptions(pionts=3)  # wrong
frcl.FRCLPlus(net, step=3)  # wrong
frcl.FRCLPlus(net, points=3, steps=3, curvature=1.0)
frcl.Ensemble(net, member=2)  # wrong
frcl.Ensemble([net, net], members=2, points=3, seed=1)
frcl.ExactGP(featurs=100)  # wrong
frcl.ExactGP(kind="cnov")  # wrong
frcl.ExactGP(per_tsak=True)  # wrong
frcl.ExactGP(100, kind="conv", per_task=True, held_out=0.2, options=None)
frcl.ExactGP(net, seed=1)
frcl.BoundaryDetector(treshold=3.0)  # wrong
frcl.BoundaryDetector(threshold=3.0, window=10, aggregate="median")
learner: frcl.FRCL = frcl.FRCLPlus(net)
prediction: frcl.Prediction = learner.predict(torch.zeros(2, 4))
prediction.noise  # wrong
"""


@pytest.mark.slow
def test_a_type_checker_sees_wrong_keywords(tmp_path):
    """As a user's editor would: strictly, and exactly the wrong lines are errors."""
    assert (ROOT / "src" / "frcl" / "py.typed").is_file()
    pytest.importorskip("mypy")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    (tmp_path / "mypy.ini").write_text("[mypy]\n")
    command = [
        sys.executable, "-m", "mypy", "--strict", "--config-file", "mypy.ini", "--follow-imports", "silent",
        "--cache-dir", str(ROOT / ".mypy_cache" / "test_options"), "--no-error-summary", "--no-pretty", script.name,
    ]  # fmt: skip
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.stderr == ""
    found = {int(line.split(":")[1]) for line in result.stdout.splitlines() if ": error: " in line}
    wrong = {number for number, line in enumerate(SCRIPT.splitlines(), 1) if line.endswith("# wrong")}
    assert len(wrong) == 11
    assert found == wrong, result.stdout
    assert all(line.startswith("script.py:") for line in result.stdout.splitlines()), result.stdout


def test_what_the_type_checker_refuses_is_refused_at_run_time_too():
    for line in SCRIPT.splitlines():
        if line.endswith("# wrong"):
            with pytest.raises((frcl.FrclError, TypeError, AttributeError)):
                exec(line, {"frcl": frcl, "net": net(), "prediction": frcl.Prediction(*torch.zeros(2, 1, 1))})  # noqa: S102
