"""Instella (amd/Instella-3B) as a transformers model.

transformers has no Instella of its own: the published model brings its code along. This is a small
equivalent on top of the Llama classes. Two things differ from Llama:
  * the query and key projections are RMS-normalised as whole vectors, before they are split into heads;
  * the two norms in front of attention and MLP have their own names.
Importing this module registers it, so that AutoModelForCausalLM loads "model_type": "instella".
"""

from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaRMSNorm,
    apply_rotary_pos_emb,
    eager_attention_forward,
)


class InstellaConfig(LlamaConfig):
    model_type = "instella"


class InstellaAttention(LlamaAttention):
    def __init__(self, config, layer_idx):
        super().__init__(config, layer_idx)
        eps = config.rms_norm_eps
        self.q_norm = LlamaRMSNorm(config.num_attention_heads * self.head_dim, eps)
        self.k_norm = LlamaRMSNorm(config.num_key_value_heads * self.head_dim, eps)

    def forward(
        self,
        hidden_states,
        position_embeddings,
        attention_mask,
        past_key_values=None,
        **kwargs
    ):
        def heads(x):
            return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

        q = heads(self.q_norm(self.q_proj(hidden_states)))
        k = heads(self.k_norm(self.k_proj(hidden_states)))
        v = heads(self.v_proj(hidden_states))
        q, k = apply_rotary_pos_emb(q, k, *position_embeddings)
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, self.layer_idx)
        out, weights = eager_attention_forward(
            self, q, k, v, attention_mask, scaling=self.scaling
        )
        return self.o_proj(out.flatten(-2)), weights


class InstellaDecoderLayer(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        index = layer.self_attn.layer_idx
        self.self_attn = InstellaAttention(config, index)
        self.mlp = layer.mlp
        self.pre_attention_layernorm = LlamaRMSNorm(
            config.hidden_size, config.rms_norm_eps
        )
        self.pre_feedforward_layernorm = LlamaRMSNorm(
            config.hidden_size, config.rms_norm_eps
        )

    def forward(self, hidden_states, **kwargs):
        x = hidden_states
        x = x + self.self_attn(self.pre_attention_layernorm(x), **kwargs)[0]
        return x + self.mlp(self.pre_feedforward_layernorm(x))


class InstellaForCausalLM(LlamaForCausalLM):
    config_class = InstellaConfig

    def __init__(self, config):
        super().__init__(config)
        for i, layer in enumerate(self.model.layers):
            self.model.layers[i] = InstellaDecoderLayer(config, layer)


AutoConfig.register("instella", InstellaConfig)
AutoModelForCausalLM.register(InstellaConfig, InstellaForCausalLM)
