"""Readers of public data sets, and those that need no file at all."""

from tradi.data.digits import Digits, digits
from tradi.data.toy import Toy, toy

__all__ = ["Digits", "Toy", "digits", "toy"]
