"""transformers and Lightning import torchvision where it is installed, and use none of it here."""

import importlib.util

import torch

if importlib.util.find_spec("torchvision"):
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        # The index's wheel is built for CUDA: beside a CPU's torch its operators do not load, and then the
        # import fails for want of their names.
        names = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            names.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
