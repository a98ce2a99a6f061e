"""ResNets of basic blocks: those of the paper for CIFAR-10, and ResNet18 for both sizes of image."""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

Init = Literal["fan_in", "fan_out"]


def _conv(width_in: int, width: int, size: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(width_in, width, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(width))


class Block(nn.Module):
    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = _conv(width_in, width, 3, stride)
        self.second = _conv(width, width, 3)
        # 1x1 convolution + BatchNorm, not zero padding: only so do the paper's parameter counts come out.
        same = stride == 1 and width_in == width
        self.shortcut = nn.Identity() if same else _conv(width_in, width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first(x))
        out: Tensor = F.relu(self.second(y) + self.shortcut(x))
        return out


class ResNet(nn.Module):
    """A stem, stages of basic blocks that halve the image, mean pooling, one linear layer.

    The stem is 3x3 for small images; 7x7 and pooling, a quarter of the size, for those of ImageNet.
    """

    def __init__(
        self,
        blocks: tuple[int, ...],
        widths: tuple[int, ...],
        init: Init,
        classes: int = 10,
        small: bool = True,
    ) -> None:
        super().__init__()
        self.stem, self.small = _conv(3, widths[0], 3) if small else _conv(3, widths[0], 7, 2), small
        before, layers = widths[0], []
        for stage, (count, width) in enumerate(zip(blocks, widths, strict=True)):
            for i in range(count):
                layers.append(Block(before, width, 2 if stage > 0 and i == 0 else 1))
                before = width
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(before, classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d) or (init == "fan_in" and isinstance(m, nn.Linear)):
                nn.init.kaiming_normal_(m.weight, mode=init, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = x if self.small else F.max_pool2d(x, 3, 2, 1)
        out: Tensor = self.head(self.layers(x).mean((2, 3)))
        return out


# Initialisation [S]: fan-in for convolutions and the head in the scripts the paper follows; torchvision's for
# ResNet18.
NETS: dict[str, tuple[tuple[int, ...], tuple[int, ...], Init]] = {
    "resnet20": ((3, 3, 3), (16, 32, 64), "fan_in"),
    "resnet32": ((5, 5, 5), (16, 32, 64), "fan_in"),
    "resnet18": ((2, 2, 2, 2), (64, 128, 256, 512), "fan_out"),
}
