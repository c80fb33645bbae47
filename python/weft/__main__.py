"""The command of the Python package: `weft export-kernel`, `weft evaluate`."""

import argparse
import pathlib
import sys

from weft import _c


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="weft", description="Kernels for contests, from Python")
    commands = parser.add_subparsers(dest="command", required=True)

    export = commands.add_parser("export-kernel", help="write an operation as one file for a contest")
    export.add_argument("operation", help="gemm_fp8_blockwise, moe or mla_decode")
    export.add_argument("--target", default="gfx942", help="gfx942 or gfx950")
    export.add_argument("--form", default="popcorn", help="popcorn: custom_kernel(data)")
    export.add_argument(
        "--shape", action="append", default=[], help="beside the contest's: m=64,n=64,k=128; again for more"
    )
    export.add_argument("--out", type=pathlib.Path, help="default: OPERATION_TARGET.py")

    evaluate = commands.add_parser("evaluate", help="a contest's tests and ranking for a file")
    evaluate.add_argument("file", type=pathlib.Path)
    evaluate.add_argument("--problem", help="default: what the file says (#!POPCORN leaderboard)")
    evaluate.add_argument(
        "--device", default="sim:gfx942", help="sim:gfx942, cpu, cuda (ROCm's GPUs are cuda, too)"
    )
    evaluate.add_argument(
        "--mode", default="test", choices=("test", "benchmark", "leaderboard", "once", "profile")
    )
    evaluate.add_argument(
        "--shape", action="append", help="instead of the contest's: m=64,n=64,k=128; again for more"
    )
    evaluate.add_argument("--json", action="store_true")

    options = parser.parse_args(arguments)
    from weft import contest, export

    try:
        if options.command == "export-kernel":
            text = export.export(options.operation, options.target, options.form, options.shape)
            out = options.out or pathlib.Path(f"{options.operation}_{options.target}.py")
            out.write_text(text)
            print(f"{out}: {len(text)} bytes")
            return 0
        return contest.main(options)
    except (_c.WeftError, OSError) as error:
        print(f"weft: {error}", file=sys.stderr)
        return {_c.UsageError: 2, _c.InputError: 3}.get(type(error), 4)


if __name__ == "__main__":
    sys.exit(main())
