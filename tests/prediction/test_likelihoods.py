"""Likelihoods: against torch's distributions, and inferred where there is no doubt."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tradi
from tradi.likelihoods import Bernoulli, Classification, Gaussian, Likelihood, SquaredError, Tokens
from tradi.prediction.likelihoods import check_likelihood, infer, likelihood_from_options, per_value

LOGITS, LABELS = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1, 2])
NUMBERS = torch.linspace(-1, 2, 6)


def test_log_probabilities_are_those_of_torch_distributions() -> None:
    expected = torch.distributions.Categorical(logits=LOGITS).log_prob(LABELS)
    torch.testing.assert_close(Classification().log_prob(LOGITS, LABELS), expected)
    binary = (LABELS > 0).float()
    expected = torch.distributions.Bernoulli(logits=LOGITS[:, 0]).log_prob(binary)
    torch.testing.assert_close(Bernoulli().log_prob(LOGITS[:, :1], binary)[:, 0], expected)
    normal = torch.distributions.Normal(LOGITS[:, :1], 2.0)
    torch.testing.assert_close(SquaredError(4.0).log_prob(LOGITS[:, :1], NUMBERS), normal.log_prob(NUMBERS[:, None]))  # type: ignore[arg-type]
    pair = (LOGITS[:, :1], torch.full((6, 1), 4.0))
    torch.testing.assert_close(Gaussian().log_prob(pair, NUMBERS), normal.log_prob(NUMBERS[:, None]))


def test_a_language_model_is_judged_by_the_next_token_and_not_by_padding() -> None:
    logits, tokens = torch.randn(2, 4, 7), torch.tensor([[1, 2, 3, 0], [4, 5, -100, -100]])
    found = Tokens(padding=0).log_prob({"logits": logits, "loss": torch.tensor(1.0)}, tokens)
    expected = logits.log_softmax(-1)
    assert found.shape == (2, 3)
    torch.testing.assert_close(found[0, :2], torch.stack([expected[0, 0, 2], expected[0, 1, 3]]))
    torch.testing.assert_close(found[1, 0], expected[1, 0, 5])
    assert found[0, 2].isnan()
    assert found[1, 1:].isnan().all()
    assert Tokens().predict(torch.randn(3, 2, 4, 7)).probs.shape == (2, 7, 4)


@pytest.mark.parametrize(
    ("output", "target", "expected"),
    [
        (LOGITS, LABELS, Classification()),
        (LOGITS, LABELS.numpy(), Classification()),
        (torch.randn(2, 3, 4, 5), torch.zeros(2, 4, 5, dtype=torch.int64), Classification()),
        ({"logits": LOGITS, "loss": torch.tensor(1.0)}, LABELS, Classification()),
        ((LOGITS, LOGITS.exp()), LOGITS, Gaussian()),
        (LOGITS[:, :1], NUMBERS, SquaredError()),
        (LOGITS[:, :1], NUMBERS[:, None], SquaredError()),
        (LOGITS[:, 0], NUMBERS.double().numpy(), SquaredError()),
        (LOGITS[:, :1], (LABELS > 0).long(), Bernoulli()),
        (LOGITS, torch.eye(3)[LABELS].bool().logical_not(), Bernoulli()),
        (LOGITS, LOGITS.softmax(1) + 0.1, SquaredError()),
    ],
)
def test_what_leaves_no_doubt_is_inferred(output: Any, target: Any, expected: Likelihood) -> None:
    assert infer(output, target) == expected


@pytest.mark.parametrize(
    ("output", "target", "named"),
    [
        (LOGITS[:, :1], (LABELS > 0).float(), r"Bernoulli\(\) or tradi.likelihoods.SquaredError\(\)"),
        (LOGITS[:, :1], LABELS, r"Bernoulli\(\) or tradi.likelihoods.SquaredError\(\)"),
        (
            torch.randn(2, 4, 7),
            torch.zeros(2, 4, dtype=torch.int64),
            r"class_axis=-1\) or tradi.likelihoods.Tokens\(\)",
        ),
        (torch.randn(2, 4, 4), torch.zeros(2, 4, dtype=torch.int64), r"Tokens\(\) or"),
        (
            LOGITS,
            NUMBERS,
            r"\(6, 3\) of torch.float32 and targets \(6,\) of torch.float32 fit none of tradi.likelihoods",
        ),
        (LOGITS, LABELS[:5], r"\(6, 3\) .* \(5,\) .* Classification\(\) takes logits \(batch, classes, ...\)"),
        ([LOGITS] * 3, LABELS, "a list of 3 and targets .* fit none of tradi.likelihoods: Classification"),
    ],
)
def test_what_leaves_doubt_is_an_error_that_names_the_likelihood(output: Any, target: Any, named: str) -> None:
    with pytest.raises(TypeError, match=named):
        infer(output, target)


@pytest.mark.parametrize("target", [torch.eye(3)[LABELS], torch.eye(3)[LABELS].long(), LOGITS.softmax(1)])
def test_one_hot_and_smoothed_labels_are_neither_labels_that_may_hold_together_nor_numbers(target: Tensor) -> None:
    with pytest.raises(TypeError, match=r"add up to 1, .* pass their numbers, target.argmax\(1\); otherwise pass lik"):
        infer(LOGITS, target)


def test_noise_of_a_plain_network_is_estimated_per_output() -> None:
    output, target = torch.zeros(4, 2), torch.tensor([[1.0, 2.0], [-1.0, 2.0], [1.0, -2.0], [-1.0, -2.0]])
    fitted = SquaredError().fitted([(output[:2], target[:2]), (output[2:], target[2:])])
    assert fitted.variance == pytest.approx((1.0, 4.0))
    prediction = fitted.predict(torch.zeros(3, 4, 2))
    assert prediction.variance[0].tolist() == pytest.approx([1.0, 4.0])
    with pytest.raises(ValueError, match="the noise variance is not known yet: choose_scale estimates it"):
        SquaredError().log_prob(output, target)


def test_bad_targets_name_cause_and_remedy() -> None:
    with pytest.raises(ValueError, match=r"targets of 0 and 1, got 2.*SquaredError"):
        Bernoulli().log_prob(LOGITS[:, :1], LABELS)
    with pytest.raises(ValueError, match=r"targets must have shape \(6, 3\).*got \(6,\)"):
        SquaredError(1.0).log_prob(LOGITS, NUMBERS)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"pair \(mean, variance\).*SquaredError"):
        Gaussian().log_prob(LOGITS, LOGITS)
    with pytest.raises(ValueError, match="variance must be positive and finite"):
        SquaredError(-1.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"4 noise variances do not fit outputs of shape \(6, 3\)"):
        SquaredError((1.0,) * 4).log_prob(LOGITS, LOGITS)
    with pytest.raises(ValueError, match=r"noise variance cannot be estimated: .* are not finite"):
        SquaredError().fitted([(LOGITS, LOGITS * math.inf)])
    with pytest.raises(ValueError, match="cannot be estimated"):
        SquaredError().fitted([])
    with pytest.raises(ValueError, match=r"mean \(6, 3\) and variance \(6, 1\) must have one shape"):
        Gaussian().log_prob((LOGITS, LOGITS[:, :1].exp()), LOGITS)


@pytest.mark.parametrize("kind", [Classification, Tokens, Gaussian, Bernoulli])
@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf, math.nan])
def test_a_temperature_is_a_positive_factor(kind: Any, temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature must be positive and finite, got"):
        kind(temperature=temperature)


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (LABELS.float(), TypeError, "class targets must be whole numbers, got torch.float32"),
        (LABELS[:, None], ValueError, r"class targets must have shape \(6,\) for logits \(6, 3\), got \(6, 1\)"),
        (LABELS + 1, ValueError, "class targets must be below 3, got 3; negative ones are ignored"),
        (None, ValueError, r"targets are needed: give \(inputs, target\) batches"),
        (["cat"] * 6, TypeError, "targets must be tensors or arrays of numbers, got list"),
    ],
)
def test_labels_that_are_no_classes_are_refused(labels: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Classification().log_prob(LOGITS, labels)


def test_an_axis_of_classes_is_the_second_or_the_last() -> None:
    logits = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(5))
    labels = torch.tensor([[0, 1, 2, 0], [2, 2, 1, -100]])
    last, second = (Classification(axis).log_prob(z, labels) for axis, z in ((-1, logits), (1, logits.mT)))
    torch.testing.assert_close(last, second, equal_nan=True)
    with pytest.raises(ValueError, match="class_axis must be 1 or -1, got 2"):
        Classification(2)


@pytest.mark.parametrize(
    ("logits", "tokens", "error"),
    [
        (torch.zeros(2, 4), torch.zeros(2, 4, dtype=torch.int64), ValueError),
        (torch.zeros(2, 4, 7), torch.zeros(2, 3, dtype=torch.int64), ValueError),
        (torch.zeros(2, 1, 7), torch.zeros(2, 1, dtype=torch.int64), ValueError),  # nothing follows one token
        (torch.zeros(2, 4, 7), torch.zeros(2, 4), TypeError),
    ],
)
def test_a_language_model_needs_tokens_and_logits_for_each(
    logits: Tensor, tokens: Tensor, error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"Tokens needs logits|class targets must be whole numbers"):
        Tokens().log_prob(logits, tokens)


def test_rows_of_a_text_are_about_the_next_token_and_of_labels_about_each() -> None:
    tokens = torch.tensor([[1, 2, 0], [4, 5, 6]], dtype=torch.uint8)
    assert Tokens(padding=0).row_targets(tokens).tolist() == [[2, -100, -100], [5, 6, -100]]
    assert Classification().row_targets(LABELS).tolist() == [[label] for label in LABELS.tolist()]
    assert Bernoulli().row_targets(torch.tensor([[1.0, math.nan], [0.0, 1.0]])).tolist() == [[[1, -1]], [[0, 1]]]
    with pytest.raises(TypeError, match="class targets must be whole numbers"):
        Classification().row_targets(NUMBERS)
    with pytest.raises(TypeError, match=r"SquaredError\(variance=None\) is not about labels"):
        SquaredError().row_targets(NUMBERS)


@pytest.mark.parametrize(
    ("output", "named"),
    [
        ((LOGITS, LOGITS), "a tuple of 2"),
        ({"scores": LOGITS}, r"a dict with \['scores'\]"),
        (3.0, "a float"),
    ],
)
def test_an_output_without_logits_is_named(output: Any, named: str) -> None:
    with pytest.raises(TypeError, match=f"Classification needs a network that returns a tensor, .* got {named}"):
        Classification().log_prob(output, LABELS)


class Summed(Bernoulli):
    """What somebody may write who thinks of a loss."""

    def log_prob(self, output: Any, target: Any) -> Tensor:
        return super().log_prob(output, target).mean()


def test_values_are_one_for_every_sample_and_need_targets() -> None:
    binary = (LABELS > 0).float()
    assert per_value(Bernoulli(), LOGITS[:, :1], binary).shape == (6, 1)
    with pytest.raises(ValueError, match="must give a value for every sample, got a single number"):
        per_value(Summed(), LOGITS[:, :1], binary)
    with pytest.raises(ValueError, match="targets are needed"):
        per_value(Bernoulli(), LOGITS[:, :1], None)


def test_only_a_likelihood_is_one_and_only_its_own_options_build_it() -> None:
    check_likelihood(None)
    with pytest.raises(TypeError, match=r"must be one of tradi.likelihoods, such as Classification\(\), got 'softmax'"):
        check_likelihood("softmax")
    with pytest.raises(ValueError, match="unknown likelihood 'Poisson': this version of tradi knows"):
        likelihood_from_options("Poisson", {})


@pytest.mark.parametrize(
    "likelihood", [Classification(-1), Tokens(3), Gaussian(), SquaredError((1.0, 2.0)), Bernoulli()]
)
def test_a_likelihood_is_what_its_options_describe(likelihood: Likelihood) -> None:
    assert likelihood_from_options(type(likelihood).__name__, likelihood.options()) == likelihood


class Two(nn.Module):
    """A network with a second, optional input."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.net = nn.Linear(4, outputs)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        out: Tensor = self.net(x if mask is None else x * mask)
        return out


