from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.training import same, snapshot
from tradi.models import ResNet, load_backbone
from tradi.models.resnet import Bottleneck

State = dict[str, Tensor]


def small() -> ResNet:
    return ResNet((2, 2, 2, 2), 4)


def imagenet(seed: int = 1) -> State:
    """What a file of weights holds: random numbers here, and a classifier."""
    torch.manual_seed(seed)
    model = small()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            module.running_mean.normal_()
    return snapshot(model) | {"fc.weight": torch.randn(10, 128), "fc.bias": torch.randn(10)}


def features(state: State) -> State:
    return {name: value for name, value in state.items() if not name.startswith("fc.")}


def save_torch(state: State, path: Path) -> None:
    torch.save(state, path)


WRITERS: dict[str, Callable[[State, Path], None]] = {"weights.safetensors": save_file, "weights.pth": save_torch}


# Parameters of ResNet-50 and 101 as torchvision publishes them, without their classifiers of 1,000 classes.
@pytest.mark.parametrize(
    ("blocks", "parameters"), [((3, 4, 6, 3), 25_557_032 - 2_049_000), ((3, 4, 23, 3), 44_549_160 - 2_049_000)]
)
def test_sizes_are_the_published_ones(blocks: tuple[int, ...], parameters: int) -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in ResNet(blocks).parameters()) == parameters


def test_names_are_the_usual_ones() -> None:
    with torch.device("meta"):
        state = ResNet().state_dict()
    assert len(state) == 320 - 2  # without fc.weight and fc.bias
    shapes = {
        "conv1.weight": (64, 3, 7, 7),
        "bn1.running_var": (64,),
        "layer1.0.downsample.0.weight": (256, 64, 1, 1),
        "layer1.0.downsample.1.bias": (256,),
        "layer2.3.conv2.weight": (128, 128, 3, 3),
        "layer3.5.bn3.num_batches_tracked": (),
        "layer4.2.conv3.weight": (2048, 512, 1, 1),
    }
    assert {name: tuple(state[name].shape) for name in shapes} == shapes
    assert {name.split(".")[2] for name in state if name.startswith("layer")} == {
        *(f"{kind}{i}" for kind in ("conv", "bn") for i in (1, 2, 3)),
        "downsample",
    }


def test_features_are_an_eighth_of_the_image() -> None:
    third, fourth = small()(torch.randn(2, 3, 64, 45))
    assert third.shape == (2, 64, 8, 6)
    assert fourth.shape == (2, 128, 8, 6)


@pytest.mark.parametrize("size", [(64, 64), (72, 100)])
def test_dilation_computes_what_strides_would_between_the_places_they_skip(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    dilated = small().double().eval()
    strided = copy.deepcopy(dilated)
    for layer in (strided.layer3, strided.layer4):  # back to the network that ImageNet weights are trained in
        for i, block in enumerate(layer):
            assert isinstance(block, Bottleneck)
            block.conv2.dilation = block.conv2.padding = (1, 1)
            if i == 0:
                block.conv2.stride = (2, 2)
                assert block.downsample is not None
                project = block.downsample[0]
                assert isinstance(project, nn.Conv2d)
                project.stride = (2, 2)
    x = torch.randn(1, 3, *size, dtype=torch.float64)
    for every, ours, theirs in zip((2, 4), dilated(x), strided(x), strict=True):
        torch.testing.assert_close(ours[..., ::every, ::every], theirs)


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_fills_the_backbone_and_its_classifier_is_left_out(name: str, tmp_path: Path) -> None:
    state = imagenet()
    WRITERS[name](state, tmp_path / name)
    backbone = small()
    load_backbone(tmp_path / name, backbone)
    assert same(snapshot(backbone), features(state))


@pytest.mark.parametrize("name", WRITERS)
def test_old_files_have_no_counters(name: str, tmp_path: Path) -> None:
    state = {key: value for key, value in imagenet().items() if not key.endswith("num_batches_tracked")}
    WRITERS[name](state, tmp_path / name)
    backbone = small()
    load_backbone(str(tmp_path / name), backbone)
    loaded = snapshot(backbone)
    assert same({name: loaded[name] for name in features(state)}, features(state))


@pytest.mark.parametrize("name", WRITERS)
def test_weights_in_half_precision_are_taken(name: str, tmp_path: Path) -> None:
    state = imagenet()
    halves = {key: tensor.half() if tensor.is_floating_point() else tensor for key, tensor in state.items()}
    WRITERS[name](halves, tmp_path / name)
    backbone = small()
    load_backbone(tmp_path / name, backbone)
    for key, tensor in backbone.state_dict().items():
        assert torch.equal(tensor, halves[key].to(tensor.dtype)), key


@pytest.mark.parametrize("name", WRITERS)
def test_what_does_not_fit_is_named_and_nothing_is_changed(name: str, tmp_path: Path) -> None:
    state = imagenet()
    del state["layer1.0.conv1.weight"]
    state["layer9.0.conv1.weight"] = torch.zeros(1)
    state["bn1.bias"] = torch.zeros(5)
    WRITERS[name](state, tmp_path / name)
    backbone = small()
    before = snapshot(backbone)
    with pytest.raises(ValueError, match=name) as error:
        load_backbone(tmp_path / name, backbone)
    message = str(error.value)
    assert "only in it ['layer9.0.conv1.weight']" in message
    assert "only in the model ['layer1.0.conv1.weight']" in message
    assert "{'bn1.bias': ('(5,) float32', '(4,) float32')}" in message
    assert same(before, snapshot(backbone))


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("content", [b"", b"h", b"hello world", b"no weights at all"])
def test_files_that_are_no_weights_are_named(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name} cannot be read as a file of weights"):
        load_backbone(tmp_path / name, small())


def test_a_checkpoint_or_a_whole_model_is_no_state_dict(tmp_path: Path) -> None:
    torch.save({"state_dict": imagenet(), "epoch": 3}, tmp_path / "checkpoint.pth")
    with pytest.raises(ValueError, match=r"checkpoint.pth is not a state_dict"):
        load_backbone(tmp_path / "checkpoint.pth", small())
    torch.save(small(), tmp_path / "model.pth")  # a pickle that could run anything
    with pytest.raises(ValueError, match=r"model.pth cannot be read as a file of weights"):
        load_backbone(tmp_path / "model.pth", small())


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_that_is_not_there(name: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_backbone(tmp_path / name, small())
