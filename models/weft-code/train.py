#!/usr/bin/env python3
"""Train the model of config.json on packed tokens; write it as Hugging Face would.

    python3 train.py --data corpus --out run --minutes 26 [--stop-after SECONDS]

One CUDA GPU, PyTorch >= 2.5, numpy, safetensors. The learning-rate schedule runs on
the training clock: `--minutes` is the whole of it, over as many invocations as it
takes; one that --stop-after ends leaves run/state.pt, from which the next goes on.
Every invocation writes run/model.safetensors and run/log.jsonl.
"""

import argparse
import json
import math
import pathlib
import time

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

HERE = pathlib.Path(__file__).parent
CONFIG = json.loads((HERE / "config.json").read_text())
HIDDEN, HEADS = CONFIG["hidden_size"], CONFIG["num_attention_heads"]
KV_HEADS, HEAD = CONFIG["num_key_value_heads"], CONFIG["head_dim"]
CONTEXT, EPS = CONFIG["max_position_embeddings"], CONFIG["rms_norm_eps"]


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x):
        x32 = x.float()
        x32 = x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + EPS)
        return (self.weight * x32).to(torch.bfloat16)


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def rotate(x, cos, sin):
    """Rotary embedding, Hugging Face's order: the two halves of a head are a pair."""
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = linear(HIDDEN, HEADS * HEAD)
        self.k_proj = linear(HIDDEN, KV_HEADS * HEAD)
        self.v_proj = linear(HIDDEN, KV_HEADS * HEAD)
        self.o_proj = linear(HEADS * HEAD, HIDDEN)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        q, k, v = (
            p(x).view(batch, length, -1, HEAD).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, -1))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj = linear(HIDDEN, CONFIG["intermediate_size"])
        self.up_proj = linear(HIDDEN, CONFIG["intermediate_size"])
        self.down_proj = linear(CONFIG["intermediate_size"], HIDDEN)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(), Norm()
        self.self_attn, self.mlp = Attention(), MLP()

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Named so that 'model.' + every parameter name is Hugging Face's."""

    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(CONFIG["vocab_size"], HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(CONFIG["num_hidden_layers"]))
        self.norm = Norm()
        inverse = CONFIG["rope_theta"] ** -(torch.arange(0, HEAD, 2) / HEAD)
        angles = torch.outer(torch.arange(CONTEXT), inverse)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for name, parameter in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.zeros_(parameter)
            elif parameter.ndim == 2:
                nn.init.normal_(parameter, std=CONFIG["initializer_range"])

    def forward(self, tokens, targets=None):
        length = tokens.shape[1]
        cos, sin = self.cos[:length], self.sin[:length]
        # The residual stream stays bf16, as it will be when the model is used.
        x = self.embed_tokens(tokens).to(torch.bfloat16)
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits = F.linear(self.norm(x), self.embed_tokens.weight)
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


@torch.compile
def orthogonal(g):
    """Newton-Schulz: the nearest half-orthogonal matrix of each in a batch."""
    x = g.bfloat16()
    wide = x.shape[-2] <= x.shape[-1]
    x = x if wide else x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x if wide else x.mT


