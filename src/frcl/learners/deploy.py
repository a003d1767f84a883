"""The prediction of a learner as one module without state, to be exported by `torch.export` or to ONNX.

It computes what `predict` gives for a batch of any size: every head, solution and random draw is a constant of it.
"""

import copy
import json
import logging
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from frcl.errors import FrclError, OptionError, TaskError
from frcl.exact.fixed import RandomFeatures, rounded
from frcl.exact.linear import Classes, Linear, class_log_probs
from frcl.features import FeatureMap
from frcl.files import write_atomically
from frcl.learners.mixture import check_task, mixture_moments
from frcl.likelihoods import Label, Likelihood, all_labels, tempered
from frcl.linalg import inverse_lower
from frcl.posterior import Moments
from frcl.summary import Head, head_moments
from frcl.trees import Params


class Output(NamedTuple):
    """What is predicted for a batch; None where a prediction has no such part."""

    probs: Tensor | None
    mean: Tensor
    variance: Tensor
    target_mean: Tensor | None = None
    target_variance: Tensor | None = None
    task_probs: Tensor | None = None


class Deployed(nn.Module):
    """A prediction as a module: forward(x) → the parts named in `names`, in this order."""

    classes: tuple[Label, ...] | None

    def output(self, x: Tensor) -> Output:
        """The prediction."""
        raise NotImplementedError

    def names(self, x: Tensor) -> list[str]:
        """The parts that there are."""
        with torch.no_grad():
            return [name for name, part in self.output(x)._asdict().items() if part is not None]

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(part for part in self.output(x) if part is not None)