def posterior_of(model: nn.Module, x: Tensor, loss: Any) -> tradi.Posterior:
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    tracker = tradi.TRADI(model, optimizer)
    for _ in range(8):
        optimizer.zero_grad()
        loss(model(x)).backward()
        optimizer.step()
    return tracker.posterior()


X = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.filterwarnings("ignore:scale 0|no noise up to")
@pytest.mark.parametrize("column", [False, True])
@pytest.mark.parametrize("array", [False, True])
def test_a_plain_mse_network_from_training_to_quantiles(column: bool, array: bool) -> None:
    y = X[:, :1] + 0.1 * torch.randn(64, 1, generator=torch.Generator().manual_seed(2))
    posterior = posterior_of(nn.Linear(4, 1), X, lambda out: (out - y).square().mean())
    target = y if column else y[:, 0]
    data: Any = [(X.double().numpy(), target.numpy())] if array else [(X, target)]
    chosen = posterior.choose_scale(data, members=3)
    assert isinstance(chosen.likelihood, SquaredError)
    prediction = chosen.sample(5).predict(X.numpy() if array else X)
    assert prediction.mean.shape == (64, 1)
    low, high = prediction.icdf(torch.tensor([0.05, 0.95]))
    assert (low < prediction.mean).all()
    assert (prediction.mean < high).all()


