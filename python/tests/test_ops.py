"""weft.ops against weft.reference on the CPU and, where there is one, a GPU; opcheck, torch.compile, CUDA
graphs, refusals."""

import inspect

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/setup python brings it")

from torch.library import opcheck  # noqa: E402

from weft import nn, ops, reference  # noqa: E402

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
FP8 = torch.float8_e4m3fn
OPCHECKS = (
    "test_schema",
    "test_autograd_registration",
    "test_faketensor",
    "test_aot_dispatch_dynamic",
)


@pytest.fixture(params=DEVICES)
def device(request):
    torch.manual_seed(1)
    return request.param


def bf16(*shape, device):
    return torch.randn(*shape, device=device).to(torch.bfloat16)


def fp8(*shape, device):
    return torch.randn(*shape, device=device).to(FP8)


def arguments(name, device):
    """Valid operands of each operator, several sets."""
    x, weight = bf16(3, 5, 512, device=device), bf16(512, device=device)
    half = x.to(torch.float16), weight.to(torch.float16)
    scale = torch.full((1,), 0.5, device=device)
    blocks = (
        fp8(24, 256, device=device),
        fp8(136, 256, device=device),
        torch.randn(24, 2, device=device),
        torch.randn(2, 2, device=device),
    )
    wide = bf16(7, 1024, device=device).chunk(2, -1)
    return {
        "gemm_bf16": [
            (bf16(2, 9, 64, device=device), bf16(24, 64, device=device)),
            (bf16(300, 128, device=device), bf16(256, 128, device=device), True),
        ],
        "gemm_fp8_blockwise": [
            blocks,
            (
                fp8(256, 48, device=device).t(),
                fp8(256, 144, device=device).t(),
                torch.randn(2, 48, device=device).t(),
                torch.randn(2, 2, device=device).t(),
            ),
        ],
        "gemm_fp8_grouped": [grouped(136, [2, 0, 2, 1], device), grouped(24, [1], device)],
        "gemm_skinny": [
            (bf16(1, 1, 64, device=device), bf16(24, 64, device=device)),
            (bf16(32, 4096, device=device), bf16(1024, 4096, device=device), None, None, True),
            blocks,
            (*blocks[:2], scale, scale),
            (*blocks[:2], torch.rand(24, 1, device=device), torch.rand(136, 1, device=device)),
        ],
        "rmsnorm": [(x, weight), (x, weight, bf16(3, 5, 512, device=device), 1e-6), half],
        "rmsnorm_quant": [
            (x, weight),
            (x, weight, bf16(3, 5, 512, device=device), 1e-6, 128),
            (*half, None, 1e-5, 0),
        ],
        "rmsnorm_quant_static": [(x, weight, scale), (x, weight, scale, x.clone())],
        "swiglu": [(x, x.flip(0)), wide],
        "swiglu_quant": [(x, x.flip(0)), (*wide, 128)],
        "swiglu_quant_static": [(x, x.flip(0), scale)],
        "route": [
            (torch.randn(3, 5, 60, device=device), 6, False, True),
            (torch.randn(9, 96, device=device), 8, True, True, torch.randn(96, device=device) / 4, 8, 4, 2.5),
            (torch.randn(1, 53, device=device)[:, 3:51], 5, False, False, None, 8, 3, 16.0),
        ],
        "moe": [
            drawn("bfloat16", 1, 2, device),
            drawn("bfloat16", 40, 3, device, biases=True),
            drawn("float8_e4m3fn", 9, 2, device),
            (*drawn("mxfp4", 17, 4, device, biases=True, limit=1.5), True),
        ],
        "moe_layer": [experts(5, 3, True, device), experts(2, 2, False, device)],
        "mla_layer": [latent_attention(2, 3, 70, device), latent_attention(3, 1, 0, device)],
    }[name]


