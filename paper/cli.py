"""`frcl reproduce`: the paper's tables and figures, and FRCL+, measured; what is there is not run again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from frcl.errors import NumericalError, OptionError

if TYPE_CHECKING:
    from frcl.experiment.keeper import Observer
    from paper.figures.base import FigureOf
    from paper.measure import Place, Session, State, Wanted
    from paper.targets import Target

RESULTS, RUNS = Path("results"), Path("runs/reproduce")
QUICK_RESULTS, QUICK_RUNS = Path("runs/quick/results"), Path("runs/quick/reproduce")
out, err = Console(), Console(stderr=True)


def reproduce(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            help="table1, table2, table3, table7, methods, frontier: measure it. figure1 to figure7, ablation: measure "
            "and draw it. page: write REPRODUCTION.md. all."
        ),
    ] = None,
    rows: Annotated[
        list[str] | None, typer.Option(help='Only cells with such a name, as in "*frcl*"; may be repeated.')
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Only the first so many seeds of a cell.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Only this seed of a cell; may be repeated.")] = None,
    show: Annotated[bool, typer.Option("--list", help="Say what is there and what is missing, and stop.")] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Measure anew, in place of what is there, also with other options.")
    ] = False,
    budget: Annotated[
        float | None, typer.Option(min=0, help="Start nothing more after so many seconds; what has begun is finished.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Everything at a tiny size, into runs/quick: shows that it runs.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    data: Annotated[Path | None, typer.Option(help="Folder with the data files; see `frcl data`.")] = None,
    results: Annotated[
        Path | None, typer.Option(help="Folder of the result files; results by default. The page stands beside it.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing but errors.")] = False,
) -> None:
    """Measure the paper's tables and figures, and write what was found beside what the paper has.

    Each cell has a small JSON file under results/, to which seeds are added: only what is missing is run. A run that
    was interrupted is taken up again. Cells that were measured with other options than they have now are left alone
    and named at the end. Each figure has its numbers in results/figures/ as CSV, from which alone it is drawn.
    """
    from frcl.experiment.environment import check_device
    from paper.figures.base import figure_in_words
    from paper.measure import Place, Session, Wanted
    from paper.targets import ALL, chosen_targets

    begin = time.monotonic()
    check_device(device)
    folders = (QUICK_RESULTS, QUICK_RUNS) if quick else (RESULTS, RUNS)
    place = Place(results or folders[0], folders[1], device, data, quick)
    asked = chosen_targets(targets or [ALL] * show, quick=quick)
    wanted = Wanted(seeds, tuple(seed or ()))
    work = [(target, _states(target, place, rows or [], wanted, again)) for target in asked]
    _check_asked([state for _, states in work for state in states], rows or [], wanted, again=again)
    say = _speaker(quiet=quiet, quick=quick)
    if show:
        for target, states in work:
            for state in states:
                say(state.in_words())
            if target.figure is not None and not rows:
                say(figure_in_words(target.figure, place.results))
        return
    may_start = (lambda: True) if budget is None else (lambda: time.monotonic() - begin < budget)
    _carry_out(work, Session(place, _observer(quiet=quiet or quick), say, may_start, again=again), some=bool(rows))


def _check_asked(states: Sequence[State], rows: Sequence[str], wanted: Wanted, *, again: bool) -> None:
    """Refuse rows and seeds that no cell has."""
    if rows and not states:
        raise OptionError(f"no cell is called {' or '.join(rows)}; --list shows their names")
    if again and wanted.only:
        raise OptionError("--again measures a cell anew, in place of all its seeds: leave --seed out")
    if wanted.only and not any(state.wanted for state in states):
        raise OptionError(f"no cell that was asked for has seed {' or '.join(map(str, wanted.only))}")


def _carry_out(work: Sequence[tuple[Target, Sequence[State]]], session: Session, *, some: bool) -> None:
    """Measure and write; a cell that diverges, or was measured with other options, does not keep the others back.

    With `some` rows asked for, only those figures are made that have one of them.
    """
    from frcl.experiment.keeper import Interrupted
    from paper.measure import attend, check_options

    every = [state for _, states in work for state in states]
    lacking = _lacking([state.cell.benchmark for state in every], session.place)
    failed = []
    try:
        for target, states in work:
            for state in states:
                try:
                    attend(state, session, lacking.get(state.cell.benchmark, ""))
                except NumericalError as error:
                    failed.append(f"{state.name}: {error}")
            if target.figure is not None and (states or not some):
                try:
                    session.say(_make(target.figure, session))
                except NumericalError as error:
                    failed.append(f"{target.name}: {error}")
            if target.write is not None:
                session.say(f"written: {target.write(session.place.results)}")
    except KeyboardInterrupt:
        raise Interrupted("stopped; the same command goes on") from None
    if failed:
        raise NumericalError("; ".join(failed))
    check_options(every)


def _states(target: Target, place: Place, rows: Sequence[str], wanted: Wanted, again: bool) -> list[State]:
    from paper.measure import chosen_cells, state_of

    cells = [] if target.table is None else chosen_cells(target.table, rows)
    return [state_of(target.name, cell, place, wanted, again=again) for cell in cells]


def _make(figure: FigureOf, session: Session) -> str:
    """Make a figure; says what was written, or why nothing was."""
    from paper.figures.base import is_kept, make_figure

    place, again = session.place, session.again
    if again or not is_kept(figure, place.results):
        if missing := _lacking(figure.needs, place):
            return f"{figure.name}: skipped, since {'; '.join(missing.values())}"
        if figure.table is None and not session.may_start():
            return f"{figure.name}: not started, the time is up"
    written = make_figure(figure, place, again=again)
    if not written:
        return f"{figure.name}: not drawn, since nothing of it is measured"
    return f"written: {', '.join([str(written[0]), *(path.suffix for path in written[1:])])}"


def _lacking(benchmarks: Sequence[str], place: Place) -> dict[str, str]:
    """Benchmarks whose data is not at hand, and why. A quick run leaves them out; a real one downloads them."""
    from paper.quick import lacking

    names = dict.fromkeys(benchmarks) if place.quick else ()
    return {name: reason for name in names if (reason := lacking(name, place.data))}


def _observer(*, quiet: bool) -> Callable[[], Observer]:
    """Who watches a run: a bar in a terminal, plain lines elsewhere, or nobody."""
    from frcl.display import Live, Plain, Silent

    if quiet:
        return Silent
    return lambda: Live(out) if out.is_terminal else Plain(out)


def _speaker(*, quiet: bool, quick: bool) -> Callable[[str], None]:
    def say(line: str) -> None:
        if not quiet:
            out.print(f"{'QUICK ' * quick}{line}", highlight=False, markup=False, soft_wrap=True)

    return say
