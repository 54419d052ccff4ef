"""How many members does the toy problem need? Judged on functions drawn by seeds that no table uses.

For TRADI and the control without tracking it prints NLL of the mixture and of the moment-matched Gaussian, and what 95%
intervals cover, all beyond the points and averaged over the functions, with 20 and with 100 members.
"""

from __future__ import annotations

from pathlib import Path

import torch

from tradi.bench.methods import Tradi, Untracked
from tradi.bench.problem import Data
from tradi.bench.toy import RECIPE, load, network
from tradi.bench.training import train
from tradi.ensemble.ensemble import Ensemble
from tradi.prediction.gaussian import GaussianMixture

SEEDS = range(100, 112)
METHODS = {"TRADI": Tradi(), "nothing tracked": Untracked()}


def beyond(ensemble: Ensemble, data: Data) -> torch.Tensor:
    """NLL of the mixture, NLL of the moment-matched Gaussian, and coverage, beyond the points."""
    grid = data.extra["grid"]
    rows = (grid.abs() > data.train[0].abs().max())[:, 0]
    whole, y = ensemble.predict([grid]), data.extra["noisy"][rows]
    mixture = GaussianMixture(whole.means[:, rows], whole.variances[:, rows])
    low, high = (mixture.icdf(torch.tensor(level)) for level in (0.025, 0.975))
    matched = -mixture.moment_matched.log_prob(y).mean()
    return torch.stack([-mixture.log_prob(y).mean(), matched, ((low <= y) & (y <= high)).float().mean()])


def main() -> None:
    found: dict[tuple[str, int], list[torch.Tensor]] = {}
    for seed in SEEDS:
        data = load(Path(), 0, seed)
        torch.manual_seed(5000 + seed)
        run = train(network(data, None), data, RECIPE, METHODS["TRADI"].attach())
        for name, method in METHODS.items():
            fitted = method.posterior(run).fit(
                data.training_batches, data.validation_batches, likelihood=data.likelihood, seed=seed
            )
            for members, draws in ((20, (1, 2)), (100, (1,))):
                each = [beyond(fitted.sample(members, seed + draw), data) for draw in draws]
                found.setdefault((name, members), []).append(torch.stack(each).mean(0))
    for (name, members), values in found.items():
        print(name, members, [round(value, 3) for value in torch.stack(values).mean(0).tolist()])


if __name__ == "__main__":
    main()
