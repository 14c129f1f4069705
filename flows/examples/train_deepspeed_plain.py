"""A classifier with DeepSpeed's ZeRO, as its getting-started page writes it:
`deepspeed train_deepspeed_plain.py --deepspeed --deepspeed_config deepspeed.json`."""

import argparse

import deepspeed
import torch
from torch.utils.data import TensorDataset


def add_argument():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--output", default="deepspeed.pt")
    parser.add_argument("--local_rank", type=int, default=-1)
    parser = deepspeed.add_config_arguments(parser)
    return parser.parse_args()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = torch.nn.Linear(20, 32)
        self.dropout = torch.nn.Dropout(0.1)
        self.fc2 = torch.nn.Linear(32, 5)

    def forward(self, x):
        return self.fc2(self.dropout(torch.relu(self.fc1(x))))


def main(args):
    torch.manual_seed(0)
    inputs = torch.randn(160, 20)
    inputs[:, 0] = torch.arange(160)
    trainset = TensorDataset(inputs, torch.randint(0, 5, (160,)))
    net = Net()
    criterion = torch.nn.CrossEntropyLoss()
    deepspeed.init_distributed("gloo")
    model_engine, _, trainloader, _ = deepspeed.initialize(
        args=args, model=net, model_parameters=net.parameters(), training_data=trainset
    )
    for epoch in range(args.epochs):
        for data in trainloader:
            inputs, labels = data[0].to(model_engine.device), data[1].to(model_engine.device)
            loss = criterion(model_engine(inputs), labels)
            model_engine.backward(loss)
            model_engine.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")
    if model_engine.global_rank == 0:
        torch.save(net.state_dict(), args.output)


if __name__ == "__main__":
    main(add_argument())
