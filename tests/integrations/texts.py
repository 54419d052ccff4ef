"""Made texts and tiny transformers of random weights: nothing is downloaded."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

WORDS, LENGTH = 20, 8


def model(kind: str, seed: int = 0, **options: Any) -> Any:
    """A transformer of two layers, in train mode."""
    torch.manual_seed(seed)
    common: dict[str, Any] = {"vocab_size": WORDS, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, **options}
    wide: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    if kind.startswith("gpt2"):
        config: Any = GPT2Config(n_positions=LENGTH, n_embd=16, n_layer=2, n_head=2, **common)
        return (GPT2ForSequenceClassification if kind == "gpt2 texts" else GPT2LMHeadModel)(config).train()
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(num_key_value_heads=1, max_position_embeddings=LENGTH, **wide, **common))
    config = BertConfig(max_position_embeddings=LENGTH, **wide, **common)
    return (BertForTokenClassification if kind == "tokens" else BertForSequenceClassification)(config).train()


def texts(count: int = 48, labels: str = "texts", seed: int = 0) -> list[dict[str, torch.Tensor]]:
    """Samples of a data set: random words, and labels that depend on them."""
    words = torch.randint(3, WORDS, (count, LENGTH), generator=torch.Generator().manual_seed(seed))
    targets = {
        "texts": (words[:, 0] > WORDS // 2).long(),
        "tokens": (words > WORDS // 2).long(),
        "words": words,
        "numbers": words.float().mean(1) / WORDS,
        "several": torch.stack([words[:, 0] > WORDS // 2, words[:, 1] > WORDS // 2], 1).float(),
    }
    return [{"input_ids": w, "labels": y} for w, y in zip(words, targets[labels], strict=True)]


def batch(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """All samples in one batch."""
    return {key: torch.stack([sample[key] for sample in samples]) for key in samples[0]}
