"""An attached plan filters sharded weights as it filters whole ones."""

import pytest
import torch


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_sharded_layers_are_filtered_like_whole_ones(processes, tmp_path):
    """Every kind; uneven and empty shards, whole layers among them, and refusals."""
    pytest.importorskip("torch.distributed.fsdp")
    if not torch.distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")
    import sharded_processes

    torch.multiprocessing.spawn(
        sharded_processes.run, args=(str(tmp_path), processes), nprocs=processes
    )
