#!/usr/bin/env python3
"""Writes unicode_classes.inc: what each code point is to a tokenizer.

The tables of the system's Unicode libraries differ from those inside the `tokenizers` package (its regular
expressions follow one version of Unicode, its normalisers an older one), and a single letter that is a letter
to one and not to the other changes token ids. So the classes are asked of the package itself:

    python3 -m venv venv && venv/bin/pip install tokenizers==0.23.3 regex
    venv/bin/python model/tokenizer/make_unicode_classes.py
"""

import pathlib

import regex
from tokenizers import Regex, normalizers, pre_tokenizers

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
TEXT = "".join(map(chr, CODE_POINTS))


def matching(pattern):
    """The code points that the package's regular expressions match."""
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    return {ord(c) for piece, _ in split.pre_tokenize_str(TEXT) for c in piece}


def known_to_regex(pattern):
    """The code points that the newest Unicode tables (the `regex` package) match."""
    return {ord(c) for c in regex.findall(pattern, TEXT)}


def numeric():
    """What the Digits pre-tokenizer splits off (it follows another Unicode version than the patterns)."""
    digits = pre_tokenizers.Digits(individual_digits=True)
    return {c for c in CODE_POINTS if len(digits.pre_tokenize_str("a" + chr(c) + "b")) == 3}


def inert():
    """The code points that the package's normalisers neither decompose nor reorder."""
    nfd, nfkd = normalizers.NFD(), normalizers.NFKD()
    low, high = "\u0334", "\u0345"  # combining classes 1 and 240: any other class trades places with one of them
    found = set()
    for c in CODE_POINTS:
        s = chr(c)
        if nfkd.normalize_str(s) == s and nfd.normalize_str(s + low) == s + low and nfd.normalize_str(high + s) == high + s:
            found.add(c)
    return found


def ranges(values):
    """[(first, last, value)] of the code points whose value is not 0."""
    out = []
    for c in sorted(values):
        v = values[c]
        if v and out and out[-1][1] == c - 1 and out[-1][2] == v:
            out[-1][1] = c
        elif v:
            out.append([c, c, v])
    return out


def main():
    letters_marks = matching(r"[\p{Lm}\p{Lo}\p{M}]")
    classes = [
        ("kLetter", matching(r"\p{L}")),
        ("kNumber", matching(r"\p{N}")),
        ("kSpace", matching(r"\s")),
        ("kUpper", matching(r"[\p{Lu}\p{Lt}]") | letters_marks),
        ("kLower", matching(r"\p{Ll}") | letters_marks),
        ("kNumeric", numeric()),
        ("kWord", known_to_regex(r"[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]")),
    ]
    is_inert = inert()
    # Characters younger than the package's normalisers: plain to it, though a newer library would change them.
    changing = known_to_regex(r"[^\p{dt=none}]") | known_to_regex(r"[^\p{ccc=0}]")
    compositions = set()  # blocks whose characters compose with each other since Unicode 13 and 16
    for first, last in ((0x105C0, 0x105FF), (0x11380, 0x113FF), (0x11900, 0x1195F), (0x16100, 0x1613F), (0x16D40, 0x16D7F)):
        compositions |= set(range(first, last + 1))
    too_new = is_inert & (changing | compositions)
    joins = known_to_regex(r"[^\p{NFC_QC=Y}]") | known_to_regex(r"[^\p{ccc=0}]")
    classes.append(("kJoins", joins - too_new))

    values = {}
    for bit, (_, members) in enumerate(classes):
        for c in members:
            values[c] = values.get(c, 0) | 1 << bit
    lines = ["// Written by make_unicode_classes.py; do not edit."]
    lines += ["// The bits, lowest first: " + ", ".join(name for name, _ in classes) + "."]
    lines += ["constexpr ClassRange kClassRanges[] = {"]
    cells = ["{0x%X,0x%X,%d}" % tuple(r) for r in ranges(values)]
    lines += [",".join(cells[i : i + 6]) + "," for i in range(0, len(cells), 6)]
    lines += ["};", "constexpr CodePointRange kTooNewToNormalize[] = {"]
    cells = ["{0x%X,0x%X}" % (a, b) for a, b, _ in ranges(dict.fromkeys(too_new, 1))]
    lines += [",".join(cells[i : i + 8]) + "," for i in range(0, len(cells), 8)]
    lines += ["};"]
    pathlib.Path(__file__).with_name("unicode_classes.inc").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
