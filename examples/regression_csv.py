"""Error bars for a CSV file: python examples/regression_csv.py [FILE.csv TARGET] (needs tradi[tables]).

Without a file it writes one: scikit-learn's diabetes data. It prints the RMSE and the coverage of the intervals on test
rows. Ends in a picture of every prediction with its 90% interval.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

from tradi.integrations.sklearn import TRADIRegressor
from tradi.report.style import MATPLOTLIB


def main(path: Path | None = None, target: str = "target", steps: int | None = None) -> None:
    """Train on four fifths of the rows, and look at the rest."""
    if path is None:
        path = Path("diabetes.csv")
        load_diabetes(as_frame=True).frame.to_csv(path, index=False)
    table = pd.read_csv(path)
    train, test = train_test_split(table, test_size=0.2, random_state=0)
    model = TRADIRegressor(steps=steps, random_state=0).fit(train.drop(columns=target), train[target])

    rows, truth = test.drop(columns=target), test[target].to_numpy()
    mean, std = model.predict(rows, return_std=True)
    low, high = model.predict_quantiles(rows, [0.05, 0.95]).T
    print(f"RMSE {((mean - truth) ** 2).mean() ** 0.5:.1f}, average standard deviation {std.mean():.1f}")
    print(
        f"{100 * ((low <= truth) & (truth <= high)).mean():.0f}% of {len(truth)} targets are inside their 90% interval"
    )

    order = mean.argsort()
    plt.rcParams.update(MATPLOTLIB)
    figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
    axes.fill_between(range(len(order)), low[order], high[order], alpha=0.25, lw=0, label="90% interval")
    axes.plot(mean[order], label="prediction")
    axes.plot(truth[order], "k.", ms=4, label="truth")
    axes.set_xlabel("test rows, by prediction")
    axes.set_ylabel(target)
    axes.legend()
    figure.savefig("regression_csv.png", dpi=150)
    print("drew regression_csv.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2]) if len(sys.argv) == 3 else main()
