"""Everything that decides a run, resolved from defaults, a file and the command line; to TOML and back."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

from frcl.boundary import BoundaryDetector, DetectorSettings
from frcl.data import BENCHMARKS
from frcl.data.options import BenchmarkOptions
from frcl.errors import OptionError
from frcl.files import read_document
from frcl.learners.options import FRCLOptions
from frcl.methods import METHODS, default_options
from frcl.options import NOT_NEGATIVE, MethodOptions, Options, from_plain, option
from frcl.pretrained import Trained
from frcl.registry import suggestion

Scenario = Literal["task", "class"]  # whether the task is named at test time, or inferred
SCENARIOS: tuple[str, ...] = get_args(Scenario)


@dataclass(frozen=True)
class NetworkOptions(Options):
    """Which feature network is used where none is brought."""

    kind: Literal["mlp", "conv", "cifar", "resnet18", "efficientnet-lite0"] = option(
        "mlp",
        "fully connected; convolutional (the paper's for Omniglot); FROMP's for CIFAR; ResNet-18 with GroupNorm; "
        "pre-trained, images enlarged to 128×128",
    )
    widths: tuple[int, ...] = option(
        (100, 100), "mlp: hidden layers; conv: filters of each block; cifar: those of each pair, then the dense layer"
    )
    last: Literal["linear", "relu"] = option("linear", "mlp: whether the last layer is followed by ReLU")
    pooling: Literal["same", "valid"] = option("same", "conv: padding of the max pooling")

    trained: Trained = option(
        "all", "efficientnet-lite0: weights that are trained; what comes before the 'last' stage is computed once"
    )


@dataclass(frozen=True)
class DetectorOptions(DetectorSettings):
    """Boundary detection in a stream whose boundaries are hidden: the settings of a BoundaryDetector, and scoring."""

    thresholds: tuple[float, ...] = option((4.0, 5.0, 6.0, 7.0, 8.0), "these thresholds are scored too")
    tolerance: int = option(10, "a switch found at most this many minibatches late counts as found", NOT_NEGATIVE)

    def detector(self) -> BoundaryDetector:
        return BoundaryDetector(**self.options())


@dataclass(frozen=True)
class RunOptions(Options):
    """How a run is carried out; changes what is learned by rounding at most (`threads`, `tf32`, `seeds_together`)."""

    checkpoint_seconds: float = option(5.0, "time between two checkpoints while a task is learned", NOT_NEGATIVE)
    log_past_every: int = option(0, "log the KL of every past task each this many steps; 0: not at all", NOT_NEGATIVE)
    forward_transfer: bool = option(False, "learn every task alone as well, to measure forward transfer")
    seeds_together: int = option(10, "at most this many seeds are trained as one program")
    tf32: bool = option(True, "on CUDA, products of float32 matrices in TF32: faster, with a 10-bit mantissa")
    threads: int = option(1, "CPU threads: one is fastest for small networks")


@dataclass(frozen=True)
class Config(Options):
    """One run: a benchmark, a method, seeds, and the options of each part."""

    benchmark: str = "split-digits"
    method: str = "frcl"
    seeds: tuple[int, ...] = option((0, 1, 2), "root seeds, one learner for each", NOT_NEGATIVE)
    device: str = "cpu"
    data: str | None = None
    hidden_boundaries: bool = False
    scenario: Scenario = "task"
    stream: BenchmarkOptions = field(default_factory=BenchmarkOptions)
    network: NetworkOptions = field(default_factory=NetworkOptions)
    learner: MethodOptions = field(default_factory=FRCLOptions)
    detector: DetectorOptions = field(default_factory=DetectorOptions)
    run: RunOptions = field(default_factory=RunOptions)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden_boundaries and self.run.forward_transfer:
            raise OptionError("forward_transfer is not measured with hidden boundaries; leave one of the two out")
        if self.hidden_boundaries and self.stream.augmentation is not None:
            raise OptionError("crop and flip change the minibatches of a task; leave them out with hidden boundaries")
        if len(set(self.seeds)) != len(self.seeds):
            raise OptionError(f"seeds must be different whole numbers; got {list(self.seeds)}")


PARTS = ("stream", "network", "learner", "detector", "run")
PLAIN = ("benchmark", "method", "seeds", "device", "data", "hidden_boundaries", "scenario")


def parts_of(method: str) -> dict[str, Any]:
    """The options of each part as they are without any change; the learner's are those of the method."""
    return {part: getattr(Config(), part) for part in PARTS} | {"learner": default_options(method)}


def bundled(name: str) -> dict[str, Any]:
    """The content of a TOML file that comes with the package."""
    return tomllib.loads(resources.files("frcl.experiment").joinpath(name).read_text(encoding="utf-8"))


def resolve(benchmark: str, *layers: Mapping[str, Any]) -> Config:
    """A run's configuration: defaults of its benchmark, then each layer, like a config file, over those before it."""
    method = next((layer["method"] for layer in reversed(layers) if "method" in layer), "frcl")
    if not isinstance(method, str):
        raise OptionError(f"method is the name of a method, not {method!r}")
    parts = parts_of(method)
    merged: dict[str, Any] = {part: {} for part in PARTS}
    for layer in (_benchmark_defaults(benchmark, method, parts["learner"]), *layers):
        _check_names(layer, parts, method)
        merged = over(merged, layer)
    merged |= {"benchmark": benchmark, "method": method}
    built = {part: from_plain(parts[part], merged.pop(part)) for part in PARTS}
    return from_plain(Config(**built), merged)


