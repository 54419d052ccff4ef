from __future__ import annotations

import base64
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.bench.segmentations import scenes
from tests.bench.test_pixels import members
from tests.data.samples import write
from tests.data.test_camvid import files
from tests.report.made import result
from tradi.bench.camvid import CAMVID_OOD
from tradi.bench.cases import Options
from tradi.bench.evaluate import evaluate
from tradi.bench.evaluation import Pictures
from tradi.bench.results import UNPACKED, Key, read_pictures, read_results, write_pictures
from tradi.bench.runner import run
from tradi.cli.main import main
from tradi.report.page import write_report
from tradi.report.pictures import ABSENT, comparison, confidence_colours, stack


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Pictures, tuple[np.ndarray, np.ndarray]]:
    problem = scenes(tmp_path_factory.mktemp("data"))
    return evaluate(members(2), problem).pictures, problem.view(problem.shown[1])


def write_kept(folder: Path) -> Path:
    """A report of two methods with pictures of random predictions."""
    random = np.random.default_rng(0)
    CAMVID_OOD.declaration().write(folder)
    for name in ("Single network", "TRADI"):
        made = result(name, variant="240x180", benchmark="camvid-ood", miou=0.5)
        made.write(folder)
        pictures = {"index": np.array([3]), "zoom": np.array([[2, 3, 8, 10]]), "names": np.array(["sky", "car (OOD)"])}
        pictures |= {"colours": np.array([[9, 99, 199], [200, 0, 0]], np.uint8)}
        pictures |= {"labels": random.integers(0, 2, (1, 24, 32)).astype(np.uint8)}
        pictures |= {"confidence": random.integers(0, 256, (1, 24, 32)).astype(np.uint8)}
        write_pictures(made.key, folder, pictures)
    return write_report(folder, folder)


def layers(html: str) -> dict[tuple[str, str], np.ndarray]:
    """Every picture of a stack, by method and kind, as its pixels."""
    found = re.findall(r"data-name='([^']*)' data-kind='([^']*)' src='data:image/webp;base64,([^']*)'", html)
    images = ((name, kind, Image.open(io.BytesIO(base64.b64decode(data)))) for name, kind, data in found)
    return {(name, kind): np.asarray(image.convert("RGB")) for name, kind, image in images}


def test_a_stack_is_the_image_its_classes_and_what_each_method_made_of_it(
    kept: tuple[Pictures, tuple[np.ndarray, np.ndarray]],
) -> None:
    pictures, (image, truth) = kept
    html = stack({"TRADI": pictures, "SWAG": pictures}, 1, (image, truth))
    found = layers(html)
    for name in ("TRADI", "SWAG"):
        assert np.array_equal(found[name, "predicted classes"], pictures["colours"][pictures["labels"][1]])
        expected = confidence_colours()[pictures["confidence"][1]].astype(int)
        assert np.abs(found[name, "confidence"] - expected).mean() < 40, "lossy, of random pixels"
    assert np.array_equal(found["true classes", ""], truth)
    assert found["image", ""].shape == image.shape
    top, left, tall, wide = pictures["zoom"][1]
    height, width = pictures["labels"].shape[1:]
    frame = f"top:{top / height:.2%};left:{left / width:.2%};height:{tall / height:.2%};width:{wide / width:.2%}"
    assert frame in html
    assert "alt='confidence by TRADI'" in html
    assert "alt='the image'" in html


def test_confidence_is_shown_from_dark_to_bright() -> None:
    brightness = confidence_colours().astype(float) @ [0.2126, 0.7152, 0.0722]
    assert len(brightness) == 256
    assert (np.diff(brightness) >= -0.5).all()
    assert brightness[-1] - brightness[0] > 150


