"""`TRADIClassifier` and `TRADIRegressor`: scikit-learn estimators with error bars and an OOD score."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tradi.extras import require
from tradi.prediction.gaussian import GaussianMixture
from tradi.tables.foreign import SAME, SHARE, Cloud
from tradi.tables.rows import held_out, tensors
from tradi.tables.scaling import Standard, about_far, within_reach
from tradi.tables.training import AT_ONCE, Options, fit_classes, fit_numbers

require("sklearn", "sklearn")

from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin  # noqa: E402
from sklearn.utils import check_random_state  # noqa: E402
from sklearn.utils.multiclass import check_classification_targets  # noqa: E402
from sklearn.utils.validation import check_is_fitted, validate_data  # noqa: E402

Array = NDArray[Any]
ENOUGH_TO_COMPARE = 10_000  # rows


class _Estimator(BaseEstimator):  # type: ignore[misc]
    """What both estimators share: options, standardised inputs, an internal split.

    Args:
        hidden: widths of the hidden layers; None chooses by the number of rows.
        steps: optimizer steps, about; None chooses by the number of rows.
        batch_size: rows a step; None chooses by the number of rows.
        learning_rate: of Adam; it falls along a half cosine.
        weight_decay: L2.
        dropout: after every hidden layer.
        patience: epochs without a lower validation loss after which training stops.
        validation_fraction: share of the rows that training stops on, and that the scale of the noise is chosen by.
            0 leaves both out, and error bars are too small.
        members: networks in the ensemble.
        random_state: seed of everything random.

    Attributes:
        ensemble_: the fitted `tradi.Ensemble`, for standardised inputs.
        n_features_in_: number of columns.
    """

    def __init__(
        self,
        *,
        hidden: Sequence[int] | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        learning_rate: float = 1e-2,
        weight_decay: float = 1e-4,
        dropout: float = 0.0,
        patience: int = 5,
        validation_fraction: float = 0.1,
        members: int = 20,
        random_state: Any = None,
    ) -> None:
        self.hidden = hidden
        self.steps = steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.dropout = dropout
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.members = members
        self.random_state = random_state

    def _options(self) -> Options:
        return Options(
            hidden=None if self.hidden is None else tuple(self.hidden),
            steps=self.steps,
            batch=self.batch_size,
            lr=self.learning_rate,
            weight_decay=self.weight_decay,
            dropout=self.dropout,
            patience=self.patience,
            validation=self.validation_fraction,
            members=self.members,
            seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
        )

    def _predict(self, X: Any) -> Any:
        return self._of_inputs(self._inputs_of(X))

    def _inputs_of(self, X: Any) -> Array:
        check_is_fitted(self)
        return self.inputs_.to(validate_data(self, X, reset=False, dtype=np.float64))

    def _of_inputs(self, inputs: Array) -> Any:
        return self.ensemble_.predict(list(tensors(inputs)[0].split(AT_ONCE)))

    def score_ood(self, X: Any) -> Array:
        """How foreign a row is, (rows,): about 1% of rows like those of `fit` are above 1.

        The larger of the members' disagreement (the deviation of their means, or the root of the mutual information)
        and of the Mahalanobis distance from the rows of `fit`, each over its 99th percentile there.
        """
        inputs = self._inputs_of(X)
        parts = [self.cloud_.distance(inputs) / self.usual_distance_]
        if self.usual_disagreement_ > SAME:  # else all members are the same network
            parts.append(self._disagreement(inputs) / self.usual_disagreement_)
        return np.asarray(np.max(parts, axis=0))

    def _remember(self, inputs: Array) -> None:
        """What `score_ood` compares with."""
        some = inputs[:ENOUGH_TO_COMPARE]
        self.cloud_ = Cloud.of(inputs)
        self.usual_distance_ = max(float(np.quantile(self.cloud_.distance(some), SHARE)), SAME)
        self.usual_disagreement_ = float(np.quantile(self._disagreement(some), SHARE))

    @abstractmethod
    def _disagreement(self, inputs: Array) -> Array:
        """Of the members, about standardised rows: (rows,)."""


class TRADIRegressor(RegressorMixin, _Estimator):  # type: ignore[misc]
    """A regressor whose predictions are distributions: mean, standard deviation, quantiles. Options: `_Estimator`."""

    def fit(self, X: Any, y: Any) -> TRADIRegressor:
        """Train, condition on the training rows, and choose the scale of the noise on held-out rows.

        Args:
            X: (rows, columns), numbers without gaps.
            y: (rows,).

        Raises:
            ValueError: if there are fewer than 2 rows, or a value is not finite.
        """
        options = self._options()
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2)
        y, far = within_reach(y.astype(np.float64))
        if far:
            warnings.warn(about_far(far), stacklevel=2)
        self.inputs_, self.centre_, self.scale_ = Standard.of(X), y.mean(), y.std() if (y != y[0]).any() else 1.0
        standard = (y - self.centre_) / self.scale_
        train, validation = held_out(self.inputs_.to(X), standard[:, None], options.validation, options.seed)
        self.ensemble_ = fit_numbers(train, validation, options)
        self._remember(self.inputs_.to(X))
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean, and with `return_std` the standard deviation of the prediction too, each (rows,)."""
        mixture = self.predict_distribution(X)
        mean = mixture.mean.numpy()
        return (mean, mixture.variance.sqrt().numpy()) if return_std else mean

    def predict_quantiles(self, X: Any, q: Any = (0.05, 0.5, 0.95)) -> Array:
        """Quantiles of the prediction: (rows,) for one probability, (rows, len(q)) for several.

        Raises:
            ValueError: if a probability is not strictly between 0 and 1.
        """
        mixture = self.predict_distribution(X)
        found = mixture.icdf(torch.as_tensor(q, dtype=torch.float64)).numpy()
        return found if found.ndim == 1 else np.moveaxis(found, 0, -1)

    def predict_distribution(self, X: Any) -> GaussianMixture:
        """The prediction as a `tradi.GaussianMixture` over (rows,), in the target's own unit."""
        prediction = self._predict(X)
        means, variances = prediction.means[..., 0], prediction.variances[..., 0]
        return GaussianMixture(means * self.scale_ + self.centre_, variances * self.scale_**2)

    def _disagreement(self, inputs: Array) -> Array:
        return self._of_inputs(inputs).epistemic[..., 0].sqrt().numpy()


