"""The options of the benchmarks, in one place: what each means, its default, and whom it concerns."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal, get_args

from frcl.errors import OptionError

TrainOn = Literal["train", "train+validation"]
OmniglotSplit = Literal["stratified", "drawer"]
AlphabetOrder = Literal["seed", "alphabetical"]
Size = Literal["images", "augmented"]


@dataclass(frozen=True)
class BenchmarkOptions:
    """Everything that can be set on a benchmark. An option that a benchmark does not have is refused."""

    tasks: int | None = None  # only the first so many tasks; None: all

    # Appendix F trains on both for MNIST. For Omniglot the paper says both (Appendix A, and the table in
    # Appendix F) and the training set alone (the text of Appendix F): state which one made a number.
    train_on: TrainOn = "train+validation"

    # permuted-*
    permutations: int = 10  # how many tasks there are
    first_identity: bool = False  # leave the pixels of the first task in place

    # omniglot
    augment: int = 20  # versions of each training image, itself included; 1: no augmentation
    rotation: float = 15.0  # a version is turned by up to this many degrees either way
    shift: float = 2.0  # and moved by up to this many pixels along each axis
    omniglot_split: OmniglotSplit = "stratified"  # 12/4/4 images of each character by the seed, or by drawer
    alphabet_order: AlphabetOrder = "seed"  # the order in which the alphabets come

    # N of the objective: all versions, or the images they were made from. The paper treats augmentation as
    # a property of the data set, so its sum over the data runs over all versions: that is the default. With
    # "images" the KL terms weigh `augment` times more; an alphabet has only a few hundred images.
    size: Size = "augmented"

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise OptionError(f"{name}={getattr(self, name)!r} is unknown; choose one of {', '.join(choices)}")
        for name in ("tasks", "permutations", "augment"):
            value = getattr(self, name)
            if name == "tasks" and value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise OptionError(f"{name} must be a whole number of at least 1, not {value!r}")
        for name, highest in (("rotation", 180.0), ("shift", 28.0)):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not math.isfinite(value) or not 0 <= value <= highest:
                raise OptionError(f"{name} must be a number from 0 to {highest:g}, not {value!r}")
        if not isinstance(self.first_identity, bool):
            raise OptionError(f"first_identity must be true or false, not {self.first_identity!r}")

    def check_for(self, kind: str, concerned: tuple[str, ...]) -> None:
        """Refuse an option that was changed from its default and means nothing to this benchmark."""
        for field in fields(self):
            if field.name in (*COMMON, *concerned) or getattr(self, field.name) == field.default:
                continue
            raise OptionError(
                f"{field.name}={getattr(self, field.name)!r} has no meaning for {kind}; "
                f"its options are {', '.join((*COMMON, *concerned))}"
            )


COMMON = ("tasks", "train_on")
PERMUTED = ("permutations", "first_identity")
OMNIGLOT = ("augment", "rotation", "shift", "omniglot_split", "alphabet_order", "size")

_CHOICES: dict[str, tuple[str, ...]] = {
    "train_on": get_args(TrainOn),
    "omniglot_split": get_args(OmniglotSplit),
    "alphabet_order": get_args(AlphabetOrder),
    "size": get_args(Size),
}
