"""What each ingredient of TRADI brings: one thing changed at a time, on the problems of the other benchmarks."""

from __future__ import annotations

from dataclasses import replace

from tradi.bench.measures import REGRESSION, against_ood, columns
from tradi.bench.methods import Method, Single, Tradi, Untracked
from tradi.bench.mnist import MNIST_OOD
from tradi.bench.spec import Benchmark
from tradi.bench.tables import ByMethod, Column, Overview
from tradi.bench.uci import UCI
from tradi.filter.gains import FadingMemory
from tradi.filter.kalman import Kalman
from tradi.posterior.covariance import FourierFeatures, Independent

DEFAULT = Tradi()


def _memory(share: float) -> Kalman:
    return Kalman(mean_gain=FadingMemory(share), variance_gain=FadingMemory(share))


METHODS: dict[str, Method] = {
    "Single network": Single(),
    "TRADI": DEFAULT,
    "control: no tracking": Untracked(),
    "control: no tracking, no information": Untracked(covariance=FourierFeatures(prior_samples=None)),
    "filter: paper": replace(DEFAULT, kalman=Kalman.paper(), select="*"),
    "filter: released": replace(DEFAULT, kalman=Kalman.released()),
    "memory: whole run": replace(DEFAULT, kalman=_memory(1.0)),
    "memory: last third": replace(DEFAULT, kalman=_memory(1 / 3)),
    "memory: last thirtieth": replace(DEFAULT, kalman=_memory(1 / 30)),
    "variance: half shrunk": replace(DEFAULT, covariance=FourierFeatures(shrinkage=0.5)),
    "variance: per weight": replace(DEFAULT, covariance=FourierFeatures(shrinkage=0.0)),
    "information: left out": replace(DEFAULT, covariance=FourierFeatures(prior_samples=None)),
    "information: trusted more": replace(DEFAULT, covariance=FourierFeatures(prior_samples=5.0)),
    "information: trusted less": replace(DEFAULT, covariance=FourierFeatures(prior_samples=500.0)),
    "kernel: independent": replace(DEFAULT, covariance=Independent(shrinkage=1.0, prior_samples=50.0)),
    "kernel: 0.1 of the spread": replace(DEFAULT, covariance=FourierFeatures(length_scale=0.1)),
    "kernel: 1 of the spread": replace(DEFAULT, covariance=FourierFeatures(length_scale=1.0)),
    "kernel: ell = 1": replace(DEFAULT, covariance=FourierFeatures(length_scale=1.0, absolute=True)),
    "scale: 1": replace(DEFAULT, tolerance=None),
    "scale: within 0": replace(DEFAULT, tolerance=0.0),
    "scale: within 0.005": replace(DEFAULT, tolerance=0.005),
    "scale: within 0.01": replace(DEFAULT, tolerance=0.01),
    "features: 1": replace(DEFAULT, covariance=FourierFeatures(features=1)),
    "features: 100": replace(DEFAULT, covariance=FourierFeatures(features=100)),
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
