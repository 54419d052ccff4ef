"""`tradi predict`: predictions for the rows of a table, by a model that `tradi fit` made."""

from __future__ import annotations

import argparse

from tradi.extras import require


def run(options: argparse.Namespace) -> None:
    """Write the predictions, and say what was foreign in the rows."""
    for module in ("pandas", "pyarrow", "rich"):
        require(module, "tables")
    from tradi.tables.frames import check_writable, read, write
    from tradi.tables.model import load

    check_writable(options.out)
    predictions, unseen = load(options.model).predict(read(options.table))
    write(predictions, options.out)
    print(f"{options.out}: {len(predictions):,} rows, {int(predictions['is_ood'].sum()):,} of them flagged as OOD")
    for name, count in unseen.items():
        print(f"  {name!r}: {count:,} of {len(predictions):,} rows have a value, or a gap, that no training row has")
