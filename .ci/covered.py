"""Fail if fewer lines or branches of the source are covered than are held: covered.py coverage.json LINES BRANCHES."""

import json
import sys
from pathlib import Path


def main() -> None:
    """Print both shares, in per cent, and compare them."""
    totals = json.loads(Path(sys.argv[1]).read_text())["totals"]
    lines = 100 * totals["covered_lines"] / totals["num_statements"]
    branches = 100 * totals["covered_branches"] / totals["num_branches"]
    print(f"coverage: {lines:.2f}% of lines, {branches:.2f}% of branches")
    if lines < float(sys.argv[2]) or branches < float(sys.argv[3]):
        raise SystemExit(f"coverage fell below {sys.argv[2]}% of lines or {sys.argv[3]}% of branches: add tests")


main()
