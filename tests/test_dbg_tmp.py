def test_x(tiny_bert, tiny_bert_folder):
    print(tiny_bert.preprocess(["w1 w2 w3", "w17 w99"])["input_ids"], len(tiny_bert.tokenizer))
    from transformers import BertTokenizerFast

    t = BertTokenizerFast(vocab_file=str(tiny_bert_folder / "vocab.txt"))
    print(len(t), t("w1 w2").input_ids)
    t = BertTokenizerFast(vocab=str(tiny_bert_folder / "vocab.txt"))
    print(len(t), t("w1 w2").input_ids)
    t = BertTokenizerFast.from_pretrained(tiny_bert_folder)
    print(len(t), t("w1 w2").input_ids)
    t = BertTokenizerFast(str(tiny_bert_folder / "vocab.txt"))
    print(len(t), t("w1 w2").input_ids)
    assert 0