@pytest.mark.filterwarnings("ignore:scale 0|no noise up to")
def test_one_logit_and_a_remembered_likelihood_survive_a_file(tmp_path: Any) -> None:
    y = (X[:, :1] > 0).float()
    posterior = posterior_of(
        nn.Linear(4, 1), X, lambda out: nn.functional.binary_cross_entropy_with_logits(out, y)
    ).choose_scale([(X, y)], likelihood=Bernoulli(), members=3)
    posterior.save(tmp_path / "p")
    loaded = tradi.load_posterior(tmp_path / "p", nn.Linear(4, 1))
    assert loaded.likelihood == Bernoulli()
    prediction = loaded.sample(4).predict(X)
    assert isinstance(prediction, tradi.BernoulliPrediction)
    assert torch.equal(prediction.probs, posterior.sample(4).predict(X).probs)


@pytest.mark.filterwarnings("ignore:scale 0|no noise up to")
def test_a_mask_is_never_dropped_silently() -> None:
    y = X[:, :3].argmax(1)
    posterior = posterior_of(Two(3), X, lambda out: nn.functional.cross_entropy(out, y))
    ensemble = posterior.choose_scale([(X, y)], members=3).sample(3)
    mask = torch.zeros(64, 4)
    with pytest.raises(TypeError, match=r"second part of a batch is taken for the target.*\(\(x, mask\), target\)"):
        ensemble.predict([(X, mask)])
    assert torch.equal(ensemble.predict([((X, mask), y)]).logits, ensemble(X, mask))
    assert torch.equal(ensemble.predict({"x": X, "mask": mask}).logits, ensemble(X, mask))
    assert torch.equal(ensemble.predict([{"x": X, "labels": y}]).logits, ensemble(X))
    with pytest.raises(TypeError, match="a data set gives single samples"):
        ensemble.predict(torch.utils.data.TensorDataset(X))
    with pytest.raises(TypeError, match="a tuple, which could be one batch or several"):
        ensemble.predict((X, mask))
    with pytest.raises(TypeError, match="what the outputs mean"):
        posterior.sample(2).predict(X)


