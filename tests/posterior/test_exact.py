from __future__ import annotations

import math

import pytest
import torch

from tradi.posterior.exact import ROW, eigh, product, total


@pytest.mark.parametrize("size", [0, 1, ROW - 1, ROW, 3 * ROW + 5])
def test_a_sum_is_exact_to_float64_and_the_same_for_any_number_of_threads(size: int) -> None:
    values = torch.randn(size, generator=torch.Generator().manual_seed(0))
    expected = math.fsum(values.double().tolist())
    assert total(values) == pytest.approx(expected, rel=1e-12, abs=1e-9)
    before, sums = torch.get_num_threads(), set()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            sums.add(total(values))
    finally:
        torch.set_num_threads(before)
    assert len(sums) == 1


def test_decompositions_and_products_are_those_of_linear_algebra() -> None:
    root = torch.randn(3, 5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    matrix = root @ root.mT
    values, vectors = eigh(matrix.float())
    assert values.dtype == vectors.dtype == torch.float64
    torch.testing.assert_close(vectors @ values.diag_embed() @ vectors.mT, matrix.float().double())
    torch.testing.assert_close(product(matrix[0], root[0]), matrix[0] @ root[0])


def test_what_is_not_in_main_memory_stays_on_its_device() -> None:
    matrix = torch.zeros(4, 4, device="meta")
    assert [found.device.type for found in (*eigh(matrix), product(matrix, matrix[0]))] == ["meta"] * 3
