"""The options that `frcl run`, `tune` and `sweep` share, what a shell completes them to, and what they resolve to."""

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from itertools import chain, count
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer import Argument, Option

from frcl.cli.console import note
from frcl.data.registry import BENCHMARKS, known_name
from frcl.errors import OptionError
from frcl.experiment.config import PLAIN, SCENARIOS, foreign, parts_of, read_toml, setting_for
from frcl.learners.options import FRCLOptions
from frcl.methods import METHODS
from frcl.options import choices_of, described
from frcl.selection import CRITERIA

BENCHMARK = "A benchmark (see `frcl list`) or the path of a .toml file that describes your own data."
METHOD = "The method, or several with commas between them; see `frcl list`."
CONFIG = "Options from a TOML file, such as the config.toml of another run."
HIDDEN = "One stream; the learner must notice where tasks change."
SCENARIO = "What the headline is: accuracy with the task, or without: class."
SET = "Any other option, as key=value; may be repeated."
DRY = "Print the resolved options, check the data files and the device, and stop."


def completed(names: Collection[str]) -> Callable[[str], list[str]]:
    """What a shell completes a word to, or the last one of a list with commas, given all the words it may be."""

    def complete(incomplete: str) -> list[str]:
        before, comma, word = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names if name.startswith(word)]

    return complete


def keys(ctx: typer.Context, incomplete: str) -> list[str]:
    """What a shell completes `key=value` to: names of options, then the words that an option may have."""
    said = [*(ctx.params.get("method") or "").split(","), *ctx.args]  # a positional argument may not be read yet
    chosen = [name for name in METHODS if name in said] or ["frcl"]
    words = {f"{name}=": None for name in PLAIN}
    for part, options in (item for method in chosen for item in parts_of(method).items()):
        for own, hint in ((one.name, get_type_hints(type(options))[one.name]) for one in fields(options)):
            name = f"{part}.{own}" if "." in incomplete.partition("=")[0] else own
            values = choices_of(hint) or (("true", "false") if hint is bool else ())
            words |= dict.fromkeys([f"{name}=", *(f"{name}={value}" for value in values if "=" in incomplete)])
    known = [word for word in words if word.startswith(incomplete) and word != "seed="]
    return [word for word in known if word != incomplete] or known


DOCS = {name: f"{doc}." for name, _, _, doc in described(FRCLOptions())}  # as `help(frcl.FRCL)` has them
INFERENCES = choices_of(get_type_hints(FRCLOptions)["inference"])
methods = completed(METHODS)
Benchmark = Annotated[str | None, Argument(help=BENCHMARK, autocompletion=completed(BENCHMARKS))]
MethodNames = Annotated[str | None, Option(help=METHOD, autocompletion=methods)]
Quiet = Annotated[bool, Option("--quiet", help="Say nothing but errors.")]
Json = Annotated[bool, Option("--json", help="Print the result as JSON, and nothing else.")]


