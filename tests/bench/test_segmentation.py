from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.bench.segmentations import scenes
from tests.data.samples import write
from tests.data.test_camvid import files
from tradi.bench import BENCHMARKS
from tradi.bench.training import train
from tradi.data.camvid import LEGEND


def test_the_loss_weighs_classes_leaves_void_out_and_counts_a_second_output_by_0_4(tmp_path: Path) -> None:
    problem = scenes(tmp_path)
    ((_, labels),) = problem.training(4)
    logits, auxiliary = torch.randn(2, 4, 8, 6, 8)
    known = labels >= 0
    assert not known.all(), "some pixels are of no class"
    weight = problem.source.class_weights[labels[known]]

    def expected(output: torch.Tensor) -> torch.Tensor:
        each = F.cross_entropy(output.movedim(1, -1)[known], labels[known], reduction="none")
        return (weight * each).sum() / weight.sum()

    torch.testing.assert_close(problem.loss(logits, labels), expected(logits))
    torch.testing.assert_close(problem.loss((logits, auxiliary), labels), expected(logits) + 0.4 * expected(auxiliary))


def test_statistics_are_refreshed_on_the_same_images_from_all_over_and_never_on_one_alone(tmp_path: Path) -> None:
    problem = replace(scenes(tmp_path, train=40), refreshed=9, at_once=4)
    once, again = ([x for x, _ in problem.refresh_batches] for _ in range(2))
    assert [len(batch) for batch in once] == [4, 4]
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
    every = torch.cat([x for x, _ in problem.source.batches(problem.source.train, 40)])
    found = [int((every == image).flatten(1).all(1).nonzero()) for image in torch.cat(once)]
    assert max(found) > 20, "not only the first ones"


def test_chunks_are_bounded_and_cover_the_test_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = replace(scenes(tmp_path, test=9), at_once=2)
    monkeypatch.setattr("tradi.bench.segmentation.POOLED", 4 * 48)
    chunks = [[x for x, _ in chunk] for chunk in problem.test_chunks()]
    assert [[len(x) for x in chunk] for chunk in chunks] == [[2, 2], [2, 2], [1]]
    whole = torch.cat([x for x, _ in problem.source.testing(9)])
    assert torch.equal(torch.cat([x for chunk in chunks for x in chunk]), whole)


def test_a_few_images_for_a_quick_look(tmp_path: Path) -> None:
    source = scenes(tmp_path, train=9).first(8).source
    assert [len(part) for part in (source.train, source.validation, source.test)] == [2, 2, 2]


def test_shown_are_the_images_with_the_most_ood_pixels_of_each_stretch(tmp_path: Path) -> None:
    problem = scenes(tmp_path, test=9)
    _, _, ood = problem.source.test.read(torch.arange(9))
    areas = ood.sum((1, 2))
    for index, stretch in zip(problem.shown, ([0, 1, 2], [3, 4], [5, 6], [7, 8]), strict=True):
        assert index in stretch
        assert areas[index] == areas[stretch].max()


def test_the_zoom_shows_what_is_ood_and_what_is_around_it(tmp_path: Path) -> None:
    problem = scenes(tmp_path)
    _, _, ood = problem.source.test.read(torch.arange(1))
    top, left, height, width = problem.zoom(0)
    assert (height, width) == (2, 3)
    windows = ood[0].float().unfold(0, height, 1).unfold(1, width, 1).mean((2, 3))
    assert abs(windows[top, left] - 0.5) == (windows - 0.5).abs().min()


def test_a_view_is_the_image_and_its_classes_in_camvids_colours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = scenes(tmp_path)
    image, classes = problem.view(3)
    record = problem.source.test.records[3]
    assert np.array_equal(image, record["image"].transpose(1, 2, 0))
    colours = [*LEGEND.classes.values(), (0, 0, 0)]  # what is held out has its colour, void is black
    assert classes.tolist() == [[list(colours[value]) for value in row] for row in record["label"]]
    monkeypatch.setattr("tradi.bench.segmentation.SHOWN_WIDTH", 4)
    assert problem.step == 2
    assert np.array_equal(problem.view(3)[0], image[::2, ::2])
    assert problem.zoom(3)[2:] == [1, 2]


@pytest.mark.parametrize(("name", "variant_name"), [("camvid-ood", "480x360"), ("cifar10", "paper")])
def test_the_papers_own_configuration_takes_a_step(name: str, variant_name: str, tmp_path: Path) -> None:
    write(tmp_path, files({"train": 2, "val": 1, "test": 1}))  # brought to 480 x 360 as it is read
    records = torch.randint(256, (4, 3073), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    records[:, 0] %= 10
    parts = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
    write(tmp_path, {f"cifar-10-batches-bin/{part}.bin": records[:1].numpy().tobytes() for part in parts})
    (variant,) = (variant for variant in BENCHMARKS[name].variants if variant.name == variant_name)
    assert variant.optional
    problem = variant.load(tmp_path, 0, 0)
    recipe = replace(variant.recipe, epochs=1, batch=4, compiled=False)
    methods = BENCHMARKS[name].methods_of(variant)
    run = train(variant.model(problem, None), problem, recipe, methods["TRADI"].attach())
    assert run.steps == 1
    assert sum(p.numel() for p in run.model.parameters()) > (36e6 if name == "cifar10" else 3e5)
