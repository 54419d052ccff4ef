"""Numbers that depend on (seed, member, name, kind, index) and on nothing else, distributed as they should be."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from scipy import stats

from tradi.posterior.randomness import BLOCK, Stream, key

KINDS = ("normal", "uniform")


def draw(kind: str, start: int, stop: int, seed: int = 0, member: int = 0, name: str = "w") -> torch.Tensor:
    numbers = getattr(Stream(seed, member, name), kind)(start, stop)
    assert isinstance(numbers, torch.Tensor)
    return numbers


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("start", "stop"),
    [
        (0, 1),
        (5, 5),
        (0, 0),
        (17, 1000),
        (BLOCK - 1, BLOCK),
        (BLOCK, BLOCK + 1),
        (BLOCK, BLOCK),
        (BLOCK - 3, BLOCK + 4),
        (0, BLOCK),
        (BLOCK, 2 * BLOCK),
        (10, 2 * BLOCK + 10),
    ],
)
def test_any_slice_is_the_slice_of_the_whole(kind: str, start: int, stop: int) -> None:
    whole = draw(kind, 0, 2 * BLOCK + 100)
    part = draw(kind, start, stop)
    assert part.dtype == torch.float32
    assert torch.equal(part, whole[start:stop])


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_seed_means_stays(kind: str) -> None:
    # Saved posteriors give the same members in every version: these numbers must never change.
    expected = {
        "normal": [1.9269991, -0.43666664, -0.71221149, -0.41636819],
        "uniform": [0.37994784, 0.83886009, 0.12002957, 0.74096211],
    }[kind]
    found = torch.cat([draw(kind, 0, 2, 1, 2, "layer.weight"), draw(kind, BLOCK, BLOCK + 2, 1, 2, "layer.weight")])
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((0, 0, "w"), (1, 0, "w")),
        ((0, 0, "w"), (0, 1, "w")),
        ((0, 0, "w"), (0, 0, "v")),
        ((0, 1, "w"), (1, 0, "w")),
        ((1, 11, "w"), (11, 1, "w")),
        ((0, 0, "w"), (-1, 0, "w")),
        ((0, 0, "w"), (2**64, 0, "w")),
        ((0, 0, ""), (0, 0, "/")),
    ],
    ids=repr,
)
def test_another_seed_member_or_name_gives_unrelated_numbers(
    kind: str, a: tuple[int, int, str], b: tuple[int, int, str]
) -> None:
    one, two = (draw(kind, 0, 4000, *key).double().numpy() for key in (a, b))
    assert (one == two).mean() < 0.01
    assert abs(np.corrcoef(one, two)[0, 1]) < 5 / math.sqrt(4000)


def test_the_kinds_and_the_blocks_of_a_stream_are_unrelated() -> None:
    normal, uniform = draw("normal", 0, BLOCK).numpy(), draw("uniform", 0, BLOCK).numpy()
    following = draw("normal", BLOCK, 2 * BLOCK).numpy()
    for other in (stats.norm.ppf(np.clip(uniform, 1e-7, 1 - 1e-7)), following):
        assert abs(np.corrcoef(normal, other)[0, 1]) < 5 / math.sqrt(BLOCK)
    # nor is one block the other moved along, as counters that overlap would have it
    triples = [set(zip(x.tolist(), x[1:].tolist(), x[2:].tolist(), strict=False)) for x in (normal, following)]
    assert not triples[0] & triples[1]


def test_the_kinds_of_a_stream_are_not_made_of_the_same_bits() -> None:
    # From the same bits, a uniform number would tell the size of the normal one, at least at the head of a stream.
    names = [str(i) for i in range(200)]
    normal, uniform = (torch.cat([draw(kind, 0, 20, name=name) for name in names]) for kind in KINDS)
    assert abs(torch.corrcoef(torch.stack([normal.abs(), uniform]))[0, 1].item()) < 5 / math.sqrt(len(normal))


@pytest.mark.parametrize("start", [0, BLOCK - 50_000, 7 * BLOCK])
def test_normal_numbers_are_standard_normal(start: int) -> None:
    n = 100_000
    x = draw("normal", start, start + n).double().numpy()
    # Standard errors of the first four moments of n normal numbers: 1, sqrt 2, sqrt 6, sqrt 24 over sqrt n.
    moments = (x.mean(), x.var() - 1, stats.skew(x), stats.kurtosis(x))
    for moment, error in zip(moments, (1, 2**0.5, 6**0.5, 24**0.5), strict=True):
        assert abs(moment) < 5 * error / math.sqrt(n)
    assert stats.kstest(x, "norm").pvalue > 1e-4
    assert 4 < np.abs(x).max() < 6.5  # the tails are there


@pytest.mark.parametrize("start", [0, BLOCK - 50_000, 7 * BLOCK])
def test_uniform_numbers_are_uniform(start: int) -> None:
    n = 100_000
    x = draw("uniform", start, start + n).double().numpy()
    assert x.min() >= 0
    assert x.max() < 1
    assert abs(x.mean() - 0.5) < 5 / math.sqrt(12 * n)
    assert abs(x.var() - 1 / 12) < 5 / math.sqrt(180 * n)
    assert stats.kstest(x, "uniform").pvalue > 1e-4


@pytest.mark.parametrize("vary", ["member", "seed", "name", "index"])
def test_neighbours_are_not_correlated(vary: str) -> None:
    rows, n = 60, 2000
    if vary == "index":
        x = draw("normal", 0, rows * n).view(rows, n).double().numpy()
    else:
        keys = [{vary: f"layers.{i}.weight" if vary == "name" else i} for i in range(rows)]
        x = np.stack([draw("normal", 0, n, **key).double().numpy() for key in keys])  # type: ignore[arg-type]
    between = np.corrcoef(x)[~np.eye(rows, dtype=bool)]
    assert np.abs(between).max() < 5 / math.sqrt(n)
    assert between.std() == pytest.approx(1 / math.sqrt(n), rel=0.1)  # 1,770 pairs: known to 2%
    columns = np.corrcoef(x[:, :500].T)[~np.eye(500, dtype=bool)]  # one index over neighbouring streams
    assert abs(columns.mean()) < 5 / math.sqrt(rows * 500 * 499 / 2)
    shifted = (x[:, 1:] * x[:, :-1]).mean()
    assert abs(shifted) < 5 / math.sqrt(rows * (n - 1))


def splitmix64(seed: int, count: int, other: int) -> list[int]:
    """The published generator in whole numbers, with another one joined in the middle."""
    found, mask = [], (1 << 64) - 1
    for _ in range(count):
        seed = (seed + 0x9E3779B97F4A7C15) & mask
        z = ((seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9) & mask ^ other
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        found.append(z ^ (z >> 31))
    return found


def test_the_reference_is_the_published_generator() -> None:
    assert splitmix64(1234567, 3, 0) == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize("block", [0, 1, 1 << 30])
def test_numbers_are_made_of_hashes_of_their_index(block: int) -> None:
    words = [divmod(key(3, 4, "w", kind), 1 << 64)[::-1] for kind in KINDS]
    start = words[0][0] + block * (BLOCK // 2) * 0x9E3779B97F4A7C15
    bits = np.array(splitmix64(start, 50, words[0][1]), dtype=np.uint64)
    radius = np.sqrt(-2 * np.log((bits >> np.uint64(32)).astype(float) / 2**32 + 2.0**-33))
    angle = (bits & np.uint64(0xFFFFFFFF)).astype(float) / 2**32 * 2 * math.pi
    for first, expected in ((0, radius * np.cos(angle)), (BLOCK // 2, radius * np.sin(angle))):
        found = draw("normal", block * BLOCK + first, block * BLOCK + first + 50, 3, 4)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=2e-6)
    bits = np.array(splitmix64(words[1][0] + block * 0x9E3779B97F4A7C15, 50, words[1][1]), dtype=np.uint64)
    assert draw("uniform", block, block + 50, 3, 4).tolist() == ((bits >> np.uint64(40)) / 2**24).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_the_same_whatever_the_number_of_threads(kind: str) -> None:
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(draw(kind, BLOCK // 2 + 7, 4 * BLOCK + 10))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_that_are_drawn_together_are_those_that_are_drawn_by_themselves(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = draw(kind, 5, 3 * BLOCK)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 256)  # as many blocks at once as on another device
    assert torch.equal(draw(kind, 5, 3 * BLOCK), expected)


def test_threads_draw_the_same_numbers_at_the_same_time() -> None:
    def work(member: int) -> torch.Tensor:
        return torch.cat([draw("normal", 0, 2000 * (i % 7), member=member) for i in range(50)])

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(work, range(4)))
    assert all(torch.equal(numbers, work(member)) for member, numbers in enumerate(found))
