"""Networks of the paper's experiments, and two-stage training for regression."""

from tradi.models.enet import ENet, enet
from tradi.models.mlp import mlp
from tradi.models.pspnet import PSPNet, pspnet
from tradi.models.regression import GaussianHead, TwoStage
from tradi.models.resnet import ResNet, load_backbone
from tradi.models.wide_resnet import wide_resnet

__all__ = [
    "ENet",
    "GaussianHead",
    "PSPNet",
    "ResNet",
    "TwoStage",
    "enet",
    "load_backbone",
    "mlp",
    "pspnet",
    "wide_resnet",
]
