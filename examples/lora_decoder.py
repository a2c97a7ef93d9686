"""Adapt a decoder with LoRA. Only the adapter is trained, so probes copy only the adapter.

python examples/lora_decoder.py                                        # a tiny model with random weights
python examples/lora_decoder.py --model Qwen/Qwen3-Embedding-0.6B
"""

from __future__ import annotations

import argparse
import tempfile

from peft import LoraConfig, TaskType
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers
from toy_data import toy_datasets
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3Model

from mixfluence import InfDDS, MixtureTrainer, info_nce


def tiny_decoder() -> SentenceTransformer:
    """Return a byte-level decoder with two small layers and last-token pooling."""
    symbols = ["<pad>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(symbols)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16}
    config = Qwen3Config(vocab_size=len(symbols), num_attention_heads=2, num_key_value_heads=1, **sizes)
    with tempfile.TemporaryDirectory() as folder:
        Qwen3Model(config).save_pretrained(folder)
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>").save_pretrained(folder)
        return SentenceTransformer(modules=[Transformer(folder, max_seq_length=64), Pooling(32, "lasttoken")])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a hub id or folder; a tiny random model if not given")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--output", default="runs/lora")
    options = parser.parse_args()

    train, dev = toy_datasets()
    model = SentenceTransformer(options.model) if options.model else tiny_decoder()
    model.add_adapter(LoraConfig(task_type=TaskType.FEATURE_EXTRACTION, r=8, target_modules=["q_proj", "v_proj"]))
    trainer = MixtureTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(
            options.output, max_steps=options.steps, per_device_train_batch_size=8, learning_rate=1e-4, report_to=[]
        ),
        train_dataset=train,
        dev_dataset=dev,
        strategy=InfDDS(update_every=10, warmup_steps=10),
        loss=info_nce(model, temperature=0.05),
    )
    trainer.train()
    model.save(f"{options.output}/adapter")
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    print(f"trained {trained:,} parameters of {sum(parameter.numel() for parameter in model.parameters()):,}")


if __name__ == "__main__":
    main()
