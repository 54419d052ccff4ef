"""How do methods of one training fare on the other networks of CamVid-OOD's Deep Ensembles?

python benchmarks/camvid_runs.py --data DATA --out results --seed 0

Run it after `tradi bench camvid-ood --out results`, whose kept trainings it takes and whose results it writes its own
beside, as a variant of their own: the split is the number of the run. SWAG was attached to the first run only.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from tradi.bench.camvid import CAMVID_OOD, METHODS, TUNED
from tradi.bench.methods import Method, Tradi
from tradi.bench.results import Key, Result, made_by
from tradi.bench.runner import Case, _evaluate, _Trainings
from tradi.bench.training import Run

COMPARED = ("Single network", "MC Dropout", "Gaussian perturbation", "TRADI tuned")
RUNS = 3


@dataclass
class One(_Trainings):
    """One run of a case, whatever a method asks for."""

    number: int = 0

    def get(self, method: Method) -> list[Run]:
        del method
        return [self._run(None, self.number)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    variant = CAMVID_OOD.variants[0]
    methods = {**METHODS, **TUNED}
    everywhere: list[Method] = [replace(m, runs=RUNS) for m in methods.values() if isinstance(m, Tradi)]
    problem = variant.load(options.data, 0, options.seed)
    case = Case(CAMVID_OOD.name, variant, methods, options.seed, 0)
    for number in range(1, RUNS):
        trained = One(case, variant, problem, options.out, everywhere, number)
        for name in COMPARED:
            found, _ = _evaluate(methods[name], problem, trained, options.seed)
            settings = {"method": repr(methods[name]), "recipe": repr(variant.recipe), "data": problem.about}
            command = f"python benchmarks/camvid_runs.py --data DATA --out results --seed {options.seed}"
            Result(
                key=Key(case.benchmark, f"{variant.name}-other-runs", name, options.seed, number),
                settings=settings | {"quick": False},
                made_by={"command": command, **made_by(), "threads": 1},
                **found,
            ).write(options.out)


if __name__ == "__main__":
    main()
