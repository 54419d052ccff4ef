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

# Table 3, MNIST against notMNIST, by confidence.
MNIST_OOD: dict[str, dict[str, float]] = {
    method: {
        "notMNIST/confidence/auroc": auc / 100,
        "notMNIST/confidence/aupr_out": aupr / 100,
        "notMNIST/confidence/fpr95": fpr / 100,
        "notMNIST/joint_ece": ece,
    }
    for method, auc, aupr, fpr, ece in (
        ("MCP", 94.0, 96.0, 24.6, 0.305),
        ("Gaussian perturbation", 94.8, 96.4, 19.2, 0.500),
        ("MC Dropout", 91.8, 94.9, 35.6, 0.494),
        ("Deep Ensemble", 97.2, 98.0, 9.2, 0.462),
        ("SWAG", 90.9, 94.4, 31.9, 0.529),
        ("TRADI", 96.7, 97.6, 11.0, 0.407),
    )
}
