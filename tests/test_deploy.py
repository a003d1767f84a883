"""Exported predictions: equal to `predict` in onnxruntime and as a program of torch.export, for batches of any size."""

import json
import subprocess
import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
import torch

import frcl
from frcl import MLP, OptionError, TaskError
from frcl.exact.fixed import RandomFeatures
from frcl.learners.deploy import Products
from frcl.methods import METHODS, make_learner
from streams import blobs
from test_methods_contract import make, named_in

SMALL = {"points": 10, "steps": 40, "search_steps": 10, "task_features": 60}
TASKS = [blobs((0, 1), 90, 1), blobs((4, 7, 9), 90, 2), blobs((-2, 3), 60, 3)]
X = torch.cat([x[:20] for x, _ in TASKS])
NUMBERS = [(x, torch.stack([x.sin().sum(1), x[:, 0]], 1)) for x, _ in TASKS]
WITH_HEADS = {"finetune", "joint", "replay", "lwf", "ewc", "online-ewc", "si", "fromp", "pnc"}
WITHOUT = {"single", "dlp", "vcl", "vcl-random", "vcl-kcenter", "sfsvi", "progressive", "er", "derpp", "agem", "gdumb"}
PARTS = ("probs", "mean", "variance", "target_mean", "target_variance", "task_probs")


def taught(tasks=TASKS, kind=frcl.FRCL, net=None, **options):
    learner = kind(MLP(4, (16, 8), seed=1) if net is None else net, **{**SMALL, **options})
    for x, y in tasks:
        learner.fit(x, y)
    return learner


