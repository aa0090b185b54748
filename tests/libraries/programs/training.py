"""torch: forward, backward, optimizer, TorchScript, data loader workers. OpenMP threads run before the freeze."""

from __future__ import annotations

from typing import Any

import scenario
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@torch.jit.script
def scripted(x: torch.Tensor, turns: int) -> torch.Tensor:
    """A loop with a task in torch's own pool of threads."""
    for turn in range(turns):
        later = torch.jit.fork(torch.relu, x)
        x = torch.jit.wait(later) - 0.1 * turn + x.mean()
    return x


class Training:
    """A convolutional network, trained a little before the freeze."""

    def __init__(self, options: scenario.Options) -> None:
        torch.set_num_threads(options.threads)
        torch.manual_seed(1)
        layers = [nn.Conv2d(3, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten()]
        self._network = nn.Sequential(*layers, nn.Linear(16 * 13 * 13, 64), nn.ReLU(), nn.Linear(64, 10))
        self._wide = nn.Linear(512, 512)
        self._optimizer = torch.optim.Adam(self._network.parameters())
        self._train(self._network, self._optimizer, steps=3)
        self._network.eval()

    def answer(self, number: int) -> Any:
        given = torch.Generator().manual_seed(number)
        images = torch.rand(16, 3, 32, 32, generator=given)
        vectors = torch.rand(64, 512, generator=given, requires_grad=True)
        loss = self._wide(vectors).square().mean()
        (gradient,) = torch.autograd.grad(loss, vectors)
        with torch.inference_mode():
            return {
                "classes": self._network(images)[::5].tolist(),
                "loss": loss.item(),
                "gradient": (gradient[::20, ::100] * 1e4).tolist(),
                "scripted": scripted(images[0, 0, :4, :4], 5).tolist(),
            }

    def exercise(self) -> None:
        copy = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 32), nn.ReLU(), nn.Linear(32, 10))
        first, last = self._train(copy, torch.optim.AdamW(copy.parameters(), lr=1e-2), steps=20)
        assert last < first
        data = TensorDataset(torch.arange(64.0).reshape(64, 1).repeat(1, 100))
        for workers in (2, 0):
            batches = list(DataLoader(data, batch_size=8, num_workers=workers))
            assert sum(batch.sum().item() for (batch,) in batches) == 63 * 64 / 2 * 100
        for threads in (2, 1, torch.get_num_threads()):
            torch.set_num_threads(threads)
            product = torch.ones(300, 300) @ torch.ones(300, 300)
            assert (product == 300).all()
        storage = torch.ones(1000).untyped_storage()
        for power in range(12, 24):
            storage.resize_(2**power)
            assert bytes(storage[:4000].tolist()) == bytes(torch.ones(1000).untyped_storage().tolist())
        shared = torch.zeros(1000).share_memory_()
        shared += 1
        assert shared.sum().item() == 1000

    @staticmethod
    def _train(network: nn.Module, optimizer: torch.optim.Optimizer, *, steps: int) -> tuple[float, float]:
        given = torch.Generator().manual_seed(0)
        images, labels = torch.rand(16, 3, 32, 32, generator=given), torch.arange(16) % 10
        losses = []
        for _ in range(steps):
            loss = nn.functional.cross_entropy(network(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses[0], losses[-1]


if __name__ == "__main__":
    scenario.main(Training)
