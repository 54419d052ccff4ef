"""TRADI inside Hugging Face's Trainer: one callback, and nothing else changes.

    pip install 'tradi[transformers]' peft
    python examples/transformers_lora.py

Trains LoRA adapters of a small transformer on made reviews. Ends in a table: how sure the ensemble is of words that it
has learnt, and of words that it has never seen. The base has random weights, so that nothing is downloaded; with
`AutoModelForSequenceClassification.from_pretrained(...)` the rest is the same.
"""

from __future__ import annotations

import random

import torch
from peft import LoraConfig, TaskType, get_peft_model
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from tradi.integrations.transformers import TRADICallback

THINGS = ["film", "plot", "cast", "score", "end", "scene"]
GOOD, BAD = ["great", "warm", "clever", "lovely"], ["dull", "cold", "clumsy", "awful"]
FOREIGN = ["brumous", "gelid", "orotund", "lambent", "fuscous", "tenebrous", "vatic", "zetetic"]
WORDS = ["[pad]", "the", "was", "and", *THINGS, *GOOD, *BAD, *FOREIGN]


def review(adjectives: list[str]) -> dict[str, torch.Tensor]:
    """The words of "the film was dull and the end was cold", by number."""
    one, other = random.sample(THINGS, 2)
    text = f"the {one} was {random.choice(adjectives)} and the {other} was {random.choice(adjectives)}"
    return {"input_ids": torch.tensor([WORDS.index(word) for word in text.split()])}


def reviews(count: int) -> list[dict[str, torch.Tensor]]:
    """Good ones, with the label 1, and bad ones in turn."""
    return [review(GOOD if i % 2 else BAD) | {"labels": torch.tensor(i % 2)} for i in range(count)]


def main(epochs: int = 6) -> None:
    """Train, measure, and look at words that were never seen."""
    random.seed(0)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )
    adapters = LoraConfig(task_type=TaskType.SEQ_CLS, r=4, target_modules=["query", "value"])
    model = get_peft_model(BertForSequenceClassification(config), adapters)

    callback = TRADICallback(fit=True, members=20)
    trainer = Trainer(
        model,
        TrainingArguments(
            "out",
            num_train_epochs=epochs,
            learning_rate=1e-2,
            per_device_train_batch_size=16,
            eval_strategy="epoch",
            save_strategy="epoch",
            save_total_limit=1,
            load_best_model_at_end=True,
            disable_tqdm=True,
            dataloader_pin_memory=False,  # there may be no GPU
        ),
        train_dataset=reviews(400),
        eval_dataset=reviews(200),
        callbacks=[callback],
    )
    trainer.train()
    trainer.log(callback.evaluate(trainer.get_eval_dataloader()))

    ensemble = callback.posterior.sample(20, seed=0)
    callback.posterior.save("out/posterior.safetensors")
    print(f"{'':20}{'reviews':>9}{'mean confidence':>17}{'mean mutual information, nats':>31}")
    for words, adjectives in (("words it has learnt", GOOD), ("words it never saw", FOREIGN)):
        batch = torch.stack([review(adjectives)["input_ids"] for _ in range(100)])
        found = ensemble.predict({"input_ids": batch})
        print(f"{words:20}{len(batch):>9}{found.confidence.mean():>17.3f}{found.mutual_information.mean():>31.3f}")


if __name__ == "__main__":
    main()
