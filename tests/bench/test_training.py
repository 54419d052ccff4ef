from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.bench.test_runner import load
from tradi.bench import training
from tradi.bench.methods import Following, Swag, Tracked, Tradi
from tradi.bench.problem import Data, Shuffled
from tradi.bench.recipe import Recipe
from tradi.bench.training import Run, train
from tradi.methods import SWAG
from tradi.models import mlp
from tradi.tracking.tracker import Rates

RECIPE = Recipe("adam", 1e-2, epochs=6, batch=32, decay="cosine")
METHODS: list[Following] = [Tradi(), Swag(share=0.5, collections=4)]


class KilledError(Exception):
    pass


@dataclass(frozen=True, eq=False)
class Mortal(Data):
    """Data whose reader is killed in the middle of an epoch."""

    epochs: int = 0

    def training(self, batch: int) -> Any:
        return _Mortal(super().training(batch), [self.epochs])


@dataclass
class _Mortal:
    loader: Shuffled
    left: list[int]

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for number, batch in enumerate(self.loader):
            if self.left[0] == 0 and number == 2:
                raise KilledError
            yield batch
        self.left[0] -= 1


def run(
    checkpoint: Path | None,
    recipe: Recipe = RECIPE,
    methods: list[Following] = METHODS,
    problem: Data | None = None,
    seed: int = 3,
) -> Run:
    torch.manual_seed(seed)
    model = mlp(2, [8], 3, batchnorm=True, dropout=0.2)
    attach = {name: one for method in methods for name, one in method.attach().items()}
    return train(model, problem or load(Path(), 0, 0), recipe, attach, checkpoint)


def killed(checkpoint: Path, recipe: Recipe, after: int) -> None:
    with pytest.raises(KilledError):
        run(checkpoint, recipe, problem=mortal(after))


def mortal(epochs: int) -> Mortal:
    data = load(Path(), 0, 0)
    return Mortal(data.train, data.validation, data.test, data.ood, epochs=epochs)


def same(one: Run, other: Run) -> bool:
    weights = [run.model.state_dict() | {"steps": torch.tensor(run.steps)} for run in (one, other)]
    for name in one.posteriors:
        for part in ("mean", "variance"):
            ours, theirs = (getattr(run.posteriors[name], part) for run in (one, other))
            weights[0] |= {f"{name}/{part}/{key}": value for key, value in ours.items()}
            weights[1] |= {f"{name}/{part}/{key}": value for key, value in theirs.items()}
    return weights[0].keys() == weights[1].keys() and all(torch.equal(v, weights[1][k]) for k, v in weights[0].items())


@pytest.mark.parametrize("decay", ["cosine", "polynomial", (2, 4)])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_run_that_was_killed_goes_on_to_the_same_end(
    decay: str | tuple[int, ...], optimizer: str, tmp_path: Path
) -> None:
    recipe = replace(RECIPE, optimizer=optimizer, decay=decay, momentum=0.9)
    whole = run(None, recipe)
    killed(tmp_path / "runs" / "run.pt", recipe, after=4)
    resumed = run(tmp_path / "runs" / "run.pt", recipe, problem=mortal(RECIPE.epochs - 4))
    assert same(whole, resumed)
    assert resumed.seconds > 0
    draws = [one.posteriors[METHODS[1].tracker_name].draw(0, 1) for one in (whole, resumed)]
    assert all(torch.equal(value, draws[1][name]) for name, value in draws[0].items())


def test_a_finished_run_is_read_and_not_trained(tmp_path: Path) -> None:
    first = run(tmp_path / "run.pt")
    again = run(tmp_path / "run.pt", problem=mortal(0))
    assert same(first, again)
    assert (again.seconds, again.tracking) == (first.seconds, first.tracking)
    fewer = run(tmp_path / "run.pt", methods=METHODS[:1], problem=mortal(0))
    assert fewer.posteriors.keys() == {METHODS[0].tracker_name}


def test_a_run_of_other_settings_or_trackers_is_trained_anew(tmp_path: Path) -> None:
    path, shorter = tmp_path / "run.pt", replace(RECIPE, epochs=3)
    run(path, methods=METHODS[:1])
    with pytest.warns(UserWarning, match=r"run\.pt was trained otherwise: it is trained again in its place"):
        assert same(run(path, shorter, METHODS[:1]), run(None, shorter, METHODS[:1]))
    with pytest.warns(UserWarning, match="lacks trackers asked for now: it is trained again"):
        assert same(run(path, shorter), run(None, shorter))


@dataclass(frozen=True, eq=False)
class Overtaken(Mortal):
    """Data whose reader meanwhile sees another process put its own file in the place of this one's."""

    theirs: Path = Path()
    place: Path = Path()

    def training(self, batch: int) -> Any:
        return _Overtaken(super().training(batch), self.theirs, self.place)


@dataclass
class _Overtaken:
    loader: _Mortal
    theirs: Path
    place: Path

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for number, batch in enumerate(self.loader):
            if number == 1 and self.theirs.exists():
                self.theirs.rename(self.place)
            yield batch


def overtaken(theirs: Path, place: Path, epochs: int) -> Overtaken:
    data = load(Path(), 0, 0)
    return Overtaken(data.train, data.validation, data.test, data.ood, epochs=epochs, theirs=theirs, place=place)


def both_killed(folder: Path, methods: list[Following] = METHODS) -> Path:
    """The file of two processes, the other of which had done four epochs and this one three."""
    theirs, place = folder / "theirs.pt", folder / "run.pt"
    with pytest.raises(KilledError):
        run(theirs, methods=methods, problem=mortal(4))
    with pytest.raises(KilledError):
        run(place, problem=overtaken(theirs, place, 3))
    return place


