from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.data.samples import write
from tests.data.test_camvid import files
from tradi import metrics
from tradi.bench.boxes import DetectionProblem
from tradi.bench.camvid_detection import load
from tradi.bench.evaluate import evaluate
from tradi.bench.objects import Evidence, Found, objects_in
from tradi.data.boxes import BoxedFrames
from tradi.data.segmentation import OOD, Frames
from tradi.detection import Detections, Objects, combine
from tradi.methods import DeepEnsemble
from tradi.models import detections, detector
from tradi.report.boxes import boxed

SIZE = (40, 60)
BOXES = torch.tensor([[4.0, 4, 20, 16], [30, 10, 50, 34]])
LABELS = torch.tensor([0, OOD])


def images(count: int = 1) -> BoxedFrames:
    """One object of class 0 and one of a held-out class, whose pixels are ignored."""
    form = np.dtype([("image", np.uint8, (3, *SIZE)), ("label", np.uint8, SIZE)])
    records = np.zeros(count, form)
    records["image"] = np.random.default_rng(0).integers(0, 256, records["image"].shape)
    ignored = torch.zeros(count, *SIZE, dtype=torch.bool)
    ignored[:, 10:34, 30:50] = True
    return BoxedFrames(Frames(records, np.zeros(256, np.int8)), (BOXES,) * count, (LABELS,) * count, ignored)


def found_in(boxes: Tensor, scores: list[float], labels: list[int]) -> Objects:
    """What two members that agree find."""
    return combine([Detections.labelled(boxes, torch.tensor(scores), torch.tensor(labels), 2)] * 2)


def test_what_lies_on_held_out_objects_is_no_error_but_outside() -> None:
    boxes = torch.tensor([[4.0, 4, 20, 17], [30, 10, 50, 34], [20, 2, 28, 9], [33, 12, 40, 20], [4, 30, 20, 38]])
    objects = found_in(boxes, [0.9, 0.8, 0.7, 0.6, 0.3], [0, 1, 1, 0, 0])
    found = Found.of([objects], images(), classes=2)
    assert found.detected.scores.tolist() == pytest.approx([0.9, 0.7, 0.3])  # not the two on the held-out object
    assert found.detected.correct.tolist() == [True, False, False]
    assert found.detected.objects.tolist() == [1, 0]
    assert torch.equal(found.located[2], BOXES[:1])
    assert found.inside["confidence"].tolist() == pytest.approx([0.1])
    assert found.outside["confidence"].tolist() == pytest.approx([0.2])
    assert found.unknown == 1
    tested = Evidence(found, noise=0.1, several=True)
    expected = metrics.box_nll(objects.boxes[:1], objects.covariance[:1], BOXES[:1], 0.1)
    assert tested.box_nll == pytest.approx(expected)


def test_nothing_found_and_nothing_there() -> None:
    part = images(2)
    empty = replace(part, boxes=(BOXES[:0], BOXES), labels=(LABELS[:0], LABELS))
    nothing = combine([Detections(BOXES[:0], torch.zeros(0, 2))])
    found = Found.of([found_in(BOXES[:1], [0.5], [0]), nothing], empty, 2)
    assert found.detected.correct.tolist() == [False]
    assert not found.any_located
    assert not len(found.inside["entropy"])
    assert Evidence(found, None, several=False).box_nll is None


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> DetectionProblem:
    root = write(tmp_path_factory.mktemp("data"), files({"train": 5, "val": 2, "test": 4}))
    return replace(load((32, 24), root, 0, 0), at_once=2)


def test_training_batches_mirror_images_with_their_objects(problem: DetectionProblem) -> None:
    (plain, asked), *_ = problem.training_batches
    flipped = None
    for _ in range(20):
        batches = list(problem.training(2))
        assert [len(x) for x, _ in batches] == [2, 2]
        for x, y in zip(*map(torch.cat, zip(*batches, strict=True)), strict=True):
            if torch.equal(x, plain[0].flip(2)):
                flipped = y
    assert flipped is not None
    assert torch.equal(flipped[0], asked[0, 0].flip(1))  # the width is a whole number of places
    assert torch.equal(flipped[1:], asked[0, [3, 2, 1, 4]].flip(2))


def test_validation_batches_are_all_of_it_in_order_and_held_out_objects_are_ignored(problem: DetectionProblem) -> None:
    y = torch.cat([y for _, y in problem.training_batches])
    assert len(y) == 5
    for target, ignored in zip(y, problem.source.train.ignored, strict=True):
        assert (target[0][ignored[2::4, 2::4]] != problem.classes).all()
    assert len(problem.refresh_batches.images) == 5
    assert len(problem.first(8).source.test) == 2


def test_objects_are_those_of_all_members_image_by_image(problem: DetectionProblem) -> None:
    torch.manual_seed(0)
    models = [detector(3, width=4).eval() for _ in range(2)]
    for model in models:
        torch.nn.init.zeros_(model.classes.bias)  # type: ignore[arg-type]
    ensemble = DeepEnsemble(models).sample()
    found = objects_in(ensemble, problem, problem.source.test)
    x = torch.cat([x for x, _ in problem.batches(problem.source.test)])
    with torch.no_grad():
        members = [detections(model(x), score=0.01) for model in models]
    for one, pair in zip(found, zip(*members, strict=True), strict=True):
        expected = combine(pair).above(0.05)
        assert len(one) == len(expected) > 0
        torch.testing.assert_close(one.scores, expected.scores, atol=1e-3, rtol=0)
    tested = evaluate(ensemble, problem)
    assert {"ap50", "recall", "ece"} <= tested.metrics.keys()
    pictures = tested.pictures
    assert len(pictures["boxes"]) == len(pictures["image"]) > 0
    page = boxed({"Deep Ensemble": pictures}, {}, "no images")
    assert page.count("<rect") == len(pictures["boxes"])
    assert page.count("<svg") == len(problem.shown) == 4
    assert "no images" in page
    assert "<image href='data:x'" in boxed({"Deep Ensemble": pictures}, {problem.shown[0]: "data:x"}, "")


def test_about_tells_other_objects_apart(tmp_path: Path, problem: DetectionProblem) -> None:
    write(tmp_path, files({"train": 5, "val": 2, "test": 4}))
    assert load((32, 24), tmp_path, 0, 0).about == problem.about
    test = problem.source.test
    other = replace(problem, source=replace(problem.source, test=replace(test, boxes=tuple(b + 1 for b in test.boxes))))
    assert other.about != problem.about
