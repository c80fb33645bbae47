"""Problems of the AMD developer challenge of 2025 that are more than one operation: what custom_kernel(data) gets and
what it should give. Rounding is the definition's: each intermediate result is rounded to the operands' format."""

import dataclasses
import math


def shapes(keys, rows):
    return [dict(zip(keys, row, strict=True)) for row in rows]


def _normal(generator, dtype, *size, over=1.0):
    """Rounded before and after the division, as the contest draws them."""
    import torch

    return torch.randn(size, generator=generator).to(dtype) / math.sqrt(over)


class MixtureOfExperts:
    """`amd-mixture-of-experts`: float16 x[bs, seqlen, dhidden], weights by name as [in, out] (the router's [experts,
    dhidden]), and a configuration; out like x. A token's experts are the likeliest of the softmax over all, weighted
    with their probabilities as they are; what they give is summed in the order of their numbers, then the shared
    expert's."""

    leaderboard = "amd-mixture-of-experts"
    rtol, atol = 1e-2, 1e-2
    _keys = "dhidden dexpert nroutedexperts nsharedexperts nexpertspertoken bs seqlen".split()
    tests = shapes(
        _keys,
        [
            (7168, 2048, 4, 1, 4, 1, 512),
            (7168, 2048, 8, 1, 4, 2, 512),
            (7168, 2048, 8, 1, 4, 1, 8192),
        ],
    )
    benchmarks = shapes(_keys, [(7168, 2048, 32, 1, 4, 1, length) for length in (2048, 8192)])

    @staticmethod
    def inputs(shape, seed, fp8):
        del fp8
        import torch

        generator = torch.Generator().manual_seed(seed)
        hidden, own, experts = shape["dhidden"], shape["dexpert"], shape["nroutedexperts"]

        def normal(*size, over=1):
            return _normal(generator, torch.float16, *size, over=over)

        x = normal(shape["bs"], shape["seqlen"], hidden)
        weights = {"router.weight": normal(experts, hidden, over=hidden)}
        names = {f"experts.{i}": own for i in range(experts)}
        for name, size in (names | {"shared_experts": own * shape["nsharedexperts"]}).items():
            weights[f"{name}.0.weight"] = normal(hidden, size, over=size)
            weights[f"{name}.1.weight"] = normal(hidden, size, over=size)
            weights[f"{name}.2.weight"] = normal(size, hidden, over=hidden)
        config = {
            "d_hidden": hidden,
            "d_expert": own,
            "n_routed_experts": experts,
            "n_shared_experts": shape["nsharedexperts"],
            "n_experts_per_token": shape["nexpertspertoken"],
            "batch_size": shape["bs"],
            "seq_len": shape["seqlen"],
        }
        return x, weights, config

    @staticmethod
    def expected(data):
        import torch

        x, weights, config = data

        def product(a, b):  # in float32, whatever the device has for float16
            return (a.float() @ b.float()).half()

        def expert(name, rows):
            gate, up, down = (weights[f"{name}.{i}.weight"] for i in range(3))
            return product(torch.nn.functional.silu(product(rows, gate)) * product(rows, up), down)

        rows = x.reshape(-1, x.shape[-1])
        scores = product(rows, weights["router.weight"].t()).softmax(-1)
        probabilities, drawn = scores.topk(config["n_experts_per_token"], -1)
        routed = torch.zeros_like(rows)
        for i in range(config["n_routed_experts"]):
            token, slot = (drawn == i).nonzero(as_tuple=True)
            if len(token) > 0:
                given = expert(f"experts.{i}", rows[token])
                routed[token] += given * probabilities[token, slot][:, None]
        return ((routed + expert("shared_experts", rows)).reshape(x.shape),)

    @staticmethod
    def results(returned):
        """What is looked at: the output. What else a file returns with it is its own affair."""
        return (returned[0],) if isinstance(returned, tuple) else (returned,)


@dataclasses.dataclass
class KVCache:
    """Of each sequence `seq_len` rows of `data` [bs, most, latent and unrotated key]; called, it takes one more of
    each and gives those that there are, and their number."""

    data: object
    seq_len: int

    def __call__(self, row):
        self.data[:, self.seq_len : self.seq_len + row.shape[1]] = row
        self.seq_len += row.shape[1]
        return self.data[:, : self.seq_len], self.seq_len

    def get_data(self):
        return self.data


