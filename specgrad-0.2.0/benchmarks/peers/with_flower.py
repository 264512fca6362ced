"""Flower's simulation: ``FedAvg`` in a ``ServerApp``, one core for each ``ClientApp``."""

from __future__ import annotations

import functools
import os

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

from benchmarks.peers.turns import Turns
from benchmarks.peers.workloads import LEARNING_RATE, WORKLOADS, Batch


@functools.cache
def prepared(workload: str, channels_last: bool) -> tuple[nn.Module, list[list[Batch]]]:
    """Model and data of a worker process, which trains many clients with them."""
    torch.set_num_threads(1)
    chosen = WORKLOADS[workload]
    return chosen.model(channels_last), chosen.batches(channels_last)


def client_app(workload: str, channels_last: bool) -> ClientApp:
    """A client that trains one epoch."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        from benchmarks.peers.with_flower import prepared  # of the worker, not a pickled copy

        model, clients = prepared(workload, channels_last)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        batches = clients[int(context.node_config["partition-id"])]
        for x, y in batches:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        metrics = MetricRecord({"num-examples": sum(len(y) for _, y in batches)})
        answer = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content=answer, reply_to=message)

    return app


def server_app(turns: Turns) -> ServerApp:
    """A server that waits for its turn where others evaluate."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        def evaluate(server_round: int, arrays: ArrayRecord) -> None:
            if server_round:
                turns.next(arrays.to_torch_state_dict() if server_round == 1 else {})
            else:
                turns.start()

        everybody = turns.workload.clients
        strategy = FedAvg(
            fraction_evaluate=0.0, min_train_nodes=everybody, min_available_nodes=everybody
        )
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(turns.workload.model().state_dict()),
            num_rounds=10**6,
            evaluate_fn=evaluate,
        )

    return app


def main() -> None:
    turns = Turns()
    run_simulation(
        server_app(turns),
        client_app(turns.name, turns.channels_last),
        num_supernodes=turns.workload.clients,
        backend_config={
            "init_args": {"num_cpus": os.cpu_count(), "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    main()
