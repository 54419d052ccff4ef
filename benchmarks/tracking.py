"""How long the filter takes over an optimizer's step: one it looks at, one it passes over, and a run's average."""

from __future__ import annotations

from collections.abc import Callable

from networks import Still
from timing import Times, alternately
from torch import nn

import tradi


class EveryStep(tradi.FadingMemory):
    """The default's gains, of a filter that passes over nothing: what a step costs that is looked at."""

    def stride(self, step: int) -> int:
        del step
        return 1


OBSERVED = tradi.Kalman(mean_gain=EveryStep(), variance_gain=EveryStep())
PASSED_OVER = tradi.Kalman(every=1 << 40)


def tracking(model: nn.Module, steps: int, repetitions: int, **others: Callable[[], object]) -> dict[str, Times]:
    """Times of a step that is looked at, of one that is passed over and of a run's average step; and of the others.

    What a step of an optimizer takes that does nothing, and that nobody follows, is taken off: a training step has it.
    Where there is a training step, it is what happens `before` each measurement, as in a run.
    """
    optimizers = {name: Still(model.parameters()) for name in ("observed", "passed_over", "nothing")}
    trackers = [
        tradi.TRADI(model, optimizers[name], kalman=kalman)
        for name, kalman in (("observed", OBSERVED), ("passed_over", PASSED_OVER))
    ]
    own = {name: optimizer.step for name, optimizer in optimizers.items()}
    times = alternately(repetitions, **others, **own)
    for tracker in trackers:
        tracker.detach()
    nothing = times.pop("nothing")
    times |= {name: times[name] - nothing for name in ("observed", "passed_over")}
    share = looks(steps) / steps
    return times | {"run": share * times["observed"] + (1 - share) * times["passed_over"]}


def looks(steps: int) -> int:
    """How often the default filter looks at the weights in a run."""
    kalman = tradi.Kalman()
    return sum(kalman.observes(step) for step in range(1, steps + 1))
