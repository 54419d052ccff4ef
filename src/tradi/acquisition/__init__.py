"""Active learning: which samples of a pool to have labelled next.

Enters: an ensemble, and a pool of inputs that may be larger than memory. Leaves: places in the pool. Who may call it:
anyone; scores and joint information know predictions and tensors only.
"""

from tradi.acquisition.joint import BatchBALD, Chosen, greedy_classes, greedy_numbers
from tradi.acquisition.pool import Score, acquire
from tradi.acquisition.scores import bald, random

__all__ = ["BatchBALD", "Chosen", "Score", "acquire", "bald", "greedy_classes", "greedy_numbers", "random"]
