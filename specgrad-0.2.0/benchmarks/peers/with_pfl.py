"""pfl-research: ``FederatedAveraging`` on a ``SimulatedBackend``, one process or several."""

from __future__ import annotations

from types import MethodType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, distributed

from benchmarks.peers.turns import Turns
from benchmarks.peers.workloads import LEARNING_RATE


class TakeTurns(TrainingProcessCallback):
    """Waits after each round; the first process waits for its turn, the others for it."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._several = distributed.is_initialized()
        self._first = not self._several or distributed.get_rank() == 0

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        if self._first:
            self._turns.start()
        return self._together()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        if self._first:
            self._turns.next(dict(model.pytorch_model.named_parameters()))
        return False, self._together()

    def _together(self) -> Metrics:
        if self._several:
            distributed.barrier()
        return Metrics()


def main() -> None:
    turns = Turns()
    workload = turns.workload
    np.random.seed(0)
    module = workload.model(turns.channels_last)

    def loss(self: torch.nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self(x), y)

    module.loss = MethodType(loss, module)
    module.metrics = MethodType(lambda self, x, y: {}, module)
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    # each user's samples as one tensor, of which pfl makes the batches
    users: list[Any] = []
    for batches in workload.batches(turns.channels_last):
        x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
        users.append(Dataset(raw_data=(x, y)))
    data = FederatedDataset(
        users.__getitem__, get_user_sampler("minimize_reuse", list(range(workload.clients)))
    )
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=10**6,
            evaluation_frequency=10**7,
            train_cohort_size=workload.clients,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=data),
        model,
        NNTrainHyperParams(
            local_num_epochs=1,
            local_learning_rate=LEARNING_RATE,
            local_batch_size=workload.batch,
        ),
        callbacks=[TakeTurns(turns)],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main()
