"""A classifier with DistributedDataParallel, as PyTorch's tutorial of it: `torchrun train_ddp_plain.py`."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def load_train_objs():
    torch.manual_seed(0)
    inputs = torch.randn(160, 20)
    inputs[:, 0] = torch.arange(160)
    train_set = TensorDataset(inputs, torch.randint(0, 5, (160,)))
    model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    return train_set, model, optimizer


def main(total_epochs, output):
    dist.init_process_group("gloo")
    dataset, model, optimizer = load_train_objs()
    train_data = DataLoader(dataset, batch_size=4, shuffle=False, sampler=DistributedSampler(dataset))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    model = DDP(model)
    for epoch in range(total_epochs):
        train_data.sampler.set_epoch(epoch)
        for source, targets in train_data:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(source), targets)
            loss.backward()
            optimizer.step()
        scheduler.step()
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), output)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--total_epochs", type=int, default=3)
    parser.add_argument("--output", default="ddp.pt")
    args = parser.parse_args()
    main(args.total_epochs, args.output)
