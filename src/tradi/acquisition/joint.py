r"""What the labels of several samples would tell together: two that tell the same are not worth two labels.

A batch is grown greedily: next comes the sample with the highest $I[y; \omega \mid x, \text{labels of those before}]$,
as in BatchBALD (Kirsch et al., NeurIPS 2019), with the members for $\omega$.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tradi.prediction.classes import ClassPrediction
from tradi.prediction.gaussian import GaussianMixture

AT_ONCE = 1 << 22  # probabilities that are in memory together


@dataclass(frozen=True, eq=False)
class Chosen:
    """A batch, in the order of its choice.

    Args:
        places: of the samples.
        gains: what each adds to the information of those before it, in nats.
    """

    places: Tensor
    gains: Tensor


@dataclass(frozen=True)
class BatchBALD:
    """A batch whose labels tell the most together, for small batches of classes, or of numbers.

    No batch tells more than log(members) nats: once labels would say which member is right, further samples add
    nothing. Give it more members than samples.

    Args:
        candidates: samples of the highest single information, among which the batch is chosen; all of a batch if more.
        configurations: of the labels of those chosen already. As long as there are at most so many, the information is
            exact; from then on it is estimated from so many that are drawn.

    Raises:
        ValueError: if one is not positive.
    """

    candidates: int = 200
    configurations: int = 1000

    def __post_init__(self) -> None:
        for name in ("candidates", "configurations"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    def choose(self, prediction: Any, n: int, seed: int = 0) -> Chosen:
        """Choose n of these samples.

        Args:
            prediction: of the candidates.
            n: how many.
            seed: of configurations that are drawn.

        Returns:
            the batch, with places among the candidates.

        Raises:
            TypeError: if the prediction is neither of one class nor of numbers.
        """
        if isinstance(prediction, GaussianMixture):
            return greedy_numbers(prediction.means, prediction.variances, n)
        if not isinstance(prediction, ClassPrediction) or prediction.logits.ndim != 3:
            raise TypeError(
                "BatchBALD is for one class a sample, or for numbers: use tradi.acquisition.bald for labels, pixels "
                "and tokens"
            )
        return greedy_classes(prediction.member_log_probs.exp(), n, self.configurations, seed)


def greedy_classes(probs: Tensor, n: int, configurations: int = 1000, seed: int = 0) -> Chosen:
    r"""Samples that tell the most together about which member is right.

    With $\pi_s$ the probability of the s-th configuration of the labels before, and $w_{sm}$ the posterior probability
    of member m given it, sample i adds $\sum_s \pi_s (H[\sum_m w_{sm} p_{mi}] - \sum_m w_{sm} H[p_{mi}])$.

    Args:
        probs: (members, samples, classes).
        n: how many to choose.
        configurations: at the most; beyond, they are drawn from their distribution.
        seed: of what is drawn.

    Returns:
        the batch; all samples where there are no more than n.
    """
    probs = probs.detach().double().cpu()
    members, samples, classes = probs.shape
    generator = torch.Generator().manual_seed(seed % 2**64)
    share, weights = torch.ones(1, dtype=torch.float64), torch.full((1, members), 1 / members, dtype=torch.float64)
    noise = torch.special.entr(probs).sum(2)  # of each member
    left = torch.ones(samples, dtype=torch.bool)
    drawn = False
    places, gains = [], []
    for _ in range(min(n, samples)):
        gain = (_entropy(share, weights, probs) - share @ weights @ noise).masked_fill(~left, -torch.inf)
        best = int(gain.argmax())
        places.append(best)
        gains.append(gain[best].clamp_min(0))
        left[best] = False
        answers = probs[:, best]  # (members, classes)
        if not drawn and len(share) * classes > configurations:
            drawn = True
            rows = torch.multinomial(share, configurations, replacement=True, generator=generator)
            share, weights = torch.full((configurations,), 1 / configurations, dtype=torch.float64), weights[rows]
        if drawn:
            labels = torch.multinomial(weights @ answers, 1, generator=generator)[:, 0]
            weights = weights * answers.T[labels]
        else:
            weights = (weights[:, None] * answers.T).flatten(0, 1)
            share = (share[:, None] * weights.sum(1).view(-1, classes)).flatten()
            share, weights = share[share > 0], weights[share > 0]
        weights = weights / weights.sum(1, keepdim=True)
    return Chosen(torch.tensor(places, dtype=torch.long), torch.tensor(gains, dtype=torch.float64))


def greedy_numbers(means: Tensor, variances: Tensor, n: int) -> Chosen:
    r"""Samples that tell the most together, of Gaussians with the covariance of the members' means.

    $I = \frac12 \log \det(1 + N^{-1/2} \Sigma N^{-1/2})$, $\Sigma$ the covariance of the means over members, and $N$
    the members' mean variances. After every choice the covariance is conditioned on the number that it would give.

    Args:
        means: (members, samples, ...).
        variances: of the same shape.
        n: how many to choose.

    Returns:
        the batch; all samples where there are no more than n.
    """
    members, samples = means.shape[:2]
    means, variances = (part.detach().double().cpu().reshape(members, samples, -1) for part in (means, variances))
    spread = (means - means.mean(0)) / (members * variances.mean(0)).sqrt()
    spread = spread.permute(1, 2, 0)  # (samples, outputs, members)
    known, own = torch.eye(members, dtype=torch.float64), torch.eye(spread.shape[1], dtype=torch.float64)
    left = torch.ones(samples, dtype=torch.bool)
    places, gains = [], []
    for _ in range(min(n, samples)):
        covariance = own + spread @ known @ spread.mT
        gain = (covariance.logdet() / 2).masked_fill(~left, -torch.inf)
        best = int(gain.argmax())
        places.append(best)
        gains.append(gain[best])
        left[best] = False
        across = spread[best] @ known
        known = known - across.mT @ torch.linalg.solve(covariance[best], across)
    return Chosen(torch.tensor(places, dtype=torch.long), torch.tensor(gains, dtype=torch.float64))


def _entropy(share: Tensor, weights: Tensor, probs: Tensor) -> Tensor:
    """Entropy of each sample's label, given the labels of those before."""
    members, _, classes = probs.shape
    parts = []
    for part in probs.split(max(1, AT_ONCE // (len(share) * classes)), 1):
        mixed = weights @ part.reshape(members, -1)
        parts.append((share @ torch.special.entr(mixed)).view(-1, classes).sum(1))
    return torch.cat(parts)
