"""Networks of the paper's experiments."""

from tradi.models.mlp import mlp

__all__ = ["mlp"]
