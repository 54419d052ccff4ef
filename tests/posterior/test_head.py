from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tradi.likelihoods import Bernoulli, Classification, Gaussian, Likelihood, SquaredError
from tradi.posterior.conditioning import Replay
from tradi.posterior.head import Head, find_head, layer_matrix, layer_state, watched
from tradi.posterior.laplace import LaplaceHead


class Net(nn.Module):
    """Two hidden layers, three heads, and an end that the tests choose."""

    def __init__(self, end: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(4, 6), nn.Tanh())
        self.a, self.b, self.c = nn.Linear(6, 3), nn.Linear(6, 3, bias=False), nn.Linear(4, 3)
        self.pixels = nn.Conv2d(4, 3, 1)
        self.end = end

    def forward(self, x: Tensor) -> Any:
        return self.end(self, x, self.body(x))


X = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
IMAGE = torch.randn(2, 4, 3, 5, generator=torch.Generator().manual_seed(0))


def found(end: Any, likelihood: Likelihood | None = None, layer: str | None = None, x: Tensor = X) -> Head:
    return find_head(Net(end).eval(), (x,), {}, likelihood or Classification(), layer)


@pytest.mark.parametrize(
    ("end", "place"),
    [
        (lambda net, x, h: net.a(h), ("a", 0, 3)),
        (lambda net, x, h: {"logits": net.a(h), "loss": net.b(h)}, ("a", 0, 3)),
        (lambda net, x, h: net.a(h).flatten(1), ("a", 0, 3)),
        (lambda net, x, h: net.a(h)[:, None].squeeze(1), ("a", 0, 3)),
        (lambda net, x, h: net.a(h)[:, 1:], ("a", 1, 2)),
        (lambda net, x, h: (net.b(h), net.a(h))[1], ("a", 0, 3)),
        (lambda net, x, h: net.a(h).double(), ("a", 0, 3)),
        (lambda net, x, h: (net.a(x @ torch.ones(4, 6)), net.a(h))[1], ("a", 0, 3)),  # it runs twice
    ],
)
def test_the_head_is_the_layer_whose_output_the_network_returns(end: Any, place: tuple[str, int, int]) -> None:
    head = found(end)
    assert (head.name, head.first, head.outputs) == place


@pytest.mark.parametrize(
    ("end", "place"),
    [
        (lambda net, x, h: (out := net.a(h), (out[:, :1], out[:, 1:2].exp()))[1], ("a", 0, 1)),
        (lambda net, x, h: (out := net.a(h), (out[:, 2:], out[:, :1].exp()))[1], ("a", 2, 1)),
        (lambda net, x, h: (net.a(h)[:, 0], net.b(h)[:, 0].exp()), ("a", 0, 1)),
        (
            lambda net, x, h: [part.clone() if n else part for n, part in enumerate(net.a(h).split([2, 1], 1))],
            ("a", 0, 2),
        ),
    ],
)
def test_the_mean_may_be_a_part_of_what_a_layer_gives(end: Any, place: tuple[str, int, int]) -> None:
    head = found(end, Gaussian())
    assert (head.name, head.first, head.outputs) == place


def test_heads_that_read_the_same_features_are_siblings() -> None:
    assert found(lambda net, x, h: (net.a(h), net.b(h).exp()), Gaussian()).siblings == ("b",)
    assert found(lambda net, x, h: (net.a(h), net.c(x).exp()), Gaussian()).siblings == ()


def test_images_and_tokens_have_heads_too() -> None:
    head = find_head(Net(None).pixels, (IMAGE,), {}, Classification(), None)
    assert (head.name, head.first, head.outputs) == ("", 0, 3)
    tokens = torch.randn(2, 7, 4)
    head = found(lambda net, x, h: net.a(h), Classification(class_axis=-1), x=tokens)
    assert (head.name, head.first, head.outputs) == ("a", 0, 3)
    moved = found(lambda net, x, h: net.a(h).movedim(-1, 1), Classification(), x=tokens)
    assert (moved.name, moved.first, moved.outputs) == ("a", 0, 3)


@pytest.mark.parametrize(
    "end",
    [
        lambda net, x, h: net.a(h).log_softmax(1),
        lambda net, x, h: net.a(h) * 2,
        lambda net, x, h: net.a(h) + net.b(h),
        lambda net, x, h: h,
        lambda net, x, h: torch.cat([net.a(h), net.b(h)], 1),
    ],
)
def test_a_network_without_a_linear_layer_at_its_end_is_an_error_that_lists_its_layers(end: Any) -> None:
    message = (
        r"^no linear layer gives the network's logits or mean unchanged, so there is no last layer to condition: .*"
        r"name the one before a log_softmax by layer=.*choose_scale\(validation\)\. "
        r"The network's linear layers are \['body\.0', 'a', 'b', 'c', 'pixels'\]$"
    )
    with pytest.raises(ValueError, match=message):
        found(end)


