"""The models of the published workloads, from configurations alone, as modules that return a mean loss."""

import torch.nn.functional as F
import transformers
from torch import Tensor, nn

LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
"""Of BERT-Large and ViT-Large."""


class Pretraining(nn.Module):
    """BERT-Large with both of its heads, that of the vocabulary on the predicted tokens alone."""

    def __init__(self) -> None:
        super().__init__()
        self.model = transformers.BertForPreTraining(transformers.BertConfig(**LARGE))

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """labels: of as many tokens as are predicted."""
        encoded = self.model.bert(input_ids)
        predicted = encoded.last_hidden_state[:, : labels.shape[1]]
        scores, is_next = self.model.cls(predicted, encoded.pooler_output)
        return F.cross_entropy(scores.flatten(0, 1), labels.flatten()) + F.cross_entropy(is_next, labels[:, 0] % 2)


def bert_large() -> nn.Module:
    return Pretraining()


def resnet50() -> nn.Module:
    return transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000))


def vit_large() -> nn.Module:
    return transformers.ViTForImageClassification(transformers.ViTConfig(**LARGE, num_labels=18576))


def gpt2_xl() -> nn.Module:
    config = transformers.GPT2Config(n_embd=1600, n_layer=48, n_head=25)
    return transformers.GPT2LMHeadModel(config)
