"""Peers in this harness against their published numbers: the published network, memory, steps and hyper-parameters.

A method is added by its rows in `PEERS`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paper.cells import FIVE, Cell, Layer, Paper, Table
from paper.markdown import NOT, TITLES, bytes_of, documents_of, grid, in_percent, marked, seeds_of, ways_of
from paper.numbers import agreement, percent
from paper.reasons import NOT_KNOWN, read_reasons
from paper.store import Document

NAMED, NOT_NAMED = "average_accuracy", "agnostic_accuracy"  # with the task of an input named, and without


@dataclass(frozen=True)
class Peer:
    """A method as its authors measured it."""

    name: str  # of the cell, after that of the benchmark
    benchmark: str
    title: str
    setting: str  # scenario, network, memory and steps in words
    published: str  # in %
    source: str
    layers: tuple[Layer, ...]  # the first names the method
    metric: str = NOT_NAMED
    seeds: tuple[int, ...] = FIVE

    @property
    def cell(self) -> Cell:
        paper = Paper(self.published, quoted=True, remark=self.source)
        return Cell(f"{self.benchmark}-{self.name}", self.benchmark, self.title, self.layers, self.seeds, paper)


BUZZEGA, PRABHU = "Buzzega et al., 2020", "Prabhu et al., 2020"
ONE_EPOCH = "class-incremental, 100-100, {} images in all, 6,000 steps of 10 (one epoch)"
PAN, RUDNER = "Pan et al., 2020", "Rudner et al., 2022"
ONE_HEAD = "one head for all tasks, 100-100, 200 images per task, 4,690 steps of 128"
SPLIT, PERMUTED = "split-mnist", "permuted-mnist"


def _layers(method: str, width: int, **learner: Any) -> tuple[Layer, ...]:
    """SGD on a network of two hidden layers with ReLU, and one head with ten labels from the beginning."""
    network = {"widths": [width, width], "last": "relu"}
    own = {"optimiser": "sgd", "classes": 10, **learner}
    return {"method": method, "scenario": "class"}, {"network": network, "learner": own}


def _one_epoch(method: str, points: int, **learner: Any) -> tuple[Layer, ...]:
    return _layers(method, 100, points=points, steps=1200, batch_size=10, momentum=0.0, **learner)


def _gdumb(width: int, points: int) -> tuple[Layer, ...]:
    """The published rate falls from 0.05 in cycles, with batch norm; constant, 0.01 is the best on validation data."""
    crops: Layer = {"stream": {"crop": 4}}
    own = {"points": points, "steps": 128 * points // 16, "batch_size": 16, "momentum": 0.9, "lr": 0.01}
    return *_layers("gdumb", width, **own), crops


def _functional(method: str) -> tuple[Layer, ...]:
    """The authors' settings are the defaults of the benchmarks; both hidden layers have a ReLU."""
    return {"method": method}, {"network": {"last": "relu"}}


PEERS = (
    Peer("derpp-200", SPLIT, "DER++", ONE_EPOCH.format(200), "85.61 ± 1.40", BUZZEGA,
         _one_epoch("derpp", 200, lr=0.03, memory_batch=128, alpha=0.2, beta=1.0)),
    Peer("er-200", SPLIT, "ER", ONE_EPOCH.format(200), "80.43 ± 1.89", BUZZEGA,
         _one_epoch("er", 200, lr=0.01, memory_batch=10)),
    Peer("gdumb-500", SPLIT, "GDumb", "class-incremental, 400-400, 500 images in all, 128 passes in steps of 16",
         "91.9 ± 0.5", PRABHU, _gdumb(400, 500)),
    Peer("gdumb-500-small", SPLIT, "GDumb", "the same, 100-100", "90.2 ± 0.4", PRABHU, _gdumb(100, 500)),
    Peer("fromp", SPLIT, "FROMP", "a head per task, 256-256, 40 images per task, 1,410 steps of 128 (15 epochs)",
         "99.0 ± 0.1", PAN, _functional("fromp"), NAMED),
    Peer("fromp", PERMUTED, "FROMP", f"{ONE_HEAD} (10 epochs)", "94.9 ± 0.1", PAN, _functional("fromp")),
    Peer("sfsvi", SPLIT, "S-FSVI", "a head per task, 256-256, 40 images per task, 5,640 steps of 128 (60 epochs)",
         "99.54 ± 0.04", RUDNER, _functional("sfsvi"), NAMED),
    Peer("sfsvi", PERMUTED, "S-FSVI", f"{ONE_HEAD} (10 epochs)", "95.76 ± 0.02", RUDNER, _functional("sfsvi")),
)  # fmt: skip


COLUMNS = ("peer", "setting", "published %", "ours %", "agrees", "seeds", "with the task %", "bytes kept")


def peers_view(table: Table, results: Path, quick: bool) -> Iterator[str]:
    """One table, the reasons of rows that do not agree, then how it was measured."""
    found = documents_of(table, results, quick=quick)
    yield grid(COLUMNS, [_row(peer, found.get(peer.cell.name)) for peer in PEERS])
    if reasons := list(_reasons(found)):
        yield "\n".join(reasons)
    yield from ways_of(table.cells, found)


def _agrees(peer: Peer, one: Document | None) -> str:
    return "" if one is None else agreement(peer.cell, percent(one["seeds"], peer.metric))


def _row(peer: Peer, one: Document | None) -> list[str]:
    cell = peer.cell
    first = [f"{peer.title}, {TITLES[peer.benchmark]}", peer.setting, f"{peer.published} ({peer.source})"]
    if one is None:
        return [*first, NOT, *[""] * 4]
    ours = [marked(cell, one, metric=peer.metric), _agrees(peer, one), seeds_of(cell, one)]
    return [*first, *ours, in_percent(one, NAMED), f"{bytes_of(one):,}"]


def _reasons(found: dict[str, Document]) -> Iterator[str]:
    known = read_reasons().get("peers", {})
    for peer in PEERS:
        name = peer.cell.name
        if _agrees(peer, found.get(name)) not in ("", "yes"):
            yield f"- Why {peer.title} ({peer.setting}) differs: {known.get(name, NOT_KNOWN)}"


PEERS_TABLE = Table(
    "peers",
    "Peers and their published numbers",
    "Methods of other authors in this harness, with the network, the memory, the steps and the hyper-parameters with "
    "which they were published; five seeds. A row agrees if our mean is within two standard deviations of the "
    "published one, above or below. Class-incremental: no task is named, and the ten digits are ten classes; ER, "
    "DER++ and GDumb have [one head](docs/methods.md#one-head-and-a-memory) for all of them, and are run with SGD and "
    "`classes = 10` as by their authors; GDumb with its crops, but without batch norm, and with a constant learning "
    "rate, the best of 0.005, 0.01, 0.02 and 0.05 on validation data. Their memory is one for all tasks together. In "
    "the column with the task they have the softmax over the two digits of the task. Images are kept as bytes. "
    "FROMP and S-FSVI have [a memory for each task](docs/methods.md#fromp-and-s-fsvi); with a head for each task the "
    "task is named, with one head it need not be.",
    tuple(peer.cell for peer in PEERS),
    view=peers_view,
)
