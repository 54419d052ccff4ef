from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.bench.segmentations import scenes
from tests.bench.test_pixels import members
from tests.data.samples import write
from tests.data.test_camvid import files
from tradi.bench.camvid import CAMVID_OOD
from tradi.bench.cases import Options
from tradi.bench.evaluate import evaluate
from tradi.bench.evaluation import Pictures
from tradi.bench.results import Key, read_pictures, read_results, write_pictures
from tradi.bench.runner import run
from tradi.cli.main import main
from tradi.report.page import draw_pictures
from tradi.report.pictures import ABSENT, panels


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Pictures, tuple[np.ndarray, np.ndarray]]:
    problem = scenes(tmp_path_factory.mktemp("data"))
    return evaluate(members(2), problem).pictures, problem.view(problem.shown[1])


def test_panels_are_the_image_its_classes_and_what_each_method_made_of_it(
    kept: tuple[Pictures, tuple[np.ndarray, np.ndarray]],
) -> None:
    pictures, (image, truth) = kept
    figure = panels({"TRADI": pictures, "SWAG": pictures}, 1, (image, truth))
    shown = [axes.images[0].get_array() for axes in figure.axes if axes.images]
    grid = [np.asarray(panel) for panel in shown[:9]]
    top, left, height, width = pictures["zoom"][1]
    zoomed = np.s_[top : top + height, left : left + width]
    assert np.array_equal(grid[0], image)
    assert np.array_equal(grid[3], truth)
    assert np.array_equal(grid[6], image[zoomed])
    for column in (1, 2):
        assert np.array_equal(grid[column], pictures["confidence"][1] / 255)
        assert np.array_equal(grid[3 + column], pictures["colours"][pictures["labels"][1]])
        assert np.array_equal(grid[6 + column], pictures["confidence"][1][zoomed] / 255)
    assert [axes.get_title() for axes in figure.axes[:3]] == ["Image, true classes", "TRADI", "SWAG"]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == pictures["names"].tolist()
    figure.savefig(io.BytesIO(), format="png")


@pytest.mark.parametrize("methods", [1, 2, 4, 7])
def test_the_legend_fits_however_few_methods_there_are(
    methods: int, kept: tuple[Pictures, tuple[np.ndarray, np.ndarray]]
) -> None:
    figure = panels({str(number): kept[0] for number in range(methods)}, 0, None)
    figure.savefig(io.BytesIO(), format="png")
    names = figure.legends[0].get_window_extent()
    assert names.x0 >= 0
    assert names.x1 <= figure.bbox.x1


def test_without_the_image_a_note_says_so(kept: tuple[Pictures, tuple[np.ndarray, np.ndarray]]) -> None:
    figure = panels({"TRADI": kept[0]}, 0, None)
    assert figure.get_supxlabel() == ABSENT
    assert len([axes for axes in figure.axes if axes.images]) >= 3
    assert panels({"TRADI": kept[0]}, 0, kept[1]).get_supxlabel() == ""


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


def test_a_report_of_segmentation_with_and_without_the_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, files({"train": 4, "val": 2, "test": 4}))
    results = tmp_path / "results"
    options = Options(tmp_path, results, methods=("Single network", "MC Dropout"), quick=True)
    for _, failures in run(CAMVID_OOD, options):
        assert failures == []
    assert len(list(results.rglob("*.npz"))) == 2
    plain, full = tmp_path / "plain", tmp_path / "full"
    main(["report", str(results), "--out", str(plain)])
    main(["report", str(results), "--out", str(full), "--data", str(tmp_path)])
    declared = {name: CAMVID_OOD.declaration() for name in ("camvid-ood", "former")}
    elsewhere = draw_pictures(read_results(results), declared, results, tmp_path / "nowhere")
    keys = [replace(result.key, variant="former") for result in read_results(results)]
    keys += [replace(result.key, benchmark="former") for result in read_results(results)]
    older = [replace(result, key=key) for result, key in zip(2 * read_results(results), keys, strict=True)]
    for result in older:
        pictures = read_pictures(replace(result.key, benchmark="camvid-ood", variant="240x180"), results)
        assert pictures is not None
        write_pictures(result.key, results, pictures)
    drawn = draw_pictures(older, declared, results, tmp_path)
    assert {"camvid-ood-former-image-0", "former-240x180-image-0"} <= drawn.keys()
    assert {figure.get_supxlabel() for figure in drawn.values()} == {ABSENT}
    write(tmp_path / "others", files({"train": 4, "val": 2, "test": 3}))
    with pytest.warns(UserWarning, match="are not those that 240x180 was evaluated on: they are left out"):
        others = draw_pictures(read_results(results), declared, results, tmp_path / "others")
    assert others["camvid-ood-240x180-image-0"].get_supxlabel() == ABSENT
    first, second = read_results(results)
    mixed = [first, replace(second, settings=second.settings | {"data": {}})]
    with pytest.warns(UserWarning, match="are not those that 240x180 was evaluated on"):
        draw_pictures(mixed, declared, results, tmp_path)
    (tmp_path / "others/CamVid/valannot/000.png").unlink()
    with pytest.warns(UserWarning, match="are left out: .* has no partner"):
        draw_pictures([first], declared, results, tmp_path / "others")
    capsys.readouterr()
    name = "camvid-ood-240x180-image-0.png"
    assert elsewhere[name.removesuffix(".png")].get_supxlabel() == ABSENT
    assert (plain / name).read_bytes() != (full / name).read_bytes()
    text = (plain / "report.md").read_text()
    for title in ("classes of pixels", "OOD pixels", "OOD pixels, mean over images"):
        assert f"### camvid-ood: 240x180, {title}\n" in text
    assert "| paper: TRADI | 79.3 | 12.8 | 57.7 | 0.110 |" in text
    assert "| paper: Deep Ensemble | 57.2 | 88.1 |" in text
    assert "camvid-ood-240x180-OOD-accuracy-confidence.png" in text
    assert len(read_results(results)) == 2
