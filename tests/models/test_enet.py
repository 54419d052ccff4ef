from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tradi.models import enet
from tradi.models.enet import Activation, Bottleneck, Downsampling, Upsampling, asymmetric, dilated, regular


def test_size_is_the_published_one() -> None:
    # 0.37 M in table 3 of Paszke et al. (2016), 0.36 M as others count it
    assert 0.36e6 < sum(p.numel() for p in enet(12).parameters()) < 0.37e6


@pytest.mark.parametrize("size", [(16, 24), (180, 240), (360, 480), (45, 60), (17, 31), (9, 8), (1, 1)])
def test_logits_for_every_pixel_of_any_size(size: tuple[int, int]) -> None:
    with torch.no_grad():
        assert enet(5).eval()(torch.randn(1, 3, *size)).shape == (1, 5, *size)


def test_sizes_inside_are_those_of_table_1() -> None:
    model = enet(12).eval()
    seen = {}
    for name, module in model.named_children():
        module.register_forward_hook(
            lambda _, __, output, name=name: seen.update(
                {name: tuple((output[0] if isinstance(output, tuple) else output).shape[1:])}
            )
        )
    model(torch.randn(1, 3, 64, 64))
    assert seen == {
        "initial": (16, 32, 32),
        **dict.fromkeys(("down1", "stage1"), (64, 16, 16)),
        **dict.fromkeys(("down2", "stage2", "stage3"), (128, 8, 8)),
        **dict.fromkeys(("up4", "stage4"), (64, 16, 16)),
        **dict.fromkeys(("up5", "stage5"), (16, 32, 32)),
        "full": (12, 64, 64),
    }


def test_main_convolutions_are_those_of_table_1() -> None:
    model = enet(12)
    three, once = (3, 3), (1, 1)
    context = [(three, once), (three, (2, 2)), ((5, 1), once), ((1, 5), once), (three, (4, 4)), (three, once)]
    context += [(three, (8, 8)), ((5, 1), once), ((1, 5), once), (three, (16, 16))]
    for stage, expected in ((model.stage1, [(three, once)] * 4), (model.stage2, context), (model.stage3, context)):
        convolutions = [m for m in stage.modules() if isinstance(m, nn.Conv2d) and m.kernel_size != (1, 1)]
        assert [(m.kernel_size, m.dilation) for m in convolutions] == expected


def test_nonlinearities_and_dropout_of_encoder_and_decoder() -> None:
    model = enet(12)
    for name, module in model.named_modules():
        decoder = name.startswith(("up", "stage4", "stage5"))
        assert not isinstance(module, nn.ReLU) or decoder
        assert not isinstance(module, nn.PReLU) or not decoder
        if isinstance(module, nn.Dropout2d):
            assert module.p == (0.01 if name.startswith(("down1", "stage1")) else 0.1)
    slopes = [m.num_parameters for m in model.modules() if isinstance(m, nn.PReLU)]
    assert min(slopes) > 1  # one for every channel
    assert sum(isinstance(m, nn.Dropout2d) for m in model.modules()) == 27  # one in every bottleneck


@pytest.mark.parametrize(
    ("convolutions", "reach"),
    [(regular, [3, 4, 5]), (dilated(2), [2, 4, 6]), (asymmetric, [2, 3, 4, 5, 6])],
    ids=["regular", "dilated", "asymmetric"],
)
def test_a_bottleneck_adds_to_its_input_what_it_sees_around_a_place(
    convolutions: Callable[[int, Activation], list[nn.Module]], reach: list[int]
) -> None:
    block = Bottleneck(8, 0.1, nn.PReLU, convolutions).eval()
    x = torch.zeros(1, 8, 9, 9)
    x[:, :, 4, 4] = 1.0
    with torch.no_grad():
        for parameter in block.extension.parameters():
            parameter.abs_()  # so that nothing cancels
        away = (block(x) - x).sum(1)[0] > 0
    expected = torch.zeros(9, 9, dtype=torch.bool)
    for row in reach:
        expected[row, reach] = True
    assert torch.equal(away, expected)


def silenced(extension: nn.Module) -> None:
    """Leave a bottleneck nothing but its main branch."""
    norm = [m for m in extension.modules() if isinstance(m, nn.BatchNorm2d)][-1]
    nn.init.zeros_(norm.weight)


@pytest.mark.parametrize("size", [(6, 8), (5, 7)])
def test_maxima_go_down_and_come_back_to_where_they_were(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    down, up = Downsampling(4, 8, 0.1).eval(), Upsampling(8, 4, 0.1).eval()
    silenced(down.extension)
    silenced(up.expand)
    x = torch.rand(2, 4, *size) + 0.1
    small, indices = down(x)
    height, width = -(-size[0] // 2), -(-size[1] // 2)
    assert small.shape == (2, 8, height, width)
    assert torch.equal(small[:, :4], F.max_pool2d(x, 2, ceil_mode=True))
    assert not small[:, 4:].any()
    project = up.main[0]
    assert isinstance(project, nn.Conv2d)
    with torch.no_grad():
        project.weight.copy_(torch.eye(4, 8)[:, :, None, None])  # the maxima themselves
    back = up(small, indices, x.shape[2:])
    assert back.shape == x.shape
    kept = back > 0
    assert kept.sum() == 2 * 4 * height * width
    torch.testing.assert_close(back[kept], x[kept], rtol=1e-4, atol=0)  # BatchNorm's eps