def test_quantiles_of_a_mixture_are_where_its_cdf_says() -> None:
    generator = torch.Generator().manual_seed(3)
    means = 5 * torch.randn(4, 7, generator=generator, dtype=torch.float64)
    variances = torch.rand(4, 7, generator=generator, dtype=torch.float64) + 0.01
    mixture = tradi.GaussianMixture(means, variances)
    q = torch.tensor([1e-6, 0.05, 0.5, 0.95, 1 - 1e-6], dtype=torch.float64)
    quantiles = mixture.icdf(q)
    assert quantiles.shape == (5, 7)
    for probability, y in zip(q, quantiles, strict=True):
        torch.testing.assert_close(mixture.cdf(y), probability.expand(7), rtol=1e-9, atol=1e-12)
    one = tradi.GaussianMixture(means[:1], variances[:1])
    torch.testing.assert_close(
        one.icdf(0.9), torch.distributions.Normal(means[0], variances[0].sqrt()).icdf(q.new_tensor(0.9))
    )
    for wrong in (0.0, 1.0, torch.tensor([0.5, 1.0]), torch.tensor([0.0, 0.5])):
        with pytest.raises(ValueError, match="strictly between 0 and 1"):
            mixture.icdf(wrong)


def test_yes_and_no_agree_with_two_classes() -> None:
    z = torch.randn(5, 6, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    ours, two = tradi.BernoulliPrediction(z), tradi.ClassPrediction(torch.stack([torch.zeros_like(z), z], 2))
    torch.testing.assert_close(ours.probs, two.probs[:, 1])
    for name in ("confidence", "one_minus_confidence", "entropy", "mutual_information"):
        torch.testing.assert_close(getattr(ours, name), getattr(two, name))
    labels = torch.tensor([0, 1, 1, 0, 1, 0])
    torch.testing.assert_close(ours.log_prob(labels), two.log_prob(labels))
    assert torch.equal(ours.labels.long(), two.labels)


class LanguageModel(nn.Module):
    """Logits and a loss for every token, as Hugging Face's models return them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 9)

    def forward(self, input_ids: Tensor) -> dict[str, Tensor]:
        return {"logits": self.head(self.embed(input_ids)), "loss": torch.tensor(1.0)}


def test_a_language_model_predicts_without_glue_and_says_what_cannot_be_joined() -> None:
    ensemble = tradi.methods.SingleNetwork(LanguageModel()).sample(2, likelihood=Tokens())
    short, long = (torch.arange(2 * length).reshape(2, length) % 9 for length in (5, 6))
    assert ensemble.predict([{"input_ids": short, "labels": short}]).probs.shape == (2, 9, 5)
    with pytest.raises(TypeError, match="pad all batches to one length"):
        ensemble.predict([{"input_ids": short}, {"input_ids": long}])
    with pytest.raises(TypeError, match="returns a single number, such as a loss: call predict"):
        ensemble.outputs([{"input_ids": short}])


def test_a_sample_without_a_batch_axis_is_an_error_that_says_so() -> None:
    for task in (Classification(), Classification(-1), Tokens()):
        with pytest.raises(ValueError, match="give the ensemble a batch, or add the missing axis with unsqueeze"):
            task.predict(torch.randn(2, 3))


def test_noise_variances_of_several_outputs_belong_to_the_second_axis_whatever_follows() -> None:
    means = torch.randn(6, 2, 5, generator=torch.Generator().manual_seed(0))
    likelihood = SquaredError((0.25, 4.0))
    expected = torch.distributions.Normal(means, torch.tensor([0.5, 2.0])[:, None])
    torch.testing.assert_close(likelihood.log_prob(means, torch.zeros(6, 2, 5)), expected.log_prob(torch.zeros(1)))