@dataclass(frozen=True)
class Flags:
    """Options of every command that learns."""

    config: Annotated[Path | None, Option(help=CONFIG)] = None
    seeds: Annotated[str | None, Option(help="How many seeds, or which: 10, or 0,3,5.")] = None
    tasks: Annotated[int | None, Option(help="Only this many tasks, the first ones.")] = None
    points: Annotated[int | None, Option(help=DOCS["points"])] = None
    steps: Annotated[int | None, Option(help=DOCS["steps"])] = None
    selection: Annotated[str | None, Option(help=DOCS["selection"], autocompletion=completed(CRITERIA))] = None
    inference: Annotated[str | None, Option(help=DOCS["inference"], autocompletion=completed(INFERENCES))] = None
    scenario: Annotated[str | None, Option(help=SCENARIO, autocompletion=completed(SCENARIOS))] = None
    hidden_boundaries: Annotated[bool, Option("--hidden-boundaries", help=HIDDEN)] = False
    device: Annotated[str | None, Option(help="cpu or cuda.", autocompletion=completed(("cpu", "cuda")))] = None
    data: Annotated[Path | None, Option(help="Folder with the data files; see `frcl data`.")] = None
    out: Annotated[Path | None, Option(help="Folder for the results; a new folder in runs/ by default.")] = None
    settings: Annotated[list[str] | None, Option("--set", help=SET, autocompletion=keys)] = None
    dry_run: Annotated[bool, Option("--dry-run", help=DRY)] = False
    quiet: Quiet = False
    as_json: Json = False

    def layers(self, method: str, among: Sequence[str], settings: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Config file, flags and settings as layers for one of several methods.

        What it has no option for is left out with a note: flags always, the others where another of the methods has it.
        """
        file = {} if self.config is None else read_toml(self.config)
        read = {name: value for name, value in file.items() if name not in ("benchmark", "method")}
        flags = given(
            seeds=None if self.seeds is None else _seeds(self.seeds),
            device=self.device,
            scenario=self.scenario,
            data=self.data and str(self.data.resolve()),
            hidden_boundaries=self.hidden_boundaries or None,
            stream=given(tasks=self.tasks),
            learner=given(points=self.points, steps=self.steps, selection=self.selection, inference=self.inference),
        )
        chosen = (setting_for(text, method, among) for text in (self.settings or [] if settings is None else settings))
        found, skipped = [], list[str]()
        for layer, known in ((read, among), (flags, list(METHODS)), *((one, among) for one in chosen)):
            if "method" in layer:
                raise OptionError("method is the name of a method, given by --method, not by --set")
            names = foreign(layer, method, known)
            learner = {name: value for name, value in layer.get("learner", {}).items() if name not in names}
            found.append({**layer, "learner": learner} if "learner" in layer else layer)
            skipped += names
        if skipped and not self.quiet:
            note(f"method {method} has no option {', '.join(dict.fromkeys(skipped))}: skipped")
        return [*found, {"method": method}]

    def chosen(
        self, benchmark: str | None, method: str | None, otherwise: tuple[str, str] = ("split-digits", "frcl")
    ) -> tuple[str, list[str]]:
        """The benchmark and the methods: as said, or else as in the config file, or `otherwise`."""
        file = {} if self.config is None else read_toml(self.config)
        methods = (method or str(file.get("method", otherwise[1]))).split(",")
        for one in methods:
            METHODS[one]
        if len(set(methods)) < len(methods):
            raise OptionError(f"--method {method} names a method twice")
        return known_name(benchmark or str(file.get("benchmark", otherwise[0]))), methods


def shares_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with every field of `Flags`, and of its other dataclasses, as an option in place of the parameter."""
    own = inspect.signature(command, eval_str=True)
    items = own.parameters.values()
    groups: dict[str, Any] = {item.name: item.annotation for item in items if is_dataclass(item.annotation)}
    kept = [item for item in items if item.name not in groups]
    shared = [one for kind in groups.values() for one in inspect.signature(kind, eval_str=True).parameters.values()]
    ordered = [*kept[:2], *shared, *kept[2:]]  # the benchmark and the method come first in the help
    parameters = [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in ordered]

    @wraps(command)
    def call(**values: Any) -> Any:
        made = {name: kind(**{one.name: values.pop(one.name) for one in fields(kind)}) for name, kind in groups.items()}
        return command(**made, **values)

    call.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {item.name: item.annotation for item in parameters}
    return call


def given(**values: Any) -> dict[str, Any]:
    """Only what was said."""
    return {name: value for name, value in values.items() if value is not None}


def _seeds(text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise OptionError(f"--seeds wants a number, as 10, or a list, as 0,3,5; got {text!r}") from None
    if "," not in text and numbers[0] < 1:
        raise OptionError(f"--seeds must be at least 1; got {text}")
    return numbers if "," in text else list(range(numbers[0]))


def free_folder(name: str) -> Path:
    """runs/NAME, with a number behind it if that is taken."""
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(folder for one in names if not (folder := Path("runs") / one).exists())
