"""What a case of the corpus is, and how its numbers are held against numpy's."""

import dataclasses
from collections.abc import Callable

import ml_dtypes
import numpy as np

TARGETS = ("gfx942", "gfx950")
# Bits of each float's significand, the hidden one among them.
DIGITS = {
    np.dtype(np.float64): 53,
    np.dtype(np.float32): 24,
    np.dtype(np.float16): 11,
    np.dtype(ml_dtypes.bfloat16): 8,
    np.dtype(ml_dtypes.float8_e4m3fn): 4,
    np.dtype(ml_dtypes.float8_e4m3fnuz): 4,
    np.dtype(ml_dtypes.float8_e5m2): 3,
    np.dtype(ml_dtypes.float8_e5m2fnuz): 3,
}


@dataclasses.dataclass
class Case:
    name: str
    run: Callable
    variants: list
    targets: tuple


CASES = []


def case(*variants, targets=TARGETS):
    """Registers a function (gpu, rng, **variant), which compiles, launches and compares, once for
    each of the variants, dictionaries."""

    def register(function):
        CASES.append(Case(function.__name__, function, list(variants) or [{}], targets))
        return function

    return register


def each(**lists):
    """All combinations of the keywords' values, as variants."""
    variants = [{}]
    for name, values in lists.items():
        variants = [{**v, name: value} for v in variants for value in values]
    return variants


def same(got, expected, what="result"):
    """Every bit alike; a NaN is like any other."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert (
        got.shape == expected.shape and got.dtype == expected.dtype
    ), f"{what}: {got.dtype}{got.shape} is not {expected.dtype}{expected.shape}"
    bits = np.dtype(f"u{got.dtype.itemsize}")
    wrong = np.ascontiguousarray(got).view(bits) != np.ascontiguousarray(expected).view(bits)
    if got.dtype in DIGITS:
        wrong &= ~(np.isnan(got.astype(np.float64)) & np.isnan(expected.astype(np.float64)))
    complain(wrong, got, expected, what)


def close(got, expected, error, what="result"):
    """Within `error`, a number or an array of them; infinities and NaN where they are expected."""
    got = np.asarray(got).astype(np.float64)
    expected = np.asarray(expected).astype(np.float64)
    assert got.shape == expected.shape, f"{what}: shape {got.shape} is not {expected.shape}"
    with np.errstate(invalid="ignore"):
        good = np.abs(got - expected) <= error
    good |= (got == expected) | (np.isnan(got) & np.isnan(expected))
    complain(~good, got, expected, what)


def complain(wrong, got, expected, what):
    if wrong.any():
        at = tuple(int(k) for k in np.argwhere(wrong)[0])
        raise AssertionError(
            f"{what}{list(at)} is {got[at]!r} and should be {expected[at]!r}; "
            f"{int(wrong.sum())} of {wrong.size} are wrong"
        )


def odd(value, error):
    """A float and what it errs by, as one float whose last bit is 1 where there is an error. Rounded
    to two bits less or fewer, it gives what the sum of both would (Boldo and Melquiond, 2008)."""
    bits = value.view(f"i{value.dtype.itemsize}")
    away = np.where((error > 0) == (value > 0), 1, -1)
    inexact = np.isfinite(value) & (error != 0) & (bits & 1 == 0)
    return np.where(inexact, bits + away, bits).astype(bits.dtype).view(value.dtype)


def unit(dtype):
    """The most that rounding to a type errs by, relative to the number."""
    return 2.0 ** -DIGITS[np.dtype(dtype)]
