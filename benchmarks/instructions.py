"""Instructions of a step of the MNIST MLP's filter, counted by callgrind, which no other process can disturb.

    python benchmarks/instructions.py

needs valgrind, and as `python` in PATH the one that has torch. With `PYTHONPATH=CHECKOUT/src` it counts those of
another commit.
"""

from __future__ import annotations

from torch.utils.benchmark import Timer

SETUP = """
import torch
import tradi
from tradi.models import mlp

class EveryStep(tradi.FadingMemory):
    def stride(self, step):
        return 1

class Still(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, dict(lr=0.1))

    def step(self, closure=None):
        pass

torch.set_num_threads(1)
model = mlp(784, [200, 200, 200], 10, batchnorm=True, dropout=0.5)
for parameter in model.parameters():
    parameter.grad = torch.zeros_like(parameter)
optimizer = Still(model.parameters())
tracker = tradi.TRADI(model, optimizer, kalman=tradi.Kalman({options}))
for _ in range(3):
    optimizer.step()
"""
STEPS = {
    "a step that is looked at": "mean_gain=EveryStep(), variance_gain=EveryStep()",
    "a step that is passed over": "every=1 << 40",
}


def main() -> None:
    for name, options in STEPS.items():
        counted = Timer("optimizer.step()", SETUP.replace("{options}", options)).collect_callgrind(100)
        print(f"{name}: {counted.counts(denoise=True) / 100:,.0f}", flush=True)


if __name__ == "__main__":
    main()