def test_what_is_kept_is_small_and_read_back(
    kept: tuple[Pictures, tuple[np.ndarray, np.ndarray]], tmp_path: Path
) -> None:
    key = Key("camvid-ood", "240x180", "TRADI", 0, 0)
    assert read_pictures(key, tmp_path) is None
    write_pictures(key, tmp_path, kept[0])
    again = read_pictures(key, tmp_path)
    assert again is not None
    assert all(np.array_equal(again[name], values) for name, values in kept[0].items())
    assert again.keys() == {"index", "zoom", "names", "colours", "labels", "confidence"}, "no image of the data set"
    path = write_pictures(key, tmp_path, kept[0])
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match=rf"{path.name} cannot be read .*delete it, and its result too"):
        read_pictures(key, tmp_path)
    np.savez_compressed(path, index=np.zeros(UNPACKED, dtype=np.uint8))
    assert path.stat().st_size < UNPACKED / 500
    with pytest.raises(ValueError, match=r"cannot be read \(it would unpack to 16,777,\d+ bytes, and pictures have 16"):
        read_pictures(key, tmp_path)


def test_pictures_of_one_seed_are_shown_and_none_where_there_are_none(tmp_path: Path) -> None:
    page = write_kept(tmp_path).read_text()
    assert page.count("<div class=comparison>") == 1
    assert page.count("<div class=layers") == 1
    assert "<option selected>Single network</option>" in page
    assert ABSENT.split(":")[0] in page
    others: list[Any] = [result("TRADI", 5, "240x180", "camvid-ood", miou=0.5)]
    assert comparison(others, tmp_path, None) == ""


def test_a_report_of_segmentation_with_and_without_the_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, files({"train": 4, "val": 2, "test": 4}))
    results = tmp_path / "results"
    options = Options(tmp_path, results, methods=("Single network", "MC Dropout"), quick=True)
    for _, failures in run(CAMVID_OOD, options):
        assert failures == []
    assert len(list(results.rglob("*.npz"))) == 2
    plain, full, given = tmp_path / "plain", tmp_path / "full", tmp_path / "given"
    monkeypatch.setenv("TRADI_DATA", str(tmp_path / "nowhere"))
    main(["report", str(results), "--out", str(plain)])
    main(["report", str(results), "--out", str(given), "--data", str(tmp_path)])
    monkeypatch.setenv("TRADI_DATA", str(tmp_path))
    main(["report", str(results), "--out", str(full)])
    assert (full / "report.html").read_bytes() == (given / "report.html").read_bytes()
    without, beside = ((folder / "report.html").read_text() for folder in (plain, full))
    absent = ABSENT.split(":")[0]
    assert absent in without
    assert ("image", "") not in layers(without)
    assert absent not in beside
    assert ("without a class" in without, "without a class" in beside) == (False, True)
    assert {("image", ""), ("true classes", ""), ("MC Dropout", "confidence")} <= layers(beside).keys()
    for title in ("classes of pixels", "OOD pixels", "OOD pixels, mean over images"):
        assert f"<h3>240x180, {title}</h3>" in without
    assert "Mutual information: grey test data, coloured OOD data, with OOD" in without

    found = read_results(results)
    assert absent in comparison(found, results, tmp_path / "nowhere")
    changes: list[dict[str, Any]] = [{"variant": "former"}, {"benchmark": "former"}]  # of another version
    for change in changes:
        older = [replace(one, key=replace(one.key, **change)) for one in found]
        for one, own in zip(older, found, strict=True):
            pictures = read_pictures(own.key, results)
            assert pictures is not None
            write_pictures(one.key, results, pictures)
        assert absent in comparison(older, results, tmp_path)
    write(tmp_path / "others", files({"train": 4, "val": 2, "test": 3}))
    with pytest.warns(UserWarning, match="are not those that 240x180 was evaluated on: they are left out"):
        assert absent in comparison(found, results, tmp_path / "others")
    first, second = found
    mixed = [first, replace(second, settings=second.settings | {"data": {}})]
    with pytest.warns(UserWarning, match="are not those that 240x180 was evaluated on"):
        comparison(mixed, results, tmp_path)
    (tmp_path / "others/CamVid/valannot/000.png").unlink()
    with pytest.warns(UserWarning, match="are left out: .* has no partner"):
        comparison([first], results, tmp_path / "others")
    capsys.readouterr()
