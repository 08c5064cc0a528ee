"""Image classification on CIFAR-10 sized images with LightningCLI.

    python examples/cifar10.py fit --config configs/digits_prio_ddp.yaml
    torchrun --nproc-per-node 2 examples/cifar10.py fit --config configs/digits_prio_ddp.yaml
    lightning-prio fit --config configs/cifar10_prio_ddp.yaml --data.source=folder --data.root=path/to/images

What a script of your own needs of all this is the line `import lightning_prio` and `strategy: prio_ddp` in its YAML.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytorch_lightning as pl
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchmetrics.classification import MulticlassAccuracy
from torchvision.transforms import v2

import lightning_prio  # noqa: F401 - registers strategy="prio_ddp"

_MEAN, _STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of CIFAR-10's training images
_NUM_DIGITS_FOR_TEST = 360


class CIFAR10DataModule(pl.LightningDataModule):
    """32x32 colour images in ten classes.

    Args:
        source: `"cifar10"`: torchvision's CIFAR10 under `root`, downloaded if it is not there; `"folder"`: images in
            `root/train/<class>/` and `root/test/<class>/`; `"digits"`: scikit-learn's bundled handwritten digits,
            scaled to 3x32x32, for machines without a network.
        root: Folder of the images, for `cifar10` and `folder`.
        batch_size: Images per batch and process.
        num_workers: Loader processes per process.
        augment: Whether to shift and mirror the training images (digits are only shifted).
    """

    def __init__(
        self,
        source: Literal["cifar10", "folder", "digits"] = "digits",
        root: Path = Path("data"),
        batch_size: int = 32,
        num_workers: int = 0,
        augment: bool = True,
    ) -> None:
        super().__init__()
        if source not in ("cifar10", "folder", "digits"):
            raise ValueError(f"source must be 'cifar10', 'folder' or 'digits', got {source!r}")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if num_workers < 0:
            raise ValueError(f"num_workers must be at least 0, got {num_workers}")
        self.source, self.root = source, Path(root)
        self.batch_size, self.num_workers, self.augment = batch_size, num_workers, augment

    def prepare_data(self) -> None:
        """Download CIFAR-10, on one process of each node."""
        if self.source != "cifar10":
            return
        try:
            torchvision.datasets.CIFAR10(str(self.root), download=True)
        except (OSError, RuntimeError) as error:
            raise RuntimeError(
                f"source='cifar10' could neither be found under root='{self.root}' nor be downloaded ({error}); use"
                " source='folder' with images in root/train/<class>/ and root/test/<class>/, or source='digits', which"
                " needs no network"
            ) from error

    def setup(self, stage: str) -> None:
        """Make the datasets."""
        mirror = [] if self.source == "digits" else [v2.RandomHorizontalFlip()]
        shift = [v2.RandomCrop(32, padding=4, padding_mode="reflect"), *mirror] if self.augment else []
        to_tensor = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(_MEAN, _STD)]
        train_transform, test_transform = v2.Compose([*shift, *to_tensor]), v2.Compose(to_tensor)
        if self.source == "digits":
            images, labels = _digits()
            split = len(labels) - _NUM_DIGITS_FOR_TEST
            self.train: Dataset = _Transformed(TensorDataset(images[:split], labels[:split]), train_transform)
            self.test: Dataset = _Transformed(TensorDataset(images[split:], labels[split:]), test_transform)
        elif self.source == "folder":
            missing = [name for name in ("train", "test") if not (self.root / name).is_dir()]
            if missing:
                raise ValueError(f"root='{self.root}' has no folder {' and no folder '.join(missing)}")
            self.train = torchvision.datasets.ImageFolder(str(self.root / "train"), train_transform)
            self.test = torchvision.datasets.ImageFolder(str(self.root / "test"), test_transform)
        else:
            self.train = torchvision.datasets.CIFAR10(str(self.root), train=True, transform=train_transform)
            self.test = torchvision.datasets.CIFAR10(str(self.root), train=False, transform=test_transform)

    def train_dataloader(self) -> DataLoader:
        return self._loader(self.train, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return self._loader(self.test, shuffle=False)

    def test_dataloader(self) -> DataLoader:
        return self._loader(self.test, shuffle=False)

    def predict_dataloader(self) -> DataLoader:
        return self._loader(self.test, shuffle=False)

    def _loader(self, dataset: Dataset, shuffle: bool) -> DataLoader:
        return DataLoader(
            dataset,
            batch_size=self.batch_size,
            shuffle=shuffle,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
        )


class _Transformed(Dataset):
    def __init__(self, dataset: TensorDataset, transform: v2.Compose) -> None:
        self.dataset, self.transform = dataset, transform

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, label = self.dataset[index]
        return self.transform(image), label


def _digits() -> tuple[Tensor, Tensor]:
    """1,797 digits of 8x8 pixels from 0 to 16, as 3x32x32 bytes."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.from_numpy(digits.images).float().unsqueeze(1) * (255 / 16)
    images = functional.interpolate(images, size=(32, 32), mode="bilinear").round().byte()
    return images.expand(-1, 3, -1, -1).contiguous(), torch.from_numpy(digits.target).long()


