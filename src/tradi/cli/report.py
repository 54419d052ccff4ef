"""`tradi report`: tables and figures from a folder of results."""

from __future__ import annotations

import argparse

from tradi.data.root import data_root
from tradi.extras import require


def run(options: argparse.Namespace) -> None:
    """Write the report and print where it is."""
    require("PIL", "bench")
    from tradi.report.page import write_report, write_tables

    if options.tables is not None:
        print(write_tables(options.results, options.tables))
        return

    if options.data is not None and not options.data.is_dir():
        raise FileNotFoundError(f"{options.data} is not a folder of data: give --data the root of all data sets")
    data = data_root(options.data)
    print(write_report(options.results, options.out or options.results, data if data.is_dir() else None))
