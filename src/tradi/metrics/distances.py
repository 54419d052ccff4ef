"""Distances of penultimate features from those of training data: OOD scores of one network. Higher = more OOD.

`tradi.posterior.features.penultimate` gives the features.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from tradi.metrics import checks

RIDGE = 1e-6
NEIGHBOURS = 50
AT_ONCE = 1 << 24  # similarities in memory at a time


def mahalanobis(features: Tensor, training: Tensor, labels: Tensor, ridge: float = RIDGE) -> Tensor:
    r"""Squared Mahalanobis distance to the nearest class (Lee et al., NeurIPS 2018, equations 1 and 2).

    $$ \min_c \, (f - \mu_c)^\top (\Sigma + \epsilon \bar\sigma^2 I)^{-1} (f - \mu_c) $$

    with $\mu_c$ the mean of a class, $\Sigma$ the covariance of training features around the means of their classes,
    and $\bar\sigma^2$ the average of its diagonal.

    Args:
        features: (samples, inputs).
        training: features of the training data, (training samples, inputs).
        labels: their classes, integers; a class without samples does not count.
        ridge: $\epsilon$, which keeps the covariance invertible where units are dead.

    Returns:
        Scores, (samples,), in float64.

    Raises:
        ValueError: if shapes do not fit, a value is not finite, `ridge` is not positive, or all training features of
            every class are the same.
    """
    _check(features, training)
    checks.one_shape(labels=labels, **{"training without its features": training[:, 0]})
    if not ridge > 0:
        raise ValueError(f"ridge must be positive, got {ridge}")
    known, number = labels.unique(return_inverse=True)
    wide = training.double()
    sums = wide.new_zeros(len(known), wide.shape[1]).index_add_(0, number, wide)
    means = sums / number.bincount()[:, None]
    deviations = wide - means[number]
    covariance = deviations.T @ deviations / len(wide)
    average = covariance.diagonal().mean()
    if average == 0:
        raise ValueError("training features must vary within a class: they are all the same")
    covariance.diagonal().add_(ridge * average)
    root = torch.linalg.cholesky(covariance)
    white, centres = (torch.linalg.solve_triangular(root, x.T, upper=False).T for x in (features.double(), means))
    return torch.cdist(white, centres, compute_mode="donot_use_mm_for_euclid_dist").amin(1).square()


def knn_distance(features: Tensor, training: Tensor, k: int = NEIGHBOURS) -> Tensor:
    """Distance to the k-th nearest training sample, all features scaled to length 1 (Sun et al., ICML 2022).

    Args:
        features: (samples, inputs).
        training: features of the training data, (training samples, inputs).
        k: the published 50; the farthest training sample counts where there are fewer.

    Returns:
        Scores, (samples,).

    Raises:
        ValueError: if shapes do not fit, a value is not finite, or `k` is below 1.
    """
    _check(features, training)
    checks.at_least_one(k=k)
    known = F.normalize(training)
    parts = F.normalize(features).split(max(AT_ONCE // len(known), 1))
    return torch.cat([_kth_distance(part, known, min(k, len(known))) for part in parts])


def _kth_distance(features: Tensor, known: Tensor, k: int) -> Tensor:
    nearest = (features @ known.T).topk(k).indices[:, -1]
    return (features - known[nearest]).norm(dim=1)  # by difference: exact where the two are close


def _check(features: Tensor, training: Tensor) -> None:
    for name, tensor in (("features", features), ("training", training)):
        if tensor.ndim != 2 or 0 in tensor.shape:
            raise ValueError(f"{name} must be (samples, inputs) and not empty, got shape {tuple(tensor.shape)}")
    if features.shape[1] != training.shape[1]:
        raise ValueError(
            f"features and training must have as many inputs, got {features.shape[1]} and {training.shape[1]}"
        )
    checks.finite(features=features, training=training)
