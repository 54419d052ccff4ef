from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.covariance import EmpiricalCovariance
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize
from torch import Tensor

from tests.runs import normal
from tradi import metrics
from tradi.metrics import distances


def samples(count: int = 300) -> tuple[Tensor, Tensor, Tensor]:
    """Features of some samples, and of training samples in three classes, with units that depend on each other."""
    labels = torch.arange(count) % 3
    mixed = normal(6, 6, seed=1)
    training = normal(count, 6, seed=2) @ mixed + 3 * normal(3, 6, seed=3)[labels]
    return normal(40, 6, seed=4) @ mixed, training, labels


def test_mahalanobis_is_the_distance_to_the_nearest_class_under_a_shared_covariance() -> None:
    features, training, labels = samples()
    means = np.stack([training[labels == c].mean(0).numpy() for c in range(3)])
    shared = EmpiricalCovariance(assume_centered=True).fit(training.numpy() - means[labels.numpy()])
    expected = np.stack([shared.mahalanobis(features.numpy() - mean) for mean in means]).min(0)
    found = metrics.mahalanobis(features, training, labels, ridge=1e-12)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-8)
    np.testing.assert_allclose(metrics.mahalanobis(features, training, labels).numpy(), expected, rtol=1e-3)
    again = metrics.mahalanobis(features, training, 7 * labels + 2, ridge=1e-12)
    torch.testing.assert_close(again, found)  # names of classes do not count, nor classes without samples


def test_mahalanobis_has_a_ridge_for_dead_units_and_more_units_than_samples() -> None:
    features, training, labels = samples(5)
    training[:, 2] = 0
    found = metrics.mahalanobis(features.float(), training.float(), labels)
    assert found.isfinite().all()
    assert (found > 0).all()


@pytest.mark.parametrize("k", [1, 50])
def test_knn_distance_is_that_of_the_kth_neighbour_on_the_unit_sphere(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    features, training, _ = samples()
    nearest = NearestNeighbors(n_neighbors=k).fit(normalize(training.numpy()))
    expected = nearest.kneighbors(normalize(features.numpy()))[0][:, -1]
    np.testing.assert_allclose(metrics.knn_distance(features, training, k).numpy(), expected, rtol=1e-8)
    monkeypatch.setattr(distances, "AT_ONCE", 7 * len(training))  # in parts, of which the last is smaller
    np.testing.assert_allclose(metrics.knn_distance(features, training, k).numpy(), expected, rtol=1e-8)


def test_knn_distance_takes_fifty_neighbours_or_as_many_as_there_are() -> None:
    features, training, _ = samples()
    torch.testing.assert_close(
        metrics.knn_distance(features, training), metrics.knn_distance(features, training, distances.NEIGHBOURS)
    )
    few = training[:10]
    torch.testing.assert_close(metrics.knn_distance(features, few), metrics.knn_distance(features, few, 10))
    assert distances.NEIGHBOURS == 50


def test_what_is_far_away_has_higher_scores() -> None:
    _, training, labels = samples()
    far = -10 * training.mean(0) + training
    assert metrics.mahalanobis(far, training, labels).min() > metrics.mahalanobis(training, training, labels).max()
    assert metrics.knn_distance(far, training).median() > metrics.knn_distance(training, training).median()


def test_errors_name_the_argument() -> None:
    features, training, labels = samples()
    with pytest.raises(ValueError, match=r"features must be \(samples, inputs\) and not empty, got shape \(6,\)"):
        metrics.knn_distance(features[0], training)
    with pytest.raises(ValueError, match="as many inputs, got 5 and 6"):
        metrics.knn_distance(features[:, :5], training)
    with pytest.raises(ValueError, match="training must be finite"):
        metrics.knn_distance(features, training / 0)
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        metrics.knn_distance(features, training, 0)
    with pytest.raises(ValueError, match=r"same shape, got labels \(299,\)"):
        metrics.mahalanobis(features, training, labels[1:])
    with pytest.raises(ValueError, match="ridge must be positive, got 0"):
        metrics.mahalanobis(features, training, labels, ridge=0)
    with pytest.raises(ValueError, match="must vary within a class"):
        metrics.mahalanobis(features, torch.ones_like(training), labels)