def check(learner, task, folder=None, x=X, atol=1e-5):
    """The program, and with a folder the ONNX file, give what predict gives for 1, 7 and all inputs."""
    expected = learner.predict(x, task=task)
    there = [name for name in PARTS if getattr(expected, name) is not None]
    runs = [learner.export(task).module()]
    if folder is not None:
        runtime = pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
        learner.export_onnx(folder / "model.onnx", task=task)
        session = runtime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
        assert [one.name for one in session.get_outputs()] == there
        classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
        assert (None if classes is None else tuple(classes)) == expected.classes
        runs.append(lambda some: session.run(None, {"x": some.numpy()}))
    for run in runs:
        for n in (1, 7, len(x)):
            found = run(x[:n])
            assert len(found) == len(there)
            for name, part in zip(there, found, strict=True):
                own = getattr(expected, name)[:n].numpy()
                np.testing.assert_allclose(np.asarray(part), own, rtol=1e-5, atol=atol, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("task", [0, 1, None])
def test_frcl_plus_in_onnxruntime(tmp_path, task):
    check(taught(kind=frcl.FRCLPlus, task_inference="both"), task, tmp_path)


@pytest.mark.slow
def test_numbers_in_onnxruntime(tmp_path):
    check(taught(NUMBERS), None, tmp_path)


@pytest.mark.slow
def test_images_in_onnxruntime(tmp_path):
    images = torch.rand(80, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    tasks = [(images, (images[:, 0, k, 0] > 0.5).long() + 2 * k) for k in range(2)]
    check(taught(tasks, net=frcl.ConvNet(12, filters=(4, 4))), None, tmp_path, images[:10])


@pytest.mark.slow
@pytest.mark.parametrize("task", [1, None])
def test_an_exact_gp_in_onnxruntime(tmp_path, task):
    learner = frcl.ExactGP(30)
    for x, y in TASKS:
        learner.fit(x, y)
    check(learner, task, tmp_path)


@pytest.mark.slow
def test_an_ensemble_in_onnxruntime(tmp_path):
    learner = frcl.Ensemble(MLP(4, (16, 8), seed=1), 2, **SMALL)
    for x, y in TASKS[:2]:
        learner.fit(x, y)
    check(learner, None, tmp_path)


def counts(n=60):
    x = torch.rand(n, 4, generator=torch.Generator().manual_seed(1))
    return x, (3 * x[:, 0]).round()


@pytest.mark.parametrize(
    ("tasks", "options"),
    [
        (TASKS, {}), (TASKS, {"prediction": "corrected", "recentred": 1.0}), (TASKS, {"held_out": 0.2}),
        (TASKS, {"task_inference": "exact"}), (TASKS, {"points": 30}), (TASKS, {"inference": "function"}),
        (TASKS[1:2], {"likelihood": "robustmax"}), ([counts()], {"likelihood": "poisson"}), (NUMBERS, {}),
        (TASKS, {"covariance": "shared"}),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)  # fmt: skip
def test_programs_of_torch_export(tasks, options):
    """More kinds of summaries and likelihoods, without the runtime; M above and below K."""
    learner = taught(tasks, **options)
    check(learner, 0, x=tasks[0][0][:30], atol=2e-5)
    if len(tasks) > 1:
        check(learner, None, atol=2e-5)


@pytest.mark.parametrize("kind", [frcl.FRCL, frcl.Ensemble, "ewc"])
@pytest.mark.parametrize("task", [0, None])
def test_a_network_in_bfloat16_is_computed_so_in_the_program(tmp_path, monkeypatch, kind, task):
    """A runtime of ONNX would not: there it is refused."""
    if kind == "ewc":
        learner = make(kind, bfloat16=True)
        for x, y in TASKS:
            learner.fit(x, y)
    else:
        learner = taught(kind=kind, bfloat16=True)
    check(learner, task)
    for name in ("onnx", "onnxscript"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    with pytest.raises(OptionError, match=r"bfloat16=True.*use export\(\)"):
        learner.export_onnx(tmp_path / "model.onnx", task)
    assert not (tmp_path / "model.onnx").exists()


def test_an_exact_gp_as_a_program():
    for features in (30, MLP(4, (16, 8))):
        learner = frcl.ExactGP(features)
        for x, y in TASKS:
            learner.fit(x, y)
        check(learner, None)
        check(learner, 1)
    learner = frcl.ExactGP(30)
    for x, y in NUMBERS:
        learner.fit(x, y)
    check(learner, None)


@pytest.mark.parametrize("kind", ["conv", "image", "smooth"])
@pytest.mark.parametrize("shape", [(12, 12), (3, 13, 10), (49,)])
def test_random_convolutions_as_products(shape, kind):
    """Oracle: the convolution itself, with maps that the regions do not divide evenly."""
    random = RandomFeatures(shape, 50, kind, 0)
    x = torch.rand(5, *shape, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(Products(random)(x), random(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("inference", ["heads", "exact"])
@pytest.mark.parametrize("name", sorted(WITH_HEADS))
def test_methods_with_a_linear_head_per_task(name, inference):
    learner = make(name, steps=20, task_inference=inference, task_features=60)
    for x, y in TASKS:
        learner.fit(x, y)
    for task in (0, 2, None):
        check(learner, task)


@pytest.mark.parametrize("name", ["frcl", "ewc"])
@pytest.mark.parametrize("inference", ["exact", "both"])
def test_a_fixed_network_whose_features_infer_the_task(name, inference):
    options = replace(METHODS[name].options, steps=5, task_inference="exact" if name == "ewc" else inference)
    learner = make_learner(MLP(4, (16, 8)).requires_grad_(False), options, seed=0, method=name)
    for x, y in TASKS:
        learner.fit(x, y)
    check(learner, None)


@pytest.mark.slow
def test_a_method_with_heads_in_onnxruntime(tmp_path):
    learner = make("ewc", steps=20)
    for x, y in TASKS:
        learner.fit(x, y)
    check(learner, None, tmp_path)
    check(learner, 1, tmp_path)


class Scaled(MLP):
    """A network of integers."""

    def forward(self, x):
        return super().forward(x / 255)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
@pytest.mark.parametrize("kind", ["frcl", "ewc", "exact-gp"])
def test_integers_keep_their_type(kind, dtype, tmp_path):
    """Also after the state was written and read: the program takes what was learned."""
    x = torch.randint(256, (60, 4), generator=torch.Generator().manual_seed(0)).to(dtype)
    y = (x[:, 0] > x[:, 1]).long()
    learner = {
        "frcl": lambda: frcl.FRCL(Scaled(4, (8,)), **SMALL),
        "ewc": lambda: make_learner(Scaled(4, (8,)), replace(METHODS["ewc"].options, steps=5), seed=0, method="ewc"),
        "exact-gp": lambda: frcl.ExactGP(20),
    }[kind]()
    learner.fit(x, y)
    check(learner, 0, x=x)
    state, twin = learner.state_dict(), learner
    if kind == "frcl":
        learner.save(tmp_path / "learner.safetensors")
        twin = frcl.load(tmp_path / "learner.safetensors", net=Scaled(4, (8,)))
        with pytest.raises(frcl.CheckpointError, match="not a type of tensors"):
            twin.load_state_dict({**state, "meta": {**state["meta"], "input_dtype": "torch.nn"}})
    twin.load_state_dict(state)
    check(twin, 0, x=x)


@pytest.mark.slow
def test_bytes_in_onnxruntime(tmp_path):
    images = torch.randint(256, (80, 1, 12, 12), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    tasks = [(images, (images[:, 0, k, 0] > 127).long() + 2 * k) for k in range(2)]
    net = torch.nn.Sequential(torch.nn.Flatten(), Scaled(144, (8,)))
    check(taught(tasks, net=net), None, tmp_path, images[:10])


def test_string_labels_and_a_learner_that_goes_on(tmp_path):
    """The program is a copy: what is learned afterwards does not change it."""
    learner = taught([(x, np.array(["ant", "bee", "cat"])[y % 3]) for x, y in TASKS])
    program, before = learner.export(None).module(), learner.predict(X).probs
    learner.fit(*TASKS[0])
    torch.testing.assert_close(program(X)[0], before, rtol=1e-5, atol=1e-5)


def test_what_cannot_be_exported_is_said(tmp_path):
    learner = frcl.FRCL(MLP(4, (8,)), **SMALL)
    with pytest.raises(TaskError, match="nothing has been learned yet"):
        learner.export()
    learner.observe(*TASKS[0])
    with pytest.raises(TaskError, match="still being learned"):
        learner.export(0)
    mixed = taught([TASKS[0], NUMBERS[0]])
    with pytest.raises(TaskError, match="name a task"):
        mixed.export()
    for name in WITHOUT:
        baseline = make(name, steps=1)
        baseline.fit(*TASKS[0])
        with pytest.raises(OptionError, match=r"no export; it is for .* a linear head"):
            baseline.export(0)
    assert named_in("deployment.md", "There is no export of (.*?): they raise") == WITHOUT
    assert {"frcl", "frcl-plus", "exact-gp"} | WITH_HEADS | WITHOUT == set(METHODS)
    with pytest.raises(TaskError, match="learned"):
        make("ewc").export(0)

    class Peeks(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) if float(x.sum()) < 1e9 else x

    with pytest.raises(OptionError, match=r"torch\.export cannot follow"):
        taught(net=Peeks(4, 8)).export(0)
    for wrong in (tmp_path, "", tmp_path / "no folder" / "x.onnx"):
        with pytest.raises(OptionError, match="name a file in a folder that exists"):
            mixed.export_onnx(wrong, 0)
    code = "import sys; sys.modules['onnxscript'] = None; import frcl; frcl.FRCL(frcl.MLP(2, (3,))).export_onnx('x')"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'frcl[onnx]'" in result.stderr
