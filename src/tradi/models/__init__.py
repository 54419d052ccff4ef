"""Networks of the paper's experiments."""

from tradi.models.enet import ENet, enet
from tradi.models.mlp import mlp
from tradi.models.wide_resnet import wide_resnet

__all__ = ["ENet", "enet", "mlp", "wide_resnet"]
