"""What tables show: the measures of each kind of problem, and how they are printed."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Column:
    """One measure: its key in result files, a factor and digits to print it with, and which way is better."""

    title: str
    metric: str
    factor: float = 1.0
    digits: int = 2
    higher: bool = False


CLASSIFICATION = (
    Column("accuracy %", "accuracy", 100, 2, higher=True),
    Column("NLL", "nll", digits=4),
    Column("ECE", "ece", digits=4),
)


def _detection(score: str, suffix: str = "") -> tuple[Column, ...]:
    """AUC, AUPR and FPR95 by one score."""
    return (
        Column(f"AUC{suffix}", f"{score}/auroc", 100, 1, higher=True),
        Column(f"AUPR{suffix}", f"{score}/aupr_out", 100, 1, higher=True),
        Column(f"FPR95{suffix}", f"{score}/fpr95", 100, 1),
    )


def against(kind: str) -> tuple[Column, ...]:
    """How images of one kind of OOD data are told from the classes that were learnt."""
    return (
        *CLASSIFICATION[:2],
        *_detection(f"{kind}/confidence"),
        Column("AUC, entropy", f"{kind}/entropy/auroc", 100, 1, higher=True),
        Column("AUC, mutual information", f"{kind}/information/auroc", 100, 1, higher=True),
        Column("joint ECE", f"{kind}/joint_ece", digits=3),
    )


OOD = against("notMNIST")
PIXEL_CLASSES = (
    Column("mIoU %", "miou", 100, 1, higher=True),
    Column("accuracy %", "accuracy", 100, 1, higher=True),
    Column("NLL", "nll", digits=3),
    Column("ECE", "ece", digits=3),
)
PIXELS = (
    *_detection("OOD/confidence"),
    Column("joint ECE", "OOD/joint_ece", digits=3),
    *_detection("OOD/information", ", mutual information"),
    Column("AUC, entropy", "OOD/entropy/auroc", 100, 1, higher=True),
)
PIXELS_BY_IMAGE = (
    *_detection("OOD/by image/confidence"),
    *_detection("OOD/by image/information", ", mutual information"),
)
ABLATION = (
    Column("validation NLL", "validation/nll", digits=4),
    Column("probes: AUC", "validation/confidence/auroc", 100, 1, higher=True),
    Column("probes: AUC, mutual information", "validation/information/auroc", 100, 1, higher=True),
    *OOD,
)
REGRESSION = (
    Column("RMSE", "rmse", digits=3),
    Column("NLL", "nll", digits=3),
    Column("NLL, mixture", "nll_mixture", digits=3),
    Column("CRPS", "crps", digits=3),
    Column("95% covers %", "coverage95", 100, 1),
)
OVERVIEW = (*ABLATION[:2], OOD[2], OOD[6], replace(OOD[1], title="test NLL"), REGRESSION[0])
TOY = (
    Column("NLL among the points", "inside/nll_mixture", digits=3),
    Column("95% covers %, among", "inside/coverage95", 100, 1),
    Column("sd over exact GP's, among", "inside/sd_over_ideal"),
    Column("NLL beyond", "outside/nll_mixture", digits=3),
    Column("95% covers %, beyond", "outside/coverage95", 100, 1),
    Column("sd over exact GP's, beyond", "outside/sd_over_ideal"),
)
