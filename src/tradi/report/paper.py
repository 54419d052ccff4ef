"""The figures that the paper reports, to stand beside ours."""

from __future__ import annotations

# Table 1: RMSE and NLL of MC Dropout, Deep Ensembles and TRADI (the first two as their own papers report them).
UCI: dict[str, dict[str, dict[str, float]]] = {
    name: {
        "rmse": dict(zip(("MC Dropout", "Deep Ensemble", "TRADI"), rmse, strict=True)),
        "nll": dict(zip(("MC Dropout", "Deep Ensemble", "TRADI"), nll, strict=True)),
    }
    for name, rmse, nll in (
        ("bostonHousing", (2.97, 3.28, 2.84), (2.46, 2.41, 2.36)),
        ("concrete", (5.23, 6.03, 5.20), (3.04, 3.06, 3.03)),
        ("energy", (1.66, 2.09, 1.20), (1.99, 1.38, 1.40)),
        ("kin8nm", (0.10, 0.09, 0.09), (-0.95, -1.20, -0.98)),
        ("naval-propulsion-plant", (0.01, 0.00, 0.00), (-3.80, -5.63, -2.83)),
        ("power-plant", (4.02, 4.11, 4.02), (2.80, 2.79, 2.82)),
        ("protein-tertiary-structure", (4.36, 4.71, 4.35), (2.89, 2.83, 2.80)),
        ("wine-quality-red", (0.62, 0.64, 0.62), (0.93, 0.94, 0.93)),
        ("yacht", (1.11, 1.58, 1.05), (1.55, 1.18, 1.18)),
    )
}

# Table 2, MNIST.
MNIST: dict[str, dict[str, float]] = {
    "Deep Ensemble": {"nll": 0.035, "accuracy": 0.9888},
    "MC Dropout": {"nll": 0.065, "accuracy": 0.9819},
    "SWAG": {"nll": 0.041, "accuracy": 0.9878},
    "TRADI": {"nll": 0.044, "accuracy": 0.9863},
}

# Table 2, CIFAR-10.
CIFAR10: dict[str, dict[str, float]] = {
    "Deep Ensemble": {"nll": 0.173, "accuracy": 0.9567},
    "MC Dropout": {"nll": 0.205, "accuracy": 0.9527},
    "SWAG": {"nll": 0.110, "accuracy": 0.9641},
    "TRADI": {"nll": 0.205, "accuracy": 0.9529},
}

Figures = tuple[float, float, float, float]


def _table3(kind: str, rows: dict[str, Figures]) -> dict[str, dict[str, float]]:
    """AUC, AUPR and FPR95 by confidence, in per cent, and ECE of in- and out-of-distribution data together."""
    return {
        method: {
            f"{kind}/confidence/auroc": auc / 100,
            f"{kind}/confidence/aupr_out": aupr / 100,
            f"{kind}/confidence/fpr95": fpr / 100,
            f"{kind}/joint_ece": ece,
        }
        for method, (auc, aupr, fpr, ece) in rows.items()
    }


def _table3_pixels(rows: dict[str, Figures]) -> dict[str, dict[str, float]]:
    """Of pixels pooled and image by image: the paper does not say which, so its figures stand beside both."""
    pooled, by_image = _table3("OOD", rows), _table3("OOD/by image", rows)
    return {method: pooled[method] | by_image[method] for method in rows}


MNIST_OOD = _table3(
    "notMNIST",
    {
        "MCP": (94.0, 96.0, 24.6, 0.305),
        "Gaussian perturbation": (94.8, 96.4, 19.2, 0.500),
        "MC Dropout": (91.8, 94.9, 35.6, 0.494),
        "Deep Ensemble": (97.2, 98.0, 9.2, 0.462),
        "SWAG": (90.9, 94.4, 31.9, 0.529),
        "TRADI": (96.7, 97.6, 11.0, 0.407),
    },
)

# The appendix's table of mIoU.
CAMVID_CLASSES: dict[str, dict[str, float]] = {
    "MC Dropout": {"miou": 0.4857, "accuracy": 0.8034},
    "Deep Ensemble": {"miou": 0.5719, "accuracy": 0.8806},
    "TRADI": {"miou": 0.5298, "accuracy": 0.8488},
}
CAMVID_OOD = {
    method: figures | CAMVID_CLASSES.get(method, {})
    for method, figures in _table3_pixels(
        {
            "MCP": (75.4, 10.0, 65.1, 0.146),
            "Gaussian perturbation": (76.2, 10.9, 62.6, 0.133),
            "MC Dropout": (75.4, 10.7, 63.2, 0.168),
            "Deep Ensemble": (79.7, 13.0, 55.3, 0.112),
            "SWAG": (75.6, 12.1, 65.8, 0.133),
            "TRADI": (79.3, 12.8, 57.7, 0.110),
        },
    ).items()
}

STREETHAZARDS = _table3_pixels(
    {
        "MCP": (88.7, 6.9, 26.9, 0.055),
        "Gaussian perturbation": (57.1, 2.4, 71.0, 0.185),
        "MC Dropout": (69.9, 6.0, 32.0, 0.092),
        "Deep Ensemble": (90.0, 7.2, 25.4, 0.051),
        "TRADI": (89.2, 7.2, 25.3, 0.049),
    },
)

BDD_ANOMALY = _table3_pixels(
    {
        "MCP": (86.0, 5.4, 27.7, 0.159),
        "Gaussian perturbation": (86.0, 4.8, 27.7, 0.158),
        "MC Dropout": (85.2, 5.0, 29.3, 0.181),
        "Deep Ensemble": (87.0, 6.0, 25.0, 0.170),
        "TRADI": (86.1, 5.6, 26.9, 0.157),
    },
)

# By benchmark, for tables of methods.
BY_METHOD: dict[str, dict[str, dict[str, float]]] = {
    "mnist": MNIST,
    "mnist-ood": MNIST_OOD,
    "cifar10": CIFAR10,
    "camvid-ood": CAMVID_OOD,
    "streethazards": STREETHAZARDS,
    "bdd-anomaly": BDD_ANOMALY,
}
