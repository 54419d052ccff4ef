from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import tradi
from tests.memory import live_bytes
from tradi import costs
from tradi.methods import SWAG

ROOT = Path(__file__).parents[1]


def network(dtype: torch.dtype = torch.float32) -> Any:
    """A frozen layer, a normalisation layer, two layers to be tracked."""
    torch.manual_seed(0)
    frozen = nn.Linear(50, 300).requires_grad_(False)
    return nn.Sequential(frozen, nn.BatchNorm1d(300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 3)).to(
        dtype
    )


X = torch.randn(8, 50, generator=torch.Generator().manual_seed(0))


def trained(model: Any, tracker: Any, optimizer: Any, steps: int) -> Any:
    for _ in range(steps):
        optimizer.zero_grad()
        model(X.to(model[0].weight.dtype)).square().mean().backward()
        optimizer.step()
    optimizer.zero_grad()
    return tracker


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_an_estimate_is_what_is_allocated_and_written(dtype: torch.dtype, tmp_path: Path) -> None:
    model = network(dtype)
    found = tradi.estimate(model, 4)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    trained(model, None, optimizer, 1)
    before = live_bytes()
    tracker = trained(model, tradi.TRADI(model, optimizer), optimizer, 2)
    few = 3000  # a number per layer, and values that weights are recognised by
    assert live_bytes() - before == pytest.approx(found.tracking, abs=few)
    before = live_bytes()
    posterior = tracker.posterior()
    assert live_bytes() - before == found.posterior
    ensemble = posterior.sample(4).refresh([X.to(dtype)])
    before = live_bytes() - (live_bytes() - before - found.posterior)
    ensemble(X.to(dtype))
    statistics = 4 * (2 * 300 * dtype.itemsize + 8)
    assert live_bytes() - before == pytest.approx(found.sampling + statistics, abs=100)
    posterior.save(tmp_path / "p")
    posterior.save(tmp_path / "whole", whole=True)
    ensemble.save(tmp_path / "e")
    names = 4000
    assert 0 < (tmp_path / "p").stat().st_size - found.file < names
    assert 0 < (tmp_path / "whole").stat().st_size - found.whole_file < names
    assert abs((tmp_path / "e").stat().st_size - found.ensemble_file) < statistics + names
    parameters = list(model.parameters())
    assert (found.weights, found.frozen) == (sum(p.numel() for p in parameters), 300 * 51)
    assert found.tracked == sum(mean.numel() for mean in posterior.mean.values())
    assert found.wire == 0


def test_an_estimate_of_swag_is_what_it_allocates() -> None:
    model = network()
    found = tradi.estimate(model, select="*")
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    trained(model, None, optimizer, 1)
    before = live_bytes()
    swag = trained(model, SWAG(model, optimizer, every=1), optimizer, costs.SWAG_RANK)
    assert live_bytes() - before == pytest.approx(found.tracking_swag, abs=3000)  # and values to recognise weights by
    del swag


def test_members_that_do_not_fit_are_not_kept() -> None:
    model = network()
    own = 4 * tradi.estimate(model).tracked
    some = tradi.estimate(model, 20, keep_bytes=7 * own)
    everything = tradi.estimate(model, 20)
    assert (some.kept, everything.kept) == (7, 20)
    assert some.sampling == 8 * own + (everything.sampling - 20 * own)


def test_a_model_on_the_meta_device_is_estimated_without_a_byte() -> None:
    class Allocating(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = function(*args, **(kwargs or {}))
            assert not isinstance(found, Tensor) or found.is_meta
            return found

    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(100_000, 100_000) for _ in range(8)))
    with Allocating():
        found = tradi.estimate(model)
    assert found.tracking == 8 * found.weights > 6e11
    assert tradi.estimate(copy.deepcopy(model), select="7").tracked == found.tracked // 8
    real = network()
    assert tradi.estimate(real) == tradi.estimate(real.to("meta"))


def test_what_cannot_be_estimated_is_an_error() -> None:
    with pytest.raises(ValueError, match="members must be at least 1, got 0"):
        tradi.estimate(network(), 0)
    with pytest.raises(ValueError, match="select= leaves no trainable weight"):
        tradi.estimate(network(), select="0")
    with pytest.raises(TypeError, match="not initialised yet"):
        tradi.estimate(nn.LazyLinear(3))


def test_numbers_are_shown_in_three_digits_with_their_unit() -> None:
    assert [costs.size(n) for n in (0, 7, 999, 1000, 53_400_000_000)] == ["0 B", "7 B", "999 B", "1 kB", "53.4 GB"]
    assert costs.size(2 * 10**15) == "2,000 TB"
    assert [costs.count(n) for n in (12, 8_400_000)] == ["12", "8.4 million"]
    assert [costs.duration(s) for s in (2e-6, 0.0123, 59.0, 4321.0)] == ["2 us", "12.3 ms", "59 s", "4,321 s"]
    text = str(tradi.estimate(network()))
    assert "tracking, TRADI" in text
    assert len({line.index("  ") for line in text.splitlines() if "save" in line}) >= 1


def test_the_constants_are_those_that_were_measured() -> None:
    measured = json.loads((ROOT / "results" / "speed" / "frozen.json").read_text())["now"]["nanoseconds"]
    assert (measured["step_per_weight"], measured["draw_per_weight"], measured["hash_per_byte"]) == (
        costs.STEP,
        costs.DRAW,
        costs.HASH,
    )


def rows(table: dict[tuple[str, str], tradi.Estimate]) -> list[str]:
    """The page's table."""
    head = [
        "| model | tracked | weights tracked | tracking | `posterior()` | `sample(20)` | `save` | a step | 20 draws |"
    ]
    body = [
        f"| {size} | {way} | {costs.count(one.tracked)} | {costs.size(one.tracking)} | {costs.size(one.posterior)} | "
        f"{costs.size(one.sampling)} ({one.kept} kept) | {costs.size(one.file)} | {costs.duration(one.step_seconds)} | "
        f"{costs.duration(one.draw_seconds)} |"
        for (size, way), one in table.items()
    ]
    return [*head, "|---" * 9 + "|", *body]


def test_the_page_on_large_models_shows_what_its_code_gives(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "large-models.md").read_text()
    found: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        exec(compile(block, "docs/large-models.md", "exec"), found)
    assert f"```\n{capsys.readouterr().out}```\n" in text
    assert "\n".join(rows(found["table"])) in text
