from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import tradi
from tests.training import network, problem, same, snapshot, train
from tradi.methods import LastLayerLaplace
from tradi.posterior.laplace import Full, LaplaceHead

STILL = "^all members are the trained network: no noise of its last layer, which is all there is, lowers"


def trained() -> Any:
    model = network()
    train(model, torch.optim.SGD(model.parameters(), 0.1), 40)
    return model


def test_before_it_is_fitted_it_is_the_trained_network() -> None:
    model = trained()
    method = LastLayerLaplace(model)
    for member in method.sample(2):
        assert same(snapshot(member), snapshot(model))
    with pytest.raises(ValueError, match="no noise to scale"):
        method.choose_scale(problem(), refresh=problem())


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """No noise of the last layer is tried, as if none lowered the validation NLL."""
    monkeypatch.setattr("tradi.posterior.laplace.SPREADS", ())


@pytest.mark.usefixtures("still")
def test_members_differ_in_their_last_layer_alone_and_the_model_stays_as_it_is() -> None:
    model = trained()
    before = snapshot(model)
    with pytest.warns(UserWarning, match=STILL) as caught:
        posterior = LastLayerLaplace(model).fit(problem(), problem(samples=300, seed=1))
    assert [one.filename for one in caught] == [__file__]
    assert isinstance(posterior.conditioning, LaplaceHead)
    loud = posterior.conditioning.with_spread(1.0)
    posterior = posterior._changed(conditioning=loud)
    heads = []
    for member in posterior.sample(3):
        state = snapshot(member)
        changed = {name for name, value in state.items() if not torch.equal(value, before[name])}
        assert changed == {"4.weight", "4.bias"}  # BatchNorm's statistics as trained, too
        heads.append(state["4.weight"])
    assert not torch.equal(heads[0], heads[1])
    assert same(before, snapshot(model))
    assert model.training


def test_a_seed_is_one_ensemble_and_a_small_sample_a_prefix_of_a_larger_one() -> None:
    posterior = LastLayerLaplace(trained()).condition(problem())
    x = problem()[0][0]
    many = posterior.sample(6, seed=3)(x)
    torch.manual_seed(77)
    assert torch.equal(posterior.sample(4, seed=3)(x), many[:4])
    assert not torch.equal(many[0], many[1])


@pytest.mark.usefixtures("still")
def test_without_validation_data_both_warnings_say_so() -> None:
    with (
        pytest.warns(UserWarning, match=STILL),
        pytest.warns(UserWarning, match="without validation data the noise is chosen on the training data"),
    ):
        posterior = LastLayerLaplace(trained()).fit(problem())
    assert "chosen on the training data alone" in repr(posterior)


@pytest.mark.usefixtures("still")
def test_the_search_looks_at_the_head_alone() -> None:
    with pytest.warns(UserWarning, match=STILL):
        posterior = LastLayerLaplace(trained()).fit(problem(), problem(seed=1))
    search = posterior.scale_search
    assert search is not None
    assert (search.scale, search.nll, search.passes) == (0.0, {}, 0)
    assert (search.head, search.samples) == (0.0, 64)
    assert same(snapshot(posterior.sample(1)[0]), snapshot(posterior.model))


@pytest.mark.usefixtures("still")
def test_a_network_whose_head_alone_is_tracked_is_searched_likewise() -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tracker = tradi.TRADI(model, optimizer)
    train(model, optimizer, 40)
    with pytest.warns(UserWarning, match=STILL):
        posterior = tracker.posterior().fit(problem(), problem(samples=300, seed=1))
    assert posterior.scale_search is not None
    assert (posterior.scale, posterior.scale_search.head, posterior.scale_search.passes) == (0.0, 0.0, 0)


def test_numbers_are_bayesian_linear_regression_on_the_networks_features() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    x = torch.cat([x for x, _ in problem()])
    y = x[:, :1] + 0.1 * torch.randn(64, 1)
    with pytest.warns(UserWarning, match="without validation data"):
        posterior = LastLayerLaplace(model).fit([(x, y)])
    assert "last layer conditioned on 64 training rows" in repr(posterior)
    phi = torch.cat([model[:2](x), torch.ones(64, 1)], 1).detach()
    least_squares = phi @ torch.linalg.lstsq(phi, y).solution
    prediction: tradi.GaussianMixture = posterior.sample(50).predict(x)
    left = (y - least_squares).square().mean().sqrt()
    assert (prediction.mean - least_squares).square().mean().sqrt() < left  # though nothing was trained
    assert prediction.epistemic.min() > 0


@pytest.mark.filterwarnings("ignore")  # of its imports
def test_the_posterior_is_that_of_laplace_torch() -> None:
    laplace = pytest.importorskip("laplace", reason="laplace-torch is not installed: see tests/oracles.txt")
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    train(model, torch.optim.SGD(model.parameters(), 0.1), 40)
    (x, y) = (torch.cat(parts) for parts in zip(*problem(), strict=True))
    way = LastLayerLaplace(model).condition([(x, y)]).conditioning
    assert isinstance(way, LaplaceHead)
    assert isinstance(way.root, Full)

    theirs = laplace.Laplace(model, "classification", subset_of_weights="last_layer", hessian_structure="full")
    theirs.fit(DataLoader(TensorDataset(x, y), batch_size=20))
    theirs.prior_precision = way.precision
    # Ours has the bias of an output behind its weights, theirs all biases behind all weights.
    order = [6 * output + i if i < 6 else 18 + output for output in range(3) for i in range(7)]
    factor = way.root.factors[0]
    precision = theirs.posterior_precision[order][:, order].double()
    torch.testing.assert_close(factor @ factor.T, precision, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(way.theta.flatten(), theirs.mean[order].double())
