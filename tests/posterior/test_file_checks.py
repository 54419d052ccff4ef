"""Every rule for a posterior's file, broken once; tests/test_fuzz.py breaks them by the thousand."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tradi
from tests.fitted import classifier, joint, narrow, regressor, small, swag
from tests.training import Custom, network, same, snapshot
from tradi.ensemble.files import Packed
from tradi.posterior.loudness import Averaged
from tradi.posterior.without_rows import WithoutRows

MADE: dict[str, Callable[[], tradi.Posterior]] = {
    "labels": classifier,
    "numbers": lambda: regressor(small),
    "SWAG": swag,
    "joint": joint,
}
MODELS: dict[str, Callable[[], nn.Module]] = {"labels": network, "numbers": small, "SWAG": narrow, "joint": narrow}

Named = dict[str, dict[str, Tensor]]
Change = Callable[[Named, Any], object]  # of the tensors by kind and name, and of what is said


def packed(of: str) -> Packed:
    """What the file would hold, to be changed."""
    tensors, about = MADE[of]().packed()
    return {kind: dict(named) for kind, named in tensors.items()}, json.loads(json.dumps(about))


@pytest.mark.parametrize("of", MADE)
def test_what_was_packed_is_what_is_read(of: str) -> None:
    loaded = tradi.Posterior.unpacked(packed(of), MODELS[of]())
    assert same(loaded.mean, MADE[of]().mean)
    assert same(loaded.variance, MADE[of]().variance)


def shares(change: dict[str, Any]) -> Change:
    """A change of the first share of a posterior of numbers."""
    return lambda tensors, about: about["conditioning"]["shares"][0].update(change)


def conditioned(**change: Any) -> Change:
    return lambda tensors, about: about["conditioning"].update(change)


def head(**change: Any) -> Change:
    return lambda tensors, about: about["conditioning"]["head"].update(change)


def moments(change: Callable[[Tensor], Tensor]) -> Change:
    return lambda tensors, about: tensors["moments"].update({k: change(v) for k, v in tensors["moments"].items()})


BROKEN: list[tuple[str, Change, str]] = [
    ("SWAG", lambda t, a: t.update(surplus={}), r"a posterior holds \[.*, and this file \[.*'surplus'"),
    ("SWAG", lambda t, a: t.pop("fisher"), r"a posterior holds \['conditioning', "),
    ("SWAG", lambda t, a: t["mean"].update(x=torch.ones(1)), "x is tracked in the file, and no weight of the network"),
    ("SWAG", lambda t, a: t["variance"].pop("0.bias"), "variance and mean are of different weights: 0.bias"),
    ("SWAG", lambda t, a: t["deviations"].pop("0.bias"), "deviations and mean are of different weights: 0.bias"),
    (
        "SWAG",
        lambda t, a: t["deviations"].update({k: v[:1] for k, v in t["deviations"].items()}),
        r"deviations must be as many for all weights, and at least 2, got \[1\]",
    ),
    (
        "SWAG",
        lambda t, a: t["deviations"].update({"0.bias": t["deviations"]["0.bias"][:2]}),
        r"deviations must be as many for all weights, and at least 2, got \[2, 3\]",
    ),
    ("SWAG", lambda t, a: t["deviations"].clear(), "LowRank has no deviations"),
    ("SWAG", lambda t, a: t["variance"]["0.bias"].neg_(), "variance of 0.bias is negative"),
    ("SWAG", lambda t, a: t["mean"].update({"0.bias": torch.ones(3)}), r"mean of 0.bias has shape \(3,\) of"),
    ("SWAG", lambda t, a: t["mean"].update({"0.bias": torch.ones(2).int()}), "of torch.int32, expected"),
    ("SWAG", lambda t, a: t["mean"].update({"0.bias": torch.tensor([1.0, torch.nan])}), "mean of 0.bias is NaN"),
    ("SWAG", lambda t, a: a["layers"].pop("0"), "layers and mean are of different layers: 0"),
    ("SWAG", lambda t, a: a["layers"]["0"].update(gradient=-1.0), "gradient and reach must not be negative, got -1.0"),
    ("SWAG", lambda t, a: a["layers"]["0"].update(reach=-1.0), "gradient and reach must not be negative"),
    ("SWAG", lambda t, a: t["conditioning"].update(x=torch.ones(1)), r"holds \['x'\] .*, and says nothing about one"),
    ("joint", lambda t, a: a["joint"].append(a["joint"][0]), "must be of tracked weights, each in one of them"),
    ("joint", lambda t, a: a["joint"].append([]), "must be of tracked weights, each in one of them"),
    ("joint", lambda t, a: a["joint"].pop(), r"FullCovariance\(.*\) has no covariance of 2"),
    ("joint", lambda t, a: t["covariance"].pop("0"), "the weights that they are of do not belong together"),
    (
        "joint",
        lambda t, a: a.update(joint=[["0.weight", "2.weight"], ["0.bias", "2.bias"]]),
        "a joint covariance is of one layer, got 0.weight, 2.weight",
    ),
    (
        "joint",
        lambda t, a: t["covariance"].update({"0": t["covariance"]["0"][:-1]}),
        r"covariance of 0\.\w+ has shape \(9, 10\)",
    ),
    ("joint", lambda t, a: t["covariance"]["0"].fill_(torch.inf), r"covariance of 0\.\w+ is NaN or infinite"),
    ("labels", lambda t, a: t["moments"].popitem(), "moments and the weights that they are of do not belong together"),
    ("labels", lambda t, a: a["moments"][0].update(bias="x"), r"moments of 0\.weight do not fit the network's layer"),
    ("labels", moments(lambda second: -second), r"energy in moments of 0\.weight is negative"),
    ("labels", moments(lambda second: second[:, 1:]), r"moments of 0\.weight has shape"),
    ("labels", head(name="7"), "conditioning: '7' and its siblings are not linear layers of the network"),
    ("labels", head(siblings=["1"]), "are not linear layers of the network"),
    ("labels", head(outputs=99), "conditioning: outputs 0 to 99 of '4', which has 3"),
    ("labels", head(first=-1), "conditioning: outputs -1 to 2 of '4', which has 3"),
    ("labels", conditioned(kind="other"), "unknown conditioning 'other': this version of tradi knows laplace and reg"),
    ("labels", lambda t, a: a.update(scale_search=[]), r"scale_search must be an object, got \[\]"),
    ("labels", conditioned(precision=0.0), "precision must be positive and spread not negative, got 0.0"),
    ("labels", conditioned(spread=-1.0), "precision must be positive and spread not negative"),
    ("labels", conditioned(root={"kind": "other"}), "unknown root 'other' with precision None"),
    ("labels", conditioned(root={"kind": "kronecker"}), "unknown root 'kronecker' with precision None"),
    ("labels", lambda t, a: t["conditioning"].pop("theta"), r"conditioning needs \['factors', 'theta'\]"),
    ("labels", lambda t, a: t["conditioning"]["factors"].neg_(), "no Cholesky factors: their diagonal is not positive"),
    ("labels", lambda t, a: t["conditioning"]["theta"].fill_(torch.nan), "theta of the conditioned head is NaN"),
    (
        "labels",
        lambda t, a: t["conditioning"].update(theta=t["conditioning"]["theta"].to(torch.float8_e4m3fn)),
        "theta of the conditioned head has shape .* of torch.float8_e4m3fn, expected",
    ),
    ("labels", lambda t, a: a.update(conditioning=None), r"holds \['factors', 'theta'\] of a conditioned head"),
    ("numbers", lambda t, a: t["conditioning"].update(x=torch.ones(1)), r"holds no tensors, and the file has \['x'\]"),
    ("numbers", conditioned(samples=0), "shares of 0 samples do not add up to one"),
    ("numbers", conditioned(shares=[]), "0 shares of 96 samples do not add up to one"),
    ("numbers", shares({"share": 1e-3}), "do not add up to one"),
    ("numbers", shares({"share": -1.0}), "a share must be positive, and 1 at the most, got -1.0"),
    ("numbers", shares({"scale": -1.0}), "scale must be finite and not negative"),
    ("numbers", shares({"scale": 1e308}), r"scale must .* at most 3\.4e\+38, got 1e\+308"),
    ("SWAG", lambda t, a: a.update(scale=1e308), r"scale must .* at most 3\.4e\+38, got 1e\+308"),
    ("numbers", shares({"way": "Guess"}), "unknown regression 'Guess': this version of tradi knows"),
    ("numbers", shares({"precisions": []}), r"NetworkRegression needs 1 precisions, got 0"),
    ("numbers", shares({"precisions": [-1.0]}), "noise and precisions must be positive"),
    ("numbers", shares({"noise": 0.0}), "noise and precisions must be positive"),
]


@pytest.mark.parametrize(("of", "change", "message"), BROKEN, ids=[f"{of}: {said}" for of, _, said in BROKEN])
def test_a_broken_rule_is_an_error_that_names_it_and_the_model_is_as_before(
    of: str, change: Change, message: str
) -> None:
    tensors, about = copy.deepcopy(packed(of))
    change(tensors, about)
    model = MODELS[of]()
    before = snapshot(model)
    with pytest.raises(ValueError, match=message):
        tradi.Posterior.unpacked((tensors, about), model)
    assert same(before, snapshot(model))


def test_members_of_another_likelihood_or_conditioning_cannot_be_packed() -> None:
    posterior = regressor(small)
    assert isinstance(posterior.conditioning, Averaged)
    own = WithoutRows.of(posterior.conditioning)
    foreign = replace(own, likelihood=Custom(lambda output, target: output))
    with pytest.raises(ValueError, match=r"is not tradi's and cannot be saved: save the ensemble itself"):
        posterior._changed(conditioning=foreign).packed()
    with pytest.raises(ValueError, match=r"NetworkRegression cannot be saved: save the ensemble itself"):
        posterior._changed(conditioning=posterior.conditioning.components[0].conditioning).packed()
