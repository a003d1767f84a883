"""The cells of the paper's tables: the options of each, and the value that the paper prints.

Values are written as in the paper: per cent, mean ± standard deviation; in Table 3 precision/recall/F1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paper.library import Config, resolve

Layer = Mapping[str, Any]


@dataclass(frozen=True)
class Paper:
    """A value of the paper: its own measurement, or one that it quotes."""

    value: str  # "61.7 ± 1.8", or without a standard deviation
    quoted: bool = False
    remark: str = ""


@dataclass(frozen=True)
class Cell:
    """One row of a table on one benchmark."""

    name: str
    benchmark: str
    row: str  # its name on the page
    layers: tuple[Layer, ...]  # options that differ from the defaults of the benchmark; the first names the method
    seeds: tuple[int, ...]
    paper: Paper | None = None
    thresholds: Mapping[float, str] = field(default_factory=dict)  # hidden boundaries: the paper's value at each

    @property
    def method(self) -> str:
        return str(self.layers[0]["method"])

    def config(self, *layers: Layer) -> Config:
        """All options of its runs; `layers` are applied on top."""
        return resolve(self.benchmark, *self.layers, *layers)


@dataclass(frozen=True)
class Table:
    """Cells in the order in which they are run, the most important first."""

    name: str
    title: str
    note: str  # the introduction of its section on the page
    cells: tuple[Cell, ...]
    view: View | None = None  # renders its section of the page; None: one table of all metrics per benchmark
    sample: tuple[str, ...] = ()  # names of the cells used by a quick figure; empty: all
    quick: tuple[str, ...] = ()  # names of the cells of a quick run of the table; empty: all


View = Callable[[Table, Path, bool], Iterator[str]]  # the table, the folder of results, quick or not
TEN, FIVE, THREE, ONE = tuple(range(10)), tuple(range(5)), tuple(range(3)), (0,)
MNIST, OMNIGLOT = ("permuted-mnist", "split-mnist"), "omniglot"

RECENTRED: Layer = {
    "functional": 0.0, "recentred": 1.0, "prediction": "corrected", "u_noise": 0.1, "lr_decay": 0.5,
    "initial_mean": "aligned",
}  # fmt: skip
ROWS: dict[str, tuple[str, Layer]] = {
    "frcl-trace": ("FRCL (trace)", {"method": "frcl", "learner": {"selection": "trace"}}),
    "frcl-random": ("FRCL (random)", {"method": "frcl", "learner": {"selection": "random"}}),
    "frcl-elbo": ("FRCL (elbo)", {"method": "frcl", "learner": {"selection": "elbo"}}),
    "frcl-error": ("FRCL (error)", {"method": "frcl", "learner": {"selection": "error"}}),
    "frcl-predictive": ("FRCL (predictive)", {"method": "frcl", "learner": {"selection": "predictive"}}),
    "frcl-recentred": ("FRCL, recentred", {"method": "frcl", "learner": RECENTRED}),
    "baseline": ("BASELINE", {"method": "replay"}),
    "dlp": ("DLP", {"method": "dlp"}),
    "ewc": ("EWC", {"method": "ewc"}),
    "online-ewc": ("Online EWC", {"method": "online-ewc"}),
    "si": ("SI", {"method": "si"}),
    "vcl": ("VCL", {"method": "vcl"}),
    "vcl-random": ("VCL + random coreset", {"method": "vcl-random"}),
    "vcl-kcenter": ("VCL + k-center coreset", {"method": "vcl-kcenter"}),
    "single": ("Single model per task", {"method": "single"}),
    "progressive": ("Progressive nets", {"method": "progressive"}),
    "finetune": ("Finetuning", {"method": "finetune"}),
    "lwf": ("Learning without forgetting", {"method": "lwf"}),
    "pnc": ("Progress & compress", {"method": "pnc"}),
}


# -- Table 1 ------------------------------------------------------------------------------------------------

MEASURED_1: dict[str, dict[str, dict[int, str | None]]] = {  # by points per task
    "frcl-trace": {
        "permuted-mnist": {10: "61.7 ± 1.8", 200: "94.3 ± 0.2"},
        "split-mnist": {2: "82.0 ± 5.0", 40: "97.8 ± 0.7"},
    },
    "frcl-random": {
        "permuted-mnist": {10: "48.2 ± 4.0", 200: "94.2 ± 0.1"},
        "split-mnist": {2: "59.8 ± 8.0", 40: "97.1 ± 0.7"},
    },
    "baseline": {
        "permuted-mnist": {10: "48.6 ± 1.7", 200: "82.3 ± 0.3"},
        "split-mnist": {2: None, 40: "95.8 ± 1.1"},
    },
}
QUOTED_1 = {  # from Nguyen et al. (2017); Permuted-MNIST, Split-MNIST
    "dlp": ("82", "61.2"),
    "ewc": ("84", "63.1"),
    "si": ("86", "98.9"),
    "vcl": ("90", "97.0"),
    "vcl-random": ("93", "98.4"),
    "vcl-kcenter": ("93", "98.4"),
}
CORESET = {"permuted-mnist": 200, "split-mnist": 40}
UNSAID = "how its coreset was chosen is not stated"  # for the value 98.4


def _table_1() -> Iterator[Cell]:
    for row, columns in MEASURED_1.items():
        for benchmark, by_points in columns.items():
            for points, value in by_points.items():
                paper = None if value is None else Paper(value)
                yield make_cell(benchmark, row, TEN, paper, {"points": points}, f"{points} points")
    for row in QUOTED_1:
        for benchmark in MNIST:
            coreset = {"points": CORESET[benchmark]} if row in ("vcl-random", "vcl-kcenter") else {}
            label = f"{coreset['points']} points" if coreset else ""
            yield make_cell(benchmark, row, TEN, _quoted_1(benchmark, row), coreset, label)


def _quoted_1(benchmark: str, row: str) -> Paper:
    value = QUOTED_1[row][MNIST.index(benchmark)]
    return Paper(value, quoted=True, remark=UNSAID if value == "98.4" else "")


def make_cell(
    benchmark: str,
    row: str,
    seeds: tuple[int, ...],
    paper: Paper | None,
    learner: Mapping[str, Any],
    label: str,
    *layers: Layer,
) -> Cell:
    """A cell with options of its own for the learner; `label` describes them on the page and in the name."""
    title, first = ROWS[row]
    name = "-".join((benchmark, row, *label.split()[:1]))
    own: tuple[Layer, ...] = ({"learner": learner},) if learner else ()
    return Cell(name, benchmark, ", ".join(filter(None, (title, label))), (first, *layers, *own), seeds, paper)


# -- Table 2 ------------------------------------------------------------------------------------------------

MEASURED_2 = {  # 1, 2, 3 points per character
    "frcl-trace": ("72.02 ± 1.3", "81.47 ± 1.6", "81.01 ± 1.1"),
    "frcl-random": ("69.74 ± 1.1", "80.32 ± 2.5", "81.42 ± 1.2"),
    "baseline": ("42.73 ± 1.2", "57.17 ± 1.2", "65.32 ± 1.1"),
}
QUOTED_2 = {  # from Schwarz et al. (2018)
    "single": "88.34",
    "progressive": "86.50 ± 0.9",
    "finetune": "26.20 ± 4.6",
    "lwf": "62.06 ± 2.0",
    "ewc": "67.32 ± 4.7",
    "online-ewc": "69.99 ± 3.2",
    "pnc": "70.32 ± 3.3",
}


def per_character(points: int) -> str:
    return f"{points} point{'s' * (points > 1)} per character"


def _table_2() -> Iterator[Cell]:
    for row, values in MEASURED_2.items():
        # Appendix D shows random points with the same number of each character
        start = {"start": "balanced"} if row.startswith("frcl") else {}
        for points, value in enumerate(values, 1):
            learner = {"points_per_class": points, **start}
            yield make_cell(OMNIGLOT, row, FIVE, Paper(value), learner, per_character(points))
    for row, value in QUOTED_2.items():
        yield make_cell(OMNIGLOT, row, FIVE, Paper(value, quoted=True), {}, "")


# -- Table 3 ------------------------------------------------------------------------------------------------

BOUNDARIES_3 = {  # precision/recall/F1 at a threshold
    "split-mnist": {
        4.0: "0.94/1.0/0.97", 5.0: "1.0/1.0/1.0", 6.0: "1.0/1.0/1.0", 7.0: "1.0/1.0/1.0", 8.0: "1.0/1.0/1.0",
    },
    "permuted-mnist": {
        4.0: "0.43/0.98/0.60", 5.0: "0.95/0.94/0.94", 6.0: "1.0/0.91/0.95", 7.0: "1.0/0.91/0.95",
        8.0: "1.0/0.86/0.92",
    },
    "omniglot": {
        4.0: "0.13/0.90/0.23", 5.0: "0.71/0.75/0.73", 6.0: "0.89/0.59/0.71", 7.0: "0.89/0.46/0.60",
        8.0: "0.88/0.32/0.46",
    },
}  # fmt: skip


CALM_3: Layer = {"initial_std": 4.0}  # q starts wide, as in Algorithm 1, which has L = I: scores drift least
ONE_AGAIN_3: Layer = {"window": 1, "rescore": True}
WINDOWS_3: dict[str, Layer] = {  # the reference of the boundary test, by row
    "window of 1": {"window": 1},
    "window of 1, scored again": ONE_AGAIN_3,
    "window of 10": {"window": 10},
    "window of 10, scored again": {"window": 10, "rescore": True},
}


def _table_3() -> Iterator[Cell]:
    """The reference of the test is the last minibatch, as in the paper, or the last ten, as the paper suggests.

    A reference that is scored again does not drift, so the learner has the defaults of the benchmark. On Omniglot, a
    learner that misses a switch ends up with a dead network, on which the test means nothing. There the learner acts
    on the test with ten minibatches, and has options with which the scores of 32 examples vary less by chance.
    """
    for row, window in WINDOWS_3.items():
        for benchmark, printed in BOUNDARIES_3.items():
            again = window.get("rescore", False)
            weak = benchmark == OMNIGLOT and window == ONE_AGAIN_3
            beside = {"window": 10, "beside": 1} if weak else {}
            layer = {
                "method": "frcl",
                "hidden_boundaries": True,
                "learner": CALM_3 if weak or not again else {},
                "detector": {"threshold": 5.0, **window, **beside, "thresholds": list(printed)},
            }
            seeds = FIVE if benchmark == OMNIGLOT else TEN
            name = f"{benchmark}-window-{window['window']}{'-again' * again}"
            paper = printed if window["window"] == 1 else {}
            yield Cell(name, benchmark, row, (layer,), seeds, thresholds=paper)


# -- Table 7 ------------------------------------------------------------------------------------------------

MEASURED_7: dict[str, tuple[str, ...]] = {  # 1, 2, 3 points per character
    "frcl-trace": ("48.84 ± 1.1", "52.10 ± 1.2", "53.86 ± 2.3"),
    "vcl-random": ("49.18 ± 2.1", "50.5 ± 1.2", "51.64 ± 1.0"),
    "vcl-kcenter": ("48.89 ± 1.1", "49.58 ± 1.4", "49.61 ± 1.0"),
}
WITHOUT_CORESET_7 = "48.4 ± 0.7"
MLP_7 = {"network": {"kind": "mlp", "widths": [256, 256, 256, 256]}}
FRCL_7 = {
    "steps": 1500,
    "batch_size": 100,
    "lr": 1e-4,
    "search_steps": 2000,
    "start": "balanced",
    "initial_std": 0.05,  # at this lr a larger one does not decay in time
}
VCL_7 = {
    "steps": 520,  # 100 epochs of an alphabet of average size: 1623 · 16 / 50 drawings in batches of 100
    "batch_size": 100,
    "lr": 1e-3,
}
ADAPT_7 = {"adapt_steps": 50, "adapt_lr": 1e-3}  # 50 epochs; a coreset is about one batch


def _table_7() -> Iterator[Cell]:
    for row, values in MEASURED_7.items():
        for points, value in enumerate(values, 1):
            learner = FRCL_7 if row == "frcl-trace" else VCL_7 | ADAPT_7
            own = {**learner, "points_per_class": points}
            yield make_cell(OMNIGLOT, row, FIVE, Paper(value), own, per_character(points), MLP_7)
    yield make_cell(OMNIGLOT, "vcl", FIVE, Paper(WITHOUT_CORESET_7), VCL_7, "", MLP_7)


# -- all methods ------------------------------------------------------------------------------------------------

METHODS_IN_ORDER = (
    "frcl", "frcl-plus", "replay", "single", "joint", "progressive", "finetune", "lwf", "ewc", "online-ewc", "dlp",
    "si", "pnc", "vcl", "vcl-random", "vcl-kcenter",
)  # fmt: skip
ALPHABETS = 5  # the number of alphabets of Omniglot
SAME_AS = {"frcl": "frcl-trace", "replay": "baseline"}  # rows of Table 1 with the defaults of a method


def _methods() -> Iterator[Cell]:
    for benchmark in ("split-mnist", "permuted-mnist", OMNIGLOT):
        few: tuple[Layer, ...] = ({"stream": {"tasks": ALPHABETS}},) if benchmark == OMNIGLOT else ()
        for method in METHODS_IN_ORDER:
            paper = None if benchmark == OMNIGLOT else _paper_of(benchmark, method)
            layers = ({"method": method}, *few)
            yield Cell(f"{benchmark}-{method}", benchmark, f"`{method}`", layers, ONE, paper)


def _paper_of(benchmark: str, method: str) -> Paper | None:
    """The value of Table 1 for a method, at the default number of points."""
    if method in SAME_AS:
        value = MEASURED_1[SAME_AS[method]][benchmark][CORESET[benchmark]]
        return None if value is None else Paper(value)
    return _quoted_1(benchmark, method) if method in QUOTED_1 else None


# -- all tables ------------------------------------------------------------------------------------------------

TABLES = (
    Table(
        "table1",
        "Table 1: Permuted-MNIST and Split-MNIST",
        "Average test accuracy after the last task, ten seeds. The seed sets permutations, splits and initial weights.",
        tuple(_table_1()),
    ),
    Table(
        "table2",
        "Table 2: sequential Omniglot",
        "Average test accuracy after 50 alphabets, five orders of the alphabets.",
        tuple(_table_2()),
    ),
    Table(
        "table3",
        "Table 3: task boundary detection",
        "Precision/recall/F1 of the switches found in a stream with hidden boundaries, means over seeds. The learner "
        "acts on threshold 5; the other thresholds are replayed on the recorded statistic (docs/metrics.md). A window "
        "of 1, scored once, is Algorithm 1, with a q(w) that starts wide. Windows of 10, which the paper suggests, and "
        "references that are scored again by the current network are not. On Omniglot the learner of the row `window "
        "of 1, scored again` acts on the test with a window of 10. The accuracy is that after the last task, with the "
        "task of a test input named.",
        tuple(_table_3()),
    ),
    Table(
        "table7",
        "Table 7: Omniglot with an MLP",
        "Average test accuracy after 50 alphabets with four hidden layers of 256, five orders of the alphabets.",
        tuple(_table_7()),
    ),
    Table(
        "methods",
        "Every method, one seed",
        "All methods of `frcl list` with their defaults; the first five alphabets of Omniglot. The paper's values are "
        "those of Table 1.",
        tuple(_methods()),
    ),
)


# -- Figure 3 ------------------------------------------------------------------------------------------------

POINTS_3 = {"split-mnist": (2, 10, 40), "permuted-mnist": (10, 50, 200)}  # per task
CRITERIA_3 = ("frcl-trace", "frcl-random", "frcl-elbo", "frcl-error", "frcl-predictive")


def _figure_3() -> Iterator[Cell]:
    """Every criterion with every number of points, except for the cells of Table 1."""
    in_table_1 = {cell.name for cell in TABLES[0].cells}
    for benchmark, numbers in POINTS_3.items():
        for points in numbers:
            for row in CRITERIA_3:
                cell = make_cell(benchmark, row, THREE, None, {"points": points}, f"{points} points")
                if cell.name not in in_table_1:
                    yield cell


FIGURE_3 = Table(
    "figure3",
    "Figure 3: criteria for choosing inducing points",
    "Average test accuracy after the last task, three seeds; the other cells of the figure are in Table 1. Cells with "
    "the same number of points differ only in the criterion.",
    tuple(_figure_3()),
    sample=tuple(f"{benchmark}-{row}-{points[0]}" for benchmark, points in POINTS_3.items() for row in CRITERIA_3),
)
