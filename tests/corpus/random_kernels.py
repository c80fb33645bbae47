"""Elementwise kernels made at random, of operations whose results are determined to the last bit.

A kernel is a chain of statements, each of which applies an operation to values before it. While its
text is written, numpy computes the same; what the GPU stores must be those bits.
"""

import importlib.util
import pathlib
import tempfile

import ml_dtypes
import numpy as np

from case import odd, same

bf16 = ml_dtypes.bfloat16
SIGNED = [np.int8, np.int16, np.int32, np.int64]
UNSIGNED = [np.uint8, np.uint16, np.uint32, np.uint64]
INTEGERS = SIGNED + UNSIGNED
FLOATS = [np.float16, bf16, np.float32, np.float64]
NAMES = {t: np.dtype(t).name for t in INTEGERS + FLOATS}
COUNT = 300  # elements; no multiple of a block


def of_type(types):
    return lambda value: value.type in types


class Value:
    def __init__(self, name, type_, data, product=False):
        self.name, self.type, self.data = name, type_, data
        self.product = product  # a float product: an addition may be fused with it


class Writer:
    """Writes one kernel. `fuses`: the compiler may fuse a product with an addition, so none is
    added to."""

    def __init__(self, rng, fuses):
        self.rng, self.fuses = rng, fuses
        self.lines, self.values, self.inputs = [], [], []

    def pick(self, wanted):
        found = [v for v in self.values if wanted(v)]
        return found[self.rng.integers(len(found))] if found else None

    def pair(self, wanted):
        """Two values of one type."""
        a = self.pick(wanted)
        b = a and self.pick(lambda v: v.type == a.type and wanted(v))
        return (a, b) if b else None

    def add(self, text, type_, data, product=False):
        name = f"v{len(self.values)}"
        self.lines.append(f"{name} = {text}")
        assert data.dtype == (np.bool_ if type_ is bool else np.dtype(type_)), (
            text,
            data.dtype,
            type_,
        )
        self.values.append(Value(name, type_, data, product))

    def load(self, type_):
        if type_ in INTEGERS:
            info = np.iinfo(type_)
            data = self.rng.integers(info.min, info.max, COUNT, type_, endpoint=True)
            # Small and extreme numbers, too.
            few = np.array([0, 1, info.min, info.max, 2, 7], type_)
        else:
            data = (
                self.rng.standard_normal(COUNT) * 2.0 ** self.rng.integers(-8, 9, COUNT)
            ).astype(type_)
            few = np.array([0, -0.0, 1, np.inf, -np.inf, np.nan, 1e-7, -6e-8], type_)
        data = np.where(
            self.rng.random(COUNT) < 0.2, few[self.rng.integers(few.size, size=COUNT)], data
        )
        name = f"p{len(self.inputs)}"
        self.inputs.append((name, data))
        self.add(f"tl.load({name} + i, mask=i < n)", type_, data)

    # Each of these adds a statement, or nothing when it has no operands.

    def arithmetic(self):
        operands = self.pair(of_type(INTEGERS))
        if operands:
            a, b = operands
            op = self.rng.choice(["+", "-", "*", "&", "|", "^"])
            f = {
                "+": np.add,
                "-": np.subtract,
                "*": np.multiply,
                "&": np.bitwise_and,
                "|": np.bitwise_or,
            }
            self.add(f"{a.name} {op} {b.name}", a.type, f.get(op, np.bitwise_xor)(a.data, b.data))

    def shift(self):
        operands = self.pair(of_type(INTEGERS))
        if operands:
            a, b = operands
            most = 8 * np.dtype(a.type).itemsize - 1
            by = b.data & a.type(most)
            op, f = [("<<", np.left_shift), (">>", np.right_shift)][self.rng.integers(2)]
            self.add(f"{a.name} {op} ({b.name} & {most})", a.type, f(a.data, by))

    def divide_integers(self):
        operands = self.pair(of_type(INTEGERS))
        if operands:
            a, b = operands
            by = (b.data & a.type(127)) | a.type(1)
            quotient = a.data // by
            if a.type in SIGNED:  # towards zero
                quotient = quotient + ((a.data < 0) & (quotient * by != a.data)).astype(a.type)
            text = f"(({b.name} & 127) | 1)"
            if self.rng.integers(2):
                self.add(f"{a.name} // {text}", a.type, quotient)
            else:
                self.add(f"{a.name} % {text}", a.type, a.data - quotient * by)

    def high_product(self):
        operands = self.pair(of_type([np.uint32]))
        if operands:
            a, b = operands
            high = (a.data.astype(np.uint64) * b.data) >> np.uint64(32)
            self.add(f"tl.umulhi({a.name}, {b.name})", np.uint32, high.astype(np.uint32))

    def float_arithmetic(self):
        op = self.rng.choice(["+", "-", "*"])
        single = (
            (lambda v: v.type in FLOATS and not v.product)
            if self.fuses and op != "*"
            else of_type(FLOATS)
        )
        operands = self.pair(single)
        if operands:
            a, b = operands
            f = {"+": np.add, "-": np.subtract, "*": np.multiply}[op]
            if op == "-" and not a.data.any():
                return  # LLVM 22 takes 0 - x for -x where a product uses it, which gives another zero
            # The compiler takes the sum of a value with itself for twice the value.
            product = op == "*" or (op == "+" and a is b)
            self.add(f"{a.name} {op} {b.name}", a.type, f(a.data, b.data), product)

    def fused(self):
        a = self.pick(of_type([np.float32, np.float64]))
        if a and a.type == np.float32:
            b, c = (self.pick(of_type([np.float32])) for _ in range(2))
            # Exact in double but for the last rounding, unless that meets a halfway case: the product has 48
            # bits, and the sum is made odd where it is not exact.
            product = a.data.astype(np.float64) * b.data
            z = c.data.astype(np.float64)
            total = product + z
            rest = total - product
            error = (product - (total - rest)) + (z - rest)
            exact = odd(total, error).astype(np.float32)
            self.add(f"tl.fma({a.name}, {b.name}, {c.name})", np.float32, exact)

    def divide(self):
        operands = self.pair(of_type([np.float32, np.float64]))
        if operands:
            a, b = operands
            text = (
                f"tl.div_rn({a.name}, {b.name})" if a.type == np.float32 else f"{a.name} / {b.name}"
            )
            self.add(text, a.type, a.data / b.data)

    def unary(self):
        a = self.pick(of_type([np.float32, np.float64]))
        if a:
            op, f = [("floor", np.floor), ("ceil", np.ceil), ("abs", np.abs)][self.rng.integers(3)]
            self.add(f"tl.{op}({a.name})", a.type, f(a.data), a.product)

    def root(self):
        a = self.pick(of_type([np.float32]))
        if a:
            self.add(f"tl.sqrt_rn(tl.abs({a.name}))", np.float32, np.sqrt(np.abs(a.data)))

    def negate(self):
        a = self.pick(of_type(SIGNED + FLOATS))
        if a:
            self.add(
                f"-{a.name}", a.type, -a.data if a.type in FLOATS else a.type(0) - a.data, a.product
            )

    def extreme(self):
        most = bool(self.rng.integers(2))
        name = "tl.maximum" if most else "tl.minimum"
        operands = self.pair(of_type(INTEGERS + [np.float32, np.float64]))
        if operands and operands[0].type in INTEGERS:
            a, b = operands
            self.add(
                f"{name}({a.name}, {b.name})",
                a.type,
                (np.maximum if most else np.minimum)(a.data, b.data),
            )
        elif operands and not (operands[0].product or operands[1].product):
            # Which of two zeros is the larger is not said; adding 0 makes it positive. Of a value with itself
            # the compiler takes the value, and then drops the addition: a zero keeps its sign.
            a, b = operands
            if a is b:
                return
            f = np.fmax if most else np.fmin
            self.add(f"{name}({a.name}, {b.name}) + 0.0", a.type, f(a.data, b.data) + a.type(0))

    def compare(self):
        operands = self.pair(of_type(INTEGERS + FLOATS))
        if operands:
            a, b = operands
            ops = {
                "<": np.less,
                "<=": np.less_equal,
                ">": np.greater,
                ">=": np.greater_equal,
                "==": np.equal,
            }
            op = self.rng.choice(list(ops) + ["!="])
            self.add(f"{a.name} {op} {b.name}", bool, ops.get(op, np.not_equal)(a.data, b.data))

    def logic(self):
        operands = self.pair(of_type([bool]))
        if operands:
            a, b = operands
            op, f = [("&", np.logical_and), ("|", np.logical_or), ("^", np.logical_xor)][
                self.rng.integers(3)
            ]
            self.add(f"{a.name} {op} {b.name}", bool, f(a.data, b.data))

    def select(self):
        chosen, operands = self.pick(of_type([bool])), self.pair(of_type(INTEGERS + FLOATS))
        if chosen and operands:
            a, b = operands
            data = np.where(chosen.data, a.data, b.data)
            self.add(
                f"tl.where({chosen.name}, {a.name}, {b.name})", a.type, data, a.product or b.product
            )

    def cast_integer(self):
        a = self.pick(of_type(INTEGERS + [bool]))
        if a:
            to = INTEGERS[self.rng.integers(len(INTEGERS))]
            if a.type is bool and np.dtype(to).itemsize == 1:
                to = np.int32
            self.add(f"{a.name}.to(tl.{NAMES[to]})", to, a.data.astype(to))

    def cast_to_float(self):
        a = self.pick(of_type(INTEGERS))
        if a:
            to = [np.float32, np.float64][self.rng.integers(2)]
            self.add(f"{a.name}.to(tl.{NAMES[to]})", to, a.data.astype(to))

    def cast_float(self):
        a = self.pick(of_type(FLOATS))
        if a:
            # Straight from double to 16 bits would be rounded twice.
            to = {np.float64: [np.float32], np.float32: FLOATS}.get(
                a.type, [np.float32, np.float64]
            )
            to = to[self.rng.integers(len(to))]
            if to != a.type:
                self.add(f"{a.name}.to(tl.{NAMES[to]})", to, a.data.astype(to), a.product)

    def cast_from_float(self):
        a = self.pick(of_type([np.float32, np.float64]))
        if a:
            to = [np.int32, np.int64, np.int16, np.uint32][self.rng.integers(4)]
            low = 0 if to == np.uint32 else -30000
            inside = (a.data > low) & (a.data < 30000)
            data = np.where(inside, a.data, a.type(0)).astype(to)
            self.add(
                f"tl.where(({a.name} > {low}) & ({a.name} < 30000), {a.name}, 0.0).to(tl.{NAMES[to]})",
                to,
                data,
            )

    def reinterpret(self):
        pairs = [
            (np.int32, np.float32),
            (np.int64, np.float64),
            (np.int16, np.float16),
            (np.int16, bf16),
        ]
        integer, floating = pairs[self.rng.integers(len(pairs))]
        a = self.pick(of_type([integer, floating]))
        if a and a.type == integer:
            # No signalling NaN, whose fate is not said.
            data = a.data.view(floating)
            data = np.where(np.isnan(data.astype(np.float64)), floating(0), data)
            text = f"{a.name}.to(tl.{NAMES[floating]}, bitcast=True)"
            self.add(f"tl.where({text} == {text}, {text}, 0.0)", floating, data)
        elif a:
            data = np.where(np.isnan(a.data.astype(np.float64)), floating(0), a.data).view(integer)
            self.add(
                f"tl.where({a.name} == {a.name}, {a.name}, 0.0).to(tl.{NAMES[integer]}, bitcast=True)",
                integer,
                data,
            )

    STATEMENTS = [
        arithmetic,
        arithmetic,
        shift,
        divide_integers,
        high_product,
        float_arithmetic,
        float_arithmetic,
        fused,
        divide,
        unary,
        root,
        negate,
        extreme,
        compare,
        logic,
        select,
        select,
        cast_integer,
        cast_to_float,
        cast_float,
        cast_from_float,
        reinterpret,
    ]


