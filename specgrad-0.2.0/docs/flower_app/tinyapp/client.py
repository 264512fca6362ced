"""A client as in any Flower application; `@filtered` is all that is new."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from specgrad_fl.flower import filtered

from tinyapp.task import load_part, make_model

app = ClientApp()


@filtered(method="fft", ratio=0.05)
def train_model(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


@app.train()
def train(message: Message, context: Context) -> Message:
    model = make_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    part, parts = context.node_config["partition-id"], context.node_config["num-partitions"]
    batches = load_part(int(part), int(parts))
    train_model(model, batches)
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": sum(len(y) for _, y in batches)}),
        }
    )
    return Message(content, reply_to=message)
