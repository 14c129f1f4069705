"""An autoencoder with Lightning, and two lines of Convoy's."""

import argparse

import lightning as L
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

from convoy.script.lightning import ConvoyCallback  # Convoy


class LitAutoEncoder(L.LightningModule):
    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def training_step(self, batch, batch_idx):
        (x,) = batch
        z = self.encoder(x)
        x_hat = self.decoder(z)
        loss = nn.functional.mse_loss(x_hat, x)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = optim.Adam(self.parameters(), lr=1e-3)
        return [optimizer], [optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)]


def main(args):
    L.seed_everything(0)
    encoder = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))
    decoder = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 20))
    autoencoder = LitAutoEncoder(encoder, decoder)
    inputs = torch.randn(160, 20)
    inputs[:, 0] = torch.arange(160)
    train_loader = DataLoader(TensorDataset(inputs), batch_size=4, shuffle=True)
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        strategy="ddp",
        devices=args.devices,
        num_nodes=args.num_nodes,
        default_root_dir=args.output,
        logger=False,
        enable_progress_bar=False,
        callbacks=[ConvoyCallback()],  # Convoy
    )
    trainer.fit(model=autoencoder, train_dataloaders=train_loader)
    if trainer.is_global_zero:
        torch.save(autoencoder.state_dict(), f"{args.output}/autoencoder.pt")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--num_nodes", type=int, default=1)
    parser.add_argument("--output", default="lightning")
    main(parser.parse_args())
