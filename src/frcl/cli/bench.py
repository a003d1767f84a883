"""`frcl bench`: measures, prints a table, writes a JSON file."""

from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from frcl.cli.console import bar, out, say
from frcl.errors import OptionError
from frcl.registry import suggestion

if TYPE_CHECKING:
    from frcl.bench.measure import Measurement

DEVICE = "cpu: ratios of two functions timed in turn. cuda: whole runs of the paper, in seconds."
# a test compares this with the cases
ONLY = """Only this; may be repeated. cpu: past-kl, frcl-step, plus-step, METHOD-step, wide-step, flat, plus-flat,
replay-flat, trace-swap, prediction, one-example, plus-one-example, one-example-no-task, no-task, no-task-images,
ten-seeds; with --peers: METHOD-peer. cuda: split-mnist, permuted-mnist, ten-to-one, omniglot."""
PEERS = "cpu: steps of our methods beside those of Avalanche, in turn; needs frcl[avalanche]."
AGAINST = "The JSON file of an earlier bench: prints old and new side by side."
PROFILE = "cpu: print the 15 most expensive operators of an FRCL step, and stop."


def bench(
    device: Annotated[str, Option(help=DEVICE)] = "cpu",
    only: Annotated[list[str] | None, Option(help=ONLY)] = None,
    quick: Annotated[bool, Option("--quick", help="cpu: fewer repetitions; seconds instead of minutes.")] = False,
    repeat: Annotated[int | None, Option(min=1, help="Number of repetitions; cuda: 1 by default.")] = None,
    threads: Annotated[int, Option(min=1, help="cpu: threads that torch computes with.")] = 2,
    omniglot: Annotated[bool, Option("--omniglot", help="cuda: also the 50 alphabets, 5 seeds; minutes.")] = False,
    data: Annotated[Path | None, Option(help="cuda: folder with the data files; see `frcl data`.")] = None,
    out_file: Annotated[Path, Option("--out", help="The JSON file to write.")] = Path("bench.json"),
    against: Annotated[Path | None, Option(help=AGAINST)] = None,
    strict: Annotated[bool, Option("--strict", help="Exit with 1 if a limit is missed.")] = False,
    profile: Annotated[bool, Option("--profile", help=PROFILE)] = False,
    peers: Annotated[bool, Option("--peers", help=PEERS)] = False,
) -> None:
    """Measure the speed: prints a table with the limit of each measure, and writes every repetition to a JSON file.

    On the CPU every number is the ratio of two functions timed in turn (A, B, A, B, ...), so that a busy machine
    disturbs both alike; the table has the median and the quartiles of the ratio. On CUDA whole runs with the settings
    of the paper are timed, with their accuracy beside them. A missed limit is a finding, not a failure: the exit code
    is 0, unless --strict is given.

    frcl bench --out before.json, then a change, then frcl bench --against before.json shows its effect.
    """
    from frcl.bench.measure import change_table, read_results, results_of, results_table, write_results

    before = None if against is None else read_results(against)
    if not out_file.resolve().parent.is_dir():
        raise OptionError(f"cannot write {out_file}: there is no folder {out_file.resolve().parent}")
    if device == "cpu" and (omniglot or data is not None):
        raise OptionError("--omniglot and --data are for --device cuda")
    if device != "cpu" and (quick or profile or peers):
        raise OptionError("--quick, --profile and --peers are for --device cpu")
    if profile:
        from frcl.bench import cpu

        size = cpu.Sizes(threads=threads)
        operators = cpu.profile_step(size).table(sort_by="self_cpu_time_total", row_limit=15, max_name_column_width=40)
        return say(f"{size.steps} FRCL steps: {size.step()}\n{operators}")
    if device == "cpu":
        found = _on_cpu(only, quick, repeat, threads, peers)
    else:
        found, threads = _on_cuda(device, only, omniglot, repeat or 1, data)
    results = results_of(found, device, threads)
    write_results(out_file, results)
    out.print(results_table(found))
    for one in found:
        say(f"{one.goal.name}: {one.goal.what}; {one.how}")
    say(results.describe())
    if before is not None:
        out.print(change_table(before, results))
        say(f"before: {before.describe()}")
    say(f"written: {out_file}")
    if strict and not all(one.is_met for one in found):
        raise typer.Exit(1)
    return None


def _on_cpu(only: list[str] | None, quick: bool, repeat: int | None, threads: int, beside: bool) -> "list[Measurement]":
    from frcl.bench import cpu, peers

    cases = {case.goal.name: case for case in (peers.CASES if beside else cpu.CASES)}
    chosen = [(cases[name], cases[name].count(repeat, quick)) for name in _chosen(cases, only)]
    with bar("", sum(count for _, count in chosen)) as advance:
        size = cpu.Sizes(threads=threads)
        return [case.measure(size, count, partial(advance, case.goal.what)) for case, count in chosen]


def _on_cuda(
    device: str, only: list[str] | None, omniglot: bool, repeat: int, data: Path | None
) -> "tuple[list[Measurement], int]":
    """The measurements, and the CPU threads of the runs."""
    from frcl.bench import cuda
    from frcl.experiment.environment import check_device

    if check_device(device).type != "cuda":
        raise OptionError(f"--device is cpu or cuda, not {device!r}")
    goals = {goal.name: goal for goal in cuda.GOALS}
    names = _chosen(goals, only or [name for name in goals if omniglot or name != "omniglot"])
    chosen = [goals[name] for name in names]
    configs = cuda.configurations(chosen, device, data)
    with bar("", repeat * len(configs)) as advance:
        found = cuda.measure_runs(chosen, configs, repeat, partial(advance, "whole runs"))
    return found, next(iter(configs.values())).run.threads


def _chosen(known: Collection[str], only: list[str] | None) -> list[str]:
    for name in only or ():
        if name not in known:
            raise OptionError(f"--only {name!r} is unknown{suggestion(name, known)}")
    return [name for name in known if not only or name in only]
