from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tradi.posterior.rows import Form, is_linear, positions, rows

LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "linear": (nn.Linear(6, 4), (6,)),
    "linear without bias": (nn.Linear(6, 4, bias=False), (6,)),
    "linear on tokens": (nn.Linear(6, 4), (5, 6)),
    "linear on a grid": (nn.Linear(6, 4), (3, 5, 6)),
    "1d": (nn.Conv1d(6, 4, 3), (6, 9)),
    "1d strided": (nn.Conv1d(6, 4, 4, stride=3, padding=2, dilation=2, groups=2), (6, 17)),
    "2d": (nn.Conv2d(6, 4, 3), (6, 7, 8)),
    "2d of 1 by 1": (nn.Conv2d(6, 4, 1), (6, 7, 8)),
    "2d oblong": (nn.Conv2d(6, 4, (3, 2), stride=(2, 1), padding=(0, 2), dilation=(1, 3)), (6, 7, 9)),
    "2d depthwise": (nn.Conv2d(6, 12, 3, padding=1, groups=6), (6, 5, 5)),
    "2d same": (nn.Conv2d(6, 4, (4, 3), padding="same", dilation=(1, 2)), (6, 7, 8)),
    "2d valid": (nn.Conv2d(6, 4, 3, padding="valid"), (6, 7, 8)),
    "2d circular": (nn.Conv2d(6, 4, 3, padding=(1, 2), padding_mode="circular"), (6, 7, 8)),
    "2d reflected same": (nn.Conv2d(6, 4, (3, 4), padding="same", padding_mode="reflect"), (6, 7, 8)),
    "3d": (nn.Conv3d(4, 6, (2, 3, 1), stride=(1, 2, 1), padding=1, groups=2), (4, 4, 5, 3)),
    "transposed 1d": (nn.ConvTranspose1d(6, 4, 4, stride=3, padding=2), (6, 5)),
    "transposed 1d dilated": (nn.ConvTranspose1d(6, 4, 3, stride=2, dilation=3, groups=2), (6, 5)),
    "transposed 2d": (nn.ConvTranspose2d(6, 4, 3), (6, 4, 5)),
    "transposed 2d upsampling": (nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1), (6, 4, 5)),
    "transposed 2d oblong": (
        nn.ConvTranspose2d(
            6, 4, (2, 3), stride=(3, 2), padding=(1, 0), output_padding=(2, 1), dilation=(2, 1), groups=2
        ),
        (6, 4, 5),
    ),
    "transposed 2d cropped": (nn.ConvTranspose2d(6, 4, 3, padding=2), (6, 5, 6)),
    "transposed 2d cropped beyond its kernel": (nn.ConvTranspose2d(6, 4, 2, padding=(2, 3)), (6, 7, 8)),
    "transposed 3d": (nn.ConvTranspose3d(4, 6, 2, stride=(1, 2, 3), groups=2), (4, 2, 3, 2)),
}
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
every_layer = pytest.mark.parametrize(("layer", "shape"), LAYERS.values(), ids=LAYERS)


def run(layer: nn.Module, shape: tuple[int, ...], samples: int = 3) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    layer, x = layer.double(), torch.randn(samples, *shape, dtype=torch.float64)
    return layer, x, layer(x).detach()


def by_rows(layer: Any, found: Tensor) -> Tensor:
    """rows @ matrix.T plus the bias, (samples * positions, outputs)."""
    products = found @ Form.of(layer).matrix(layer.weight.detach()).mT  # (groups, rows, outputs of a group)
    together = products.permute(1, 0, 2).flatten(1)
    return together if layer.bias is None else together + layer.bias.detach()


def as_rows(layer: nn.Module, output: Tensor) -> Tensor:
    moved = output if isinstance(layer, nn.Linear) else output.movedim(1, -1)
    return moved.reshape(-1, moved.shape[-1])


@every_layer
def test_rows_times_the_matrix_plus_the_bias_are_the_output(layer: nn.Module, shape: tuple[int, ...]) -> None:
    layer, x, output = run(layer, shape)
    assert is_linear(layer)
    torch.testing.assert_close(by_rows(layer, rows(layer, x, output)), as_rows(layer, output))
    assert positions(layer, output) == len(as_rows(layer, output)) / 3


@every_layer
def test_chosen_positions_are_those_of_all(layer: nn.Module, shape: tuple[int, ...]) -> None:
    layer, x, output = run(layer, shape)
    count = positions(layer, output)
    at = torch.randperm(count, generator=torch.Generator().manual_seed(1))[: max(1, count // 2)]
    everything = rows(layer, x, output)
    expected = everything.unflatten(1, (3, count))[:, :, at].flatten(1, 2)
    assert torch.equal(rows(layer, x, output, at), expected)


@every_layer
def test_a_weight_is_its_matrix_in_another_form(layer: Any, shape: tuple[int, ...]) -> None:
    del shape
    form, weight = Form.of(layer), layer.weight.detach()
    matrix = form.matrix(weight)
    assert matrix.shape[0] == form.groups
    assert matrix.numel() == weight.numel()
    assert torch.equal(form.weight(matrix, weight.shape), weight)


def test_an_output_size_decides_about_the_rows_of_a_transposed_convolution() -> None:
    layer = nn.ConvTranspose2d(3, 2, 3, stride=3).double()
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64)
    for size in ([12, 12], [13, 14], [14, 12]):
        output = layer(x, output_size=size).detach()
        torch.testing.assert_close(by_rows(layer, rows(layer, x, output)), as_rows(layer, output))


def test_the_matrix_of_an_embedding_has_a_column_for_every_token() -> None:
    layer = nn.Embedding(5, 3)
    form, weight = Form.of(layer), layer.weight.detach()
    one_hot = torch.eye(5)[torch.tensor([4, 0, 4])]
    assert torch.equal(one_hot @ form.matrix(weight)[0].T, layer(torch.tensor([4, 0, 4])).detach())
    assert torch.equal(form.weight(form.matrix(weight), weight.shape), weight)
    assert not is_linear(layer)


def test_only_the_positions_of_interest_are_copied() -> None:
    """Patches of a whole picture would take nine times its memory for every kernel of 3 by 3."""
    layer = nn.Conv2d(8, 2, 3, padding=1)
    x = torch.randn(2, 8, 50, 60)
    found = rows(layer, x, layer(x), torch.tensor([0, 2999]))
    assert found.shape == (1, 4, 72)
    assert found.untyped_storage().nbytes() == 4 * math.prod(found.shape)
