"""replace_modules() on models of transformers, outputs held against the original."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/setup python brings it")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from weft import nn, reference, replace_modules  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def tiny(kind, dtype=torch.bfloat16):
    torch.manual_seed(3)
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        vocab_size=256,
    )
    model = getattr(transformers, f"{kind}ForCausalLM")(config).to(DEVICE, dtype).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model


@pytest.mark.parametrize("kind", ["Llama", "Qwen3", "Mistral"])
def test_outputs_are_the_originals(kind):
    model = tiny(kind)
    ids = torch.arange(40, device=DEVICE).reshape(2, 20)
    names = set(model.state_dict())
    with torch.no_grad():
        exact = tiny(kind, torch.float32)(ids).logits
        before = model(ids).logits.float()
        done = replace_modules(model)
        after = model(ids).logits.float()
    assert len(done["gates"]) == 2 and len(done["norms"]) >= 5
    assert set(model.state_dict()) == names
    # As near to the model in float32 as the original is: it rounds less.
    error, others = (after - exact).norm() / exact.norm(), (before - exact).norm() / exact.norm()
    assert error < 1.2 * others and (after - before).norm() > 0
    assert replace_modules(model) == {"norms": [], "gates": [], "linears": []}


def test_what_is_another_norm_stays():
    model = tiny("Gemma")
    done = replace_modules(model)
    assert done["norms"] == [] and done["gates"] == []


def test_models_in_float32_stay():
    assert not any(replace_modules(tiny("Llama", torch.float32)).values())


def fp8_linear(n, k):
    """As transformers makes one for a checkpoint of DeepSeek-V3's format."""
    module = transformers.integrations.finegrained_fp8.FP8Linear(k, n, block_size=(128, 128))
    module.weight = torch.nn.Parameter(
        (torch.randn(n, k) * 50).to(torch.float8_e4m3fn), requires_grad=False
    )
    module.weight_scale_inv = torch.nn.Parameter(torch.rand(-(-n // 128), k // 128) / 500)
    return module


@pytest.mark.parametrize("rows", [1, 32, 33, 200])
def test_block_fp8_linears(rows):
    pytest.importorskip("transformers.integrations.finegrained_fp8")
    torch.manual_seed(4)
    model = torch.nn.Sequential(fp8_linear(384, 256), torch.nn.ReLU(), fp8_linear(128, 384)).to(DEVICE)
    x = torch.randn(rows, 256, device=DEVICE, dtype=torch.bfloat16)

    def exact(module, h):
        scale = reference._spread(module.weight_scale_inv, *module.weight.shape, 128)
        return h @ (module.weight.float() * scale).t()

    expected = exact(model[2], exact(model[0], x.float()).relu())
    assert replace_modules(model)["linears"] == ["0", "2"]
    assert isinstance(model[0], nn.BlockFP8Linear)
    got = model(x)
    # Activations are rounded to 4 bits, 2^-4 each at most, independently of one another.
    assert (got.float() - expected).norm() / expected.norm() < 2**-4
    assert got.dtype == x.dtype


def test_vllm_registers_what_it_calls():
    from weft import vllm

    vllm.register()
    vllm.register()
    a = torch.randn(4, 256, device=DEVICE).to(torch.float8_e4m3fn)
    b = torch.randn(256, 256, device=DEVICE).to(torch.float8_e4m3fn)
    scales = torch.rand(4, 2, device=DEVICE), torch.rand(2, 2, device=DEVICE)
    for m in (4, 64):
        a_m, s_m = a.repeat(m // 4, 1), scales[0].repeat(m // 4, 1)
        got = torch.ops.weft_vllm.w8a8_block_fp8_matmul(a_m, b, s_m, scales[1], [128, 128])
        expected = reference.gemm_fp8_blockwise(a_m, b, s_m, scales[1])
        torch.testing.assert_close(got, expected, rtol=2e-2, atol=0.5)
    x = torch.randn(4, 256, device=DEVICE).bfloat16()
    out, scale = torch.empty_like(a), torch.empty(4, 1, device=DEVICE)
    residual = x.clone()
    norm = torch.ops.weft_vllm.rms_norm_dynamic_per_token_quant
    norm(out, x, x[0], scale, 1e-6, None, residual)
    with pytest.raises(RuntimeError, match="scale_ub"):
        norm(out, x, x[0], scale, 1e-6, scale, residual)
    codes, s = reference.rmsnorm_quant(x, x[0], x.clone(), 1e-6)
    torch.testing.assert_close(scale, s, rtol=2e-2, atol=0)
    torch.testing.assert_close(out.float(), codes.float(), rtol=2**-3, atol=1)
    assert torch.equal(residual, x + x)
    norm(out, x, x[0], scale, 1e-6, None, None)
    torch.testing.assert_close(scale, reference.rmsnorm_quant(x, x[0], None, 1e-6)[1], rtol=2e-2, atol=0)
    half = torch.empty(4, 128, device=DEVICE, dtype=torch.float8_e4m3fn)
    static = torch.full((1,), 0.1, device=DEVICE)
    torch.ops.weft_vllm.silu_and_mul_quant(half, x, static)
    expected = reference.swiglu_quant_static(*x.chunk(2, -1), static)
    torch.testing.assert_close(half.float(), expected.float(), rtol=2**-3, atol=0.1)
