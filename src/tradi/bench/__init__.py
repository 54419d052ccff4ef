"""The paper's experiments: a benchmark is data, and one runner executes them all."""

from tradi.bench.spec import Benchmark
from tradi.bench.toy import TOY

BENCHMARKS: dict[str, Benchmark] = {benchmark.name: benchmark for benchmark in (TOY,)}

__all__ = ["BENCHMARKS", "Benchmark"]