class ImageClassifier(pl.LightningModule):
    """A torchvision classifier trained with SGD.

    Args:
        architecture: Name of a classification model in `torchvision.models`. ResNets get a 3x3 stem without pooling,
            as 32x32 images leave nothing for the ImageNet stem to shrink.
        num_classes: Number of classes.
        learning_rate: Peak learning rate.
        momentum: SGD's momentum.
        weight_decay: SGD's weight decay.
        schedule: `"cosine"` from the peak to zero, or `"one_cycle"` up to the peak and down to zero; per step.
    """

    def __init__(
        self,
        architecture: str = "resnet18",
        num_classes: int = 10,
        learning_rate: float = 0.05,
        momentum: float = 0.9,
        weight_decay: float = 5e-4,
        schedule: Literal["cosine", "one_cycle"] = "one_cycle",
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = _classifier(architecture, num_classes)
        self.val_accuracy = MulticlassAccuracy(num_classes, average="micro")
        self.test_accuracy = MulticlassAccuracy(num_classes, average="micro")

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.net(images)
        return logits

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        loss = functional.cross_entropy(self(images), labels)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        images, labels = batch
        logits = self(images)
        self.val_accuracy(logits, labels)
        self.log("val_accuracy", self.val_accuracy, on_epoch=True, prog_bar=True)
        self.log("val_loss", functional.cross_entropy(logits, labels), on_epoch=True, sync_dist=True)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        images, labels = batch
        self.test_accuracy(self(images), labels)
        self.log("test_accuracy", self.test_accuracy, on_epoch=True)

    def predict_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self(batch[0]).argmax(dim=1)

    def configure_optimizers(self) -> dict[str, Any]:
        hparams = self.hparams
        optimizer = torch.optim.SGD(
            self.parameters(),
            lr=hparams.learning_rate,
            momentum=hparams.momentum,
            weight_decay=hparams.weight_decay,
        )
        num_steps = int(self.trainer.estimated_stepping_batches)
        scheduler: torch.optim.lr_scheduler.LRScheduler
        if hparams.schedule == "cosine":
            scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=num_steps)
        else:
            scheduler = torch.optim.lr_scheduler.OneCycleLR(
                optimizer, max_lr=hparams.learning_rate, total_steps=num_steps
            )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def _classifier(architecture: str, num_classes: int) -> nn.Module:
    known = torchvision.models.list_models(module=torchvision.models)
    if architecture not in known:
        raise ValueError(f"architecture must be one of {', '.join(known)}; got {architecture!r}")
    builder = torchvision.models.get_model_builder(architecture)
    # GoogLeNet and Inception return their auxiliary heads' outputs besides the logits unless told to have none.
    extra = {"aux_logits": False} if architecture in ("googlenet", "inception_v3") else {}
    net: nn.Module = builder(weights=None, num_classes=num_classes, **extra)
    if isinstance(net, torchvision.models.ResNet):
        net.conv1 = nn.Conv2d(3, net.conv1.out_channels, kernel_size=3, padding=1, bias=False)
        net.maxpool = nn.Identity()
    return net


def main() -> None:
    """Run as a script, the model and the data being named in the YAML."""
    import sys

    from pytorch_lightning.cli import LightningCLI

    # The configs name these classes as examples.cifar10.*, which also `lightning-prio` finds from the repository.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    LightningCLI(save_config_kwargs={"overwrite": True})


if __name__ == "__main__":
    main()
