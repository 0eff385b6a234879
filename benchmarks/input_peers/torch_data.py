"""A PyTorch dataset of the files, and the tasks as torchvision transforms. Runs in the environments of peers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import Dataset, Sampler
from torchvision import transforms

from benchmarks.input_peers.script import AREA, ASPECT, CIFAR_MEAN, CIFAR_STD, TASKS, Job


class Files(Dataset):
    """Images in class folders, as `torchvision.datasets.ImageFolder` reads them: opened with Pillow, as RGB."""

    def __init__(self, job: Job) -> None:
        self.files = job.files()
        self.labels = job.labels()
        self.transform = make_transform(job.task)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path: Path = self.files[index]
        return self.transform(Image.open(path).convert("RGB")), self.labels[path.parent.name]


class Endless(Sampler):
    """Consecutive shuffled passes, so that no epoch ends during a measurement."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        while True:
            yield from torch.randperm(self.count).tolist()


class Cutout:
    """Sets a random square inside the image to 0: `float32[3, height, width]`, in place."""

    def __init__(self, side: int) -> None:
        self.side = side

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        """See the class."""
        top, left = (int(torch.randint(size - self.side + 1, ())) for size in image.shape[1:])
        image[:, top : top + self.side, left : left + self.side] = 0
        return image


def make_transform(task: str) -> Callable[[Any], torch.Tensor]:
    """Returns the transform of a Pillow image for a task, channels first."""
    side = TASKS[task].side_px
    if task == "photos":
        crop = transforms.RandomResizedCrop(side, scale=AREA, ratio=ASPECT)
        return transforms.Compose([crop, transforms.RandomHorizontalFlip(), transforms.PILToTensor()])
    return transforms.Compose(
        [
            transforms.RandomCrop(side, padding=4, padding_mode="reflect"),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(CIFAR_MEAN, CIFAR_STD),
            Cutout(8),
        ]
    )
