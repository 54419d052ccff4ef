"""The full variants of StreetHazards and BDD Anomaly, on a few small images: from a file of weights to gradients."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.data.test_bdd import ANOMALIES, write_bdd
from tests.data.test_streethazards import SMALL, write_streethazards
from tradi.bench.anomaly import BDD_ANOMALY, STREETHAZARDS
from tradi.bench.segmentation import SegmentationProblem
from tradi.bench.spec import Benchmark
from tradi.models import ResNet, pspnet


@SMALL
@pytest.mark.parametrize(("benchmark", "classes"), [(STREETHAZARDS, 12), (BDD_ANOMALY, 17)], ids=["hazards", "bdd"])
def test_networks_begin_with_weights_of_a_file_and_learn(benchmark: Benchmark, classes: int, tmp_path: Path) -> None:
    write_bdd(write_streethazards(tmp_path), ANOMALIES, old=False)
    imagenet, scratch = benchmark.variants
    assert (imagenet.name, imagenet.optional, scratch.optional) == ("imagenet", False, True)
    with pytest.raises(FileNotFoundError, match=r"resnet50\.safetensors \(or \.pth\) is missing: .*--variants scratch"):
        imagenet.load(tmp_path, 0, 0)
    torch.manual_seed(0)
    published = pspnet(2).backbone.state_dict()
    (tmp_path / "ImageNet").mkdir()
    torch.save(published | {"fc.weight": torch.zeros(1000, 2048)}, tmp_path / "ImageNet/resnet50.pth")
    torch.manual_seed(1)
    problem = imagenet.load(tmp_path, 0, 0)
    assert isinstance(problem, SegmentationProblem)
    assert (problem.size, problem.classes) == ((720, 1280), classes)
    model = imagenet.model(problem, None)
    assert isinstance(model.backbone, ResNet)
    assert all(torch.equal(tensor, published[name]) for name, tensor in model.backbone.state_dict().items())
    x, y = next(iter(problem.training(2)))
    problem.loss(model.train()(x[..., :48, :64]), y[..., :48, :64]).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert scratch.load(tmp_path, 0, 0).backbone is None  # type: ignore[union-attr]
