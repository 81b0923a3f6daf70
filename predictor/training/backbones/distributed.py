"""A network that several processes train: gradients averaged, batch normalisation over all of their images."""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from actstore.compute.device import is_accelerator
from predictor.training.processes import Processes


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
