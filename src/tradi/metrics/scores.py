"""Scores of how far out of distribution a sample seems. A higher score always means more OOD."""

from __future__ import annotations

from torch import Tensor

from tradi.metrics.types import Classes, Mixture


def one_minus_confidence(prediction: Classes) -> Tensor:
    r"""The paper's score, $1 - \max_c \bar p_c$, of the mean of the members' probabilities; higher = more OOD.

    Args:
        prediction: with a members axis first, as `ensemble.predict` gives it.

    Returns:
        a score for every sample, (batch, ...).
    """
    return prediction.one_minus_confidence


def predictive_entropy(prediction: Classes) -> Tensor:
    r"""Entropy of the mean, $H[\bar p]$: the total uncertainty; higher = more OOD.

    Args:
        prediction: with a members axis first, as `ensemble.predict` gives it.

    Returns:
        a score for every sample, (batch, ...).
    """
    return prediction.entropy


def expected_entropy(prediction: Classes) -> Tensor:
    r"""Mean of the members' entropies, $\frac1M \sum_j H[p_j]$: the noise they agree on; higher = more OOD.

    Args:
        prediction: with a members axis first, as `ensemble.predict` gives it.

    Returns:
        a score for every sample, (batch, ...).
    """
    return prediction.expected_entropy


def mutual_information(prediction: Classes) -> Tensor:
    r"""Disagreement of the members, $H[\bar p] - \frac1M \sum_j H[p_j]$; higher = more OOD.

    Args:
        prediction: with a members axis first, as `ensemble.predict` gives it.

    Returns:
        a score for every sample, (batch, ...).
    """
    return prediction.mutual_information


def energy(logits: Tensor) -> Tensor:
    r"""Free energy (Liu et al., NeurIPS 2020), $-\log \sum_c e^{z_c}$, the mean over members; higher = more OOD.

    Args:
        logits: (members, batch, classes, ...), as in `ClassPrediction`; of one network, `logits[None]`.

    Returns:
        a score for every sample, (batch, ...).

    Raises:
        ValueError: if an axis is missing.
    """
    if logits.ndim < 3:
        raise ValueError(f"logits must be (members, batch, classes, ...), got shape {tuple(logits.shape)}")
    return -logits.logsumexp(2).mean(0)


def variance_of_mean(prediction: Mixture) -> Tensor:
    r"""Disagreement of the members of a regression, $\mathrm{Var}_j[\mu_j]$; higher = more OOD.

    Args:
        prediction: with a members axis first, as `ensemble.predict` gives it.

    Returns:
        a score for every sample, (batch, ...).
    """
    return prediction.epistemic
