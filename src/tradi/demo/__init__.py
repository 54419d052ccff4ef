"""The main job in under a minute, on data that needs no download: digits with unknown classes, and the paper's toy.

Enters: a folder and seeds. Leaves: tables, two pictures, and one page with both. Who may call it: the command line.
"""

from tradi.demo.part import Part, Table
from tradi.demo.run import PAGE, run

__all__ = ["PAGE", "Part", "Table", "run"]
