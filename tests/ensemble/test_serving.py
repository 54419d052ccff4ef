"""One module for all members: the numbers of `predict`, and the same ones after an export."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tradi
from tests.fitted import TRAIN, plain, regressor, small, tracked, trained, two_heads, with_batchnorm
from tests.training import Custom
from tradi.ensemble.serving import FIELDS

X = torch.randn(9, 4, generator=torch.Generator().manual_seed(3))
IMAGES = torch.randn(32, 1, 6, 6, generator=torch.Generator().manual_seed(4))
Made = tuple[tradi.Ensemble, Tensor]


def cnn() -> nn.Module:
    torch.manual_seed(0)
    convolution = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*convolution, nn.Flatten(), nn.Dropout(0.2), nn.Linear(16, 3))


def of_images() -> Made:
    data = [(IMAGES, torch.arange(32) % 3)]
    return tracked(cnn(), data, F.cross_entropy).rescaled(1).refreshing(data).sample(
        3, likelihood=tradi.likelihoods.Classification()
    ), IMAGES[:9]


def of_labels(likelihood: tradi.likelihoods.Likelihood | None = None) -> tradi.Ensemble:
    posterior = tradi.methods.GaussianPerturbation(trained(), 0.3).refreshing(TRAIN)
    return posterior.sample(3, likelihood=likelihood or tradi.likelihoods.Classification())


def loud(posterior: tradi.Posterior, **options: Any) -> tradi.Ensemble:
    """Members that differ."""
    return posterior.rescaled(1).sample(3, **options)


CASES: dict[str, Callable[[], Made]] = {
    "labels of an MLP with BatchNorm": lambda: (of_labels(), X),
    "labels of a CNN": of_images,
    "numbers": lambda: (loud(regressor(with_batchnorm)), X),
}
MORE: dict[str, Callable[[], Made]] = CASES | {
    "mean and variance": lambda: (loud(regressor(two_heads)), X),
    "linearised": lambda: (loud(regressor(small)), X),
    "yes or no": lambda: (of_labels(tradi.likelihoods.Bernoulli(temperature=2.0)), X),
}


@pytest.mark.parametrize("case", MORE)
def test_it_returns_what_predict_does(case: str) -> None:
    ensemble, x = MORE[case]()
    prediction = ensemble.predict(x)
    found = ensemble.as_module()(x)
    assert tuple(found) == FIELDS[type(prediction)]
    for name, value in found.items():
        torch.testing.assert_close(value, getattr(prediction, name), rtol=1e-5, atol=1e-6)
    spread = "epistemic" if "epistemic" in found else "mutual_information"
    assert found[spread].max() > 1e-4  # the members differ


class Words(nn.Module):
    """A tiny language model that takes inputs by keyword and returns a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.head = nn.Linear(8, 5)

    def forward(self, input_ids: Tensor) -> dict[str, Tensor]:
        return {"logits": self.head(self.encoder(self.embedding(input_ids)))}


def test_tokens_of_a_transformer_by_keyword() -> None:
    torch.manual_seed(0)
    model, tokens = Words().eval(), torch.arange(12).reshape(2, 6) % 5
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tracker = tradi.TRADI(model, optimizer)
    model(tokens)["logits"].square().mean().backward()
    optimizer.step()
    ensemble = loud(tracker.posterior(), likelihood=tradi.likelihoods.Tokens())
    found = ensemble.as_module()(input_ids=tokens)
    assert found["probs"].shape == (2, 5, 6)
    torch.testing.assert_close(found["probs"], ensemble.predict({"input_ids": tokens}).probs)


def test_the_module_is_its_own_and_holds_what_members_share_once() -> None:
    posterior = tradi.methods.GaussianPerturbation(plain(), 0.5, select="2.*")
    ensemble = posterior.sample(4, likelihood=tradi.likelihoods.Classification())
    module = ensemble.as_module()
    before = module(X)["probs"]
    first, second = (dict(member.named_parameters()) for member in module.members[:2])
    assert first["0.weight"] is second["0.weight"]
    assert not torch.equal(first["2.weight"], second["2.weight"])
    assert not any(parameter.requires_grad for parameter in module.parameters())
    assert not module.training
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    torch.testing.assert_close(ensemble.predict(X).probs, before)


