"""sentence-transformers: a small BERT and a tokenizer, both made by this program."""

from __future__ import annotations

import os
import tempfile
from typing import Any

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # idle threads that spin would take processor time from the other copies
os.environ["TOKENIZERS_PARALLELISM"] = "true"

import repeated
import torch
import transformers
from sentence_transformers import SentenceTransformer, util
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.trainers import WordPieceTrainer

SENTENCES = [
    f"the {colour} {thing} number {at}" for at in range(9) for colour in ("red", "green") for thing in ("car", "boat")
]


class SentenceTransformers:
    """A model loaded from a folder, and a corpus encoded before the freeze."""

    def __init__(self, options: repeated.Options) -> None:
        torch.set_num_threads(options.threads)
        torch.manual_seed(1)
        with tempfile.TemporaryDirectory() as folder:
            made_model(folder)
            transformer = Transformer(folder, max_seq_length=32)
            self._model = SentenceTransformer(
                modules=[transformer, Pooling(transformer.get_embedding_dimension())], device="cpu"
            )
            self._corpus = self._model.encode(SENTENCES, show_progress_bar=False)

    def answer(self, number: int) -> Any:
        asked = [f"number {number}", f"a green car {number}", "x" * (number + 1)]
        encoded = self._model.encode(asked, batch_size=2, normalize_embeddings=True, show_progress_bar=False)
        found = util.semantic_search(encoded, self._corpus, top_k=1)
        return {"vectors": encoded[:, ::8].tolist(), "scores": [hits[0]["score"] for hits in found]}


def made_model(folder: str) -> None:
    """Write a BERT with random weights and its tokenizer into `folder`."""
    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = BertNormalizer(), BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(
        SENTENCES, WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, mask_token="[MASK]", **names).save_pretrained(
        folder
    )
    config = transformers.BertConfig(
        vocab_size=200, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128
    )
    transformers.BertModel(config).eval().save_pretrained(folder)


if __name__ == "__main__":
    repeated.main(SentenceTransformers)