def test_the_user_may_name_the_layer() -> None:
    head = found(lambda net, x, h: net.a(h).log_softmax(1), layer="a")
    assert (head.name, head.first, head.outputs) == ("a", 0, 3)
    with pytest.raises(
        ValueError, match=r"layer= must be the name of a linear layer, one of \['body\.0', .*\], got 'body'$"
    ):
        found(lambda net, x, h: net.a(h), layer="body")
    with pytest.raises(ValueError, match=r"layer 'c' does not give"):
        found(lambda net, x, h: net.a(h), layer="c")  # which never runs
    with pytest.raises(ValueError, match=r"layer 'body\.0' does not give"):
        found(lambda net, x, h: net.a(h), layer="body.0")  # of another width


@pytest.mark.parametrize(
    ("end", "likelihood"),
    [
        (lambda net, x, h: net.a(h).softmax(1), Classification()),
        (lambda net, x, h: 2 * net.a(h), Classification()),
        (lambda net, x, h: net.a(h).exp(), SquaredError()),
        (lambda net, x, h: 3 * net.a(h) + 1, SquaredError()),
        (lambda net, x, h: (net.a(h) * 2, net.b(h).exp()), Gaussian()),
    ],
)
def test_a_named_layer_that_something_follows_is_an_error(end: Any, likelihood: Likelihood) -> None:
    with pytest.raises(ValueError, match=r"something follows layer 'a' and changes its output.*return logits"):
        found(end, likelihood, layer="a")


def test_a_named_layer_may_be_followed_by_what_changes_no_prediction() -> None:
    for end in (lambda net, x, h: net.a(h).log_softmax(1), lambda net, x, h: net.a(h) + 5):
        assert found(end, layer="a").name == "a"
    assert found(lambda net, x, h: net.a(h).clone(), SquaredError(), layer="a").name == "a"
    one = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))  # (n, 1) and (n,) are the same numbers
    assert find_head(one, (X,), {}, SquaredError(), "0").name == "0"
    one.append(nn.Softplus())
    with pytest.raises(ValueError, match="something follows layer '0'"):
        find_head(one, (X,), {}, SquaredError(), "0")


class Resizing(nn.Module):
    """Two convolutions, the second of them before a change of size."""

    def __init__(self, **way: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head, self.way = nn.Conv2d(4, 3, 3, padding=1), nn.Conv2d(3, 3, 1), way

    def forward(self, image: Tensor) -> Tensor:
        return F.interpolate(self.head(self.body(image).tanh()), **self.way)


@pytest.mark.parametrize(
    "way",
    [
        {"size": (7, 9), "mode": "bilinear"},
        {"size": (7, 9), "mode": "bilinear", "align_corners": True},
        {"scale_factor": 2, "mode": "nearest"},
        {"size": (9, 20), "mode": "bicubic"},
    ],
)
@pytest.mark.parametrize("layer", [None, "head"])
def test_the_network_may_resize_its_map_of_logits(way: dict[str, Any], layer: str | None) -> None:
    head = find_head(Resizing(**way).eval(), (IMAGE,), {}, Classification(), layer)
    assert (head.name, head.first, head.outputs) == ("head", 0, 3)
    assert find_head(Resizing(**way).eval(), (IMAGE,), {}, Bernoulli(), layer).name == "head"
    with pytest.raises(ValueError, match=r"no linear layer gives|does not give"):
        find_head(Resizing(**way).eval(), (IMAGE,), {}, SquaredError(), layer)
    with pytest.raises(ValueError, match=r"layer 'body' does not give"):
        find_head(Resizing(**way).eval(), (IMAGE,), {}, Classification(), "body")


@pytest.mark.parametrize("place", [0, 1, -1])
def test_one_token_of_many_is_the_output_of_a_classifier_and_not_of_a_regression(place: int) -> None:
    """A classifier of texts that reads one token after its head."""
    tokens = torch.randn(2, 3, 4)
    head = found(lambda net, x, h: net.a(h)[:, place], x=tokens)
    assert (head.name, head.first, head.outputs) == ("a", 0, 3)
    with pytest.raises(ValueError, match="no linear layer gives"):
        found(lambda net, x, h: net.a(h)[:, place], SquaredError(), x=tokens)


def test_tokens_may_be_picked_from_each_text_by_itself() -> None:
    tokens, last = torch.randn(2, 3, 4), torch.tensor([2, 0])
    net = Net(lambda net, x, h: net.a(h)[torch.arange(2), last])
    assert find_head(net, (tokens,), {}, Classification(), "a").name == "a"
    with watched({"a": net.a}) as seen:
        wanted = net(tokens)
    here = seen["a"].picked(wanted)
    assert torch.equal(here.input, net.body(tokens)[torch.arange(2), last])
    assert torch.equal(here.output, wanted)
    with pytest.raises(ValueError, match="no linear layer gives"):
        found(lambda net, x, h: net.a(h).mean(1), x=tokens)


def test_a_picked_head_is_conditioned_on_what_was_picked() -> None:
    tokens, last = torch.randn(6, 3, 4), torch.tensor([2, 0, 1, 1, 2, 2])
    labels = torch.tensor([0, 1, 2, 1, 0, 2])
    ways = []
    for end in (lambda net, x, h: net.a(h)[torch.arange(6), last], lambda net, x, h: net.a(h[torch.arange(6), last])):
        net = Net(end)
        head = find_head(net, (tokens,), {}, Classification(), None)
        ways.append(LaplaceHead.of(Replay(net, [(tokens, labels)], 6), head, Classification()))
    assert torch.equal(ways[0].noise(0, 0), ways[1].noise(0, 0))


def test_a_weight_that_is_shared_or_computed_is_an_error() -> None:
    class Tied(nn.Module):
        def __init__(self, head_first: bool) -> None:
            super().__init__()
            if head_first:
                self.head = nn.Linear(4, 6, bias=False)
            self.embedding = nn.Embedding(6, 4)
            if not head_first:
                self.head = nn.Linear(4, 6, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.embedding(tokens))

    tokens = torch.tensor([[0, 3, 5]])
    for head_first in (True, False):
        with pytest.raises(ValueError, match=r"weight of layer 'head' is shared.*choose_scale"):
            find_head(Tied(head_first), (tokens,), {}, Classification(class_axis=-1), None)
    normed = nn.Sequential(nn.Tanh(), nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)))
    with pytest.raises(ValueError, match=r"weight of layer '1' is shared.*or computed"):
        find_head(normed, (X,), {}, Classification(), None)
    net: Any = nn.Sequential(nn.Linear(4, 3))
    net.alias = net[0]  # one layer under two names is one layer
    net.forward = lambda x: net[0](x)
    assert find_head(net, (X,), {}, Classification(), None).name == "0"


