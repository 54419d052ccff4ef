"""Networks of the paper's experiments, a detector, a language model, and two-stage training for regression."""

from tradi.models.detector import (
    Detector,
    DetectorLikelihood,
    detections,
    detector,
    detector_loss,
    detector_target,
)
from tradi.models.enet import ENet, enet
from tradi.models.language import LanguageModel, next_token_loss
from tradi.models.mlp import mlp
from tradi.models.pspnet import PSPNet, pspnet
from tradi.models.regression import GaussianHead, TwoStage
from tradi.models.resnet import ResNet, load_backbone
from tradi.models.wide_resnet import wide_resnet

__all__ = [
    "Detector",
    "DetectorLikelihood",
    "ENet",
    "GaussianHead",
    "LanguageModel",
    "PSPNet",
    "ResNet",
    "TwoStage",
    "detections",
    "detector",
    "detector_loss",
    "detector_target",
    "enet",
    "load_backbone",
    "mlp",
    "next_token_loss",
    "pspnet",
    "wide_resnet",
]
