from __future__ import annotations

import pytest
import torch
from torch import nn

from tradi.models import wide_resnet
from tradi.models.wide_resnet import Block


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


# Millions of parameters in table 4 of Zagoruyko and Komodakis (2016).
@pytest.mark.parametrize(
    ("depth", "width", "millions"), [(40, 1, 0.6), (40, 4, 8.9), (16, 8, 11.0), (28, 10, 36.5), (22, 8, 17.2)]
)
def test_sizes_are_the_published_ones(depth: int, width: int, millions: float) -> None:
    with torch.device("meta"):
        assert round(parameters(wide_resnet(depth, width)) / 1e6, 1) == millions


def test_depth_counts_convolutions() -> None:
    convolutions = [m for m in wide_resnet(16, 2).modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 16


@pytest.mark.parametrize(("channels", "size"), [(3, (32, 32)), (1, (28, 28)), (2, (9, 15))])
def test_images_of_any_size_and_number_of_channels(channels: int, size: tuple[int, int]) -> None:
    model = wide_resnet(10, 1, classes=7, channels=channels)
    assert model(torch.randn(2, channels, *size)).shape == (2, 7)


def test_groups_halve_the_size_twice_and_widen() -> None:
    model = wide_resnet(10, 2)
    x, shapes = torch.randn(2, 3, 32, 32), []
    for part in list(model)[:4]:
        x = part(x)
        shapes.append(tuple(x.shape[1:]))
    assert shapes == [(16, 32, 32), (32, 32, 32), (64, 16, 16), (128, 8, 8)]


def test_a_block_of_one_shape_passes_its_input_on_and_another_projects_the_activated_input() -> None:
    x = torch.randn(2, 4, 6, 6)
    same, wider = Block(4, 4, 1, 0.3), Block(4, 8, 2, 0.3)
    for block in (same, wider):
        last = block.residual[4]
        assert isinstance(last, nn.Conv2d)
        nn.init.zeros_(last.weight)  # nothing but the shortcut is left
    assert same.project is None
    assert torch.equal(same(x), x)
    assert wider.project is not None
    activated = torch.relu(nn.functional.batch_norm(x, None, None, training=True))
    torch.testing.assert_close(wider(x), nn.functional.conv2d(activated, wider.project.weight, stride=2))


def test_dropout_lies_between_the_convolutions_of_a_block() -> None:
    kinds = [type(layer) for layer in Block(4, 4, 1, 0.3).residual]
    assert kinds == [nn.Conv2d, nn.BatchNorm2d, nn.ReLU, nn.Dropout, nn.Conv2d]
    rates = {m.p for m in wide_resnet(10, 1, dropout=0.2).modules() if isinstance(m, nn.Dropout)}
    assert rates == {0.2}


@pytest.mark.parametrize("depth", [4, 0, -2, 27, 29])
def test_other_depths_are_an_error(depth: int) -> None:
    with pytest.raises(ValueError, match=rf"depth must be 6n \+ 4 .*got {depth}"):
        wide_resnet(depth, 1)


def test_no_width_is_an_error() -> None:
    with pytest.raises(ValueError, match="width must be at least 1, got 0"):
        wide_resnet(10, 0)
