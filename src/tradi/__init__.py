"""One ordinary training run that gives a neural network trustworthy uncertainty."""

__version__ = "0.1.0"