def over(below: Mapping[str, Any], layer: Mapping[str, Any]) -> dict[str, Any]:
    """One layer over another as one; a number of points for the whole task replaces one per class."""
    found = {name: dict(value) if name in PARTS else value for name, value in below.items()}
    if "points" in layer.get("learner", {}) and "points_per_class" not in layer["learner"]:
        found.get("learner", {}).pop("points_per_class", None)
    return found | {name: {**found.get(name, {}), **value} if name in PARTS else value for name, value in layer.items()}


def saved(layer: Mapping[str, Any]) -> Config:
    """The configuration that a run wrote into its config.toml."""
    return resolve(layer.get("benchmark", ""), {name: value for name, value in layer.items() if name != "benchmark"})


def differing(config: Config, *layers: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The options of a configuration that layers would change: what they are, and what they would be."""
    own = tomllib.loads(to_toml(config))
    made, said = (by_name(one) for one in (config, resolve(own.pop("benchmark"), own, *layers)))
    return {name: (value, said[name]) for name, value in made.items() if said[name] != value}


def by_name(config: Config) -> dict[str, Any]:
    """Plain values by name, those of parts as `learner.lr`."""
    values = to_dict(config)
    parts = {f"{part}.{name}": value for part in PARTS for name, value in values[part].items()}
    return parts | {name: values[name] for name in PLAIN}


def _benchmark_defaults(benchmark: str, method: str, options: Any) -> dict[str, Any]:
    """Network, training and options of the method, from the benchmark's section of defaults.toml or its spec."""
    carried = BENCHMARKS[benchmark].defaults if benchmark in BENCHMARKS else {}
    found: Mapping[str, Any] = bundled("defaults.toml").get(benchmark, carried)
    names = [f.name for f in fields(options)]
    training = {name: value for name, value in found.get("training", {}).items() if name in names}
    base = found.get(METHODS[method].defaults_of or "", {})
    return {"network": found.get("network", {}), "learner": {**training, **base, **found.get(method, {})}}


def _check_names(layer: Mapping[str, Any], parts: Mapping[str, Any], method: str) -> None:
    for name in layer.keys() - {*PLAIN, *PARTS}:
        raise OptionError(f"unknown option {name!r}{suggestion(name, [*PLAIN, *PARTS])}")
    for name, values in ((part, layer[part]) for part in PARTS if part in layer):
        if not isinstance(values, Mapping):
            raise OptionError(f"{name!r} is a table of options, not {values!r}")
        known = [f.name for f in fields(parts[name])]
        for key in (key for key in values if key not in known):
            owner = f"method {method}" if name == "learner" else f"[{name}]"
            raise OptionError(f"unknown option {key!r} of {owner}{suggestion(key, known)}")


def foreign(layer: Mapping[str, Any], method: str, among: Iterable[str]) -> list[str]:
    """The options of a learner in a layer that `method` does not have, but another of the methods has."""
    own, *others = ({f.name for f in fields(default_options(one))} for one in (method, *among))
    learner = layer.get("learner")
    names = learner if isinstance(learner, Mapping) else ()
    return [name for name in names if name not in own and any(name in other for other in others)]


def setting_for(text: str, method: str, among: Iterable[str], flag: str = "--set") -> dict[str, Any]:
    """`key=value` as a layer, read as an option of the method, or else of another one that has it."""
    first: OptionError | None = None
    for one in (method, *among):
        try:
            return parse_setting(text, one, flag)
        except OptionError as error:
            first = first or error
    assert first is not None
    raise first


def parse_setting(text: str, method: str = "frcl", flag: str = "--set") -> dict[str, Any]:
    """`key=value` or `part.key=value` as a layer; the value as TOML has it, or plain text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise OptionError(f"{flag} wants key=value, as in {flag} lr=1e-3; got {text!r}")
    part, dot, key = name.strip().partition(".")
    if dot:
        return {part: {key: _literal(value)}}
    if part in PLAIN:
        return {part: _literal(value)}
    if part == "seed":
        raise OptionError("the seed of a learner is that of the run: set seeds, as in --seeds 10 or --set seeds=[3]")
    parts = {owner: [f.name for f in fields(options)] for owner, options in parts_of(method).items()}
    owners = [owner for owner, names in parts.items() if part in names]
    if not owners:
        every = [*PLAIN, *(name for names in parts.values() for name in names)]
        raise OptionError(f"option {part!r} is unknown{suggestion(part, every)}")
    if len(owners) > 1:
        raise OptionError(f"option {part!r} is in {' and '.join(owners)}; write {owners[0]}.{part}")
    return {owners[0]: {part: _literal(value)}}


def _literal(text: str) -> Any:
    """A value as TOML has it; else plain text, or a list of such: a shell takes quotes away."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        plain = text.strip()
    is_list = plain.startswith("[") and plain.endswith("]")
    return [_literal(item) for item in plain[1:-1].split(",")] if is_list else plain


def to_dict(config: Config) -> dict[str, Any]:
    """The configuration as nested plain values; the seed of a learner comes from `seeds`, so it is left out."""
    values: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    del values["learner"]["seed"]
    return values


def to_toml(config: Config) -> str:
    """The resolved configuration as a TOML file; TOML has no null, so "none" stands for it."""
    lines: list[str] = []
    for name, value in to_dict(config).items():  # the parts come last
        if name in PARTS:
            lines += ["", f"[{name}]"]
        options = value if name in PARTS else {name: value}
        lines += [f"{key} = {json.dumps('none' if one is None else one)}" for key, one in options.items()]
    return "\n".join(lines) + "\n"


def read_toml(path: Path) -> dict[str, Any]:
    """A config file as a layer for `resolve`."""
    return read_document(path, tomllib.loads, OptionError)
