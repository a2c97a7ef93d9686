"""Ids looked up word by word are those of the tokenizer, whatever the text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from mixfluence.data.words import WordTable

CORPUS = [
    "The quick brown fox, aged 3.5 years, jumps over the lazy dog's tail!",
    "déjà vu — naïve Äpfel",
    "x = y[0] + z",
]
GPT = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
ALPHABET = "aeéxÄ ßdog1.,'!\n\t\r[]<>_-́\u00a0\u200d\u2003漢字🦊🏽€\x1c"
TEXTS = st.lists(st.text(st.sampled_from(ALPHABET), max_size=60) | st.text(max_size=20), min_size=1, max_size=6)
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=120, special_tokens=SPECIAL))
    return with_specials(tokenizer)


def byte_level(*, regex: str | None = None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    own = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex is None)
    split = pre_tokenizers.Split(Regex(regex), "isolated") if regex else None
    tokenizer.normalizer = normalizers.NFC() if regex else None
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, own]) if split else own
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=SPECIAL, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.decoder = decoders.ByteLevel()
    return with_specials(tokenizer)


def unigram(*, spaced: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    marks = pre_tokenizers.Metaspace()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), marks]) if spaced else marks
    trainer = trainers.UnigramTrainer(vocab_size=90, special_tokens=SPECIAL, unk_token="[UNK]")
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    return with_specials(tokenizer)


def with_specials(tokenizer: Tokenizer) -> Tokenizer:
    ids = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ids)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    return tokenizer


FAMILIES = {
    "bert": word_piece(),
    "gpt-2": byte_level(),
    "qwen": byte_level(regex=GPT),
    "xlm-r": unigram(spaced=True),
    "metaspace": unigram(spaced=False),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("side", ["left", "right"])
@given(texts=TEXTS, longest=st.integers(3, 40))
def test_ids_are_those_of_the_tokenizer(family: str, side: str, texts: list[str], longest: int) -> None:
    table = WordTable(FAMILIES[family])
    own = Tokenizer.from_str(FAMILIES[family].to_str())
    own.enable_truncation(longest, direction=side)
    texts = [*texts, "The [SEP] dog <mask> x", " ".join(texts), ""]
    for _ in range(2):  # words that are new, then words that are known
        found = table.encode(texts, longest, truncate_left=side == "left")
        assert [ids.tolist() for ids in found] == [encoding.ids for encoding in own.encode_batch(texts)]


def test_words_are_tokenised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    table = WordTable(FAMILIES["bert"])
    first = table.encode(["the dog jumps", "the fox"], 8)
    monkeypatch.setattr(table, "_tokenizer", Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]")))
    again = table.encode(["the fox jumps"], 8)[0]
    assert again.tolist() == np.concatenate([first[1][:-1], first[0][3:]]).tolist()


def test_a_full_table_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mixfluence.data.words.MOST_WORDS", 2)
    table = WordTable(FAMILIES["bert"])
    texts = ["the quick brown fox", "the lazy dog"]
    assert [ids.tolist() for ids in table.encode(texts, 9)] == [ids.tolist() for ids in table.encode(texts, 9)]
    assert len(table._numbers) <= 6
