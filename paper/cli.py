"""`python -m paper`: measure the paper's tables and figures, and FRCL+, and write the page about them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from frcl import NumericalError, OptionError
from paper.figures.base import FigureSpec, figure_in_words, is_kept, make_figure
from paper.library import Interrupted, Live, Observer, Plain, check_device, run_app
from paper.measure import COMMAND, Place, Session, State, Wanted, attend, check_options, chosen_cells, state_of
from paper.quick import lacking
from paper.targets import ALL, Target, chosen_targets

RESULTS, RUNS = Path("paper/results"), Path("runs/paper")
QUICK_RESULTS, QUICK_RUNS = Path("runs/quick/results"), Path("runs/quick/paper")

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
out = Console()
Work = Sequence[tuple[Target, Sequence[State]]]


def main() -> None:
    run_app(app, COMMAND)


@app.command()
def reproduce(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            help="table1, table2, table3, table7, methods, streams, frontier, controls, scenarios, peers, cifar, "
            "pretrained: measure it. figure1 to figure7, "
            "ablation: measure and draw it. page: write REPRODUCTION.md. all: everything."
        ),
    ] = None,
    rows: Annotated[
        list[str] | None, typer.Option(help='Only cells whose name matches, as in "*frcl*"; may be repeated.')
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Only this many seeds of each cell, the first ones.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Only this seed of each cell; may be repeated.")] = None,
    show: Annotated[bool, typer.Option("--list", help="List what is measured and what is missing, then exit.")] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Measure again and replace the results, even those with other options.")
    ] = False,
    budget: Annotated[
        float | None, typer.Option(min=0, help="Start no run after this many seconds; a run in progress is finished.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Everything at a tiny size, into runs/quick: a check that it runs.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    data: Annotated[Path | None, typer.Option(help="Folder with the data files; see `frcl data`.")] = None,
    results: Annotated[
        Path | None,
        typer.Option(help=f"Folder of the result files, {RESULTS} by default. With another one the page is beside it."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """Measure the paper's tables and figures, and compare them with the paper.

    Each cell of a table has a small JSON file under paper/results, to which seeds are added: only missing seeds are
    run, and interrupted runs are resumed. Cells that were measured with other options than their current ones are not
    changed, and are named at the end. The numbers of each figure are in paper/results/figures as CSV, from which it is
    drawn.
    """
    begin = time.monotonic()
    check_device(device)
    folders = (QUICK_RESULTS, QUICK_RUNS) if quick else (RESULTS, RUNS)
    place = Place(results or folders[0], folders[1], device, data, quick)
    wanted = Wanted(seeds, tuple(seed or ()))
    work = [
        (target, _states(target, place, rows or [], wanted, again=again))
        for target in chosen_targets(targets or [ALL] * show, quick=quick)
    ]
    _check_asked([state for _, states in work for state in states], rows or [], wanted, again=again)
    may_start = (lambda: True) if budget is None else (lambda: time.monotonic() - begin < budget)
    say = _speaker(quiet=quiet, quick=quick)
    session = Session(place, _observer(quiet=quiet or quick), say, may_start, again=again)
    if show:
        _list(work, session, some=bool(rows))
    else:
        _carry_out(work, session, some=bool(rows))


def _states(target: Target, place: Place, rows: Sequence[str], wanted: Wanted, *, again: bool) -> list[State]:
    cells = [] if target.table is None else chosen_cells(target.table, rows)
    return [state_of(target.name, cell, place, wanted, again=again) for cell in cells]


def _check_asked(states: Sequence[State], rows: Sequence[str], wanted: Wanted, *, again: bool) -> None:
    """Refuse rows and seeds that no cell has."""
    if rows and not states:
        raise OptionError(f"no cell is called {' or '.join(rows)}; --list shows their names")
    if again and wanted.only:
        raise OptionError("--again replaces all seeds of a cell: leave --seed out")
    if wanted.only and not any(state.wanted for state in states):
        raise OptionError(f"none of these cells has seed {' or '.join(map(str, wanted.only))}")


def _list(work: Work, session: Session, *, some: bool) -> None:
    """List cells with their seeds, and figures unless only `some` rows are requested."""
    for target, states in work:
        for state in states:
            session.say(state.in_words())
        if target.figure is not None and not some:
            session.say(figure_in_words(target.figure, session.place.results))


def _carry_out(work: Work, session: Session, *, some: bool) -> None:
    """Measure, draw and write. A cell that diverges, or has results with other options, does not stop the others.

    If only `some` rows are requested, a figure is drawn only if it has one of them.
    """
    place, every = session.place, [state for _, states in work for state in states]
    missing = _missing_data([state.cell.benchmark for state in every], place)
    failed = []
    try:
        for target, states in work:
            for state in states:
                try:
                    attend(state, session, missing.get(state.cell.benchmark, ""))
                except NumericalError as error:
                    failed.append(f"{state.name}: {error}")
            if target.figure is not None and (states or not some):
                try:
                    session.say(_make(target.figure, session))
                except NumericalError as error:
                    failed.append(f"{target.name}: {error}")
            if target.write is not None:
                folder = Path() if place.results == RESULTS else place.results.parent
                session.say(f"written: {target.write(place.results, folder)}")
    except KeyboardInterrupt:
        raise Interrupted("stopped; the same command continues") from None
    if failed:
        raise NumericalError("; ".join(failed))
    check_options(every)


def _make(figure: FigureSpec, session: Session) -> str:
    """Make a figure; returns what was written, or why nothing was."""
    place, again = session.place, session.again
    if again or not is_kept(figure, place.results):
        if missing := _missing_data(figure.needs, place):
            return f"{figure.name}: skipped, since {'; '.join(missing.values())}"
        if figure.table is None and not session.may_start():
            return f"{figure.name}: not started, the time is up"
    written = make_figure(figure, place, again=again)
    if not written:
        return f"{figure.name}: not drawn, since none of its cells is measured"
    return f"written: {', '.join([str(written[0]), *(path.suffix for path in written[1:])])}"


def _missing_data(benchmarks: Sequence[str], place: Place) -> dict[str, str]:
    """Benchmarks whose data is unavailable, and why. A quick run skips them; any other downloads the data."""
    names = dict.fromkeys(benchmarks) if place.quick else ()
    return {name: reason for name in names if (reason := lacking(name, place.data))}


def _observer(*, quiet: bool) -> Callable[[], Observer]:
    """Creates the observer of a run: a progress bar in a terminal, else lines of text."""
    if quiet:
        return Observer
    return lambda: Live(out) if out.is_terminal else Plain(out)


def _speaker(*, quiet: bool, quick: bool) -> Callable[[str], None]:
    def say(line: str) -> None:
        if not quiet:
            out.print(f"{'QUICK ' * quick}{line}", highlight=False, markup=False, soft_wrap=True)

    return say
