"""Scores of single samples: a higher one says that a label would tell more. Any function of a prediction is one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tradi.prediction.gaussian import GaussianMixture


def bald(prediction: Any) -> Tensor:
    r"""What a label would tell about which member is right: $I[y; \omega \mid x]$ (Houlsby et al., 2011), in nats.

    The mutual information of classes and of labels; of numbers $\frac12 \log(1 + \text{epistemic} / \text{aleatoric})$,
    which is that of Gaussians with the members' variances.

    Args:
        prediction: with a members axis first, as `ensemble.predict` gives it.

    Returns:
        a score for each sample, or for each of its pixels, tokens or numbers.
    """
    if isinstance(prediction, GaussianMixture):
        return (prediction.epistemic / prediction.aleatoric).log1p() / 2
    information: Tensor = prediction.mutual_information
    return information


def random(prediction: Any) -> Tensor:
    """The same for all, so that chance decides; `acquire` then runs no network.

    Args:
        prediction: with a members axis first.

    Returns:
        zeros, as many as `bald` gives scores.
    """
    return torch.zeros_like(bald(prediction))
