"""tokenizers: a trained byte-pair tokenizer, batches in rayon's threads."""

from __future__ import annotations

import os
import random
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "true"

import scenario
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SYLLABLES = ("ka", "lo", "mi", "ren", "tu", "sha", "ber", "ni", "go", "wes")


class Tokens:
    """A tokenizer trained before the freeze."""

    def __init__(self) -> None:
        self._tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
        self._tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self._tokenizer.decoder = decoders.ByteLevel()
        self._train(self._tokenizer, 0)

    def answer(self, number: int) -> Any:
        texts = self._texts(number, 300)
        encoded = [encoding.ids for encoding in self._tokenizer.encode_batch(texts)]
        assert self._tokenizer.decode_batch(encoded) == texts
        return [sum(ids) for ids in encoded] + encoded[0]

    def exercise(self) -> None:
        self._train(Tokenizer(models.BPE(unk_token="[UNK]")), 1)

    def _train(self, tokenizer: Tokenizer, number: int) -> None:
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=600, special_tokens=["[UNK]"], initial_alphabet=alphabet, show_progress=False
        )
        tokenizer.train_from_iterator(self._texts(number, 500), trainer)
        assert tokenizer.get_vocab_size() >= len(alphabet)

    @staticmethod
    def _texts(number: int, count: int) -> list[str]:
        chance = random.Random(number)
        word = "".join
        return [" ".join(word(chance.choices(SYLLABLES, k=3)) for _ in range(20)) for _ in range(count)]


if __name__ == "__main__":
    scenario.main(lambda _options: Tokens())
