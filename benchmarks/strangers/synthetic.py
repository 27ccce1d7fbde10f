"""Data sets that need no download, in the place of torchvision's."""

from __future__ import annotations

from typing import Any

import torch

_IMAGES = 96


def load_synthetic() -> None:
    """Let torchvision's data sets hold a few images of noise from now on."""
    from torchvision import datasets

    datasets.MNIST = _of_images(datasets.MNIST, (28, 28), 10)
    datasets.FashionMNIST = _of_images(datasets.FashionMNIST, (28, 28), 10)
    datasets.CIFAR10 = _of_images(datasets.CIFAR10, (32, 32, 3), 10)


def _of_images(original: Any, shape: tuple[int, ...], classes: int) -> Any:
    if getattr(original, "synthetic", False):
        return original

    class Synthetic(original):  # type: ignore[misc]
        """As the original, with noise instead of what it would download."""

        synthetic = True

        def __init__(
            self,
            root: Any = None,
            train: bool = True,
            transform: Any = None,
            target_transform: Any = None,
            download: bool = False,
        ) -> None:
            del download
            self.root, self.train = root, train
            self.transform, self.target_transform = transform, target_transform
            self.transforms = None
            dice = torch.Generator().manual_seed(int(train))
            noise = torch.randint(0, 256, (_IMAGES, *shape), generator=dice)
            labels = torch.randint(0, classes, (_IMAGES,), generator=dice)
            pixels = noise.to(torch.uint8)
            colour = len(shape) == 3
            self.data = pixels.numpy() if colour else pixels
            self.targets = labels.tolist() if colour else labels
            self.classes = getattr(original, "classes", [*map(str, range(classes))])

    Synthetic.__name__ = original.__name__
    return Synthetic