def test_gradients_flow_to_the_inputs() -> None:
    x = X.clone().requires_grad_()
    of_labels().as_module()(x)["entropy"].sum().backward()
    assert x.grad is not None
    assert x.grad.abs().max() > 0


def test_batchnorm_is_refreshed_before_the_module_is_made() -> None:
    ensemble, x = of_images()
    module = ensemble.as_module()
    torch.testing.assert_close(module(x)["probs"], ensemble.predict(x).probs)
    running = [member.get_buffer("1.running_mean") for member in module.members]
    assert not torch.equal(running[0], running[1])


def test_a_saved_ensemble_serves_the_same(tmp_path: Path) -> None:
    ensemble = of_labels()
    ensemble.save(tmp_path / "ensemble.safetensors")
    loaded = tradi.load_ensemble(tmp_path / "ensemble.safetensors", trained())
    for name, value in ensemble.as_module()(X).items():
        assert torch.equal(loaded.as_module()(X)[name], value)


def test_what_cannot_be_served_says_why() -> None:
    dropout = tradi.methods.MCDropout(nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)))
    with pytest.raises(ValueError, match=r"cannot be served as one module.*MCDropout are masks"):
        dropout.sample(2, likelihood=tradi.likelihoods.Classification()).as_module()
    wrong: Any = "classes"
    unknown = tradi.methods.GaussianPerturbation(plain()).sample(2)
    with pytest.raises(TypeError, match=r"not known what the outputs mean.*likelihood="):
        unknown.as_module()
    with pytest.raises(TypeError, match="likelihood must be one of"):
        unknown.as_module(likelihood=wrong)


class Strange(Custom):
    """A likelihood whose prediction is of no known kind."""

    def predict(self, outputs: Any) -> Any:
        return outputs


def test_a_prediction_of_another_kind_has_no_fields() -> None:
    ensemble = of_labels(Strange(lambda output, target: output))
    with pytest.raises(TypeError, match="gives a Tensor, whose fields are not known"):
        ensemble.as_module()(X)


def test_values_are_checked_unless_a_graph_is_traced() -> None:
    module = of_labels().as_module()
    with pytest.raises(ValueError, match="NaN"):
        module(X * torch.nan)


def exported(module: nn.Module, x: Tensor) -> Any:
    """The module's graph, with a free batch size."""
    shape: Any = {0: torch.export.Dim.DYNAMIC}
    variadic = "args" in inspect.signature(module.forward).parameters
    return torch.export.export(module, (x,), dynamic_shapes=((shape,),) if variadic else (shape,))


def leaves(output: Any) -> list[Tensor]:
    return list(output.values()) if isinstance(output, dict) else [output]


@pytest.mark.filterwarnings("ignore")  # of torch's exporter, about its own use of torch
@pytest.mark.parametrize("what", ["one member", "all members"])
@pytest.mark.parametrize("case", CASES)
def test_exports_give_the_same_for_any_batch(case: str, what: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="needs tradi[export]")
    onnxruntime = pytest.importorskip("onnxruntime", reason="runs what is exported")
    ensemble, x = CASES[case]()
    module = ensemble[1] if what == "one member" else ensemble.as_module()
    program = exported(module, x[:4])
    torch.export.save(program, tmp_path / "module.pt2")
    loaded = torch.export.load(tmp_path / "module.pt2").module()
    names = list(module(x)) if what == "all members" else ["output"]
    onnx = torch.onnx.export(program, dynamo=True, input_names=["x"], output_names=names, verbose=False)
    assert onnx is not None
    onnx.save(tmp_path / "module.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "module.onnx")
    for batch in (x, x[:1]):
        expected = leaves(module(batch))
        for ours, theirs in zip(expected, leaves(loaded(batch)), strict=True):
            torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-4)
        for ours, array in zip(expected, session.run(names, {"x": batch.numpy()}), strict=True):
            torch.testing.assert_close(torch.tensor(array), ours, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(torch.__version__.startswith("2.6."), reason="torch 2.6 cannot trace derivatives in forward mode")
@pytest.mark.filterwarnings("ignore")  # as above
def test_linearised_members_are_exported_with_a_fixed_batch() -> None:
    module = loud(regressor(small)).as_module()
    program = torch.export.export(module, (X[:1],))
    for name, value in program.module()(X[1:2]).items():
        torch.testing.assert_close(value, module(X[1:2])[name], rtol=1e-4, atol=1e-4)
