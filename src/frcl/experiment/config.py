"""Everything that decides a run, resolved from defaults, a file and the command line; to TOML and back."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from frcl.boundary import BoundaryDetector
from frcl.data.options import BenchmarkOptions
from frcl.errors import OptionError
from frcl.experiment.networks import NetworkOptions
from frcl.learners.options import FRCLOptions
from frcl.methods import METHODS, MethodOptions, default_options

T = TypeVar("T")


@dataclass(frozen=True)
class DetectorOptions:
    """Boundary detection in a stream whose boundaries are hidden; see BoundaryDetector."""

    threshold: float = 5.0
    thresholds: tuple[float, ...] = (4.0, 5.0, 6.0, 7.0, 8.0)  # these are scored too
    window: int = 1
    rescore: bool = False
    beside: int = 0  # if not 0, the statistic and its scores are those of this test; the learner acts on its own
    all_functions: bool = False
    log_space: bool = True
    aggregate: str = "max"
    warm_up: int = 10
    minimum_time: int = 10
    pause: int = 10
    tolerance: int = 10  # a switch found at most this many minibatches late counts as found

    def __post_init__(self) -> None:
        self.detector()
        if self.tolerance < 0 or not self.thresholds:
            raise OptionError("tolerance cannot be negative, and thresholds needs at least one number")

    def detector(self) -> BoundaryDetector:
        given = {k: v for k, v in asdict(self).items() if k not in ("thresholds", "tolerance")}
        return BoundaryDetector(**given)


@dataclass(frozen=True)
class RunOptions:
    """How a run is carried out; none of it changes what is learned, but for rounding (`threads`, `tf32`, seeds)."""

    checkpoint_seconds: float = 5.0  # time between two checkpoints while a task is learned
    log_past_every: int = 0  # log the KL of every past task each so many steps; 0: not
    forward_transfer: bool = False  # learn every task alone as well, to measure forward transfer
    seeds_together: int = 10  # at most so many seeds are trained as one program, where the method can
    tf32: bool = True  # on CUDA, products of float32 matrices in TF32: faster, with 10 bits of mantissa instead of 23
    threads: int = 1  # CPU threads: one is fastest for small networks, and does not suffer from busy neighbours

    def __post_init__(self) -> None:
        if min(self.threads, self.seeds_together) < 1 or self.log_past_every < 0 or self.checkpoint_seconds < 0:
            raise OptionError(
                "threads and seeds_together must be at least 1, log_past_every and checkpoint_seconds at least 0"
            )


@dataclass(frozen=True)
class Config:
    """One run: a benchmark, a method, seeds, and the options of each part."""

    benchmark: str = "split-digits"
    method: str = "frcl"
    seeds: tuple[int, ...] = (0, 1, 2)
    device: str = "cpu"
    data: str | None = None
    hidden_boundaries: bool = False
    stream: BenchmarkOptions = field(default_factory=BenchmarkOptions)
    network: NetworkOptions = field(default_factory=NetworkOptions)
    learner: MethodOptions = field(default_factory=FRCLOptions)
    detector: DetectorOptions = field(default_factory=DetectorOptions)
    run: RunOptions = field(default_factory=RunOptions)

    def __post_init__(self) -> None:
        if self.hidden_boundaries and self.run.forward_transfer:
            raise OptionError("forward_transfer is not measured with hidden boundaries; leave one of the two out")
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise OptionError(f"seeds must be different whole numbers, at least one; got {list(self.seeds)}")


PARTS = ("stream", "network", "learner", "detector", "run")
AFTER = {"frcl-plus": "frcl"}  # a method, and the one whose defaults of a benchmark it has too
PLAIN = ("benchmark", "method", "seeds", "device", "data", "hidden_boundaries")


def suggestion(word: str, known: list[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"


def parts_of(method: str) -> dict[str, Any]:
    """The options of each part as they are without any change; the learner's are those of the method."""
    known = list(METHODS)
    if method not in known:
        raise OptionError(f"unknown method {method!r}{suggestion(method, known)}")
    return {
        "stream": BenchmarkOptions(),
        "network": NetworkOptions(),
        "learner": default_options(method),
        "detector": DetectorOptions(),
        "run": RunOptions(),
    }


def resolve(benchmark: str, *layers: Mapping[str, Any]) -> Config:
    """The configuration of a run on `benchmark`: its defaults, then each layer over those before it.

    A layer is a nested dictionary as in a config file: plain names on top, tables for the parts.
    """
    method = next((layer["method"] for layer in reversed(layers) if "method" in layer), "frcl")
    if not isinstance(method, str):
        raise OptionError(f"method is the name of a method, not {method!r}")
    parts = parts_of(method)
    merged: dict[str, Any] = {part: {} for part in PARTS}
    for layer in (_benchmark_defaults(benchmark, method, parts["learner"]), *layers):
        _check_names(layer, parts, method)
        for name, value in layer.items():
            if name in PARTS:
                if name == "learner" and "points" in value and "points_per_class" not in value:
                    merged[name].pop("points_per_class", None)  # a number for the whole task replaces one per class
                merged[name] |= value
            else:
                merged[name] = value
    merged |= {"benchmark": benchmark, "method": method}
    built = {part: build(type(parts[part]), {**vars(parts[part]), **merged.pop(part)}, part) for part in PARTS}
    return build(Config, {**merged, **built}, "the run")


