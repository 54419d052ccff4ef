"""A small causal transformer: a language model to train from scratch on a processor."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class LanguageModel(nn.Module):
    """Logits of the next token at every position, from those up to it.

    Args:
        tokens: size of the vocabulary.
        length: most tokens of a text.
        width: of the features at a position.
        layers: blocks of attention and a feed-forward network, each after a LayerNorm and added to what enters it.
        heads: of the attention; they divide the width.
        dropout: rate, after the embedding, attention and feed-forward network.

    Raises:
        ValueError: if a size is below 1, or the heads do not divide the width.
    """

    def __init__(
        self, tokens: int, length: int, *, width: int = 64, layers: int = 2, heads: int = 4, dropout: float = 0.0
    ) -> None:
        super().__init__()
        sizes = {"tokens": tokens, "length": length, "width": width, "layers": layers, "heads": heads}
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        if width % heads:
            raise ValueError(f"heads must divide the width, got {heads} heads and a width of {width}")
        self.embedding = nn.Embedding(tokens, width)
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, tokens)
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits, (batch, length, vocabulary), of tokens by number, (batch, length)."""
        x = self.dropout(self.embedding(tokens) + self.position[: tokens.shape[1]])
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


class Block(nn.Module):
    """Causal attention, then a feed-forward network of four times the width."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_feed = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mixed = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Features of the same shape, (batch, length, width)."""
        parts = self.attention(self.before_attention(x)).unflatten(2, (3, self.heads, -1)).transpose(1, 3)
        query, key, value = parts.unbind(2)  # (batch, heads, length, width / heads)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.dropout(self.mixed(attended))
        fed: Tensor = self.dropout(self.feed(self.before_feed(x)))
        return x + fed


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Mean negative log-likelihood of every token but the first, in nats.

    Args:
        logits: (batch, length, vocabulary).
        tokens: (batch, length); negative ones do not count.

    Returns:
        one number, to minimise.

    Raises:
        ValueError: if the logits are of other tokens, or no token counts: the first of a line has nothing before it.
    """
    if logits.ndim != 3 or logits.shape[:2] != tokens.shape:
        raise ValueError(
            "logits must be (batch, length, vocabulary) and tokens (batch, length), got "
            f"{tuple(logits.shape)} and {tuple(tokens.shape)}"
        )
    wanted = tokens[:, 1:]
    if not (wanted >= 0).any():
        raise ValueError(
            f"no token to predict among tokens of shape {tuple(tokens.shape)}: lines need two tokens or more, and one "
            "after the first that is no padding"
        )
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), wanted.masked_fill(wanted < 0, -100).flatten())
