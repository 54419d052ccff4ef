"""How long importing tradi takes, against importing torch alone: medians of alternate runs in fresh processes."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time


def seconds(module: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
    return time.perf_counter() - started


def main(repetitions: int = 9) -> None:
    times: dict[str, list[float]] = {"torch": [], "tradi": []}
    for _ in range(repetitions):
        for module, taken in times.items():
            taken.append(seconds(module))
    torch, tradi = (statistics.median(taken) for taken in times.values())
    print(json.dumps({"import_tradi_over_import_torch": round(tradi / torch, 3), "goal": 1.2, "seconds": times}))


if __name__ == "__main__":
    main()