def test_the_further_of_two_processes_with_one_file_is_kept(tmp_path: Path) -> None:
    assert same(run(both_killed(tmp_path), problem=mortal(RECIPE.epochs - 4)), run(None))


def test_what_is_further_without_a_tracker_is_no_substitute(tmp_path: Path) -> None:
    assert same(run(both_killed(tmp_path, METHODS[:1]), problem=mortal(RECIPE.epochs - 3)), run(None))


def test_a_damaged_file_of_another_process_is_replaced(tmp_path: Path) -> None:
    theirs, place = tmp_path / "theirs.pt", tmp_path / "run.pt"
    theirs.write_bytes(b"half a file")
    run(place, problem=overtaken(theirs, place, epochs=-1))
    assert same(run(place, problem=mortal(0)), run(None))


def test_trackers_that_a_resumed_run_leaves_behind_are_spoken_of(tmp_path: Path) -> None:
    killed(tmp_path / "run.pt", RECIPE, after=4)
    with pytest.warns(UserWarning, match="goes on without the trackers of methods that are not asked for now"):
        fewer = run(tmp_path / "run.pt", methods=METHODS[:1], problem=mortal(RECIPE.epochs - 4))
    assert same(fewer, run(None, methods=METHODS[:1]))


def test_a_run_on_other_data_or_from_other_weights_is_trained_anew(tmp_path: Path) -> None:
    path, data = tmp_path / "run.pt", load(Path(), 0, 0)
    run(path)
    x, y = data.train
    other = replace(data, train=(x, y.roll(1)))
    with pytest.warns(UserWarning, match="was trained otherwise"):
        assert same(run(path, problem=other), run(None, problem=other))
    assert not same(run(None, problem=other), run(None))
    with pytest.warns(UserWarning, match="was trained otherwise"):
        assert same(run(path, seed=1), run(None, seed=1))
    assert not same(run(None, seed=1), run(None))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.pt").write_bytes(b"half a file")
    with pytest.raises(ValueError, match=r"run\.pt cannot be resumed from .*delete it to train again"):
        run(tmp_path / "run.pt")


@pytest.fixture
def without_a_compiler() -> Iterator[None]:
    import torch._inductor.config as config

    torch.compiler.reset()
    with config.patch({"cpp.cxx": ("no-such-compiler",), "force_disable_caches": True}):
        yield
    torch.compiler.reset()


@pytest.mark.parametrize("part", ["seconds", "steps", "clocks"])
def test_a_file_without_its_numbers_is_named(part: str, tmp_path: Path) -> None:
    run(tmp_path / "run.pt")
    state = training._unpacked((tmp_path / "run.pt").read_bytes())
    state[part] = dict.fromkeys(state["clocks"]) if part == "clocks" else None
    (tmp_path / "run.pt").write_bytes(training._packed(state))
    with pytest.raises(ValueError, match=r"run\.pt cannot be resumed from \(TypeError: .*delete it to train again"):
        run(tmp_path / "run.pt")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of its compiler
def test_compiled_steps_train_the_same_network(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, calls = torch.compile, []

    def counted(*args: Any, **options: Any) -> Any:
        made: Any = compiled(*args, **options)

        def call(x: Tensor) -> Any:
            calls.append(len(x))
            return made(x)

        return call

    monkeypatch.setattr(torch, "compile", counted)
    trained = []
    for recipe in (RECIPE, replace(RECIPE, compiled=True)):
        assert not calls
        torch.manual_seed(3)
        trained.append(train(mlp(2, [8], 3), load(Path(), 0, 0), recipe, {}).model.state_dict())
    for name, weight in trained[0].items():
        torch.testing.assert_close(trained[1][name], weight, rtol=1e-4, atol=1e-4)
    assert len(calls) == 7 * RECIPE.epochs, "every step, the short last ones too"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of its compiler
def test_without_a_compiler_steps_run_as_they_are(without_a_compiler: None) -> None:
    del without_a_compiler
    assert same(run(None), run(None, replace(RECIPE, compiled=True)))


def test_training_batches_are_augmented_and_others_are_not() -> None:
    data = replace(load(Path(), 0, 0), augment=lambda x: x + 100)
    assert all((x > 50).all() for x, _ in data.training(32))
    assert (data.validation_batches[0][0] < 50).all()
    assert (data.first(4).refresh_batches[0] < 50).all()
    assert data.first(4).augment is data.augment


NOW = [0.0]


class Slow(SWAG):
    """Takes a second a step, by a clock that moves with it alone."""

    def observe(self, moved: Rates) -> None:
        NOW[0] += 1
        super().observe(moved)


def test_any_tracker_is_attached_and_each_is_charged_the_time_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.perf_counter", lambda: NOW[0])
    slow, quick = Tracked(tracker=Slow, options={"every": 5}), Tradi()
    trained = run(None, methods=[slow, quick])
    assert trained.tracking == {slow.tracker_name: trained.steps, quick.tracker_name: 0}
    assert trained.seconds == 0, "of training, trackers apart"
    assert len(slow.posterior(trained).sample(3)) == 3


def test_a_checkpoint_that_may_unpack_to_any_size_is_refused_before_it_does() -> None:
    content = training._packed({"weight": torch.zeros(100_000)})
    assert training._unpacked(content)["weight"].shape == (100_000,)
    bomb = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(content[32:])) as plain,
        zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    forged = bomb.getvalue()
    assert len(forged) < len(content) / 50
    with pytest.raises(ValueError, match="holds packed entries, which torch does not write"):
        training._unpacked(hashlib.sha256(forged).digest() + forged)
