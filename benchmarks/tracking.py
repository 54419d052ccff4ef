"""How long the filter takes over an optimizer's step: one it looks at, one it passes over, and a run's average."""

from __future__ import annotations

from collections.abc import Callable

from networks import Still
from timing import Times, alternately
from torch import nn

import tradi
from tradi.tracking.recognition import is_asked


class EveryStep(tradi.FadingMemory):
    """The default's gains, of a filter that passes over nothing: what a step costs that is looked at."""

    def stride(self, step: int) -> int:
        del step
        return 1


OBSERVED = tradi.Kalman(mean_gain=EveryStep(), variance_gain=EveryStep())
PASSED_OVER = tradi.Kalman(every=1 << 40)


MIDDLE = 4097  # steps of a run that has gone on for a while: one before which the weights are not compared


def tracking(model: nn.Module, steps: int, repetitions: int, **others: Callable[[], object]) -> dict[str, Times]:
    """Times of a step that is looked at, of one that is passed over and of a run's average step; and of the others.

    What a step of an optimizer takes that does nothing, and that nobody follows, is taken off: a training step has it.
    Where there is a training step, it is what happens `before` each measurement, as in a run. `compared` is a step
    that is passed over, before which the weights are compared with those that the last step left.
    """
    kalmans = {"observed": OBSERVED, "passed_over": PASSED_OVER, "compared": PASSED_OVER}
    optimizers = {name: Still(model.parameters()) for name in (*kalmans, "nothing")}
    trackers = []
    for name, kalman in kalmans.items():
        trackers.append(tradi.TRADI(model, optimizers[name], kalman=kalman))
        optimizers[name].step()
        if name != "compared":  # which is the case before all of the first steps
            trackers[-1].load_state_dict(trackers[-1].state_dict() | {"steps": MIDDLE})
    own = {name: optimizer.step for name, optimizer in optimizers.items()}
    times = alternately(repetitions, **others, **own)
    for tracker in trackers:
        tracker.detach()
    nothing = times.pop("nothing")
    times |= {name: times[name] - nothing for name in kalmans}
    observed, compared = looks(steps) / steps, sum(map(is_asked, range(steps))) / steps
    run = observed * times["observed"] + (1 - observed) * times["passed_over"]
    return times | {"run": run + compared * (times["compared"] - times["passed_over"])}


def looks(steps: int) -> int:
    """How often the default filter looks at the weights in a run."""
    kalman = tradi.Kalman()
    return sum(kalman.observes(step) for step in range(1, steps + 1))