def write(seed):
    """The text of a kernel, its inputs and what it must store."""
    rng = np.random.default_rng(seed)
    w = Writer(rng, fuses=bool(rng.integers(2)))
    with np.errstate(all="ignore"):
        for _ in range(6):
            types = INTEGERS + FLOATS
            w.load(types[rng.integers(len(types))])
        while len(w.values) < 36:
            w.STATEMENTS[rng.integers(len(w.STATEMENTS))](w)
    # The last values, and a few before them, so that little is dead.
    outputs = [v for v in w.values[6:] if v.type is not bool][-12:]
    stores = [f"tl.store(o{k} + i, {v.name}, mask=i < n)" for k, v in enumerate(outputs)]
    names = [name for name, _ in w.inputs] + [f"o{k}" for k in range(len(outputs))]
    body = ["i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)", *w.lines, *stores]
    text = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
    text += f"def kernel({', '.join(names)}, n, BLOCK: tl.constexpr):\n" + "".join(
        f"    {line}\n" for line in body
    )
    options = {"num_warps": int(2 ** rng.integers(3)), "enable_fp_fusion": w.fuses}
    return (
        text,
        [data for _, data in w.inputs],
        [v.data for v in outputs],
        [v.name for v in outputs],
        options,
    )


def run(gpu, seed):
    """Makes, compiles and runs the kernel of a seed."""
    text, inputs, expected, names, options = write(seed)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / f"random_{seed}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        outputs = [gpu.empty(x.shape, x.dtype) for x in expected]
        gpu.launch(
            module.kernel,
            (-(-COUNT // 128),),
            *map(gpu.array, inputs),
            *outputs,
            COUNT,
            BLOCK=128,
            options=options,
        )
    for got, value, name in zip(outputs, expected, names, strict=True):
        same(got.numpy(), value, name)


if __name__ == "__main__":
    import sys

    print(write(int(sys.argv[1]))[0])