class TaskOutput(nn.Module):
    """One task of FRCL from the features Φ [n, K] of the network."""

    def __init__(
        self, head: Head, likelihood: Likelihood, learned: Params, draws: Tensor,
        temperature: Tensor | None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.head, self.likelihood, self.learned = head, likelihood, learned
        self.draws, self.temperature = draws, temperature
        self.classes = likelihood.classes

    def forward(self, Phi: Tensor) -> Output:
        moments = Moments(*(part.to(Phi.dtype) for part in head_moments(self.head, Phi)))
        at = moments if self.temperature is None else tempered(moments, self.temperature)
        found = self.likelihood.predictive(*at, self.draws, self.learned)
        return Output(found.probs, *moments, found.mean, found.variance)


class HeadOutput(nn.Module):
    """One task of a method with a linear head [C, K] on shared features: its functions are known."""

    def __init__(self, head: Tensor, classes: Sequence[Label]) -> None:
        super().__init__()
        self.head, self.classes = head.detach().cpu().clone(), tuple(classes)

    def forward(self, Phi: Tensor) -> Output:
        mean = Phi @ self.head.mT
        return Output(mean.softmax(-1), mean, torch.zeros_like(mean))


class Products(nn.Module):
    """Random features by matrix products alone: runtimes of ONNX have no convolutions in float64."""

    def __init__(self, random: RandomFeatures) -> None:
        super().__init__()
        self.random = random
        if random.kind != "dense":
            weights, (_, *sides) = random.get_buffer("weights"), random.image
            self.kernel, self.size = weights.flatten(1), weights.shape[-1]
            height, width = ((side - self.size) // random.stride + 1 for side in sides)
            cells = torch.eye(height * width, dtype=torch.float64).view(-1, 1, height, width)
            self.pool = nn.functional.adaptive_avg_pool2d(cells, random.regions).flatten(1)  # [cells, regions²]

    def forward(self, x: Tensor) -> Tensor:
        random = self.random
        if random.kind == "dense":
            return random(x)  # type: ignore[no-any-return]
        images = x.double().reshape(-1, *random.image)
        patches = nn.functional.unfold(images, self.size, stride=random.stride)  # [n, channels · size², cells]
        return random.of_regions(((self.kernel @ patches).abs() @ self.pool).flatten(1), images)


class TaskModel(nn.Module):
    """log p(task | x) from the classes of the exact model, on random features of x, φ(x) of the network, or both."""

    def __init__(self, classes: Classes, sizes: Sequence[int], features: nn.Module | None, *, network: bool) -> None:
        super().__init__()
        self.model, self.sizes, self.features, self.network = classes, list(sizes), features, network

    def forward(self, x: Tensor, outputs: Tensor) -> Tensor:
        given = [] if self.features is None else [self.features(x)]
        Phi = torch.cat([rounded(part) for part in [*given, *[outputs] * self.network]], 1)
        parts = class_log_probs(self.model, Phi).split(self.sizes, 1)
        return torch.stack([part.logsumexp(1) for part in parts], 1)


class DeployedFRCL(Deployed):
    """A network with one task, or with several and the inference of the task, a geometric mean of `ways`.

    Without any the heads infer it, as `frcl.inference.Heads` does. With `autocast` the network is computed
    in bfloat16, as it was.
    """

    def __init__(
        self, features: FeatureMap, scale: Tensor, tasks: Sequence[TaskOutput | HeadOutput], ways: Sequence[TaskModel]
    ) -> None:
        super().__init__()
        self.net, self.scale = copy.deepcopy(features.net).cpu().requires_grad_(False), scale.cpu().clone()
        self.autocast = features.bfloat16
        self.tasks, self.ways = nn.ModuleList(tasks), nn.ModuleList(ways)
        self.classes = tasks[0].classes
        if len(tasks) > 1 and all(one.classes is not None for one in tasks):
            labels = [label for one in tasks for label in one.classes or ()]
            self.classes = all_labels(labels, TaskError)
            index = torch.tensor([self.classes.index(label) for label in labels])
            self.columns = nn.functional.one_hot(index, len(self.classes)).to(self.scale)

    def output(self, x: Tensor) -> Output:
        outputs = self.scale * FeatureMap(self.net, self.autocast).outputs(x)
        Phi = torch.cat([outputs, outputs.new_ones(outputs.shape[0], 1)], 1)
        each = [task(Phi) for task in self.tasks]
        if len(each) == 1:
            return each[0]  # type: ignore[no-any-return]
        if self.ways:
            found = torch.stack([way(x, outputs) for way in self.ways]).mean(0).log_softmax(1)
        else:
            found = torch.stack([one.probs.amax(1) for one in each], 1).double().log().log_softmax(1)
        probs = found.exp().to(Phi.dtype)
        if each[0].probs is not None:
            own = torch.cat([probs[:, k, None] * one.probs for k, one in enumerate(each)], 1) @ self.columns
            return Output(own, own.clone(), own * (1 - own), task_probs=probs)
        mean, variance = mixture_moments([(one.mean, one.variance) for one in each], probs)
        target = mixture_moments([(one.target_mean, one.target_variance) for one in each], probs)
        return Output(None, mean, variance, *target, task_probs=probs)


class DeployedExactGP(Deployed):
    """The exact model: over all labels, over those of one task, or of numbers."""

    def __init__(
        self, features: nn.Module, linear: Linear, classes: Classes | None, of_task: Tensor,
        labels: Sequence[Label], task: int | None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.features, self.weights, self.noise = features, linear.weights, linear.noise
        self.root = inverse_lower(linear.chol).mT
        self.model = classes
        own = slice(None) if task is None else (of_task == task).nonzero()[:, 0]
        self.own, self.task = own, task
        self.classes = None
        if classes is not None:
            kept = (
                list(labels) if task is None else [label for label, k in zip(labels, of_task, strict=True) if k == task]
            )
            self.classes = all_labels(kept, TaskError)
            self.columns = nn.functional.one_hot(torch.tensor([self.classes.index(one) for one in kept])).float()
            self.of_task = nn.functional.one_hot(of_task).float()

    def output(self, x: Tensor) -> Output:
        Phi = rounded(self.features(x))
        mean, leverage = Phi @ self.weights, (Phi @ self.root).square().sum(1, keepdim=True)
        spread = (self.noise * leverage).expand_as(mean)
        if self.model is None:
            return Output(None, mean.float(), spread.float(), mean.float(), (spread + self.noise).float())
        log_probs = class_log_probs(self.model, Phi)[:, self.own].log_softmax(1)
        probs = log_probs.exp().float()
        tasks = probs @ self.of_task if self.task is None else None
        mean, spread = (part[:, self.own].float() @ self.columns for part in (mean, spread))
        return Output(probs @ self.columns, mean, spread, task_probs=tasks)


class DeployedEnsemble(Deployed):
    """The equal mixture of members."""

    def __init__(self, members: Sequence[Deployed]) -> None:
        super().__init__()
        self.members, self.classes = nn.ModuleList(members), members[0].classes

    def output(self, x: Tensor) -> Output:
        each = [one.output(x) for one in self.members]  # type: ignore[operator]
        even = each[0].mean.new_full((1, len(each)), 1 / len(each))
        mean, variance = mixture_moments([(one.mean, one.variance) for one in each], even)
        tasks = None if each[0].task_probs is None else torch.stack([one.task_probs for one in each]).mean(0)
        if each[0].probs is not None:
            return Output(torch.stack([one.probs for one in each]).mean(0), mean, variance, task_probs=tasks)
        target = mixture_moments([(one.target_mean, one.target_variance) for one in each], even)
        return Output(None, mean, variance, *target, task_probs=tasks)


# -- the modules of learners -----------------------------------------------------------------------------------------


def frcl_module(learner: Any, task: int | None) -> DeployedFRCL:
    """Of an FRCL: of one past task, or of all of them."""
    state, model, predictor = learner._state, learner._model, learner._predictor
    example_of(learner)  # there must be one
    count, one = len(state.past), None if task is None else learner._number(task)
    if not count or (state.window is not None if one is None else state.opened(one)):
        raise TaskError("a task that is still being learned cannot be exported; end it first")
    numbers = range(count) if one is None else [one]
    kinds = {None if summary.likelihood.classes is None else "classes" for summary in state.past}
    if one is None and len(kinds) > 1:
        raise TaskError("the tasks have different kinds of targets, classes and numbers; name a task")
    outputs = []
    for number in numbers:
        summary = state.past[number]
        outputs.append(
            TaskOutput(  # caches of its own: tracing fills them
                replace(predictor._head(state, number)), summary.likelihood, summary.likelihood_params,
                model.predictive_draws(summary.likelihood), summary.temperature,
            )
        )  # fmt: skip
    return DeployedFRCL(model.map, model.scale, outputs, task_models(learner) if len(numbers) > 1 else [])


def task_models(learner: Any) -> list[TaskModel]:
    """What infers the task of an input; nothing where the heads do."""
    state, options = learner._state, learner.options
    learner.predict(example_of(learner).to(learner.device))  # solves what infers the task
    found = []
    for model, of_input, of_network in learner._inference.models(state.task_sums):
        sizes, solved = [len(block.squares) for block in model.tasks.blocks], model._solve().classes
        features = None
        if of_input:
            count = options.task_features if of_network else len(solved.weights) - 1  # without the bias
            features = Products(RandomFeatures(state.input_shape, count, options.task_kind, options.seed))
        found.append(TaskModel(solved, sizes, features, network=of_network))
    return found


def heads_module(learner: Any, heads: Sequence[Tensor], task: int | None) -> DeployedFRCL:
    """Of a method with a linear head for each past task."""
    past = learner._state.past
    numbers = range(len(past)) if task is None else [check_task(task, len(past), "fit()")]
    if not past:
        raise TaskError("no task has been learned to its end; call fit() first")
    outputs = [HeadOutput(heads[number], past[number].likelihood.classes) for number in numbers]
    ways = task_models(learner) if len(numbers) > 1 else []
    return DeployedFRCL(learner.features, torch.ones((), dtype=learner.dtype), outputs, ways)


def exact_gp_module(learner: Any, task: int | None) -> DeployedExactGP:
    """Of an ExactGP."""
    labels = [label for own in learner._state.labels for label in own]
    of_task = torch.tensor([k for k, own in enumerate(learner._state.labels) for _ in own], dtype=torch.int64)
    solution = learner._model._solve()
    example = example_of(learner)
    learner.features(example.to(learner.device))  # makes the random features
    features = copy.deepcopy(Products(learner._random) if learner.net is None else learner.net).cpu()
    return DeployedExactGP(
        features, solution.linear, solution.classes, of_task, labels, None if learner._state.outputs else task
    )


def example_of(learner: Any) -> Tensor:
    """Two inputs of zeros, like those that were learned, on the CPU."""
    state = learner._state
    if state.input_shape is None:
        raise TaskError("nothing has been learned yet; call fit() first")
    return torch.zeros(2, *state.input_shape, dtype=state.input_dtype)


# -- export ----------------------------------------------------------------------------------------------------------


def export(self: Any, task: int | None = None) -> torch.export.ExportedProgram:
    """predict(x, task) as a program of `torch.export` for a batch of any size, on the CPU.

    Its outputs are probs, mean, variance, target_mean, target_variance and task_probs, where they exist, in this order.
    """
    module, example = self._deployed(task)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's own exporter
            dynamic = ({0: torch.export.Dim.DYNAMIC},)
            return torch.export.export(module, (example,), dynamic_shapes=dynamic)
    except FrclError:
        raise
    except Exception as error:
        raise OptionError(
            f"torch.export cannot follow this network or likelihood: {str(error).splitlines()[0]}. A network must not "
            "depend on the values or the number of its inputs."
        ) from error


def export_onnx(self: Any, path: str | Path, task: int | None = None) -> None:
    """Write predict(x, task) as an ONNX file for a batch of any size; needs `pip install 'frcl[onnx]'`.

    Its input is `x`; its outputs are named as the fields of `Prediction`: probs, mean, variance, target_mean,
    target_variance and task_probs, where they exist. Its metadata have the classes, a JSON list, as `classes`.
    """
    path = Path(path)
    if path.is_dir() or not path.parent.is_dir():
        raise OptionError(f"cannot write to {path}; name a file in a folder that exists")
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise OptionError(f"the ONNX exporter cannot be imported ({error}): pip install 'frcl[onnx]'") from error
    module, example = self._deployed(task)
    if any(isinstance(one, DeployedFRCL) and one.autocast for one in module.modules()):
        raise OptionError(
            "this learner has bfloat16=True, and runtimes of ONNX do not compute as torch.autocast does: use export(), "
            "which does, or learn with bfloat16=False"
        )
    program, names = export(self, task), module.names(example)
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    try:
        logger.setLevel(logging.ERROR)  # it warns where torchvision is not installed
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = torch.onnx.export(program, (), dynamo=True, verbose=False)
        assert made is not None
        _rename(made.model.graph, names)
        made.model.metadata_props["classes"] = json.dumps(module.classes)
        content = made.model_proto.SerializeToString()
    except Exception as error:
        raise OptionError(f"the ONNX exporter cannot translate this learner: {str(error).splitlines()[0]}") from error
    finally:
        logger.setLevel(level)
    write_atomically(path, content)


def _rename(graph: Any, names: Sequence[str]) -> None:
    """Name the input and the outputs of a graph; whatever else has such a name gets another one."""
    for value in [*graph.initializers.values(), *(value for node in graph for value in node.outputs)]:
        if value.name in ("x", *names):
            value.name = f"inner_{value.name}"
    graph.inputs[0].name = "x"
    for value, name in zip(graph.outputs, names, strict=True):
        value.name = name
