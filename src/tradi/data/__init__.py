"""Readers of public data sets, and data sets that need no files."""

from tradi.data.augment import crop_and_flip, flip
from tradi.data.bdd import bdd_anomaly
from tradi.data.camvid import camvid
from tradi.data.cifar10 import cifar10, in_colour
from tradi.data.digits import digits
from tradi.data.images import Images
from tradi.data.mnist import mnist
from tradi.data.notmnist import NotMNIST, notmnist
from tradi.data.root import data_root
from tradi.data.segmentation import Frames, Segmentation
from tradi.data.streethazards import streethazards
from tradi.data.toy import Toy, toy
from tradi.data.uci import Split, uci

__all__ = [
    "Frames",
    "Images",
    "NotMNIST",
    "Segmentation",
    "Split",
    "Toy",
    "bdd_anomaly",
    "camvid",
    "cifar10",
    "crop_and_flip",
    "data_root",
    "digits",
    "flip",
    "in_colour",
    "mnist",
    "notmnist",
    "streethazards",
    "toy",
    "uci",
]
