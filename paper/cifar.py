"""Split-CIFAR with FROMP's network, and CIFAR-100 with a pre-trained EfficientNet-Lite0."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from paper.cells import FIVE, Cell, Layer, Table
from paper.markdown import (
    NOT,
    bytes_of,
    documents_of,
    grid,
    in_percent,
    marked,
    plain_mean,
    seeds_of,
    ways_of,
)
from paper.numbers import attains, percent
from paper.store import Document

SPLIT, HUNDRED = "split-cifar", "split-cifar100"
AUGMENTED: Layer = {"stream": {"crop": 4, "flip": True}}
PUBLISHED = {  # with FROMP's network, the task given, 200 points per task
    "FROMP, Pan et al. 2020": "76.2",
    "S-FSVI, Rudner et al. 2022": "77.57 ± 0.84",
}
GOAL = 77.6  # of FRCL+, in %
METHODS = {
    "frcl": "FRCL",
    "frcl-plus": "FRCL+",
    "ewc": "EWC",
    "si": "SI",
    "lwf": "LwF",
    "vcl": "VCL",
    "replay": "BASELINE (replay)",
    "finetune": "Finetuning",
    "joint": "Joint training",
}


def _split_cells() -> Iterator[Cell]:
    for augmented, layers in ((False, ()), (True, (AUGMENTED,))):
        for method, row in METHODS.items():
            name = f"{SPLIT}-{method}" + "-augmented" * augmented
            title = row + ", crops and flips" * augmented
            yield Cell(name, SPLIT, title, ({"method": method, "scenario": "class"}, *layers), FIVE)


# -- a pre-trained network ------------------------------------------------------------------------------------------


def _network(trained: str) -> dict[str, Any]:
    return {"kind": "efficientnet-lite0", "trained": trained}


FIVE_TASKS: Layer = {"tasks": 5}  # as many as the compact files have
STEPS: Layer = {"steps": 500, "batch_size": 64, "lr_decay": 0.5}
TUNED: Layer = {**STEPS, "backbone_lr": 1e-4}
PRETRAINED_ROWS: dict[str, tuple[str, str, str, Layer]] = {  # row, method, what is trained, options of the learner
    "exact-gp": ("Exact GP on frozen features", "exact-gp", "none", {"of_network": True}),
    "frcl-plus-frozen": ("FRCL+, frozen", "frcl-plus", "none", {**STEPS, "points": 200}),
    "frcl-plus-tuned": ("FRCL+, last stage fine-tuned", "frcl-plus", "last", {**TUNED, "points": 200}),
    "finetune": ("Finetuning of the last stage", "finetune", "last", TUNED),
}


def _pretrained_cells() -> Iterator[Cell]:
    for name, (row, method, trained, learner) in PRETRAINED_ROWS.items():
        layer = {"stream": FIVE_TASKS, "network": _network(trained), "learner": learner}
        yield Cell(f"pretrained-{name}", HUNDRED, row, ({"method": method, "scenario": "class"}, layer), FIVE)


# -- the page -------------------------------------------------------------------------------------------------------

COLUMNS = (
    "", "accuracy %", "just after learning %", "forgetting %", "NLL", "ECE", "without the task %", "task inferred %",
    "bytes kept", "seeds",
)  # fmt: skip


def _row(cell: Cell, one: Document | None) -> list[str]:
    if one is None:
        return [cell.row, NOT, *[""] * 8]
    after, lost = in_percent(one, "accuracy_after_learning"), in_percent(one, "forgetting")
    without = in_percent(one, "agnostic_accuracy"), in_percent(one, "task_accuracy")
    scores = plain_mean(one, "nll"), plain_mean(one, "ece")
    return [cell.row, marked(cell, one), after, lost, *scores, *without, f"{bytes_of(one):,}", seeds_of(cell, one)]


def _published() -> Iterator[list[str]]:
    for who, value in PUBLISHED.items():
        yield [f"{who} (published)", value, *["–"] * 8]


def _rows(cells: Sequence[Cell], results: Path, table: Table, quick: bool) -> tuple[list[list[str]], dict[str, Any]]:
    found = documents_of(table, results, quick=quick)
    return [_row(cell, found.get(cell.name)) for cell in cells], found


def split_view(table: Table, results: Path, quick: bool) -> Iterator[str]:
    """All methods without and with augmentation, beside the published numbers; then how they were measured."""
    rows, found = _rows(table.cells, results, table, quick)
    yield grid(COLUMNS, [*rows, *_published()])
    verdicts = []
    for cell in table.cells:
        accuracy = percent(found[cell.name]["seeds"]) if cell.name in found else None
        if cell.method == "frcl-plus" and accuracy is not None:
            verdicts.append(f"- {cell.row}, goal {GOAL} %: {attains(accuracy, GOAL)}")
    if verdicts:
        yield "\n".join(verdicts)
    yield from ways_of(table.cells, found)


def pretrained_view(table: Table, results: Path, quick: bool) -> Iterator[str]:
    """One row for each way of using the network; then how they were measured."""
    rows, found = _rows(table.cells, results, table, quick)
    yield grid(COLUMNS, rows)
    yield from ways_of(table.cells, found)


CIFAR = Table(
    "cifar",
    "Split-CIFAR",
    "CIFAR-10, then five tasks of ten classes of CIFAR-100, one head per task and the task given at test time; "
    "without the task, where that is said, over all sixty labels. The network is FROMP's: 3×3 convolutions with 32, "
    "32, 64 and 64 filters, pooling after each pair, a dense layer of 512; 200 points per task where a method stores "
    "some. With crops and flips, training images are cropped at random after padding by 4 pixels, and mirrored in "
    "half the cases, for all methods alike, what is stored for replay too. Results without the task were measured "
    "with features of filters alone (`conv`) to infer it; the default now has their brightness too. The published "
    "numbers come from other code.",
    tuple(_split_cells()),
    view=split_view,
    quick=(f"{SPLIT}-frcl-plus-augmented", f"{SPLIT}-ewc"),
)
PRETRAINED = Table(
    "pretrained",
    "A pre-trained network on CIFAR-100",
    "The first fifty classes of CIFAR-100 as five tasks of ten, by EfficientNet-Lite0 trained on ImageNet (extra "
    "`frcl[pretrained]`), images enlarged to 128×128. Frozen: its 1,280 features are computed once for each image. "
    "Fine-tuned: its last stage, five blocks and the head, is trained with a learning rate of its own. FRCL+ keeps "
    "200 points per task.",
    tuple(_pretrained_cells()),
    view=pretrained_view,
    quick=("pretrained-exact-gp", "pretrained-frcl-plus-tuned"),
)
