"""The GPU body's tables of addresses, which captured graphs go on reading."""

import weakref

import pytest
import torch

pytest.importorskip("triton")

from agdopt import AGD
from agdopt.torch import gpu


def test_what_a_graph_reads_outlives_the_tables_that_follow(lend_gpu, monkeypatch):
    """More graphs than there are tables, with steps outside between them."""
    monkeypatch.setattr(gpu, "_captured", [])
    p = torch.nn.Parameter(torch.randn(5))
    p.grad = torch.randn(5)
    optimizer = AGD([p])
    optimizer.step()
    (bucket,) = optimizer._gathered[0].buckets
    tables, read = bucket.memo["tables"], []
    for _ in range(3 * gpu._Addresses.SLOTS):
        tables.gradients(bucket, capturing=False)
        row = tables.gradients(bucket, capturing=True)
        read.append((weakref.ref(row), row.data_ptr()))
        del row
    assert all(ref() is not None for ref, _ in read)
    assert len({address for _, address in read}) == len(read)  # each graph its own
