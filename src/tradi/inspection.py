"""What a tracker has seen so far, and whether that is the run that it was attached to."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tradi.extras import require
from tradi.filter.kalman import Kalman
from tradi.methods.tradi import TRADI
from tradi.tracking.tracker import UNSEEN

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEW_STEPS = 100
SHOWN = 6  # names in a warning
HEAD = ("layer", "weights", "tracked deviation", "spread", "deviation / spread", "never moved")


@dataclass(frozen=True)
class Layer:
    """What was tracked of a layer.

    Args:
        name: of the module.
        weights: how many are tracked.
        deviation: root of the mean tracked variance.
        spread: standard deviation of the layer's weights, or their root mean square if they are all the same.
        still: weights that stayed where they were at the first step that was seen, or were never in a step.
    """

    name: str
    weights: int
    deviation: float
    spread: float
    still: int

    @property
    def relative(self) -> float:
        """Tracked deviation over spread."""
        return self.deviation / self.spread if self.spread else 0.0

    @property
    def cells(self) -> tuple[str, ...]:
        """As a row of the table."""
        numbers = (f"{self.deviation:.3g}", f"{self.spread:.3g}", f"{self.relative:.3g}")
        return (self.name or "(model)", f"{self.weights:,}", *numbers, f"{self.still / self.weights:.1%}")


@dataclass(frozen=True)
class Diagnostics:
    """What a tracker has seen so far; `print` shows it as a table.

    Args:
        layers: in the model's order.
        steps: optimizer steps seen.
        memory: of the mean's filter now, in steps: the inverse of its gain.
        stride: the filter looks at the weights at one of so many steps now; the default skips more the longer a run is.
        skipped: those of them that were left out, since weights or gradients were not finite or too large.
        prior: what an earlier posterior knew, in words; empty if there was none.
    """

    layers: tuple[Layer, ...]
    steps: int
    memory: float
    stride: int
    skipped: int
    prior: str = ""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What should be looked at, in plain words; empty if nothing."""
        if not self.steps:
            return (UNSEEN,)
        still = [layer.name for layer in self.layers if layer.still == layer.weights]
        wild = [layer.name for layer in self.layers if layer.relative > 1]
        broken = [layer.name for layer in self.layers if not math.isfinite(layer.relative)]
        found = {
            f"only {self.steps} steps were seen: variances are rough below {FEW_STEPS}": self.steps < FEW_STEPS,
            f"the filter remembers {self.memory:,.0f} steps and has seen {self.steps:,}: its start still counts, "
            "so train longer or choose a shorter memory": self.memory > self.steps,
            f"no weight moved in {_listed(still)}: frozen, without a gradient, or not in the optimizer": bool(still),
            f"weights moved by more than their spread in {_listed(wild)}: the learning rate may be too high at the "
            "end": bool(wild),
            f"what was tracked is not finite in {_listed(broken)}: the training diverged": bool(broken),
            f"{self.skipped:,} of {self.steps:,} steps were left out, since weights or gradients were not finite or "
            "too large: lower the learning rate, or clip gradients": self.skipped > 0,
        }
        return tuple(text for text, applies in found.items() if applies)

    @property
    def scalars(self) -> dict[str, float]:
        """What `log` writes, by name."""
        found = {
            "tradi/steps": float(self.steps),
            "tradi/skipped_steps": float(self.skipped),
            "tradi/memory_over_run": self.memory / self.steps if self.steps else 0.0,
            "tradi/looked_at_share": 1 / self.stride,
        }
        for layer in self.layers:
            found[f"tradi/relative_deviation/{layer.name or 'model'}"] = layer.relative
            found[f"tradi/never_moved/{layer.name or 'model'}"] = layer.still / layer.weights
        return found

    def __str__(self) -> str:
        share = f" ({self.memory / self.steps:.0%} of the run)" if self.steps else ""
        looked = "every step" if self.stride == 1 else f"one step in {self.stride}"
        skipped = f", {self.skipped:,} of them left out" if self.skipped else ""
        lines = [f"{self.steps:,} steps seen{skipped}; memory {self.memory:,.0f} steps{share}; looks at {looked} now"]
        lines += [self.prior] if self.prior else []
        rows = [HEAD, *(layer.cells for layer in self.layers)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
        for first, *others in rows:
            cells = [first.ljust(widths[0]), *(c.rjust(w) for c, w in zip(others, widths[1:], strict=True))]
            lines.append("  ".join(cells))
        return "\n".join([*lines, *(f"! {warning}" for warning in self.warnings)])

    def log(self, logger: Any, step: int) -> None:
        """Write the numbers to TensorBoard, or hand them to a function.

        Args:
            logger: a `SummaryWriter`, or any function of (numbers by name, step), such as `wandb.log` or a Lightning
                logger's `log_metrics`.
            step: of the training.

        Raises:
            TypeError: if the logger is neither.
        """
        if hasattr(logger, "add_scalar"):
            for name, value in self.scalars.items():
                logger.add_scalar(name, value, step)
        elif callable(logger):
            logger(self.scalars, step)
        else:
            raise TypeError(
                f"logger must have add_scalar, as a SummaryWriter, or be a function of (numbers, step), got {logger!r}"
            )

    def figure(self) -> Figure:
        """Tracked deviation over spread, and the share of weights that never moved, layer by layer.

        Returns:
            a matplotlib figure, to be saved by its `savefig`.
        """
        figure_of = require("matplotlib.figure", "figures").Figure
        figure: Figure = figure_of(figsize=(8, 1.2 + 0.3 * len(self.layers)), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        names = [layer.name or "(model)" for layer in self.layers]
        left.barh(names, [layer.relative for layer in self.layers], color="#0072B2")
        left.set(xlabel="tracked deviation / spread of the layer")
        right.barh(names, [100 * layer.still / layer.weights for layer in self.layers], color="#D55E00")
        right.set(xlabel="weights that never moved, %", xlim=(0, 100))
        left.invert_yaxis()
        for axes in (left, right):
            axes.spines[["top", "right"]].set_visible(False)
        return figure


def diagnostics(tracker: TRADI) -> Diagnostics:
    """What a tracker has seen so far, at any time of the training; nothing is changed.

    Args:
        tracker: attached to a run.

    Returns:
        figures by layer and findings in words, which print as a table.

    Raises:
        TypeError: if it is no `TRADI`, or its weights are sharded.
    """
    if not isinstance(tracker, TRADI):
        raise TypeError(f"diagnostics are of a TRADI tracker, got {type(tracker).__name__}")
    if tracker.is_sharded:
        raise TypeError(
            "diagnostics need all weights in one process, and these are sharded: look at tracker.state_dict()"
        )
    variance = _variances(tracker.state_dict()["weights"])
    by_layer: dict[str, list[str]] = {}
    for weight in tracker.tracked:
        by_layer.setdefault(weight.layer, []).append(weight.name)
    selected = tracker.selected
    values = {name: selected[name].parameter.detach() for names in by_layer.values() for name in names}
    layers = (_layer(name, [values[w] for w in own], [variance.get(w) for w in own]) for name, own in by_layer.items())
    return Diagnostics(
        layers=tuple(layers),
        steps=tracker.steps,
        memory=_memory(tracker.kalman, tracker.steps),
        stride=_stride(tracker.kalman, tracker.steps),
        skipped=tracker.skipped,
        prior="" if tracker.prior is None else str(tracker.prior),
    )


def _variances(blocks: dict[str, Any]) -> dict[str, Tensor]:
    """The tracked variance of every weight that was in a step, by name, in a row."""
    found: dict[str, Tensor] = {}
    for block in (block for block in blocks.values() if block["step"]):
        second, means = block["second"], block["mean"]
        sizes = [mean.numel() for mean in means.values()]
        joint = second.shape != next(iter(means.values())).shape  # one covariance of several weights
        row = second.diagonal() if joint else second.reshape(-1)
        found |= dict(zip(means, row.split(sizes), strict=True))
    return found


def _layer(name: str, values: list[Tensor], variances: list[Tensor | None]) -> Layer:
    pairs = [(v.double().flatten().cpu(), s) for v, s in zip(values, variances, strict=True)]
    all_values = torch.cat([v for v, _ in pairs])
    all_variances = torch.cat([torch.zeros_like(v) if s is None else s.double().cpu() for v, s in pairs])
    spread = all_values.std(correction=0).item() or all_values.square().mean().sqrt().item()
    deviation = all_variances.clamp_min(0).mean().sqrt().item()  # the paper's equations allow negative ones
    return Layer(name, len(all_values), deviation, spread, int((all_variances == 0).sum()))


def _memory(kalman: Kalman, steps: int) -> float:
    """Steps that count in the mean: the inverse of the gain of one step."""
    return 1 / kalman.mean_gain(steps - 1, steps) if steps else 0.0


def _stride(kalman: Kalman, steps: int) -> int:
    if kalman.equations.needs_gradient:
        return 1
    gains: tuple[Callable[[int], int], ...] = (kalman.mean_gain.stride, kalman.variance_gain.stride)
    return max(kalman.every, min(stride(max(steps, 1)) for stride in gains))


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(name or "(model)" for name in names[:SHOWN]) + more
