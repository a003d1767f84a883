"""The options of the benchmarks: their meaning, their defaults, and which benchmarks have them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from frcl.augment import CropFlip
from frcl.errors import OptionError
from frcl.options import NOT_NEGATIVE, Options, option

TrainOn = Literal["train", "train+validation"]
OmniglotSplit = Literal["stratified", "drawer"]

COMMON = ("tasks", "train_on", "test_on")
PERMUTED = ("permutations", "first_identity")
IMAGES = ("crop", "flip")
OMNIGLOT = ("augment", "rotation", "shift", "omniglot_split", "alphabet_order", "size")


@dataclass(frozen=True)
class BenchmarkOptions(Options):
    """All options of all benchmarks. An option that a benchmark does not have is refused."""

    tasks: int | None = option(None, "only this many tasks, the first ones; None: all")
    # Appendix F trains on both for MNIST; for Omniglot the paper says both (Appendix A, the table of Appendix F) and
    # the training set alone (the text of Appendix F): state which one made a number.
    train_on: TrainOn = option("train+validation", "whether validation examples are trained on too")
    test_on: Literal["test", "validation"] = option(
        "test", "the examples that everything is evaluated on; validation, with train_on=train, to choose options"
    )

    permutations: int = option(10, "permuted-*: number of tasks")
    first_identity: bool = option(False, "permuted-*: do not permute the pixels of the first task")

    augment: int = option(20, "omniglot: versions of each training image, itself included; 1: no augmentation")
    rotation: float = option(15.0, "omniglot: a version is rotated by at most this many degrees", NOT_NEGATIVE, 180)
    shift: float = option(2.0, "omniglot: and moved by at most this many pixels along each axis", NOT_NEGATIVE, 28)
    omniglot_split: OmniglotSplit = option("stratified", "12/4/4 images of each character by the seed, or by drawer")
    alphabet_order: Literal["seed", "alphabetical"] = option("seed", "omniglot: the order of the alphabets")
    # The paper treats augmentation as a property of the data set, so its sum over the data runs over all versions:
    # that is the default. With "images" the KL terms weigh `augment` times more; an alphabet has only a few hundred.
    size: Literal["images", "augmented"] = option(
        "augmented", "omniglot: N of the objective: all versions, or the images they were made from"
    )

    crop: int = option(
        0, "images: random crops of training minibatches, after padding by this many zeros", NOT_NEGATIVE
    )
    flip: bool = option(False, "images: training minibatches are mirrored left to right, each image in half the steps")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.test_on == "validation" and self.train_on != "train":
            raise OptionError("test_on=validation needs train_on=train: examples cannot be both trained and tested on")

    @property
    def augmentation(self) -> CropFlip | None:
        """What changes the images of training minibatches."""
        return CropFlip(self.crop, self.flip) if self.crop or self.flip else None

    def check_for(self, kind: str, own: tuple[str, ...]) -> None:
        """Refuse an option that differs from its default and that this benchmark does not have."""
        known = (*COMMON, *own)
        for name, default in ((field.name, field.default) for field in fields(self)):
            if name not in known and (value := getattr(self, name)) != default:
                raise OptionError(f"{name}={value!r} has no meaning for {kind}; its options are {', '.join(known)}")
