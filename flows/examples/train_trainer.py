"""A small GPT-2 with transformers.Trainer, and two lines of Convoy's."""

import argparse

import torch
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, GPT2Config, Trainer, TrainingArguments, set_seed

from convoy.script.transformers import ConvoyCallback  # Convoy


class RandomTokens(Dataset):
    def __init__(self, count, length, vocabulary):
        self.tokens = torch.randint(0, vocabulary, (count, length), generator=torch.Generator().manual_seed(0))
        self.tokens[:, 0] = torch.arange(count)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main(args):
    set_seed(0)
    config = GPT2Config(vocab_size=256, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    model = AutoModelForCausalLM.from_config(config)
    training_args = TrainingArguments(
        output_dir=args.output_dir,
        num_train_epochs=3,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        save_steps=10,
        logging_steps=10,
        use_cpu=True,
        report_to="none",
    )
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=RandomTokens(160, 16, 256),
        callbacks=[ConvoyCallback()],  # Convoy
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", default="trainer")
    main(parser.parse_args())
