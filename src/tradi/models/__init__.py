"""Networks of the paper's experiments."""

from tradi.models.mlp import mlp
from tradi.models.wide_resnet import wide_resnet

__all__ = ["mlp", "wide_resnet"]
