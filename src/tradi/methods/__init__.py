"""Every way to an ensemble, siblings: one file a method, all giving the same `Ensemble`."""

from tradi.methods.tradi import TRADI

__all__ = ["TRADI"]
