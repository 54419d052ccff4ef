"""The paper's experiments: a benchmark is data, and one runner executes them all."""

from tradi.bench.ablation import ABLATION
from tradi.bench.active import ACTIVE
from tradi.bench.anomaly import BDD_ANOMALY, STREETHAZARDS
from tradi.bench.camvid import CAMVID_OOD
from tradi.bench.camvid_detection import CAMVID_DETECTION
from tradi.bench.cifar import CIFAR10, CIFAR10_OOD
from tradi.bench.mnist import MNIST, MNIST_NEAR, MNIST_OOD
from tradi.bench.spec import Benchmark
from tradi.bench.tokens import TOKENS
from tradi.bench.toy import TOY
from tradi.bench.transfer import TRANSFER
from tradi.bench.uci import UCI

# In the order of the paper, and what it does not have at the end of its kind.
BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        TOY,
        UCI,
        MNIST,
        CIFAR10,
        MNIST_OOD,
        MNIST_NEAR,
        CIFAR10_OOD,
        CAMVID_OOD,
        CAMVID_DETECTION,
        STREETHAZARDS,
        BDD_ANOMALY,
        TRANSFER,
        ACTIVE,
        TOKENS,
        ABLATION,
    )
}

__all__ = ["BENCHMARKS", "Benchmark"]
