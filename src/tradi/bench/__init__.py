"""The paper's experiments: a benchmark is data, and one runner executes them all."""

from tradi.bench.ablation import ABLATION
from tradi.bench.mnist import MNIST, MNIST_OOD
from tradi.bench.spec import Benchmark
from tradi.bench.toy import TOY
from tradi.bench.uci import UCI

BENCHMARKS: dict[str, Benchmark] = {benchmark.name: benchmark for benchmark in (TOY, UCI, MNIST, MNIST_OOD, ABLATION)}

__all__ = ["BENCHMARKS", "Benchmark"]
