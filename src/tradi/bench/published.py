"""The paper's table 3, as it gives its figures, in the unit and under the keys of result files."""

from __future__ import annotations

from tradi.bench.tables import Published

Figures = tuple[float, float, float, float]


def table3(kind: str, rows: dict[str, Figures]) -> Published:
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


def table3_pixels(rows: dict[str, Figures]) -> Published:
    """Of pixels pooled and image by image: the paper does not say which, so its figures stand beside both."""
    pooled, by_image = table3("OOD", rows), table3("OOD/by image", rows)
    return {method: pooled[method] | by_image[method] for method in rows}
