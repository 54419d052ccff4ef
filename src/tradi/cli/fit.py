"""`tradi fit`: from a table in a file to a folder with a model and a report of it."""

from __future__ import annotations

import argparse
import shlex

from tradi.extras import require


def run(options: argparse.Namespace) -> None:
    """Train, write the folder, and say what was done."""
    for module in ("pandas", "pyarrow", "sklearn", "matplotlib", "rich"):
        require(module, "tables")
    from tradi.storage.folders import check_replaceable_folder
    from tradi.tables.fitting import Settings, fit
    from tradi.tables.frames import read
    from tradi.tables.model import FILES, REPORT
    from tradi.tables.page import page

    settings = Settings(
        options.target, options.task, tuple(options.exclude), options.seed, options.members, options.steps
    )
    check_replaceable_folder(options.out, FILES)
    model, findings = fit(read(options.table), settings, shlex.join(["tradi", *options.words]))
    model.save(options.out, page(findings))

    about = model.description
    print(f"{about.target.name}: {about.target.about}, from {len(about.columns)} columns")
    for name, reason in about.not_used.items():
        print(f"  not used: {name!r}: {reason}")
    for note in about.notes:
        print(f"  note: {note}")
    print("rows: " + ", ".join(f"{count:,} {part}" for part, count in about.rows.items() if count))
    print(f"on {len(findings.truth):,} {'test' if findings.tested else 'held-out'} rows:")
    for figure in findings.figures:
        print(f"  {figure.name}: {figure.value} ({figure.meaning})")
    print(f"model: {options.out}\nreport: {options.out / REPORT}")