def grouped(n, group_of, device):
    m, groups = 128 * len(group_of), 3
    return (
        fp8(m, 256, device=device),
        fp8(groups, n, 256, device=device),
        torch.randn(2, m, device=device).t(),
        torch.randn(groups, -(-n // 128), 2, device=device),
        torch.tensor(group_of, dtype=torch.int32, device=device),
    )


def drawn(form, rows, chosen, device, biases=False, limit=0.0, hidden=288, inner=160, count=6):
    """Rows that have drawn experts, of which the last has none, and the first one's are of every second row."""

    def matrix(n, k):
        if form == "mxfp4":
            codes = torch.randint(0, 256, (count, n, k // 2), dtype=torch.uint8, device=device)
            powers = torch.randint(122, 125, (count, n, k // 32), dtype=torch.uint8, device=device)
            return ops.mxfp4(codes, powers), None
        if form == "float8_e4m3fn":
            scale = torch.randn(count, -(-n // 128), -(-k // 128), device=device) / k**0.5
            return fp8(count, n, k, device=device), scale
        return (torch.randn(count, n, k, device=device) / k**0.5).bfloat16(), None

    def bias(n):
        return bf16(count, n, device=device) if biases else None

    (gate, gate_scale), (up, up_scale), (down, down_scale) = (
        matrix(*shape) for shape in [(inner, hidden), (inner, hidden), (hidden, inner)])
    ids = torch.stack([torch.randperm(count - 2)[:chosen] + 1 for _ in range(rows)]).int()
    ids[::2, 0] = 0
    return (
        bf16(rows, hidden, device=device),
        *(gate, up, down, ids.to(device), torch.rand(rows, chosen, device=device)),
        *(gate_scale, up_scale, down_scale, bias(inner), bias(inner), bias(hidden), limit),
    )


def experts(count, chosen, shared, device):
    hidden, inner, all_experts = 64, 40, count + shared

    def f16(*shape):
        return (torch.randn(*shape, device=device) / shape[-2] ** 0.5).half()

    return (
        f16(4, 9, hidden),
        f16(count, hidden) * 2,
        *f16(2, all_experts, hidden, inner).unbind(0),
        f16(all_experts, inner, hidden),
        chosen,
    )


def latent_attention(batch, heads, prefill, device):
    dim, q_rank = 64, 24

    def weight(rows, columns):
        return (torch.randn(rows, columns, device=device) / columns**0.5).bfloat16()

    def exact(*shape):  # sums of products that float32 has exactly: the cache's new rows are the same bits
        return (torch.randint(-8, 9, shape, device=device) / 8).bfloat16()

    return (
        exact(batch, 1, dim),
        weight(q_rank, dim),
        weight(heads * 192, q_rank),
        exact(576, dim) / 8,
        weight(heads * 256, 512),
        weight(dim, heads * 128),
        bf16(batch, prefill + 3, 576, device=device),
        reference.mla_layer_angles(prefill + 2, device),
        prefill,
    )


def cloned(operands):
    """Their strides as they are, so that both layouts are seen."""
    return tuple(
        torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device).copy_(t)
        if isinstance(t, torch.Tensor) and t.dim() == 2
        else t.clone() if isinstance(t, torch.Tensor) else t
        for t in operands
    )


def close(got, expected, name):
    assert got.shape == expected.shape and got.dtype == expected.dtype
    if got.dtype == torch.int32:
        return torch.testing.assert_close(got, expected)
    got, expected = got.float(), expected.float()
    if name.startswith("gemm_fp8") or got.dtype == FP8:
        # Hopper sums fp8 products in 14 bits; the contest's own tolerance.
        torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2 * expected.abs().max().item())
    else:
        # One rounding of the result on either side, of up to 2^-3 (fp8) or 2^-8 (bf16) each.
        eight = name.endswith(("quant", "static"))
        rtol = 2**-3 if eight else 2**-7
        torch.testing.assert_close(got, expected, rtol=rtol, atol=2**-8 * expected.abs().max().item())


@pytest.mark.parametrize("name", ops.NAMES)
def test_computes_what_the_reference_does(name, device):
    for operands in arguments(name, device):
        mine, theirs = cloned(operands), cloned(operands)
        got, expected = getattr(ops, name)(*mine), getattr(reference, name)(*theirs)
        if isinstance(got, tuple):
            close(got[0], expected[0], name)
            torch.testing.assert_close(got[1], expected[1], rtol=2e-2, atol=0)
            assert got[1].shape[1] == 1 or got[1].stride() == expected[1].stride()
        else:
            close(got, expected, name)
        for a, b in zip(mine, theirs, strict=True):  # the residual, and nothing else
            if isinstance(a, torch.Tensor):
                assert torch.equal(a.float(), b.float())


def into(name, operands):
    """The results of NAME_out() into tensors of the shape, strides and dtype of NAME()'s, and those tensors."""
    outs = [torch.empty_strided(r.shape, r.stride(), dtype=r.dtype, device=r.device)
            for r in flat([getattr(ops, name)(*cloned(operands))])]
    return outs, getattr(ops, name + "_out")


@pytest.mark.parametrize("name", ops.NAMES)
def test_results_into_given_tensors(name, device):
    for operands in arguments(name, device):
        expected = flat([getattr(ops, name)(*cloned(operands))])
        outs, run = into(name, operands)
        assert run(*outs, *cloned(operands)) is None
        assert all(torch.equal(o.float(), e.float()) for o, e in zip(outs, expected, strict=True))
        # What an operator may not write is compared with allclose(), which PyTorch lacks for fp8.
        coded = any(isinstance(t, torch.Tensor) and t.dtype == FP8 for t in (*outs, *operands))
        opcheck(run, (*outs, *cloned(operands)), test_utils=OPCHECKS[1:] if coded else OPCHECKS)


def test_given_tensors_that_do_not_fit(device):
    x, weight = bf16(4, 256, device=device), bf16(256, device=device)
    codes, scales = ops.rmsnorm_quant(x, weight, None, 1e-5, 128)
    for outs, match in [
        ((codes[:3], scales), r"out is \[3, 256\]: it must be float8_e4m3fn \[4, 256\] with strides \[256, 1\]"),
        ((codes.t().contiguous().t(), scales), "out is"),
        ((x, scales), "out is"),
        ((codes, scales.contiguous()), r"scales is \[4, 2\]: it must be float32 \[4, 2\] with strides \[1, 4\]"),
        ((codes, scales[:, :1]), "scales is"),
    ]:
        with pytest.raises(RuntimeError, match=match):
            ops.rmsnorm_quant_out(*outs, x, weight, None, 1e-5, 128)


@pytest.mark.parametrize("name", ["gemm_bf16", "gemm_skinny", "moe"])
def test_the_given_tensor_may_be_float32(name, device):
    operands = arguments(name, device)[0]
    run, into = getattr(ops, name), getattr(ops, name + "_out")
    rounded, expected = run(*operands), run(*operands, out_f32=True)
    exact = torch.empty_like(expected)
    into(exact, *operands)
    assert exact.dtype == torch.float32 and torch.equal(exact, expected)
    close(exact.to(rounded.dtype), rounded, name)
    assert not torch.equal(exact, rounded.float())
    with pytest.raises(RuntimeError, match="out is .*: it must be float32"):
        into(rounded, *operands, out_f32=True)
    with pytest.raises(RuntimeError, match="out is .*: it must be bfloat16"):
        into(rounded.half(), *operands)


def test_angles_of_latent_attention():
    assert torch.equal(ops.mla_layer_angles(600), reference.mla_layer_angles(600))


def test_rows_that_no_group_has(device):
    operands = grouped(136, [1, -1, 0, -1], device)
    out, expected = bf16(512, 136, device=device), reference.gemm_fp8_grouped(*operands)
    before, had = out.clone(), expected.isfinite()
    ops.gemm_fp8_grouped_out(out, *operands)
    close(out[had], expected[had], "gemm_fp8_grouped")
    assert had.sum() == 256 * 136 and torch.equal(out[~had], before[~had])


def test_groups_refuse_in_a_sentence(device):
    a, b, a_scale, b_scale, group_of = grouped(136, [2, 0, 2, 1], device)
    of = r"group_of is \[.*\]: it must be int32, contiguous, one for each 128 of a's 512 rows"
    for operands, match in [
        ((a, b[0], a_scale, b_scale, group_of), r"b is \[136, 256\]: they must be \[m, k\] and \[groups, n, k\]"),
        ((a[:, :128], b, a_scale, b_scale, group_of), "they must be"),
        ((a, b[:, :128], a_scale, b_scale, group_of), "b: the rows of its shape .* are not evenly spaced"),
        ((a.t().contiguous().t(), b, a_scale, b_scale, group_of), "a: the elements of its last dimension"),
        ((a, b, a_scale[:128], b_scale, group_of), r"a_scale is \[128, 2\]: it must be float32 \[512, 2\]"),
        ((a, b, a_scale, b_scale[:, :1], group_of), r"b_scale is \[3, 1, 2\]: it must be float32 \[3, 2, 2\]"),
        ((a, b, a_scale, b_scale.transpose(0, 1).contiguous().transpose(0, 1), group_of), "its rows evenly spaced"),
        ((a, b, a_scale, b_scale, group_of.long()), of),
        ((a, b, a_scale, b_scale, group_of[:3]), of),
        ((a, b, a_scale, b_scale, group_of.repeat(2)[::2]), of),
        ((a[:100], b, a_scale[:100], b_scale, group_of[:0]), "one for each 128 of a's 100 rows"),
    ]:
        with pytest.raises(RuntimeError, match=match):
            ops.gemm_fp8_grouped(*operands)
    if device == "cpu":
        with pytest.raises(RuntimeError, match="a group in group_of is 3, but must be at most 2"):
            ops.gemm_fp8_grouped(a, b, a_scale, b_scale, group_of + 1)


def through_experts(x, gate, up, down, ids, weights, gate_scale, up_scale, down_scale, *biases_and_limit):
    """In float64 what moe() computes, and by how much it may differ: what lies between the products is rounded to
    bfloat16, weights in float8 may be when they are scaled, both by 2^-9 of themselves at most; sums are float32. Of a
    sum of errors that do not depend on each other, e at most, 6 sqrt(sum e^2) is passed once in 3e7 times
    (Hoeffding)."""
    gate_bias, up_bias, down_bias, limit = biases_and_limit
    quantised = (gate, gate_scale), (up, up_scale), (down, down_scale)
    gate, up, down = (reference.dequantised(*each).double() for each in quantised)
    unit, of = 2**-9 if gate_scale is not None else 0, ids.flatten().long()  # all slots at once

    def product(w, a, off, bias):
        w, b = w[of], 0 if bias is None else bias.double()[of]

        def by(w, a):
            return (w @ a.unsqueeze(-1)).squeeze(-1)

        apart = by(w.square(), off.square() + (unit * a).square()).sqrt()
        return by(w, a) + b, apart + a.shape[-1] * 2**-24 * (by(w.abs(), a.abs()) + abs(b))

    rows = x.double().repeat_interleave(ids.shape[1], 0)
    (g, off_g), (u, off_u) = (product(w, rows, 0 * rows, b) for w, b in [(gate, gate_bias), (up, up_bias)])
    if limit:
        g, u = g.clamp(max=limit), u.clamp(-limit, limit) + 1
    active = g * torch.sigmoid((1.702 if limit else 1) * g)  # whose slope is 1.2 at most
    off = 1.2 * off_g * u.abs() + active.abs() * off_u + 2**-9 * (active * u).abs()
    y, off_y = product(down, active * u, off, down_bias)
    weights = weights.double().unsqueeze(-1)
    return (weights * y.view(*ids.shape, -1)).sum(1), 6 * (weights * off_y.view(*ids.shape, -1)).sum(1)


@pytest.mark.parametrize("form", ["bfloat16", "float8_e4m3fn", "mxfp4"])
@pytest.mark.parametrize("rows", [1, 7, 33])
@pytest.mark.parametrize("biases", [False, True])
def test_experts_within_what_rounding_allows(form, rows, biases, device):
    operands = drawn(form, rows, 3, device, biases, limit=1.5 if form == "mxfp4" and biases else 0.0)
    expected, bound = through_experts(*operands)
    found = ops.moe(*operands, out_f32=True)
    assert ((found.double() - expected).abs() <= bound).all()
    assert torch.equal(ops.moe(*operands), found.bfloat16())  # rounded once
    assert bound.median() < 0.25 * expected.abs().median()  # not so wide that another expert would pass
    # Whatever order a row's are in, and more rows beside it.
    flipped = (*operands[:4], operands[4].flip(1).contiguous(), operands[5].flip(1).contiguous(), *operands[6:])
    assert ((ops.moe(*flipped, out_f32=True).double() - expected).abs() <= bound).all()


def test_experts_in_one_tensor(device):
    """gate and up as halves of one, by rows and by experts."""
    x, gate, up, down, *rest = drawn("bfloat16", 5, 2, device)
    expected = ops.moe(x, gate, up, down, *rest)
    for both, dim in [(torch.cat((gate, up), 1), 1), (torch.cat((gate, up), 2), 2), (torch.cat((gate, up)), 0)]:
        assert torch.equal(ops.moe(x, *both.chunk(2, dim), down, *rest), expected)
    x, gate, up, down, ids, weights, gate_scale, up_scale, *rest = drawn("float8_e4m3fn", 5, 2, device, inner=128)
    expected = ops.moe(x, gate, up, down, ids, weights, gate_scale, up_scale, *rest)
    both, scales = torch.cat((gate, up), 1).chunk(2, 1), torch.cat((gate_scale, up_scale), 1).chunk(2, 1)
    assert torch.equal(ops.moe(x, *both, down, ids, weights, *scales, *rest), expected)


def test_a_draw_goes_to_experts(device):
    x, gate, up, down, *_ = drawn("bfloat16", 6, 2, device, count=8)
    x, router = x.view(2, 3, -1), bf16(len(gate), x.shape[-1], device=device)
    ids, weights = ops.route(ops.gemm_bf16(x, router, True) / 16, 2, renormalise=True)
    out = ops.moe(x, gate, up, down, ids, weights)
    assert out.shape == x.shape and out.dtype == x.dtype
    close(out, reference.moe(x, gate, up, down, ids, weights), "moe")
    assert ops.moe(x[:0], gate, up, down, ids[:0], weights[:0]).shape == (0, *x.shape[1:])
    assert [t.shape for t in ops.route(torch.empty(0, 7, device=device), 3)] == [(0, 3)] * 2


def test_draws_refuse_in_a_sentence(device):
    logits, correction = torch.randn(4, 12, device=device), torch.randn(12, device=device)
    short = correction[:11]
    for call, match in [
        (lambda: ops.route(logits, 13), "chosen is 13, but must be at most 12"),
        (lambda: ops.route(logits, 0), "chosen is 0, but must be at least 1"),
        (lambda: ops.route(logits.bfloat16(), 2), "logits is BF16, but must be F32"),
        (lambda: ops.route(logits.double(), 2), "logits: its dtype"),
        (lambda: ops.route(logits.t(), 2), "logits: the elements of its last dimension"),
        (lambda: ops.route(logits, 2, correction=correction), "correction goes with the sigmoid"),
        (lambda: ops.route(logits, 2, True, correction=short), r"correction is float32 \[11\].* float32 \[12\]"),
        (lambda: ops.route(logits, 2, True, correction=correction.half()), r"correction is float16 \[12\]"),
        (lambda: ops.route(logits, 2, groups=5), "groups is 5, but must divide the 12 experts"),
        (lambda: ops.route(logits, 2, groups=4, kept_groups=5), "kept_groups is 5, but must be at most 4"),
        (lambda: ops.route(logits, 4, groups=4, kept_groups=1), "chosen is 4, but must be at most 3"),
    ]:
        with pytest.raises(RuntimeError, match=match):
            call()


def test_experts_refuse_in_a_sentence(device):
    names = "x gate up down ids weights gate_scale up_scale down_scale gate_bias up_bias down_bias limit".split()
    plain, coded, mx = (drawn(form, 4, 2, device) for form in ("bfloat16", "float8_e4m3fn", "mxfp4"))
    x, gate, up, down, ids, weights = plain[:6]
    bias = torch.zeros(6, 160, device=device)
    wrong = [
        (plain, {"x": x.float()}, "x is F32, but must be BF16 or F16"),
        (plain, {"x": x[:, :284]}, r"gate is bfloat16 \[6, 160, 288\]: it must be \[6, 160, 284\]"),
        (plain, {"gate": gate[0]}, r"gate is bfloat16 \[160, 288\]: it must be \[experts, inner, 288\]"),
        (plain, {"up": up[:5]}, r"up is bfloat16 \[5, 160, 288\]: it must be \[6, 160, 288\]"),
        (plain, {"down": down.transpose(1, 2)}, r"down is bfloat16 \[6, 160, 288\]: it must be \[6, 288, 160\]"),
        (plain, {"gate": gate.transpose(1, 2).contiguous().transpose(1, 2)}, "gate: the elements of its last"),
        (plain, {"up": up.float()}, "up is F32, but must be BF16 or F8_E4M3"),
        (plain, {"up": torch.cat((up, up), 2)[..., :288]}, "the stride of up is 576, but must be gate's, 288"),
        (plain, {"ids": ids.long()}, r"ids is int64 \[4, 2\]: it must be int32 \[4, 2\], contiguous"),
        (plain, {"ids": ids[:3]}, r"ids is int32 \[3, 2\]: it must be int32 \[4, 2\]"),
        (plain, {"ids": ids.t().contiguous().t()}, r"ids is int32 \[4, 2\]"),
        (plain, {"ids": torch.cat((ids, ids))[1:5]}, "ids is not aligned to 16 bytes"),
        (plain, {"ids": ids.repeat(1, 4), "weights": weights.repeat(1, 4)}, "chosen is 8, but must be at most 6"),
        (plain, {"weights": weights.bfloat16()}, r"weights is bfloat16 \[4, 2\]: it must be float32 \[4, 2\]"),
        (plain, {"gate_scale": coded[6]}, "gate is bfloat16, which has no gate_scale"),
        (plain, {"up_bias": bias}, r"up_bias is float32 \[6, 160\]: it must be bfloat16 \[6, 160\]"),
        (plain, {"down_bias": bias.bfloat16()}, r"down_bias is bfloat16 \[6, 160\]: it must be bfloat16 \[6, 288\]"),
        (plain, {"limit": 7.0}, "limit is 7, but must be 0, or more with experts in MXFP4, and they are BF16"),
        (plain, {"limit": -1.0}, "limit is -1"),
        (coded, {"down_scale": None}, "down is float8_e4m3fn, and needs a down_scale"),
        (coded, {"up_scale": coded[7][:, :1]}, r"up_scale is float32 \[6, 1, 3\]: it must be float32 \[6, 2, 3\]"),
        (coded, {"up_scale": coded[7].half()}, "up_scale is float16"),
        (coded, {"gate": coded[1].to(torch.float8_e4m3fnuz)}, "gate is F8_E4M3FNUZ, but must be"),
        (coded, {"gate": gate, "gate_scale": None}, "up is F8_E4M3 and gate is BF16, but they must be alike"),
        (mx, {"gate": mx[1][..., :136]}, r"gate is uint8 \[6, 160, 136\]: it must be \[6, 160, 153\]"),
        (mx, {"up": up}, "up is BF16 and gate is MXFP4, but they must be alike"),
        (mx, {"up": mx[2].transpose(1, 2).contiguous().transpose(1, 2)}, "up: .*, and the rows of an expert in MXFP4"),
        (mx, {"gate": mx[1][:, :150]}, "inner is 150, but must be a multiple of 32"),
        (mx, {"x": x[:, :280]}, "hidden is 280, but must be a multiple of 32"),
    ]
    if device == "cpu":
        wrong += [
            (plain, {"ids": ids + 6}, r"row 0 of ids has expert \d+, but there are 6"),
            (plain, {"ids": ids - 6}, r"row 0 of ids has expert -\d+, but there are 6"),
            (plain, {"ids": 0 * ids}, "row 0 of ids has expert 0 twice"),
            (plain, {n: t.half() for n, t in zip(names[:4], plain[:4], strict=True)}, "AMD GPUs alone"),
        ]
    for operands, other, match in wrong:
        with pytest.raises(RuntimeError, match=match):
            ops.moe(**(dict(zip(names, operands, strict=True)) | other))
    codes, scales = torch.zeros(2, 32, 32, dtype=torch.uint8), torch.zeros(2, 32, 2, dtype=torch.uint8)
    assert torch.equal(ops.mxfp4(codes, scales), ops.mxfp4(codes.view(2, 32, 2, 16), scales))
    for pair, match in [
        ((codes[:, :, :16], scales), r"codes is \[2, 32, 16\] and scales is \[2, 32, 2\]"),
        ((codes, scales.float()), "scales is torch.float32: it must be torch.uint8"),
    ]:
        with pytest.raises(ValueError, match=match):
            ops.mxfp4(*pair)


def test_layers_refuse_in_a_sentence(device):
    moe, mla = experts(5, 3, True, device), latent_attention(2, 3, 70, device)

    def but(operands, **other):
        names = "x router gate up down chosen" if operands is moe else (
            "x q_down q_up kv_down kv_up o cache angles prefill")
        return [other.get(name, each) for name, each in zip(names.split(), operands, strict=True)]

    for operands, match in [
        (but(moe, chosen=6), "experts is 5, but must be at least 6"),
        (but(moe, x=moe[0].bfloat16()), "x is BF16, but must be F16"),
        (but(moe, router=moe[1][:, :8]), r"x is \[4, 9, 64\] and router is \[5, 8\]"),
        (but(moe, gate=moe[2][:4]), r"gate is \[4, 64, 40\]: it must be \[5, 64, inner\]"),
        (but(moe, up=moe[3][:5]), "there are 5 matrices `up`, but must be 6"),
        (but(moe, down=moe[4].transpose(1, 2)), r"down is \[6, 64, 40\]: it must be \[experts, 40, 64\]"),
        (but(moe, down=moe[4].transpose(1, 2).contiguous().transpose(1, 2)), "rows adjacent"),
    ]:
        with pytest.raises(RuntimeError, match=match):
            ops.moe_layer(*operands)
    for operands, match in [
        (but(mla, q_up=mla[2][:192]), r"q_up is \[192, 24\]: it must be \[576, 24\]"),
        (but(mla, cache=mla[6][:1]), r"cache is bfloat16 \[1, 73, 576\]: it must be bfloat16 \[2, 73, 576\]"),
        (but(mla, cache=mla[6].float()), "it must be bfloat16"),
        (but(mla, angles=mla[7][:70]), "angles are of 70 positions"),
        (but(mla, prefill=-1), "and is -1"),
        (but(mla, cache=mla[6][:, :70].contiguous()), "capacity is 70, but must be at least 71"),
        (but(mla, x=mla[0].half()), "x is F16, but must be BF16"),
    ]:
        with pytest.raises(RuntimeError, match=match):
            ops.mla_layer(*operands)


def test_a_wrong_result_is_seen():
    a, b = arguments("gemm_bf16", "cpu")[0]
    with pytest.raises(AssertionError):
        close(ops.gemm_bf16(a, b), reference.gemm_bf16(a, b) * 1.05, "gemm_bf16")


@pytest.mark.parametrize("name", ops.NAMES)
def test_opcheck(name, device):
    for operands in arguments(name, device):
        # PyTorch cannot compare fp8 operands before and after: test_computes_... does.
        takes_fp8 = any(isinstance(t, torch.Tensor) and t.dtype == FP8 for t in operands)
        tests = OPCHECKS[1:] if takes_fp8 else OPCHECKS
        opcheck(getattr(torch.ops.weft, name).default, cloned(operands), test_utils=tests)


@pytest.mark.parametrize("name", ops.NAMES)
def test_is_the_operator_to_pytorch(name):
    """What weft.ops calls without PyTorch's __call__ is seen by modes, graphs and readers as the operator itself."""
    mine, theirs = getattr(ops, name), getattr(torch.ops.weft, name).default
    seen = []

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    operands = arguments(name, "cpu")[0]
    with Mode():
        mine(*operands[:-1], **{theirs._schema.arguments[len(operands) - 1].name: operands[-1]})
    assert seen == [theirs] and isinstance(mine, torch._ops.OpOverload) and str(mine) == str(theirs)
    assert mine == theirs and theirs == mine and {theirs: 1}[mine] and mine != torch.ops.aten.mm.default
    assert list(inspect.signature(mine).parameters) == [a.name for a in theirs._schema.arguments]


@pytest.mark.parametrize("name", ops.NAMES)
def test_fake_kernels_need_no_device(name):
    with torch._subclasses.FakeTensorMode() as mode:
        for operands in arguments(name, "cpu"):
            result = getattr(ops, name)(*operands)
            assert all(r.fake_mode is mode for r in (result if isinstance(result, tuple) else (result,)))


def test_compiles_without_a_graph_break(device):
    x, weight = bf16(6, 512, device=device), bf16(512, device=device)
    up, gate = bf16(256, 512, device=device), bf16(256, 512, device=device)

    def block(x, residual):
        h = ops.rmsnorm(x, weight, residual)
        return ops.swiglu(ops.gemm_bf16(h, gate), ops.gemm_bf16(h, up)) * 2

    r1, r2 = x.clone(), x.clone()
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager" if device == "cpu" else "inductor")
    assert torch.equal(compiled(x, r1), block(x, r2)) and torch.equal(r1, r2)


def test_refusals_are_sentences(device):
    a, b = arguments("gemm_bf16", device)[0]
    x, weight = arguments("rmsnorm", device)[0]
    for call, match in [
        (lambda: ops.gemm_bf16(a, b[:, :32]), r"\[2, 9, 64\].*\[n, k\]"),
        (lambda: ops.gemm_bf16(a.float(), b), "gemm_bf16"),
        (lambda: ops.gemm_bf16(a[..., :60], b[:, :60]), "60"),
        (lambda: ops.gemm_bf16(a.double(), b), "a: its dtype"),
        (lambda: ops.rmsnorm(x.transpose(1, 2), weight), "adjacent"),
        (lambda: ops.rmsnorm(x, weight[:8]), r"weight is \[8\]"),
        (lambda: ops.rmsnorm(x, weight, x[0]), "residual"),
        (lambda: ops.rmsnorm_quant(x, weight, group=64), "group 64"),
        (lambda: ops.swiglu(x, x[:1]), "up is"),
    ]:
        with pytest.raises(RuntimeError, match=match):
            call()


def test_empty_rows_are_no_error(device):
    x, weight = bf16(0, 512, device=device), bf16(512, device=device)
    assert ops.rmsnorm(x, weight).shape == (0, 512)
    assert ops.swiglu(x, x).shape == (0, 512)
    b = bf16(256, 512, device=device)
    assert ops.gemm_bf16(x, b).shape == ops.gemm_skinny(x, b).shape == (0, 256)
    codes, b_codes = x.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
    scale, b_scale = torch.ones(0, 4, device=device), torch.ones(2, 4, device=device)
    assert ops.gemm_fp8_blockwise(codes, b_codes, scale, b_scale).shape == (0, 256)
    assert ops.gemm_skinny(codes, b_codes, scale, b_scale).shape == (0, 256)
    nobody = torch.zeros(0, dtype=torch.int32, device=device)
    assert ops.gemm_fp8_grouped(codes, b_codes[None], scale, b_scale[None], nobody).shape == (0, 256)


def test_many_threads_at_once(device):
    import concurrent.futures

    a, b = bf16(8, 2048, device=device), bf16(512, 2048, device=device)
    expected = ops.gemm_skinny(a, b)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for got in pool.map(lambda _: ops.gemm_skinny(a, b), range(64)):
            assert torch.equal(got, expected)
        # Of operations that differ.
        calls = [lambda: ops.swiglu(a, a), lambda: ops.rmsnorm_quant(a, a[0]), lambda: ops.swiglu_quant(a, a)]
        wanted = [flat([call()]) for call in calls]
        for i, got in enumerate(pool.map(lambda i: flat([calls[i % 3]()]), range(96))):
            assert all(torch.equal(g.float(), w.float()) for g, w in zip(got, wanted[i % 3], strict=True))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("name", ops.NAMES)
def test_captures_in_cuda_graphs(name):
    run = getattr(ops, name)
    for operands in arguments(name, "cuda"):
        operands = cloned(operands)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):  # with no run before: workspaces are made inside
            got = run(*operands), run(*operands)
        for _ in range(3):
            operands[0].copy_(operands[0].float().roll(1, 0).to(operands[0].dtype))
            eager = cloned(operands)
            graph.replay()
            expected = run(*eager), run(*eager)
            for g, e in zip(flat(got), flat(expected), strict=True):
                assert torch.equal(g.float(), e.float())


def flat(results):
    return [t for r in results for t in (r if isinstance(r, tuple) else (r,))]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_streams_of_their_own():
    a, b = bf16(16, 16384, device="cuda"), bf16(2304, 16384, device="cuda")
    expected = ops.gemm_skinny(a, b)
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    results = []
    for _ in range(20):
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(ops.gemm_skinny(a, b))
    torch.cuda.synchronize()
    assert all(torch.equal(r, expected) for r in results)


def test_modules(device):
    x = bf16(5, 256, device=device)
    norm = nn.RMSNorm(bf16(256, device=device))
    with torch.no_grad():
        close(norm(x), reference.rmsnorm(x, norm.weight), "rmsnorm")
        codes, scales = nn.RMSNormQuant(norm.weight)(x)
        assert codes.dtype == FP8 and scales.shape == (5, 2)
        codes, scales = nn.SwiGLUQuant(0)(x, x)
        assert codes.shape == x.shape and scales.shape == (5, 1)
    y = x.clone().requires_grad_()
    norm(y).float().sum().backward()  # in plain PyTorch
    assert y.grad is not None and norm.weight.grad is not None