class TRADIClassifier(ClassifierMixin, _Estimator):  # type: ignore[misc]
    """A classifier with averaged probabilities, and a score of unfamiliar rows. Options: `_Estimator`."""

    def fit(self, X: Any, y: Any) -> TRADIClassifier:
        """Train, condition the last layer on the training rows, and choose the scale of the noise on held-out rows.

        Args:
            X: (rows, columns), numbers without gaps.
            y: (rows,), labels of any kind.

        Raises:
            ValueError: if there is only one class, or a value is not finite.
        """
        options = self._options()
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y must have at least 2 classes, got 1 class: {self.classes_.tolist()[0]!r}")
        self.inputs_ = Standard.of(X)
        train, validation = held_out(self.inputs_.to(X), numbers, options.validation, options.seed)
        self.ensemble_ = fit_classes(train, validation, len(self.classes_), options)
        self._remember(self.inputs_.to(X))
        return self

    def predict(self, X: Any) -> Array:
        """The most probable label, (rows,)."""
        labels = self._predict(X).labels.numpy()
        return self.classes_[labels]

    def predict_proba(self, X: Any) -> Array:
        """Probabilities, (rows, classes), in the order of `classes_`."""
        probs = self._predict(X).probs.numpy()
        return probs / probs.sum(1, keepdims=True)

    def _disagreement(self, inputs: Array) -> Array:
        return self._of_inputs(inputs).mutual_information.sqrt().numpy()
