#!/usr/bin/env python3
"""Writes the tokenizers, the corpus and the goldens that model/tokenizer_test.cc compares with.

    python3 -m venv venv && venv/bin/pip install tokenizers==0.23.3
    venv/bin/python tests/tokenizer/make_goldens.py

Each kind of tokenizer has the JSON structure of published checkpoints and a small vocabulary trained on the corpus.
The goldens are made by the `tokenizers` package: for each chunk of the corpus the number of ids and a hash of them,
and hashes of the text they decode to, without and with special tokens. Everything is made from one seed.
"""

import json
import pathlib
import random
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent
CHUNK_CHARACTERS = 3000

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN2_PATTERN = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN_PATTERN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# A pattern that no scanner is written for: it goes through the regular-expression engine.
DIGITS_FROM_RIGHT_PATTERN = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))| ?\p{L}[\p{L}\p{M}]*| ?[\p{P}\p{S}]+|\s*[\r\n]+|\s+(?!\S)|\s+"

ALPHABETS = {
    "latin": "abcdefghijklmnopqrstuvwxyz",
    "accents": "àáâãäåæçèéêëìíîïñòóôõöøùúûüýÿœšžđłğışąęńśźżăâîșț",
    "vietnamese": "ạảấầẩẫậắằẳẵặẹẻẽếềểễệỉịọỏốồổỗộớờởỡợụủứừửữựỳỵỷỹ",
    "cyrillic": "абвгдежзийклмнопрстуфхцчшщъыьэюяёїієґ",
    "greek": "αβγδεζηθικλμνξοπρστυφχψωάέήίόύώς",
    "arabic": "ابتثجحخدذرزسشصضطظعغفقكلمنهويءآأإئ\u064b\u064e\u0650\u0651",
    "hebrew": "אבגדהוזחטיכלמנסעפצקרשתםןףץ\u05b0\u05b4\u05b8",
    "devanagari": "अआइईउऊएऐओऔकखगघचछजझटठडढणतथदधनपफबभमयरलवशषसह\u093e\u093f\u0940\u0941\u0947\u094b\u094d\u0902",
    "thai": "กขคงจฉชซญดตถทธนบปผฝพฟมยรลวศสหอะาำเแโใไ\u0e31\u0e34\u0e35\u0e38\u0e48\u0e49",
    "han": "的一是不了人我在有他这为之大来以个中上们到说国和地也子时道出而要于就下得可你年生自会那后能对着事其里所去行过家十用发天如然作方成者多日都三小军二无同么经法当起与好看学进种将还分此心前面又定见只主没公从",
    "kana": "あいうえおかきくけこさしすせそたちつてとなにぬねのはひふへほまみむめもやゆよらりるれろわをんアイウエオカキクケコサシスセソ",
    "georgian": "აბგდევზთიკლმნოპჟრსტუფქღყშჩცძწჭხჯჰ",
    "tamil": "அஆஇஈஉஊஎஏஐஒகஙசஞடணதநபமயரலவழளறன\u0bbe\u0bbf\u0bc0\u0bc1\u0bcd",
}
EMOJI = [
    "😀", "🎉", "👍🏽", "👩‍💻", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "🇯🇵🇺🇸", "❤️", "1️⃣", "🧑🏿‍🚀", "☃", "✈︎", "🤷‍♀️", "🫠", "🏴󠁧󠁢󠁥󠁮󠁧󠁿",
]
CODE = [
    "def {0}({1}, {2}=None):\n    \"\"\"Return the {1} of {2}.\"\"\"\n    if {2} is None:\n        {2} = []\n    for i, x in enumerate({1}):\n        {2}.append(x ** 2 + {3})\n    return {2}\n\n",
    "#include <{0}.h>\n\nstatic inline int {1}(const char *{2}, size_t n) {{\n\tfor (size_t i = 0; i < n; ++i) {{\n\t\tif ({2}[i] == '\\n') return -{3};\n\t}}\n\treturn 0x{4:x};\n}}\n\n",
    "impl<T: {0}> {1}<T> {{\r\n    pub fn {2}(&self) -> Option<&'static str> {{\r\n        self.{0}.get(&{3}u64)?.as_ref().map(|v| v.{2}())\r\n    }}\r\n}}\r\n",
    "SELECT {0}, COUNT(*) AS {1} FROM {2} WHERE {0} >= {3} AND {1} != 'it''s' GROUP BY {0}; -- {4}\n",
    "{{\"{0}\": [{3}, {4}, -{3}.{4}e-7], \"{1}\": {{\"{2}\": null, \"url\": \"https://{0}.example.org/{1}?q={4}#{2}\"}}}}\n",
    "const {0} = async ({1}) => {{\n  const {2} = await fetch(`/api/${{{1}}}`);\n  return {2}.ok ? {2}.json() : {{...{1}, n: {3}}};\n}};\n",
    "<div class=\"{0} {1}\" id='{2}'>\n\t<p>{3}&nbsp;&lt;{4}&gt;</p>\n</div>\n\n\n",
    "{0:}\t{1}\t{3}\t{4}\n{2}\t\t{3}.{4}\t-{4}%\n",
]
SPECIALS = ["<s>", "</s>", "<|endoftext|>", "<|begin_of_text|>", "<|im_start|>", "<|im_end|>", "[INST]", "<unk>", "<|eot_id|>"]


