"""TRADICallback in skorch's own nets."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from skorch import NeuralNetBinaryClassifier, NeuralNetClassifier, NeuralNetRegressor
from skorch.callbacks import Checkpoint, EarlyStopping, EpochScoring
from torch import Tensor, nn

import tradi
from tests.training import same, snapshot
from tradi.integrations.skorch import TRADICallback
from tradi.likelihoods import Bernoulli, Classification, SquaredError


class Network(nn.Module):
    """As users write them; nothing in it knows of tradi."""

    def __init__(self, hidden: int = 8, outputs: int = 3) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, outputs))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


X = np.random.default_rng(0).normal(size=(80, 4)).astype(np.float32)
Y = X[:, :3].argmax(1)


def net(*callbacks: Any, kind: type[Any] = NeuralNetClassifier, **options: Any) -> Any:
    usual = {"max_epochs": 3, "optimizer": torch.optim.Adam, "lr": 1e-2, "batch_size": 16, "verbose": 0}
    if kind is NeuralNetClassifier:
        usual["criterion"] = nn.CrossEntropyLoss
    torch.manual_seed(0)
    return kind(options.pop("module", Network), callbacks=list(callbacks), **usual | options)


def tracked(fitted: Any) -> TRADICallback:
    (found,) = (one for _, one in fitted.callbacks_ if isinstance(one, TRADICallback))
    return found


def test_weights_are_tracked_under_the_names_of_the_module() -> None:
    callback = TRADICallback()
    net(callback).fit(X, Y)
    assert callback.tracker_ is not None
    assert callback.tracker_.steps == 12  # four fifths are trained on
    assert list(callback.posterior.mean) == [f"layers.{i}.{part}" for i in (0, 2) for part in ("weight", "bias")]


def test_a_run_with_the_callback_is_the_run_without_it() -> None:
    with_it, without = net(TRADICallback()).fit(X, Y), net().fit(X, Y)
    assert same(snapshot(with_it.module_), snapshot(without.module_))
    assert with_it.history[:, "train_loss"] == without.history[:, "train_loss"]


@pytest.mark.parametrize("module", [Network, Network()], ids=["class", "instance"])
def test_fit_begins_again_and_partial_fit_goes_on(module: Any) -> None:
    callback, whole = TRADICallback(), TRADICallback()
    net(whole, module=copy.deepcopy(module), max_epochs=6).fit(X, Y)
    started = net(callback, module=copy.deepcopy(module)).fit(X, Y)
    first = callback.tracker_
    started.partial_fit(X, Y)
    assert callback.tracker_ is first
    assert same(callback.posterior.mean, whole.posterior.mean)
    started.fit(X, Y)
    assert callback.tracker_ is not None
    assert callback.tracker_.steps == 12


@pytest.mark.parametrize(
    ("change", "steps"), [({"lr": 0.1}, 24), ({"criterion__label_smoothing": 0.1}, 24), ({"module__hidden": 5}, 12)]
)
def test_changed_parameters(change: dict[str, Any], steps: int) -> None:
    # A new criterion brings a new optimizer for the same module, a new module begins again.
    callback = TRADICallback()
    net(callback).fit(X, Y).set_params(**change).partial_fit(X, Y)
    assert callback.tracker_ is not None
    assert callback.tracker_.steps == steps
    assert callback.posterior.mean["layers.0.weight"].shape[0] == change.get("module__hidden", 8)


def test_parameters_of_the_callback() -> None:
    started = net(("tradi", TRADICallback())).fit(X, Y)
    started.set_params(callbacks__tradi__members=7, callbacks__tradi__fit=True).partial_fit(X, Y)
    callback = tracked(started)
    assert (callback.members, callback.fit) == (7, True)
    assert callback.tracker_ is not None
    assert callback.tracker_.steps == 24
    started.set_params(callbacks__tradi__members=0)
    with pytest.raises(ValueError, match="members must be at least 1, got 0"):
        started.fit(X, Y)
    with pytest.raises(TypeError, match="likelihood must be one of"):
        net(TRADICallback(likelihood="labels")).fit(X, Y)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:scale 0")
def test_clones_and_a_grid_search() -> None:
    callback = TRADICallback(fit=True, members=5, likelihood=Classification())
    started = net(callback).fit(X, Y)
    other = tracked(clone(started).fit(X, Y))
    assert other is not callback
    assert (other.fit, other.members, other.likelihood) == (True, 5, Classification())
    assert other.tracker_ is not callback.tracker_
    search = GridSearchCV(started, {"module__hidden": [3, 4], "callbacks__TRADICallback__members": [2]}, cv=2)
    search.fit(X, Y)
    best = tracked(search.best_estimator_)
    assert best.members == 2
    assert best.posterior.sample(2).predict(X).probs.shape == (80, 3)


@pytest.mark.parametrize("how", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copy", "pickle"])
def test_a_net_goes_on_after_pickling(how: Any) -> None:
    whole = net(TRADICallback(fit=True), max_epochs=6).fit(X, Y)
    started = net(TRADICallback(fit=True)).fit(X, Y)
    restored = how(how(started))  # once without asking it anything
    with pytest.raises(RuntimeError, match=r"needs the data of net.fit"):
        _ = tracked(restored).posterior
    restored.partial_fit(X, Y)
    assert tracked(restored).tracker_ is not tracked(started).tracker_
    for one in (restored, whole):
        tracked(one).fit = False
    assert same(tracked(restored).posterior.mean, tracked(whole).posterior.mean)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("keeper", ["checkpoint", "checkpoint without history", "early stopping"])
def test_the_best_weights_have_their_own_posterior(tmp_path: Path, keeper: str, first: bool) -> None:
    # The second epoch is called the best, on purpose.
    short, callback = TRADICallback(), TRADICallback()
    distance = EpochScoring(lambda net, X, y: abs(len(net.history) - 2), name="distance")
    keep: Any = EarlyStopping("distance", load_best=True, sink=lambda *args, **kwargs: None)
    if keeper.startswith("checkpoint"):
        history = {"f_history": None} if keeper.endswith("history") else {}
        keep = Checkpoint("distance_best", dirname=str(tmp_path), load_best=True, **history)
    shorter = net(short, max_epochs=2).fit(X, Y)
    longer = net(distance, *((callback, keep) if first else (keep, callback)), max_epochs=4).fit(X, Y)
    assert same(snapshot(longer.module_), snapshot(shorter.module_))
    assert callback.tracker_ is not None
    assert callback.tracker_.steps == 16
    assert same(callback.posterior.mean, short.posterior.mean)


@pytest.mark.filterwarnings("ignore:scale 0")
@pytest.mark.parametrize(
    ("kind", "likelihood", "metric"),
    [
        (NeuralNetClassifier, Classification, "ece"),
        (NeuralNetBinaryClassifier, Bernoulli, "ece"),
        (NeuralNetRegressor, SquaredError, "rmse"),
    ],
)
def test_a_posterior_is_fitted_on_the_data_of_the_net(kind: type[Any], likelihood: type, metric: str) -> None:
    callback = TRADICallback(fit=True, members=3)
    y = {NeuralNetClassifier: Y, NeuralNetBinaryClassifier: (X[:, 0] > 0).astype(np.float32)}.get(kind, X[:, :1])
    started = net(callback, kind=kind, module__outputs=3 if kind is NeuralNetClassifier else 1).fit(X, y)
    posterior = callback.posterior
    assert isinstance(posterior.likelihood, likelihood)
    assert posterior.scale_search is not None
    assert posterior.scale_search.samples == 16
    assert callback.posterior is posterior, "fitted once"
    measured = callback.evaluate(X, y)
    prediction = posterior.sample(3).predict(X)
    targets = torch.as_tensor(y if kind is NeuralNetClassifier else y.reshape(80, 1))
    assert measured["nll"] == pytest.approx(-prediction.log_prob(targets).mean().item(), rel=1e-4)
    assert metric in measured
    started.partial_fit(X, y)
    assert callback.posterior is not posterior, "of weights that are no more"


def test_asking_before_training_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"call net.fit\(X, y\)"):
        _ = TRADICallback().posterior


def test_the_tracker_may_be_another() -> None:
    callback = TRADICallback(tracker=tradi.TRADI.paper)
    net(callback).fit(X, Y)
    assert callback.posterior.covariance == tradi.FourierFeatures.paper()
