#!/usr/bin/env python3
"""Holds the C interface to what is written down of it, and runs the C example.

    check.py LIBRARY COMPILER [--update]

tests/capi/abi.txt has the symbols that LIBRARY (libweft.so) exports and the size and offsets of every
structure of include/weft/weft.h, as COMPILER lays them out. What is there must stay while WEFT_VERSION_MAJOR
does; --update writes the file anew. The header and the example must compile as C11 and C++ without a warning.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
ABI = pathlib.Path(__file__).with_name("abi.txt")
HEADER = ROOT / "include" / "weft" / "weft.h"
STRICT = ["-std=c11", "-pedantic", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}"]


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def structures():
    """Names of structures and of their members, in the header's order."""
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
    for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", text, re.DOTALL):
        members = []
        for line in filter(None, (part.strip() for part in body.split(";"))):
            for each in line.split(","):
                members.append(re.sub(r"\[.*", "", each).split()[-1].lstrip("*"))
        yield name, members


def layout(compiler, folder):
    """Lines "name size member:offset ..." as the compiler lays structures out."""
    code = '#include <weft/weft.h>\n#include <stdio.h>\nint main(void) {\n'
    for name, members in structures():
        offsets = "".join(f" {m}:%zu" for m in members)
        values = "".join(f", offsetof({name}, {m})" for m in members)
        code += f'  printf("{name} %zu{offsets}\\n", sizeof({name}){values});\n'
    source = folder / "layout.c"
    source.write_text(code + "  return 0;\n}\n")
    run(compiler, *STRICT, source, "-o", folder / "layout")
    return run(folder / "layout").splitlines()


def symbols(library):
    lines = run("nm", "--dynamic", "--defined-only", library).splitlines()
    return sorted(line.split()[-1].split("@")[0] for line in lines)


def broken(written, found):
    """What of the written lines is no longer so."""
    now = {line.split()[0]: line for line in found}
    for line in written:
        name = line.split()[0]
        if name not in now:
            yield f"{name} is gone"
        elif now[name] != line:
            yield f"was: {line}\nis:  {now[name]}"


def main():
    library, compiler = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
    with tempfile.TemporaryDirectory() as work:
        folder = pathlib.Path(work)
        found = symbols(library) + layout(compiler, folder)
        declared = re.findall(r"^WEFT_API [^;]*?\b(weft_\w+)\(", HEADER.read_text(), re.MULTILINE)
        if foreign := set(symbols(library)) ^ set(declared):
            sys.exit(f"{library} exports what {HEADER} does not declare, or lacks it: {sorted(foreign)}")
        major = re.search(r"WEFT_VERSION_MAJOR (\d+)", HEADER.read_text())[1]
        lines = [f"weft_version_major {major}", *found]
        if "--update" in sys.argv:
            ABI.write_text("\n".join(lines) + "\n")
        written = ABI.read_text().splitlines()
        planted = [line.replace(":8", ":16") for line in written if ":8" in line]
        if not planted or not list(broken(planted, lines)) or not list(broken(["weft_x"], lines)):
            sys.exit("a changed structure or a missing symbol goes unnoticed")
        if faults := list(broken(written, lines)):
            sys.exit("the binary interface has changed:\n" + "\n".join(faults))
        if added := [line for line in lines if line not in written]:
            sys.exit(f"not in {ABI}, add them (--update): {added}")

        # The header alone, as C++, too; and the example against the library.
        empty = folder / "empty.cc"
        empty.write_text("#include <weft/weft.h>\nint main() { return 0; }\n")
        run("c++", "-pedantic", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}", empty, "-o", folder / "empty")
        example = folder / "product"
        run(compiler, *STRICT, ROOT / "examples" / "product.c", library, f"-Wl,-rpath,{library.parent}", "-o", example)
        print(run(example, "cpu", ROOT / "models" / "weft-code"), end="")
        if "--simulator" in sys.argv:
            print(run(example, "sim:gfx942"), end="")


main()
