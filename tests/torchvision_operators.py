"""Make torchvision importable where its compiled operators do not fit the installed torch; none of them is used here.

As a program: run another one with this done, `python torchvision_operators.py PROGRAM`.
"""

import runpy
import sys

import torch

NAMES = (
    "nms", "qnms", "roi_align", "_roi_align_backward", "qroi_align", "ps_roi_align", "_ps_roi_align_backward",
    "roi_pool", "_roi_pool_backward", "ps_roi_pool", "_ps_roi_pool_backward", "deform_conv2d",
    "_deform_conv2d_backward",
)  # fmt: skip
KEPT = []  # a library forgets its operators when it is deleted


def declare() -> None:
    """Import torchvision; if that fails for want of operators, declare their names and import it again."""
    try:
        import torchvision
    except RuntimeError:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in NAMES:
            library.define(f"{name}(Tensor x) -> Tensor")
        KEPT.append(library)
        import torchvision  # noqa: F401


if __name__ == "__main__":
    declare()
    runpy.run_path(sys.argv[1], run_name="__main__")
