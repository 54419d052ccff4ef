"""What each ingredient of TRADI brings: one thing changed at a time, on the problems of the other benchmarks."""

from __future__ import annotations

from dataclasses import replace

from tradi.bench.measures import REGRESSION, against_ood, columns
from tradi.bench.methods import Laplace, Method, Single, Tradi, Untracked
from tradi.bench.mnist import MNIST_OOD
from tradi.bench.spec import Benchmark
from tradi.bench.tables import ByMethod, Column, Overview
from tradi.bench.uci import UCI
from tradi.filter.gains import FadingMemory
from tradi.filter.kalman import Kalman
from tradi.posterior.activations import Activations
from tradi.posterior.covariance import FourierFeatures, Independent

DEFAULT = Tradi()


def _memory(share: float) -> Kalman:
    return Kalman(mean_gain=FadingMemory(share), variance_gain=FadingMemory(share))


METHODS: dict[str, Method] = {
    "Single network": Single(),
    "TRADI": DEFAULT,
    "control: no tracking": Untracked(),
    "control: last layer alone": Laplace(),
    "not conditioned": replace(DEFAULT, covariance=Independent(shrinkage=1.0), conditioned=False),
    "not conditioned, kernel of weight values": replace(DEFAULT, covariance=FourierFeatures(), conditioned=False),
    "noise: independent, of a weight": replace(DEFAULT, covariance=Independent()),
    "noise: independent, of a layer": replace(DEFAULT, covariance=Independent(shrinkage=1.0)),
    "noise: kernel of weight values": replace(DEFAULT, covariance=FourierFeatures()),
    "noise: activations": replace(DEFAULT, covariance=Activations()),
    "noise: activations, floor 1e-3": replace(DEFAULT, covariance=Activations(1e-3)),
    "noise: activations, floor 1e-4": replace(DEFAULT, covariance=Activations(1e-4)),
    "noise: activations, floor 1e-5": replace(DEFAULT, covariance=Activations(1e-5)),
    "filter: paper": replace(DEFAULT, kalman=Kalman.paper(), select="*"),
    "filter: released": replace(DEFAULT, kalman=Kalman.released()),
    "memory: whole run": replace(DEFAULT, kalman=_memory(1.0)),
    "memory: last third": replace(DEFAULT, kalman=_memory(1 / 3)),
    "memory: last thirtieth": replace(DEFAULT, kalman=_memory(1 / 30)),
    "scale: within 0": replace(DEFAULT, tolerance=0.0),
    "scale: within 0.01": replace(DEFAULT, tolerance=0.01),
    "members: 5": replace(DEFAULT, members=5),
    "members: 100": replace(DEFAULT, members=100),
}

SETS = [
    replace(variant, splits=5, methods=None)
    for variant in UCI.variants
    if variant.name in ("concrete", "wine-quality-red")
]

# Validation data, and probes that are made of it: what settings may be chosen by.
VALIDATION = Column("validation NLL", "validation/nll", digits=4)
PROBES = Column("probes: AUC", "validation/confidence/auroc", 100, 1, higher=True)
PROBES_INFORMATION = Column("probes: AUC, mutual information", "validation/information/auroc", 100, 1, higher=True)
AUC = Column("AUC", "notMNIST/confidence/auroc", 100, 1, higher=True)
AUC_INFORMATION = Column("AUC, mutual information", "notMNIST/information/auroc", 100, 1, higher=True)
RMSE, NLL = columns(REGRESSION)[:2]

ABLATION = Benchmark(
    "ablation",
    "What each ingredient of TRADI brings",
    (*MNIST_OOD.variants, *SETS),
    METHODS,
    (
        Overview(
            (VALIDATION, PROBES, AUC, AUC_INFORMATION, Column("test NLL", "nll", digits=4), RMSE),
            "What each ingredient of TRADI brings",
            "(and, of UCI sets, splits). Settings may be chosen by the columns of validation data and of probes, which "
            "are made of it.",
            drawn=((AUC, AUC_INFORMATION), (NLL,)),
        ),
        against_ood(first=(VALIDATION, PROBES, PROBES_INFORMATION)),
        ByMethod(columns(REGRESSION)),
    ),
    seeds=(0, 1, 2),
)