class Muon(torch.optim.Optimizer):
    """Momentum, made orthogonal, for the matrices inside the layers: at this size it
    reaches AdamW's loss in clearly fewer tokens. Equal shapes go in one batch."""

    def __init__(self, parameters, lr, momentum=0.95, decay=0.1):
        super().__init__(parameters, dict(lr=lr, momentum=momentum, decay=decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            shapes: dict = {}
            for p in group["params"]:
                shapes.setdefault(p.shape, []).append(p)
            for shape, same in shapes.items():
                for p in same:
                    if "momentum" not in self.state[p]:
                        self.state[p]["momentum"] = torch.zeros_like(p)
                grads = [p.grad for p in same]
                buffers = [self.state[p]["momentum"] for p in same]
                torch._foreach_lerp_(buffers, grads, 1 - group["momentum"])
                nesterov = torch._foreach_lerp(grads, buffers, group["momentum"])
                update = orthogonal(torch.stack(nesterov)).to(same[0].dtype)
                scale = max(1, shape[0] / shape[1]) ** 0.5
                torch._foreach_mul_(same, 1 - group["lr"] * group["decay"])
                torch._foreach_add_(same, update.unbind(), alpha=-group["lr"] * scale)


class Batches:
    """Windows of CONTEXT + 1 tokens in an order drawn anew every pass, the windows'
    start moved by a random offset each time."""

    def __init__(self, path: pathlib.Path, size: int, device: str, seed: int):
        data = np.fromfile(path, np.uint16)
        self.tokens = torch.from_numpy(data.view(np.int16)).to(device)  # ids < 2^15
        self.size, self.device, self.seed = size, device, seed
        self.epoch, self.position = 0, 0
        self.steps = torch.arange(CONTEXT + 1, device=device)
        self._shuffle()

    def _shuffle(self):
        rng = np.random.default_rng((self.seed, self.epoch))
        windows = (len(self.tokens) - 1) // CONTEXT - 1
        starts = rng.permutation(windows) * CONTEXT + rng.integers(CONTEXT)
        self.starts = torch.from_numpy(starts).to(self.device)

    def next(self):
        if self.position + self.size > len(self.starts):
            self.epoch, self.position = self.epoch + 1, 0
            self._shuffle()
        starts = self.starts[self.position : self.position + self.size]
        self.position += self.size
        window = self.tokens[starts[:, None] + self.steps].long()
        return window[:, :-1], window[:, 1:]


@torch.no_grad()
def heldout_loss(model, path: pathlib.Path, device: str, batch: int) -> dict:
    """Mean loss over the held-out tokens in windows of CONTEXT, and bits per byte."""
    facts = json.loads(path.with_suffix(".json").read_text())
    tokens = torch.from_numpy(np.fromfile(path, np.uint16).astype(np.int64))
    rows = (len(tokens) - 1) // CONTEXT // batch * batch  # whole batches: one shape
    inputs = tokens[: rows * CONTEXT].view(rows, CONTEXT)
    targets = tokens[1 : rows * CONTEXT + 1].view(rows, CONTEXT)
    total = 0.0
    for i in range(0, rows, batch):
        x, y = inputs[i : i + batch].to(device), targets[i : i + batch].to(device)
        with torch.autocast("cuda", torch.bfloat16):
            total += model(x, y).item() * batch / rows
    bits = total / math.log(2) * facts["tokens"] / facts["bytes"]
    return {"heldout_loss": round(total, 4), "bits_per_byte": round(bits, 4)}


def export(model, path: pathlib.Path) -> None:
    """bf16 weights; no lm_head, for it is the embedding."""
    tensors = {
        f"model.{name}": p.detach().to("cpu", torch.bfloat16).contiguous()
        for name, p in model.named_parameters()
    }
    save_file(tensors, path, metadata={"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("corpus"))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("run"))
    parser.add_argument("--minutes", type=float, default=26)
    parser.add_argument("--stop-after", type=float, default=1e9)
    parser.add_argument("--batch", type=int, default=128, help="windows a step")
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--adam-lr", type=float, default=0.003)
    parser.add_argument("--flat", type=float, default=0.5, help="part before decay")
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--init", type=pathlib.Path, help="weights to start from")
    args = parser.parse_args()
    begin = time.time()
    device = "cuda"
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    args.out.mkdir(parents=True, exist_ok=True)

    model = Llama().to(device)
    if args.init:  # a run whose state.pt is lost; the optimisers start afresh
        weights = load_file(args.init, device=device)
        model.load_state_dict(
            {name.removeprefix("model."): w.float() for name, w in weights.items()}
        )
    matrices = [p for p in model.layers.parameters() if p.ndim == 2]
    inside = set(map(id, matrices))
    rest = [p for p in model.parameters() if id(p) not in inside]
    muon = Muon(matrices, lr=args.muon_lr)
    adam = torch.optim.AdamW(
        rest, lr=args.adam_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    batches = Batches(args.data / "train.bin", args.batch, device, args.seed)
    step, clock = 0, 0.0
    state_path = args.out / "state.pt"
    if state_path.exists():
        state = torch.load(state_path, map_location=device)
        model.load_state_dict(state["model"])
        muon.load_state_dict(state["muon"])
        adam.load_state_dict(state["adam"])
        step, clock = state["step"], state["clock"]
        batches.epoch, batches.position = state["epoch"], state["position"]
        batches._shuffle()
    compiled = torch.compile(model)
    log = open(args.out / "log.jsonl", "a")

    def report(**facts):
        print(json.dumps(facts), flush=True)
        log.write(json.dumps(facts) + "\n")
        log.flush()

    # Compile before the clock starts: the schedule counts training alone.
    inputs, targets = batches.next()
    batches.position -= args.batch
    with torch.autocast("cuda", torch.bfloat16):
        compiled(inputs, targets).backward()
    model.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    report(event="start", step=step, clock=round(clock), setup=time.time() - begin)

    last, mark = time.time(), (step, time.time())
    while clock < args.minutes * 60 and time.time() - begin < args.stop_after:
        progress = clock / (args.minutes * 60)
        scale = min(1.0, (step + 1) / 200, (1 - progress) / (1 - args.flat))
        muon.param_groups[0]["lr"] = args.muon_lr * scale
        adam.param_groups[0]["lr"] = args.adam_lr * scale
        inputs, targets = batches.next()
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(inputs, targets)
        loss.backward()
        muon.step()
        adam.step()
        model.zero_grad(set_to_none=True)
        step += 1
        if step % 20 == 0:
            torch.cuda.synchronize()  # the clock must not run ahead of the device
        now = time.time()
        clock, last = clock + now - last, now
        if step % 200 == 0:
            tokens = args.batch * CONTEXT
            speed = (step - mark[0]) * tokens / (now - mark[1])
            facts = dict(loss=round(loss.item(), 4), lr=round(scale, 4))
            if step % 1000 == 0:
                facts |= heldout_loss(
                    compiled, args.data / "heldout.bin", device, args.batch
                )
                last = time.time()
            report(
                step=step,
                tokens=step * tokens,
                epoch=batches.epoch,
                clock=round(clock),
                tokens_per_second=round(speed),
                **facts,
            )
            mark = (step, time.time())

    torch.cuda.synchronize()
    state = dict(model=model.state_dict(), muon=muon.state_dict())
    state |= dict(adam=adam.state_dict(), step=step, clock=clock)
    state |= dict(epoch=batches.epoch, position=batches.position)
    torch.save(state, state_path)
    export(model, args.out / "model.safetensors")
    for p in model.parameters():  # what is measured last is what was written
        p.data = p.data.bfloat16().float()
    facts = heldout_loss(compiled, args.data / "heldout.bin", device, args.batch)
    tokens = step * args.batch * CONTEXT
    report(event="stop", step=step, tokens=tokens, clock=round(clock), **facts)


if __name__ == "__main__":
    main()
