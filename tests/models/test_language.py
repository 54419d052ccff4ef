from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tradi.models import LanguageModel, next_token_loss


def model() -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(11, 8, width=12, layers=2, heads=3, dropout=0.1).eval()


def test_logits_depend_on_what_came_before_and_on_nothing_later() -> None:
    tokens = torch.randint(11, (4, 8))
    other = tokens.clone()
    other[:, 5] = (tokens[:, 5] + 1) % 11
    network = model()
    one, two = network(tokens), network(other)
    assert one.shape == (4, 8, 11)
    torch.testing.assert_close(one[:, :5], two[:, :5])
    assert (one[:, 5:] - two[:, 5:]).abs().amax((0, 2)).min() > 1e-4
    torch.testing.assert_close(network(tokens[:, :3]), one[:, :3])


def test_attention_is_that_of_torch() -> None:
    network = model()
    block: Any = network.blocks[0]
    x = torch.randn(2, 8, 12)
    reference = torch.nn.MultiheadAttention(12, 3, batch_first=True)
    with torch.no_grad():
        reference.in_proj_weight.copy_(block.attention.weight)
        reference.in_proj_bias.copy_(block.attention.bias)
        reference.out_proj.load_state_dict(block.mixed.state_dict())
        normed = block.before_attention(x)
        mask = torch.nn.Transformer.generate_square_subsequent_mask(8)
        attended, _ = reference(normed, normed, normed, attn_mask=mask, need_weights=False)
        after = x + attended
        torch.testing.assert_close(block(x), after + block.feed(block.before_feed(after)))


def test_the_loss_is_of_the_next_token_and_padding_does_not_count() -> None:
    logits, tokens = torch.randn(2, 5, 7), torch.randint(7, (2, 5))
    tokens[1, 3:] = -1
    log_probs = F.log_softmax(logits, 2)
    known = [(0, 1), (0, 2), (0, 3), (0, 4), (1, 1), (1, 2)]
    expected = -sum(log_probs[row, place - 1, tokens[row, place]] for row, place in known) / len(known)
    torch.testing.assert_close(next_token_loss(logits, tokens), expected)


def test_it_learns_a_rhythm() -> None:
    torch.manual_seed(0)
    network = LanguageModel(4, 8, width=16, layers=1)
    lines = (torch.arange(8)[None] + torch.arange(4)[:, None]) % 4
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        next_token_loss(network(lines), lines).backward()
        optimizer.step()
    assert next_token_loss(network(lines), lines) < 0.1


def test_heads_divide_the_width() -> None:
    with pytest.raises(ValueError, match="3 heads and a width of 10"):
        LanguageModel(4, 8, width=10, heads=3)


@pytest.mark.parametrize("name", ["tokens", "length", "width", "layers", "heads"])
def test_sizes_are_positive(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        LanguageModel(**({"tokens": 4, "length": 8} | {name: 0}))


def test_a_loss_needs_a_token_to_predict() -> None:
    for tokens in (torch.ones(3, 1, dtype=torch.long), torch.tensor([[2, -1, -1]])):
        with pytest.raises(ValueError, match="no token to predict"):
            next_token_loss(torch.randn(*tokens.shape, 4), tokens)
    for wrong in (torch.randn(3, 6, 4), torch.randn(3, 5)):
        with pytest.raises(ValueError, match=r"got \(3, .* and \(3, 5\)"):
            next_token_loss(wrong, torch.ones(3, 5, dtype=torch.long))