@dataclasses.dataclass
class Config:
    batch_size: int
    dim: int
    n_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    seq_len: int
    max_seq_len: int
    kv_cache_shape: tuple
    Q_proj_down_weight: object
    Q_proj_up_weight: object
    KV_proj_down_weight: object
    KV_proj_up_weight: object
    wo_weight: object


def rotated(x, first):
    """RoPE of x[..., positions, 64] by halves. Positions, frequencies and angles are bfloat16: that is the definition,
    and positions beyond 256 share angles."""
    import torch

    half = x.shape[-1] // 2
    frequencies = 10000 ** (-torch.arange(half, dtype=torch.bfloat16, device=x.device) / half)
    positions = torch.arange(first, first + x.shape[-2], device=x.device).bfloat16()
    angles = torch.outer(positions, frequencies).repeat(1, 2)
    a, b = x.chunk(2, -1)
    return x * angles.cos() + torch.cat((-b, a), -1) * angles.sin()


class MlaDecode:
    """`amd-mla-decode`: a token more of each sequence through multi-head latent attention. data is a Config with the
    weights [out, in], bfloat16 x[bs, 1, dim] and a KVCache of `prefill` rows; out are y[bs, 1, dim] and the whole
    cache with the new rows."""

    leaderboard = "amd-mla-decode"
    rtol, atol = 2e-2, 8e-3
    _keys = "batchsize dim dq prefill".split()
    tests = shapes(_keys, [(128, 7168, 1536, prefill) for prefill in (128, 512, 1024, 2048)])
    benchmarks = shapes(_keys, [(128, 7168, 1536, prefill) for prefill in (4096, 6144)])

    @staticmethod
    def inputs(shape, seed, fp8):
        del fp8
        import torch

        generator = torch.Generator().manual_seed(seed)
        size, dim, dq, prefill = (shape[key] for key in MlaDecode._keys)
        heads, latent, nope, rope, v, most = 128, 512, 128, 64, 128, 8192

        def normal(*size, over=1):
            return _normal(generator, torch.bfloat16, *size, over=over)

        config = Config(
            batch_size=size,
            dim=dim,
            n_heads=heads,
            q_lora_rank=dq,
            kv_lora_rank=latent,
            qk_nope_head_dim=nope,
            qk_rope_head_dim=rope,
            v_head_dim=v,
            seq_len=1,
            max_seq_len=most,
            kv_cache_shape=(size, most, latent + rope),
            Q_proj_down_weight=normal(dq, dim, over=dim),
            Q_proj_up_weight=normal(heads * (nope + rope), dq, over=dq),
            KV_proj_down_weight=normal(latent + rope, dim, over=dim),
            KV_proj_up_weight=normal(heads * (nope + v), latent, over=latent),
            wo_weight=normal(dim, heads * v, over=heads * v),
        )
        x = normal(size, 1, dim)
        cache = torch.zeros(config.kv_cache_shape, dtype=torch.bfloat16)
        cache[:, :prefill] = normal(size, prefill, latent + rope)
        return config, x, KVCache(cache, prefill)

    @staticmethod
    def expected(data):
        import torch

        config, x, given = data
        cache = KVCache(given.data.clone(), given.seq_len)
        rows, length = cache(x @ config.KV_proj_down_weight.t())
        queries = x @ config.Q_proj_down_weight.t() @ config.Q_proj_up_weight.t()
        nope, rope = config.qk_nope_head_dim, config.qk_rope_head_dim
        outputs = []
        for query, row in zip(queries, rows, strict=True):  # sequence by sequence: keys are large
            query = query.view(config.n_heads, 1, nope + rope)
            query = torch.cat((query[..., :nope], rotated(query[..., nope:], length - 1)), -1)
            latent, key_rope = row.split([config.kv_lora_rank, rope], -1)
            up = (latent @ config.KV_proj_up_weight.t()).view(length, config.n_heads, -1).transpose(0, 1)
            key_rope = rotated(key_rope, 0).expand(config.n_heads, -1, -1)
            keys = torch.cat((up[..., :nope], key_rope), -1)
            scores = query @ keys.transpose(1, 2) / math.sqrt(nope + rope)
            outputs.append((scores.softmax(-1) @ up[..., nope:]).view(1, -1))
        return torch.stack(outputs) @ config.wo_weight.t(), cache.data

    @staticmethod
    def again(data):
        """The same step once more: the cache forgets its last row."""
        config, x, cache = data
        return config, x, KVCache(cache.data, cache.seq_len)

    @staticmethod
    def results(returned):
        return tuple(returned)
