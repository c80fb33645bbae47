#!/usr/bin/env python3
"""Checks that the rooms of the project include each other in one direction only.

    tests/dependencies/check.py [ROOT]

Prints `file:line: what is wrong` for each offending #include and exits 1 if there is one.
The direction, and the reasons, are in docs/architecture.md.
"""

import pathlib
import re
import sys

# A room, and the rooms that it may include besides itself.
ROOMS = {
    "base": set(),
    "arch": {"base"},
    "ops": {"base", "arch"},
    "sim": {"base", "arch"},
    "model": {"base"},
    "program": {"base", "arch", "ops", "model"},
    "engine": {"base", "arch", "ops", "model", "program"},
    "serve": {"base", "arch", "ops", "model", "program", "engine"},
    "capi": {"base", "arch", "ops", "model", "program", "engine", "sim"},
    "cli": {"base", "arch", "ops", "model", "program", "engine", "serve", "sim"},
}
# Folders that hold C++ but are no part of the library or the command.
OUTSIDE = {"bench", "build", "cmake", "docs", "examples", "include", "models", "python", "scripts", "tests"}
SUFFIXES = {".h", ".inc", ".cc", ".cu", ".cuh", ".hip"}
INCLUDE = re.compile(r'^\s*#\s*(?:include|define\s+HWY_TARGET_INCLUDE)\s*(["<])([^">]+)[">]')


# Folders of arch/ and engine/, and beginnings of names in ops/.
TARGETS = ("cpu", "hopper", "cdna")


def is_for_a_target(path):
    """Whether a header is written for one target."""
    if path.parts[0] == "ops":
        return path.name.startswith(TARGETS[1:])
    if path.parts[0] == "arch":
        return len(path.parts) > 2
    return path.parts[0] == "engine" and path.parts[1] in TARGETS


def names_a_target(file):
    """Whether this file may include what is for one target: only code that is written for a target
    may, and the rooms that put such code to work. What an operation is (op.h) and what it computes
    (reference.cc) hold for every target, as does what resident kernels, and prompts, have in common."""
    room = file.parts[0]
    if file.parts[:2] in (("engine", "resident"), ("engine", "prefill")):
        return False
    if room == "ops":
        return file.name not in ("op.h", "reference.cc")
    return room in ("arch", "sim", "engine", "serve", "capi", "cli")


def problem(root, file, quote, target):
    """What is wrong with this #include in this file, or None."""
    room = file.parts[0]
    path = pathlib.PurePosixPath(target)
    if quote == '"' and ".." in path.parts or (
        not (root / target).exists() and (root / file.parent / target).exists()
    ):
        return f'"{target}" is relative; write the path from the root of the repository'
    other = path.parts[0]
    if other not in ROOMS:
        return None  # a dependency's header or the standard library's
    if other != room and other not in ROOMS[room]:
        allowed = ", ".join(r for r in ROOMS if r in ROOMS[room]) or "no other room"
        return f"{room}/ includes {target}, but may include only {allowed}"
    if is_for_a_target(path) and not names_a_target(file):
        return f"includes {target}, which is for one target, in code that is for all of them"
    if other == room == "arch" and len(path.parts) > 2 < len(file.parts) and file.parts[1] != path.parts[1]:
        return f"arch/{file.parts[1]}/ includes {target}, which is for another target"
    return None


def check(root):
    """Every offence under root, as lines of text."""
    offences = []
    for folder in sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")):
        if folder.name in OUTSIDE:
            continue
        for path in sorted(folder.rglob("*")):
            if path.suffix not in SUFFIXES:
                continue
            file = path.relative_to(root)
            if folder.name not in ROOMS:
                offences.append(f"{file}:1: {folder.name}/ is no room that {__file__} knows")
                continue
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                match = INCLUDE.match(line)
                reason = match and problem(root, file, match[1], match[2])
                if reason:
                    offences.append(f"{file}:{number}: {reason}")
    return offences


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    offences = check(root)
    for line in offences:
        print(line)
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
