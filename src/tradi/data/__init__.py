"""Readers of public data sets, and data sets that need no files."""

from tradi.data.augment import crop_and_flip, flip
from tradi.data.bdd import bdd_anomaly
from tradi.data.boxes import Boxed, BoxedFrames, boxed
from tradi.data.camvid import camvid, camvid_boxes
from tradi.data.cifar10 import cifar10, in_colour
from tradi.data.digits import digits
from tradi.data.docstrings import Texts, docstrings
from tradi.data.images import Images
from tradi.data.mnist import mnist
from tradi.data.notmnist import NotMNIST, notmnist
from tradi.data.root import data_root
from tradi.data.segmentation import Frames, Segmentation
from tradi.data.streethazards import streethazards
from tradi.data.toy import Toy, toy
from tradi.data.uci import Split, uci

__all__ = [
    "Boxed",
    "BoxedFrames",
    "Frames",
    "Images",
    "NotMNIST",
    "Segmentation",
    "Split",
    "Texts",
    "Toy",
    "bdd_anomaly",
    "boxed",
    "camvid",
    "camvid_boxes",
    "cifar10",
    "crop_and_flip",
    "data_root",
    "digits",
    "docstrings",
    "flip",
    "in_colour",
    "mnist",
    "notmnist",
    "streethazards",
    "toy",
    "uci",
]
