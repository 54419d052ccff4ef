"""What several members detect in an image, as one set of objects; for any detector.

Enters: every member's boxes with scores, classes or class probabilities. Leaves: objects, with how sure members are of
each. Who may call it: anyone; it knows tensors only.

A box is (x0, y0, x1, y1) in pixels: x to the right, y down, from the image's upper left corner, so that pixel i lies
between i and i + 1, and the area is (x1 - x0) (y1 - y0).
"""

from tradi.detection.boxes import ellipse, iou, nms
from tradi.detection.objects import Detections, Objects, combine

__all__ = ["Detections", "Objects", "combine", "ellipse", "iou", "nms"]
