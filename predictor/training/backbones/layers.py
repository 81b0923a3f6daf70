"""What a network is made of while it is trained: convolutions in 16 bits, a classifier of cosines, and, where several
processes train it, averaged gradients and batch normalisation over all of their images."""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from actstore.backbones.network import Network
from actstore.compute.device import has_half, is_accelerator
from predictor.training.backbones.config import TrainingConfig
from predictor.training.processes import Processes

PRECISION = {"float32": torch.float32, "bfloat16": torch.bfloat16}
FIRST_SCALE = 10.0  # of cosines


class SixteenBits(nn.Module):
    """A network whose convolutions compute in 16 bits; weights, their updates and the classifier stay in 32."""

    def __init__(self, network: Network, precision: torch.dtype) -> None:
        super().__init__()
        self.network, self._precision = network, precision

    def forward(self, images: Tensor) -> Tensor:
        """(n, 3, height, width) -> (n, n_class)"""
        with torch.autocast(images.device.type, self._precision):
            activations = self.network.features(images)
        logits: Tensor = self.network.fc(activations.float())
        return logits


def in_precision(network: Network, config: TrainingConfig, device: torch.device) -> nn.Module:
    """What is trained: the network itself, or its convolutions in 16 bits, as the settings and the device ask."""
    precision = torch.float16 if has_half(device) else PRECISION[config.precision]
    return network if precision == torch.float32 else SixteenBits(network, precision)


def wrap(network: nn.Module, processes: Processes, device: torch.device) -> nn.Module:
    """Averages gradients over the processes. Names in network.state_dict() stay as they are."""
    if processes.count == 1:
        return network
    synchronise_batch_norm(network, device)
    # buffers are equal everywhere already; torch 2.13 gave the option another name
    names = signature(DistributedDataParallel).parameters
    option = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"
    devices = [device.index] if is_accelerator(device) else None
    options: dict[str, Any] = {"device_ids": devices, option: False}
    return DistributedDataParallel(network, **options)


class _Sum(torch.autograd.Function):
    """Sum over the processes: everyone's loss depends on everyone's input, so gradients are summed as well."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone(memory_format=torch.contiguous_format)
        torch.distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.clone(memory_format=torch.contiguous_format)
        torch.distributed.all_reduce(total)
        return total


class SynchronisedBatchNorm2d(nn.BatchNorm2d):
    """Mean and variance of the images of all processes. torch's own SyncBatchNorm runs on GPUs only."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """(n, channels, h, w) -> the same; n may differ between processes."""
        if not self.training:
            return super().forward(input)
        given, input = input.dtype, input.to(torch.promote_types(input.dtype, torch.float32))  # noqa: A001
        own = torch.cat([input.sum((0, 2, 3)), input.new_tensor([input.numel() / self.num_features])])
        total: Tensor = _Sum.apply(own)  # type: ignore[no-untyped-call]
        count = total[-1].detach()
        mean = total[:-1] / count  # (channels,)
        centred = input - mean[:, None, None]
        variance: Tensor = _Sum.apply(centred.square().sum((0, 2, 3))) / count  # type: ignore[no-untyped-call]
        self._remember(mean.detach(), variance.detach() * count / (count - 1))
        scale = self.weight * (variance + self.eps).rsqrt()
        return (centred * scale[:, None, None] + self.bias[:, None, None]).to(given)

    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance, self.momentum)
            self.num_batches_tracked += 1


def synchronise_batch_norm(network: nn.Module, device: torch.device) -> None:
    """Replace every BatchNorm2d within by a synchronised one that owns the same parameters: torch's, which has kernels
    for accelerators alone, or ours."""
    if is_accelerator(device):
        nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]  # in place
        return
    for name, module in list(network.named_modules()):
        if type(module) is nn.BatchNorm2d:
            layer = SynchronisedBatchNorm2d(module.num_features, module.eps, module.momentum)
            layer.weight, layer.bias = module.weight, module.bias
            layer.running_mean, layer.running_var = module.running_mean, module.running_var
            layer.num_batches_tracked = module.num_batches_tracked
            layer.train(module.training)
            network.set_submodule(name, layer)


class CosineClassifier(nn.Module):
    """In place of a network's `fc`: a cosine per class, times a scale that is learnt with them. Features taught by it
    lie closer to their class and serve new classes better.

    Gidaris and Komodakis, Dynamic Few-Shot Visual Learning without Forgetting, CVPR 2018; Chen et al., A Closer Look
    at Few-Shot Classification, ICLR 2019.

    length: of the activations, a running mean."""

    length: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(linear.weight.detach().clone())  # (n_class, dim), of which the directions count
        self.scale = nn.Parameter(torch.tensor(FIRST_SCALE))
        self.register_buffer("length", torch.ones(()))

    def forward(self, activations: Tensor) -> Tensor:
        """(n, dim) -> (n, n_class)"""
        if self.training:
            with torch.no_grad():
                self.length.lerp_(activations.norm(dim=1).mean().to(self.length.dtype), 0.01)
        return self.scale * functional.normalize(activations) @ functional.normalize(self.weight).T

    def linear_tensors(self) -> dict[str, Tensor]:
        """fc.weight and fc.bias of a plain classifier with the same order of classes for every image, whose logits are
        also about as large: for files of weights, which know no other kind."""
        weight = functional.normalize(self.weight.detach()) * (self.scale.detach() / self.length)
        return {"fc.weight": weight, "fc.bias": weight.new_zeros(len(weight))}