def test_a_grouped_convolution_is_no_head() -> None:
    with pytest.raises(ValueError, match="no linear layer gives"):
        find_head(nn.Conv2d(4, 4, 1, groups=2), (IMAGE,), {}, Classification(), None)


@pytest.mark.parametrize(
    "layer", [nn.Linear(6, 3), nn.Linear(6, 3, bias=False), nn.Conv2d(4, 3, (1, 2)), nn.ConvTranspose2d(4, 3, 2)]
)
def test_weights_of_a_layer_are_one_matrix_and_back(layer: Any) -> None:
    state = {f"head.{name}": value.detach() for name, value in layer.named_parameters()}
    matrix = layer_matrix(layer)
    assert matrix.shape == (3, sum(value.numel() for value in state.values()) // 3)
    back = layer_state("head", layer, matrix.double())
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)


def test_theta_replaces_the_tasks_outputs_alone() -> None:
    layer = nn.Linear(6, 4)
    state = {f"head.{name}": value.detach() for name, value in layer.named_parameters()}
    head = Head("head", layer, 1, 2)
    torch.testing.assert_close(head.theta, torch.cat([layer.weight, layer.bias[:, None]], 1)[1:3].detach())
    new = head.with_theta(torch.full((2, 7), 5.0, dtype=torch.float64))
    assert (new["head.weight"][1:3] == 5).all()
    assert (new["head.bias"][1:3] == 5).all()
    for name in ("head.weight", "head.bias"):
        assert new[name].dtype == torch.float32
        assert torch.equal(new[name][[0, 3]], state[name][[0, 3]])
        assert not (state[name] == 5).any()


def test_features_times_theta_are_the_outputs() -> None:
    for layer, x in ((nn.Linear(4, 3), X), (nn.Conv2d(4, 3, 3, padding=1), IMAGE), (nn.Linear(4, 3, bias=False), X)):
        head = find_head(layer, (x,), {}, SquaredError(), None)
        with watched({"": layer}) as seen, torch.no_grad():
            output = layer(x)
        expected = output if isinstance(layer, nn.Linear) else output.movedim(1, -1).flatten(0, 2)
        torch.testing.assert_close(head.features(seen[""]) @ head.theta.T, expected)


def test_hooks_are_gone_afterwards_whatever_happens() -> None:
    net = Net(lambda net, x, h: net.a(h).log_softmax(1))
    with pytest.raises(ValueError, match="no linear layer"):
        find_head(net, (X,), {}, Classification(), None)
    net.end = lambda net, x, h: 1 / 0
    with pytest.raises(ZeroDivisionError):
        find_head(net, (X,), {}, Classification(), None)
    assert not any(module._forward_hooks for module in net.modules())
