"""spaCy: a pipeline trained before the freeze; rules and batches after the thaw."""

from __future__ import annotations

import random
from typing import Any

import repeated
import spacy
from spacy.training import Example

WORDS = ("red", "green", "blue", "fast", "slow", "car", "train", "boat", "Berlin", "Paris", "Rome", "goes", "to")
TOWNS = ("Berlin", "Paris", "Rome")


class Spacy:
    """A pipeline for named entities and two categories."""

    def __init__(self, _options: repeated.Options) -> None:
        spacy.util.fix_random_seed(1)
        self._pipeline = spacy.blank("en")
        self._pipeline.add_pipe("sentencizer")
        ruler = self._pipeline.add_pipe("entity_ruler")
        ruler.add_patterns([{"label": "VEHICLE", "pattern": word} for word in ("car", "train", "boat")])
        self._pipeline.add_pipe("ner", config={"incorrect_spans_key": None}).add_label("TOWN")
        self._pipeline.add_pipe("textcat").add_label("FAST")
        self._pipeline.get_pipe("textcat").add_label("SLOW")
        examples = [self._example(text(seed)) for seed in range(30)]
        with self._pipeline.select_pipes(disable=["entity_ruler"]):
            self._pipeline.initialize(lambda: examples)
            for _ in range(4):
                self._pipeline.update(examples)

    def answer(self, number: int) -> Any:
        texts = [text(1000 * number + at) for at in range(20)]
        return [
            {
                "entities": [[entity.text, entity.label_] for entity in doc.ents],
                "categories": doc.cats,
                "sentences": len(list(doc.sents)),
                "tokens": [token.shape_ for token in doc],
            }
            for doc in self._pipeline.pipe(texts, batch_size=5)
        ]

    def _example(self, said: str) -> Example:
        doc = self._pipeline.make_doc(said)
        spans = [(token.idx, token.idx + len(token), "TOWN") for token in doc if token.text in TOWNS]
        fast = float("fast" in said)
        return Example.from_dict(doc, {"entities": spans, "cats": {"FAST": fast, "SLOW": 1 - fast}})


def text(seed: int) -> str:
    """Return random words, the same for each seed."""
    chance = random.Random(seed)
    return " ".join(chance.choice(WORDS) for _ in range(9)) + ". And " + chance.choice(WORDS) + "."


if __name__ == "__main__":
    repeated.main(Spacy)