def first_options(method: str) -> dict[str, Any]:
    """The options of each part where a file does not have them: they came later, and those of a learner were off."""
    parts = parts_of(method)
    return {**parts, "learner": type(parts["learner"])()}


def saved(layer: Mapping[str, Any]) -> Config:
    """The configuration that a run wrote into its config.toml."""
    known = first_options(str(layer.get("method", "frcl")))["learner"]
    learner = {**vars(known), **layer.get("learner", {})}
    rest = {name: value for name, value in layer.items() if name != "benchmark"}
    return resolve(layer.get("benchmark", ""), {**rest, "learner": learner})


def _benchmark_defaults(benchmark: str, method: str, options: Any) -> dict[str, Any]:
    """From defaults.toml: the benchmark's network, its training where the method has such options, the method's own.

    A method that stands in AFTER has those of another one under its own.
    """
    text = resources.files("frcl.experiment").joinpath("defaults.toml").read_text(encoding="utf-8")
    found: dict[str, Any] = tomllib.loads(text).get(benchmark, {})
    names = [f.name for f in fields(options)]
    training = {name: value for name, value in found.get("training", {}).items() if name in names}
    base = found.get(AFTER.get(method, ""), {})
    return {"network": found.get("network", {}), "learner": {**training, **base, **found.get(method, {})}}


def _check_names(layer: Mapping[str, Any], parts: Mapping[str, Any], method: str) -> None:
    for name, value in layer.items():
        if name not in PLAIN and name not in PARTS:
            raise OptionError(f"unknown option {name!r}{suggestion(name, [*PLAIN, *PARTS])}")
        if name in PARTS:
            if not isinstance(value, Mapping):
                raise OptionError(f"{name!r} is a table of options, not {value!r}")
            known = [f.name for f in fields(parts[name])]
            for key in value:
                if key not in known:
                    owner = f"method {method}" if name == "learner" else f"[{name}]"
                    raise OptionError(f"unknown option {key!r} of {owner}{suggestion(key, known)}")


def build(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """An options dataclass from plain values as TOML has them: lists become tuples, whole numbers floats."""
    kinds = {f.name: str(f.type) for f in fields(kind)}  # type: ignore[arg-type]
    given = {}
    for name, value in values.items():
        if isinstance(value, list):
            value = tuple(value)
        wanted = kinds[name]
        if wanted.startswith("float") and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if wanted.startswith("tuple[float") and isinstance(value, tuple):
            value = tuple(float(item) if isinstance(item, int) else item for item in value)
        if value == "none" and "None" in wanted:
            value = None
        plain = {"int": int, "float": float, "bool": bool, "str": str}.get(wanted)
        wrong = plain is not None and (not isinstance(value, plain) or (plain is int and isinstance(value, bool)))
        inside = {"tuple[int, ...]": int, "tuple[float, ...]": float}.get(wanted)
        if inside is not None and not (isinstance(value, tuple) and all(type(item) is inside for item in value)):
            wrong = True
        if wanted == "str | None" and not (value is None or isinstance(value, str)):
            wrong = True
        if wrong:
            raise OptionError(f"{name} in {where} must be of type {wanted}, not {value!r}")
        given[name] = value
    return kind(**given)


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
    except tomllib.TOMLDecodeError:
        plain = text.strip()
    if plain.startswith("[") and plain.endswith("]"):
        return [_literal(item) for item in plain[1:-1].split(",")]
    return plain


def to_dict(config: Config) -> dict[str, Any]:
    """The configuration as nested plain values; the seed of a learner comes from `seeds`, so it is left out."""
    values: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    del values["learner"]["seed"]
    return values


def to_toml(config: Config) -> str:
    """The resolved configuration as a TOML file; TOML has no null, so "none" stands for it."""
    values = to_dict(config)
    lines = [_line(name, values[name]) for name in PLAIN]
    for part in PARTS:
        lines += ["", f"[{part}]", *(_line(key, value) for key, value in values[part].items())]
    return "\n".join(lines) + "\n"


def _line(name: str, value: Any) -> str:
    return f"{name} = {json.dumps('none' if value is None else value)}"


def read_toml(path: Path) -> dict[str, Any]:
    """A config file as a layer for `resolve`."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise OptionError(f"cannot read {path}: {error}") from error
