#!/usr/bin/env python3
"""Train the byte-level BPE and pack the corpus into token files.

    python3 train_tokenizer.py --corpus corpus          # tokenizer.json, *.bin
    python3 train_tokenizer.py --corpus corpus --pack   # *.bin with the one there is

train.bin and heldout.bin are uint16 token ids: every document is one <|endoftext|>
and then its text. Needs `pip install tokenizers numpy`.
"""

import argparse
import json
import pathlib

import numpy as np
from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    processors,
    trainers,
)

HERE = pathlib.Path(__file__).parent
# 63 * 128: the most that keeps the bf16 weights under 24 MiB at a width kernels like.
VOCAB = 8064
END = "<|endoftext|>"
# Llama 3's split: words with the space before them, numbers by three digits, and
# runs of spaces whole, so that an indentation can be one token.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def documents(path: pathlib.Path):
    """The NUL-terminated documents of a corpus file, one at a time."""
    rest = b""
    with open(path, "rb") as file:
        while block := file.read(1 << 24):
            *whole, rest = (rest + block).split(b"\0")
            yield from (text.decode() for text in whole)


def train(corpus: pathlib.Path, megabytes: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"), byte_level]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )

    def sample():
        left = megabytes * 1_000_000
        for text in documents(corpus / "train.txt"):
            if left <= 0:
                return
            left -= len(text)
            yield text

    tokenizer.train_from_iterator(sample(), trainer)
    end = tokenizer.token_to_id(END)
    # Every prompt starts as every training document did.
    template = processors.TemplateProcessing(
        single=f"{END} $A", pair=f"{END} $A {END} $B:1", special_tokens=[(END, end)]
    )
    tokenizer.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), template]
    )
    return tokenizer


def pack(tokenizer: Tokenizer, source: pathlib.Path, target: pathlib.Path) -> None:
    count = size = 0
    with open(target, "wb") as file:
        batch: list[str] = []

        def flush() -> int:
            nonlocal count
            ids = [i for e in tokenizer.encode_batch_fast(batch) for i in e.ids]
            np.array(ids, np.uint16).tofile(file)
            count += len(ids)
            batch.clear()

        for text in documents(source):
            batch.append(text)
            size += len(text.encode())
            if len(batch) == 1000:
                flush()
        flush()
    facts = {"tokens": count, "bytes": size, "bytes_per_token": round(size / count, 4)}
    target.with_suffix(".json").write_text(json.dumps(facts) + "\n")
    print(target.name, facts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--corpus", type=pathlib.Path, default=pathlib.Path("corpus"))
    parser.add_argument("--megabytes", type=int, default=150, help="text to train on")
    parser.add_argument("--pack", action="store_true", help="keep tokenizer.json")
    args = parser.parse_args()
    path = HERE / "tokenizer.json"
    if not args.pack:
        train(args.corpus, args.megabytes).save(str(path))
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": END,
            "eos_token": END,
            "pad_token": END,
            "model_max_length": 2048,
            "clean_up_tokenization_spaces": False,
        }
        text = json.dumps(config, indent=2) + "\n"
        (HERE / "tokenizer_config.json").write_text(text)
    tokenizer = Tokenizer.from_file(str(path))
    for part in ("heldout", "train"):
        pack(tokenizer, args.corpus / f"{part}.txt", args.corpus / f"{part}.bin")


if __name__ == "__main__":
    main()
