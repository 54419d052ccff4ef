"""Metrics of class probabilities: (batch, classes, ...), with labels (batch, ...).

Malformed arguments raise ValueError or TypeError, which name the argument.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tradi.metrics import checks
from tradi.metrics.curves import calibration_curve, with_ood

# A probability of exactly 0 may only mean that float32 underflowed: it costs -log(1.2e-38) = 87.3 nats.
SMALLEST = torch.finfo(torch.float32).tiny


def accuracy(probs: Tensor, labels: Tensor) -> float:
    r"""Share of correct predictions, $\frac1n \sum_i [\arg\max_c p_{ic} = y_i]$.

    Args:
        probs: of every class, (batch, classes, ...).
        labels: the true classes, (batch, ...).

    Returns:
        a share from 0 to 1; higher is better.
    """
    probs = _checked(probs, labels)
    return float((probs.argmax(1) == labels).double().mean())


def nll(probs: Tensor, labels: Tensor) -> float:
    r"""Negative log-likelihood in nats, $-\frac1n \sum_i \log \max(p_{i y_i}, 1.2 \cdot 10^{-38})$.

    Args:
        probs: of every class, (batch, classes, ...).
        labels: the true classes, (batch, ...).

    Returns:
        nats per sample; lower is better.
    """
    probs = _checked(probs, labels)
    return -float(_of_label(probs, labels).clamp_min(SMALLEST).log().mean())


def nll_from_log_probs(log_probs: Tensor, labels: Tensor) -> float:
    r"""Negative log-likelihood in nats, $-\frac1n \sum_i \log p_{i y_i}$; infinite for a log of -inf.

    Args:
        log_probs: of every class, (batch, classes, ...).
        labels: the true classes, (batch, ...).

    Returns:
        nats per sample; lower is better.
    """
    checks.labelled("log_probs", log_probs, labels)
    log_probs = log_probs.detach().double()
    checks.normalised("exp(log_probs)", log_probs.exp().sum(1))
    return -float(_of_label(log_probs, labels).mean())


def brier(probs: Tensor, labels: Tensor) -> float:
    r"""Brier score over all classes, $\frac1n \sum_i \sum_c (p_{ic} - [c = y_i])^2$, in [0, 2].

    Args:
        probs: of every class, (batch, classes, ...).
        labels: the true classes, (batch, ...).

    Returns:
        a number from 0 to 2; lower is better.
    """
    probs = _checked(probs, labels)
    # Sum of p^2 - 2 p_y + 1: the one-hot labels need not be built.
    return float((probs.square().sum(1) - 2 * _of_label(probs, labels) + 1).mean())


def ece(confidence: Tensor, correct: Tensor, bins: int = 15) -> float:
    r"""Expected calibration error, $\sum_b \frac{n_b}{n} |acc_b - conf_b|$, over bins of equal width.

    Bins are (lower, upper] (Guo et al.). torchmetrics puts a confidence of exactly 1, common in float32, into a bin of
    its own, so its ECE is larger.

    Args:
        confidence: of the predicted class, in [0, 1], any shape.
        correct: torch.bool of that shape.
        bins: number of bins.

    Returns:
        a number from 0 to 1; lower is better.
    """
    return calibration_curve(confidence, correct, bins).ece


def joint_ece(confidence: Tensor, correct: Tensor, confidence_ood: Tensor, bins: int = 15) -> float:
    """The paper's ECE, over in- and out-of-distribution test data together; an OOD sample counts as wrong.

    Args:
        confidence: of the predicted class on test data, in [0, 1], any shape.
        correct: torch.bool of that shape.
        confidence_ood: the same of OOD samples, any shape.
        bins: number of bins.

    Returns:
        a number from 0 to 1; lower is better.
    """
    return ece(*with_ood(confidence, correct, confidence_ood), bins)


def _checked(probs: Tensor, labels: Tensor) -> Tensor:
    checks.labelled("probs", probs, labels)
    checks.unit_interval(probs=probs)
    probs = probs.detach().double()
    checks.normalised("probs", probs.sum(1))
    return probs


def _of_label(values: Tensor, labels: Tensor) -> Tensor:
    return values.gather(1, labels.long().unsqueeze(1)).squeeze(1)
