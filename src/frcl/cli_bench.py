"""`frcl bench`: measures, prints a table, writes a JSON file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console

from frcl.errors import OptionError
from frcl.registry import suggestion

if TYPE_CHECKING:
    from frcl.bench.measure import Measurement

T = TypeVar("T")
out, err = Console(), Console(stderr=True)


def bench(
    device: Annotated[
        str, typer.Option(help="cpu: ratios of two functions timed in turn. cuda: whole runs of the paper, in seconds.")
    ] = "cpu",
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this; may be repeated. cpu: past-kl, frcl-step, plus-step, flat, plus-flat, trace-swap, "
            "prediction, ten-seeds. cuda: split-mnist, permuted-mnist, ten-to-one, omniglot."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="cpu: fewer repetitions; seconds instead of minutes.")] = False,
    repeat: Annotated[int | None, typer.Option(min=1, help="Number of repetitions; cuda: 1 by default.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="cpu: threads that torch computes with.")] = 2,
    omniglot: Annotated[
        bool, typer.Option("--omniglot", help="cuda: also the 50 alphabets, with 5 seeds; takes minutes.")
    ] = False,
    data: Annotated[Path | None, typer.Option(help="cuda: folder with the data files; see `frcl data`.")] = None,
    out_file: Annotated[Path, typer.Option("--out", help="The JSON file to write.")] = Path("bench.json"),
    against: Annotated[
        Path | None, typer.Option(help="The JSON file of an earlier bench: prints old and new side by side.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if a limit is missed.")] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="cpu: print the 15 most expensive operators of an FRCL step, and stop.")
    ] = False,
) -> None:
    """Measure the speed: prints a table with the limit of each measure, and writes every repetition to a JSON file.

    On the CPU every number is the ratio of two functions timed in turn (A, B, A, B, ...), so that a busy machine
    disturbs both alike; the table has the median and the quartiles of the ratio. On CUDA whole runs with the settings
    of the paper are timed, with their accuracy beside them. A missed limit is a finding, not a failure: the exit code
    is 0, unless --strict is given.

    frcl bench --out before.json, then a change, then frcl bench --against before.json shows its effect.
    """
    from frcl.bench.results import read_results

    before = None if against is None else read_results(against)
    if not out_file.resolve().parent.is_dir():
        raise OptionError(f"cannot write {out_file}: there is no folder {out_file.resolve().parent}")
    if device == "cpu":
        if omniglot or data is not None:
            raise OptionError("--omniglot and --data are for --device cuda")
        if profile:
            return _print_profile(threads)
        found = _on_cpu(only, quick, repeat, threads)
    else:
        if quick or profile:
            raise OptionError("--quick and --profile are for --device cpu")
        found, threads = _on_cuda(device, only, omniglot, repeat or 1, data)
    _conclude(found, device, threads, out_file, before)
    if strict and not all(one.is_met for one in found):
        raise typer.Exit(1)
    return None


def _conclude(
    found: list[Measurement], device: str, threads: int, out_file: Path, before: dict[str, Any] | None
) -> None:
    """Write and print the measurements, and compare them with those of before, if any."""
    from frcl.bench.results import change_table, environment_line, results_table, to_json, write_results

    def say(line: str) -> None:
        out.print(line, highlight=False, markup=False, soft_wrap=True)

    results = to_json(found, device, threads)
    write_results(out_file, results)
    out.print(results_table(found))
    for one in found:
        say(f"{one.goal.name}: {one.goal.what}; {one.how}")
    say(environment_line(results))
    if before is not None:
        out.print(change_table(before, results))
        say(f"before: {environment_line(before)}")
    say(f"written: {out_file}")


def _on_cpu(only: list[str] | None, quick: bool, repeat: int | None, threads: int) -> list[Measurement]:
    from frcl.bench.cpu import CASES, Sizes, measure_case

    chosen = [(case, case.count(repeat, quick)) for case in _chosen({case.goal.name: case for case in CASES}, only)]
    with _progress(sum(count for _, count in chosen)) as advance:
        return [
            measure_case(case, Sizes(threads=threads), count, partial(advance, case.goal.what))
            for case, count in chosen
        ]


def _on_cuda(
    device: str, only: list[str] | None, omniglot: bool, repeat: int, data: Path | None
) -> tuple[list[Measurement], int]:
    """The measurements, and the CPU threads of the runs."""
    from frcl.bench.cuda import GOALS, configurations, measure_runs
    from frcl.experiment.environment import check_device

    if check_device(device).type != "cuda":
        raise OptionError(f"--device is cpu or cuda, not {device!r}")
    goals = {goal.name: goal for goal in GOALS}
    chosen = _chosen(goals, only or [name for name in goals if omniglot or name != "omniglot"])
    configs = configurations(chosen, device, data)
    with _progress(repeat * len(configs)) as advance:
        return measure_runs(chosen, configs, repeat, partial(advance, "whole runs")), next(
            iter(configs.values())
        ).run.threads


def _print_profile(threads: int) -> None:
    from frcl.bench.cpu import Sizes
    from frcl.bench.profile import profile_table

    out.print(profile_table(Sizes(threads=threads)))


def _chosen(known: dict[str, T], only: Sequence[str] | None) -> list[T]:
    for name in only or ():
        if name not in known:
            raise OptionError(f"--only {name!r} is unknown{suggestion(name, known)}")
    return [one for name, one in known.items() if not only or name in only]


@contextmanager
def _progress(total: int) -> Iterator[Callable[[str], None]]:
    """A progress bar on a terminal, and the function that counts a repetition of the measure it names."""
    from rich.progress import Progress

    with Progress(console=err, transient=True, disable=not err.is_terminal) as bars:
        bar = bars.add_task("", total=total)
        yield lambda what: bars.update(bar, description=what, advance=1)
