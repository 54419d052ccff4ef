"""Metrics and curves. Out-of-distribution (OOD) is the positive class and a higher score means more OOD."""

from tradi.metrics.calibration import Temperature, fit_temperature
from tradi.metrics.classification import accuracy, brier, ece, joint_ece, nll, nll_from_log_probs
from tradi.metrics.curves import (
    AccuracyConfidence,
    APCalibration,
    Calibration,
    ConfidenceHistogram,
    RegressionBand,
    RiskCoverage,
    accuracy_confidence,
    ap_calibration,
    calibration_curve,
    confidence_histogram,
    regression_band,
    risk_coverage,
    with_ood,
)
from tradi.metrics.distances import knn_distance, mahalanobis
from tradi.metrics.ood import ImageAverage, OODMetrics, aupr_in, aupr_out, auroc, fpr95, image_average, ood_metrics
from tradi.metrics.regression import coverage, gaussian_crps, gaussian_nll, mixture_crps, mixture_nll, rmse
from tradi.metrics.scores import (
    energy,
    expected_entropy,
    mutual_information,
    one_minus_confidence,
    predictive_entropy,
    variance_of_mean,
)
from tradi.metrics.segmentation import Confusion, confusion
from tradi.metrics.streaming import Accumulator, ScoreHistogram, score_histogram

__all__ = [
    "APCalibration",
    "Accumulator",
    "AccuracyConfidence",
    "Calibration",
    "ConfidenceHistogram",
    "Confusion",
    "ImageAverage",
    "OODMetrics",
    "RegressionBand",
    "RiskCoverage",
    "ScoreHistogram",
    "Temperature",
    "accuracy",
    "accuracy_confidence",
    "ap_calibration",
    "aupr_in",
    "aupr_out",
    "auroc",
    "brier",
    "calibration_curve",
    "confidence_histogram",
    "confusion",
    "coverage",
    "ece",
    "energy",
    "expected_entropy",
    "fit_temperature",
    "fpr95",
    "gaussian_crps",
    "gaussian_nll",
    "image_average",
    "joint_ece",
    "knn_distance",
    "mahalanobis",
    "mixture_crps",
    "mixture_nll",
    "mutual_information",
    "nll",
    "nll_from_log_probs",
    "one_minus_confidence",
    "ood_metrics",
    "predictive_entropy",
    "regression_band",
    "risk_coverage",
    "rmse",
    "score_histogram",
    "variance_of_mean",
    "with_ood",
]
