"""FedAvg: plain local SGD, and the average of the clients weighted by their samples."""

from __future__ import annotations

from specgrad_fl.methods.base import Method


class FedAvg(Method):
    """w <- sum_k p_k w_k."""

    name = "fedavg"
