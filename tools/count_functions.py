"""Count the functions and files of `frcl` that one fit() or observe() on the CPU runs through.

python tools/count_functions.py          # prints the counts
python tools/count_functions.py --names  # and every function
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import frcl

PACKAGE = Path(frcl.__file__).parent


def touched(work: Callable[[], object]) -> set[tuple[str, str]]:
    """(file, function) of every function of the package that `work` calls; comprehensions belong to their function."""
    seen: set[tuple[str, str]] = set()

    def look(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        inside = code.co_filename.startswith(str(PACKAGE))
        if (
            event == "call"
            and inside
            and not code.co_name.startswith(("<listcomp", "<genexpr", "<dictcomp", "<setcomp"))
        ):
            seen.add((str(Path(code.co_filename).relative_to(PACKAGE)), code.co_qualname))

    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
    return seen


def measured() -> dict[str, set[tuple[str, str]]]:
    """What the second task of a plain learner touches: fit() on all its data, observe() on one minibatch."""
    x = torch.randn(200, 8, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()

    def learner() -> frcl.FRCL:
        one = frcl.FRCL(frcl.MLP(8, (16, 8)), points=10, steps=5)
        one.fit(x, y)
        return one

    fitted, streamed = learner(), learner()
    streamed.start_task(labels=(0, 1))
    return {"fit": touched(lambda: fitted.fit(x, y)), "observe": touched(lambda: streamed.observe(x[:32], y[:32]))}


def main() -> None:
    for name, functions in measured().items():
        files = {file for file, _ in functions}
        print(f"{name}: {len(functions)} functions in {len(files)} files")
        if "--names" in sys.argv:
            for file, function in sorted(functions):
                print(f"    {file}: {function}")


if __name__ == "__main__":
    main()
