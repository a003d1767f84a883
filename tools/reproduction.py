"""REPRODUCTION.md from the result files under results/: nothing in it is typed by hand.

python tools/reproduction.py            write REPRODUCTION.md
python tools/reproduction.py FILE...    first take in result.json files of new runs, slimmed, into results/methods
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "methods"
PAGE = ROOT / "REPRODUCTION.md"
DROPPED = ("steps", "calibration", "boundaries", "score", "format", "version")
BENCHMARKS = ("split-mnist", "permuted-mnist", "omniglot")
ORDER = (
    "single", "joint", "progressive", "finetune", "lwf", "ewc", "online-ewc", "dlp", "si", "pnc",
    "vcl", "vcl-random", "vcl-kcenter", "replay", "frcl",
)  # fmt: skip
PAPER = {  # what the paper quotes or measures in its Table 1 (Split- and Permuted-MNIST)
    "split-mnist": {
        "dlp": "61.2", "ewc": "63.1", "si": "98.9", "vcl": "97.0", "vcl-random": "98.4", "replay": "95.8",
        "frcl": "97.8",
    },
    "permuted-mnist": {
        "dlp": "82", "ewc": "84", "si": "86", "vcl": "90", "vcl-random": "93", "vcl-kcenter": "93", "replay": "82.3",
        "frcl": "94.3",
    },
    "omniglot": {},
}  # fmt: skip
HEADINGS = (
    "method", "average accuracy %", "just after learning %", "forgetting %", "NLL", "bytes kept", "seeds", "paper",
)  # fmt: skip


def take_in(path: Path) -> None:
    """Keep a slim copy of a result."""
    result = json.loads(path.read_text())
    slim = {name: value for name, value in result.items() if name not in DROPPED}
    options = slim["config"]
    slim["command"] = f"frcl run {slim['benchmark']} --method {slim['method']} --seeds {len(slim['seeds'])}" + (
        f" --tasks {options['stream']['tasks']}" if options["stream"]["tasks"] else ""
    )
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{slim['benchmark']}-{slim['method']}.json").write_text(json.dumps(slim, indent=1) + "\n")


def percent(summary: dict[str, Any] | None) -> str:
    if summary is None:
        return "not available"
    spread = "" if summary["std"] is None else f" ± {100 * summary['std']:.2f}"
    return f"{100 * summary['mean']:.2f}{spread}"


def table(benchmark: str) -> list[str]:
    """One row a method, in a fixed order; what was not run says so."""
    lines = [f"| {' | '.join(HEADINGS)} |", "|---" * len(HEADINGS) + "|"]
    for method in ORDER:
        path = RESULTS / f"{benchmark}-{method}.json"
        quoted = PAPER[benchmark].get(method, "")
        if not path.is_file():
            lines.append(f"| `{method}` | not measured | | | | | | {quoted} |")
            continue
        found = json.loads(path.read_text())
        nll = "not available" if found["nll"] is None else f"{found['nll']['mean']:.3f}"
        lines.append(
            f"| `{method}` | {percent(found['average_accuracy'])} | {percent(found['accuracy_after_learning'])} "
            f"| {percent(found['forgetting'])} | {nll} | {found['memory_bytes']['total']:,} "
            f"| {len(found['seeds'])} | {quoted} |"
        )
    return lines


def details(benchmark: str) -> list[str]:
    """Commands, devices and commits of the rows."""
    lines = []
    for method in ORDER:
        path = RESULTS / f"{benchmark}-{method}.json"
        if path.is_file():
            found = json.loads(path.read_text())
            place = found["environment"]
            lines.append(
                f"- `{found['command']}` — {place['device']}, torch {place['torch']}, "
                f"{found['seconds']['total']:.0f} s, commit {place['commit'] or 'unknown'}"
            )
    return lines


def page() -> str:
    """The whole of REPRODUCTION.md."""
    lines = [
        "# Reproduction",
        "",
        "Every number here comes from a result file under `results/`; `python tools/reproduction.py` writes this page",
        "from them, and a test compares. Networks, rates, batch sizes and steps are those of the paper's Appendix F;",
        "strengths were chosen on validation data by `frcl tune` (`src/frcl/experiment/defaults.toml` says which).",
        "All methods have one head a task and are told the task. One seed a row unless the row says more.",
        "Times are not comparable between rows: many runs shared the machine.",
    ]
    for benchmark in BENCHMARKS:
        title = {
            "split-mnist": "Split-MNIST",
            "permuted-mnist": "Permuted-MNIST",
            "omniglot": "Omniglot, first five alphabets",
        }
        lines += ["", f"## {title[benchmark]}", "", *table(benchmark), "", "Commands:", "", *details(benchmark)]
    return "\n".join(lines) + "\n"


def main() -> None:
    for name in sys.argv[1:]:
        take_in(Path(name))
    PAGE.write_text(page())
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
