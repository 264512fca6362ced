"""SCAFFOLD, option II: control variates estimate each client's and the mean gradient.

v = u - c_k + c;  c_k <- c_k - c + (w_t - w_k) / sum of learning rates;
w <- w + server_lr mean(Delta_k);  c <- c + (1/K) sum(change of c_k).
"""

from __future__ import annotations

from torch import Tensor

from specgrad_fl.methods.base import Local, Method, Round, Vectors, weighted_sum


class Scaffold(Method):
    """c_k is an average of gradients that were filtered already, so it is not filtered again."""

    name = "scaffold"
    client_vectors = ("c_k",)
    needs_plain_steps = True
    sent_vectors = ("c",)
    down = 2
    up = 2

    def correction(self, local: Local) -> Tensor:
        return local.sent["c"] - local.state["c_k"]

    def finish(self, local: Local) -> None:
        if local.lr_sum == 0:
            return
        local.state["c_k"].sub_(local.sent["c"]).add_(local.start - local.w, alpha=1 / local.lr_sum)

    def shares(self, round: Round) -> Tensor:
        return round.uniform

    def aggregate(self, round: Round, server: Vectors) -> Tensor:
        # the change of c_k is (w_t - w_k) / lr_sum_k - c, which the server can form itself
        change = weighted_sum(round.applied(server["c"]), round.uniform) - server["c"]
        server["c"] = server["c"] + change * (len(round.clients) / self.federation.clients)
        return super().aggregate(round, server)
