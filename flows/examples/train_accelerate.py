"""A classifier with Accelerate, and the lines of Convoy's."""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

from convoy.script.loop import Loop  # Convoy


def main(args):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    set_seed(0)
    inputs = torch.randn(160, 20)
    inputs[:, 0] = torch.arange(160)
    dataset = TensorDataset(inputs, torch.randint(0, 5, (160,)))
    training_dataloader = DataLoader(dataset, shuffle=True, batch_size=4)
    model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
    loss_function = torch.nn.CrossEntropyLoss()

    model, optimizer, training_dataloader, scheduler = accelerator.prepare(
        model, optimizer, training_dataloader, scheduler
    )
    loop = Loop(save=accelerator.save_state, load=accelerator.load_state, save_every=5, batches_per_step=2)  # Convoy
    for epoch in loop.epochs(args.num_epochs):  # Convoy
        model.train()
        for batch in loop.batches(training_dataloader):  # Convoy
            with accelerator.accumulate(model):
                inputs, targets = batch
                outputs = model(inputs)
                loss = loss_function(outputs, targets)
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        accelerator.print(f"epoch {epoch}: loss {loss.item():.4f}")
    accelerator.wait_for_everyone()
    accelerator.save(accelerator.unwrap_model(model).state_dict(), args.output)
    accelerator.end_training()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_epochs", type=int, default=3)
    parser.add_argument("--output", default="accelerate.pt")
    main(parser.parse_args())