class Writer:
    """Text of many kinds, from one seed."""

    def __init__(self, seed):
        self.old_characters_only = True
        self.rng = random.Random(seed)
        # words come back, as they do in real text
        self.lexicon = {name: [self.word(letters) for _ in range(400)] for name, letters in ALPHABETS.items()}

    def word(self, letters):
        size = min(1 + int(self.rng.expovariate(0.25)), 14)
        return "".join(self.rng.choice(letters) for _ in range(size))

    def pick(self, name):
        words = self.lexicon[name]
        return words[min(int(self.rng.expovariate(0.02)), len(words) - 1)]

    def prose(self, name):
        rng, out = self.rng, []
        joiner = "" if name in ("han", "kana", "thai") else " "
        for _ in range(rng.randint(4, 30)):
            word = self.pick(name)
            word = rng.choice([word] * 8 + [word.capitalize(), word.upper(), word + rng.choice("'s 't 're 've 'm 'll 'd 'S 'LL 'Re 'ſ 'x".split())])
            out.append(word + rng.choice([""] * 10 + [",", ".", "!", "?", ";", "…", "。", "،", "।", "—", "-", ":", "”"]))
        return joiner.join(out) + rng.choice([". ", ".\n", "\n\n", " ", "\r\n", "。"])

    def code(self):
        rng = self.rng
        names = ["_".join(self.pick("latin") for _ in range(rng.randint(1, 3))) for _ in range(3)]
        names[1] = rng.choice([names[1], "".join(w.capitalize() for w in names[1].split("_"))])
        return rng.choice(CODE).format(*names, rng.randint(0, 99), rng.randint(0, 10**9))

    def emoji(self):
        return self.rng.choice(["", " "]).join(self.rng.choice(EMOJI) for _ in range(self.rng.randint(1, 6))) + " "

    def spaces(self):
        rng = self.rng
        kinds = [" ", "  ", "\t", "\n", "\r\n", "\r", "\u00a0", "\u3000", "\u2003", "\u2028", "\u0085", "\v", "\f", "\u180e", "\u200b", "\u1680"]
        return "".join(rng.choice(kinds) * rng.choice([1, 1, 1, 2, 3, 8]) for _ in range(rng.randint(1, 8))) + rng.choice(["", "x", "7", "."])

    def digits(self):
        rng = self.rng
        return rng.choice([
            str(rng.randint(0, 10 ** rng.randint(1, 20))),
            f"{rng.random():.12f}",
            f"{rng.randint(1, 31)}.{rng.randint(1, 12)}.{rng.randint(1900, 2100)}",
            "".join(rng.choice("٠١٢٣٤٥٦٧٨٩") for _ in range(rng.randint(1, 9))),
            "".join(rng.choice("०१२३४५६७८९Ⅷ½²③𝟘㊿") for _ in range(rng.randint(1, 9))),
        ]) + rng.choice([" ", "", ",", "\n"])

    def combining(self):
        rng = self.rng
        marks = [chr(c) for c in range(0x300, 0x370)] + ["\u0f71", "\u0f72", "\u3099", "\u05c1", "\u0653", "\u1ab0", "\u1dc0", "\u20d0", "\U0001d165"]
        bases = list("aeiouAEIOUnNcCsSzZ ") + ["각", "ᄀ", "ᅡ", "ᆨ", "か", "ハ", "ا", "क", "ெ", "ো", "Å", "Ω", "가", "ﬁ", "ǆ", "①", "\u0344", "\u0958"]
        return "".join(rng.choice(bases) + "".join(rng.choice(marks) for _ in range(rng.choice([0, 0, 1, 1, 2, 4]))) for _ in range(rng.randint(2, 20)))

    def hangul(self):
        rng = self.rng
        return " ".join("".join(chr(rng.randint(0xAC00, 0xD7A3) // 28 * 28 % 0x2BA4 + 0xAC00) for _ in range(rng.randint(1, 5))) for _ in range(rng.randint(2, 12))) + ". "

    def random_bytes(self):
        return self.rng.randbytes(self.rng.randint(1, 120)).decode("utf-8", "replace")

    def random_code_points(self):
        rng, out = self.rng, []
        plane = rng.choice([0x3000, 0x10000, 0x20000, 0x110000])
        while len(out) < 40:
            c = chr(rng.randrange(plane))
            category = unicodedata.category(c)
            old = category == unicodedata.ucd_3_2_0.category(c) != "Cn"
            if category != "Cs" and (old or not self.old_characters_only):
                out.append(c)
        return "".join(out)

    def long_word(self):
        rng = self.rng
        letters = rng.choice(["a", "ab", "abc", "=", "-=", "0", "01", "ß", "哈", "é", "e\u0301", "▁", "▁ ", "🙂", ALPHABETS["latin"], ALPHABETS["han"]])
        return "".join(rng.choice(letters) for _ in range(rng.choice([20, 41, 100, 700, 2500]))) + rng.choice(["", " ", "\n"])

    def special(self):
        rng = self.rng
        return rng.choice(["", " ", "  ", "\n"]) + rng.choice(SPECIALS) + rng.choice(["", " ", "x", "\n"])

    def corpus(self, size):
        """In the first half, random characters are such that every version of Unicode sees them alike."""
        kinds = [lambda name=name: self.prose(name) for name in ALPHABETS for _ in range(4 if name == "latin" else 1)]
        kinds += [self.code] * 10 + [self.emoji, self.spaces, self.digits, self.combining, self.hangul, self.hangul]
        kinds += [self.random_bytes, self.random_code_points, self.special]
        pieces, total = [], 0
        while total < size:
            self.old_characters_only = total < size // 2
            text = self.long_word() if self.rng.random() < 0.004 else self.rng.choice(kinds)()
            pieces.append(text)
            total += len(text.encode())
        return "".join(pieces)


def train(tokenizer, texts, size, specials, alphabet):
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=specials, initial_alphabet=alphabet, max_token_length=16, show_progress=False,
        limit_alphabet=700,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return json.loads(tokenizer.to_str())


def byte_level(texts, pre_tokenizer, size, normalizer=None):
    """A trained byte-level model, as a document with fields still to be filled in."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer:
        tokenizer.normalizer = normalizer
    document = train(tokenizer, texts, size, [], sorted(pre_tokenizers.ByteLevel.alphabet()))
    document["decoder"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    return document


def split_then_bytes(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), behavior, invert=invert),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False),
    ])


def added(document, tokens, **flags):
    """Adds tokens; those that the model does not have get the next free ids."""
    vocab = document["model"]["vocab"]
    for content in tokens:
        known = set(vocab.values()) | {t["id"] for t in document["added_tokens"]}
        document["added_tokens"].append({
            "id": vocab.get(content, max(known) + 1), "content": content, "single_word": False,
            "lstrip": False, "rstrip": False, "normalized": False, "special": True, **flags,
        })


def template(before, after=()):
    """TemplateProcessing as published files write it: token and id pairs around the text."""
    def piece(token):
        return {"SpecialToken": {"id": token, "type_id": 0}}

    single = [piece(t) for t, _ in before] + [{"Sequence": {"id": "A", "type_id": 0}}] + [piece(t) for t, _ in after]
    pair = single + [{"Sequence": {"id": "B", "type_id": 1}}]
    specials = {t: {"id": t, "ids": [i], "tokens": [t]} for t, i in (*before, *after)}
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": specials}


def id_of(document, content):
    return next(t["id"] for t in document["added_tokens"] if t["content"] == content)


def merges_as_texts(document):
    document["model"]["merges"] = [m if isinstance(m, str) else " ".join(m) for m in document["model"]["merges"]]


def gpt2(texts):
    document = byte_level(texts, pre_tokenizers.ByteLevel(add_prefix_space=False), 1500)
    added(document, ["<|endoftext|>"], normalized=True)
    document["post_processor"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    document["model"] |= {"continuing_subword_prefix": "", "end_of_word_suffix": "", "unk_token": None}
    merges_as_texts(document)
    return document


def llama3(texts):
    document = byte_level(texts, split_then_bytes(LLAMA3_PATTERN), 2000)
    # words that no merges lead to
    vocab = document["model"]["vocab"]
    for word in ["Ġthe", "xyzzy", "ĠÐ", "1234", "ĠÃ©", "!!!", "====", "----------------------------------------"]:
        vocab.setdefault(word, len(vocab))
    document["model"]["ignore_merges"] = True
    added(document, ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", *(f"<|reserved_special_token_{i}|>" for i in range(20))])
    begin = ("<|begin_of_text|>", id_of(document, "<|begin_of_text|>"))
    document["post_processor"] = {"type": "Sequence", "processors": [
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}, template([begin])]}
    return document


def qwen2(texts):
    document = byte_level(texts, split_then_bytes(QWEN2_PATTERN), 2000, normalizers.NFC())
    added(document, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    added(document, ["<tool_call>", "</tool_call>", "<|fim_prefix|>"], special=False)
    document["post_processor"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    merges_as_texts(document)
    return document


def granite(texts):
    pre = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                   pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True)])
    document = byte_level(texts, pre, 1500)
    added(document, ["<|endoftext|>", "<fim_prefix>", "<|im_start|>"])
    document["post_processor"] = None
    return document


def tekken(texts):
    document = byte_level(texts, split_then_bytes(TEKKEN_PATTERN), 1500)
    document["model"]["ignore_merges"] = True
    added(document, ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"])
    document["post_processor"] = template([("<s>", id_of(document, "<s>"))])
    return document


def neox(texts):
    """GPT-NeoX and the first OLMo: runs of spaces are added tokens, looked for in normalised text."""
    document = byte_level(texts, pre_tokenizers.ByteLevel(add_prefix_space=False), 1500, normalizers.NFC())
    added(document, ["<|endoftext|>", "<|padding|>"])
    added(document, [" " * n for n in range(24, 1, -1)] + ["|||IP_ADDRESS|||", "\u00e9t\u00e9"], normalized=True, special=False)
    for content, flags in (("</s>", "lrs"), ("<s>", "ls"), ("return", "wn"), ("[INST]", "rs"), ("<|im_end|>", "lrn"), ("<unk>", "w")):
        added(document, [content], single_word="w" in flags, lstrip="l" in flags, rstrip="r" in flags,
              normalized="n" in flags, special="s" in flags)
    document["post_processor"] = template([], [("<|endoftext|>", id_of(document, "<|endoftext|>"))])
    return document


def engine(texts):
    """A pattern without a scanner of its own, with another behaviour, and a prefix space."""
    pre = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(DIGITS_FROM_RIGHT_PATTERN), "removed", invert=True),
        pre_tokenizers.Split("_", "merged_with_next"),
        pre_tokenizers.Punctuation("contiguous"),
        pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False),
    ])
    document = byte_level(texts, pre, 1200, normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(r"\s{5,}"), "  ")]))
    added(document, ["<s>", "</s>"])
    document["post_processor"] = {"type": "RobertaProcessing", "sep": ["</s>", id_of(document, "</s>")],
                                  "cls": ["<s>", id_of(document, "<s>")], "trim_offsets": True, "add_prefix_space": True}
    return document


def sentencepiece(texts, size):
    """A SentencePiece-style model: characters, and bytes for those that are not in the vocabulary."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=True)
    specials = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    document = train(tokenizer, texts, size, specials, ["▁"])
    document["added_tokens"] = []
    added(document, ["<unk>", "<s>", "</s>"])
    document["post_processor"] = template([("<s>", 1)])
    document["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    return document


def llama2(texts):
    document = sentencepiece(texts, 3000)
    document["normalizer"] = {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
    document["pre_tokenizer"] = None
    merges_as_texts(document)
    return document


def mistral(texts):
    document = sentencepiece(texts, 3000)
    added(document, ["[INST]", "[/INST]"])
    document["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    return document


def metaspace(texts):
    """Words split at spaces, no byte fallback: unknown characters are fused."""
    document = sentencepiece(texts, 2200)
    document["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    document["decoder"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    document["normalizer"] = {"type": "Sequence", "normalizers": [
        {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}, {"type": "Strip", "strip_left": True, "strip_right": True}]}
    document["model"]["byte_fallback"] = False
    return document


# These run through system libraries whose version of Unicode is not the reference's: compared on the first half.
FIRST_HALF_ONLY = ("engine", "metaspace")

KINDS = {f.__name__: f for f in (gpt2, llama3, qwen2, granite, tekken, neox, engine, llama2, mistral, metaspace)}


def fnv1a(data, value=0xCBF29CE484222325):
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def main():
    text = Writer(20240229).corpus(2_100_000)
    data = text.encode()
    (HERE / "corpus.txt").write_bytes(data)
    chunks = [text[i : i + CHUNK_CHARACTERS] for i in range(0, len(text), CHUNK_CHARACTERS)]
    sizes = [len(chunk.encode()) for chunk in chunks]
    (HERE / "chunks.txt").write_text("\n".join(map(str, sizes)) + "\n")
    sample = chunks[::4]
    for name, make in KINDS.items():
        folder = HERE / name
        folder.mkdir(exist_ok=True)
        document = make(sample)
        file = folder / "tokenizer.json"
        file.write_text(json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n")
        tokenizer = Tokenizer.from_file(str(file))
        for token in document["added_tokens"]:
            assert tokenizer.token_to_id(token["content"]) == token["id"], (name, token)
        lines = []
        for chunk in chunks[: len(chunks) * 9 // 20] if name in FIRST_HALF_ONLY else chunks:
            ids = tokenizer.encode(chunk).ids
            id_hash = fnv1a(b"".join(i.to_bytes(4, "little") for i in ids))
            text_hash = fnv1a(tokenizer.decode(ids, skip_special_tokens=True).encode())
            full_hash = fnv1a(tokenizer.decode(ids, skip_special_tokens=False).encode())
            lines.append(f"{len(ids)} {id_hash:016x} {text_hash:016x} {full_hash:016x}\n")
        (folder / "golden.txt").write_text("".join(lines))
        print(f"{name}: {tokenizer.get_vocab_size()} tokens, {file.stat().st_size} bytes, {sum(int(l.split()[0]) for l in lines)} ids")


if __name__ == "__main__":
    main()
