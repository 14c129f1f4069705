"""Modules of the workloads: those of transformers, by their configuration alone, with weights drawn anew."""

from collections.abc import Sequence
from typing import Any

from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
    YolosConfig,
    YolosForObjectDetection,
)


def resnet(
    depths: Sequence[int] = (3, 4, 6, 3), widths: Sequence[int] = (256, 512, 1024, 2048), classes: int = 1000
) -> nn.Module:
    """ResNet-50 (He et al. 2015, v1.5: the stride is in the 3 x 3 convolution), or one of other depths and widths."""
    stem: dict[str, Any] = {} if widths[0] == 256 else {"embedding_size": widths[0]}
    config = ResNetConfig(depths=list(depths), hidden_sizes=list(widths), **stem)
    config.num_labels = classes
    return ResNetForImageClassification(config)


def bert(
    width: int = 1024, layers: int = 24, heads: int = 16, vocabulary: int = 30522, longest: int = 512
) -> nn.Module:
    """BERT-Large with its masked language model (Devlin et al. 2018), or another size."""
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        max_position_embeddings=longest,
    )
    return BertForMaskedLM(config)


def vit(
    width: int = 1024, layers: int = 24, heads: int = 16, side: int = 224, patch: int = 16, classes: int = 1000
) -> nn.Module:
    """ViT-L/16 (Dosovitskiy et al. 2020), or another size. side, patch: in pixels."""
    config = ViTConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        image_size=side,
        patch_size=patch,
    )
    config.num_labels = classes
    return ViTForImageClassification(config)


def yolos(
    width: int = 768,
    layers: int = 12,
    heads: int = 12,
    side: int = 512,
    patch: int = 16,
    queries: int = 100,
    classes: int = 91,
) -> nn.Module:
    """YOLOS-Base (Fang et al. 2021) for square images, or another size. side, patch: in pixels. queries: detections of
    an image."""
    config = YolosConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        image_size=[side, side],
        patch_size=patch,
        num_detection_tokens=queries,
    )
    config.num_labels = classes
    return YolosForObjectDetection(config)
