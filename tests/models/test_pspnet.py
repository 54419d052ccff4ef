from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tradi.models import PSPNet, ResNet, pspnet


def small() -> PSPNet:
    return PSPNet(ResNet((1, 1, 1, 1), 8), 5)


def test_size_is_the_published_parts_put_together() -> None:
    with torch.device("meta"):
        model = pspnet(13)
    norm = 2 * 512
    pyramid = 4 * (2048 * 512 + norm)
    head = 9 * 4096 * 512 + norm + 512 * 13 + 13
    auxiliary = 9 * 1024 * 256 + 2 * 256 + 256 * 13 + 13
    assert sum(p.numel() for p in model.backbone.parameters()) == 23_508_032
    assert sum(p.numel() for p in model.parameters()) == 23_508_032 + pyramid + head + auxiliary


@pytest.mark.parametrize("size", [(48, 64), (45, 61)])
def test_training_gives_two_sets_of_logits_and_eval_one_of_the_size_of_the_image(size: tuple[int, int]) -> None:
    model, x = small(), torch.randn(2, 3, *size)
    logits, auxiliary = model(x)
    assert logits.shape == auxiliary.shape == (2, 5, *size)
    assert not torch.equal(logits, auxiliary)
    assert model.eval()(x).shape == (2, 5, *size)


def test_the_head_sees_features_beside_their_averages_over_1_2_3_and_6_places() -> None:
    model = small().eval()
    for level in model.pyramid:
        assert isinstance(level, nn.Sequential)
        assert isinstance(level[1], nn.Conv2d)
        with torch.no_grad():
            level[1].weight.copy_(torch.eye(64, 256)[:, :, None, None])  # the first 64 of 256 features, as they are
    seen: list[torch.Tensor] = []
    model.head.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    x = torch.randn(1, 3, 96, 96)  # features of 12 x 12
    model(x)
    features, *levels = seen[0].detach().split([256, 64, 64, 64, 64], 1)
    torch.testing.assert_close(features, model.backbone(x)[1])
    for bins, level in zip((1, 2, 3, 6), levels, strict=True):
        means = features[:, :64].unflatten(3, (bins, -1)).unflatten(2, (bins, -1)).mean((3, 5))
        expected = F.interpolate(means, (12, 12), mode="bilinear") / (1 + 1e-5) ** 0.5  # BatchNorm's eps
        torch.testing.assert_close(level, expected)
