// A model's weights by role: tensors mapped from safetensors files, or made from a seed.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mx.h"
#include "base/number.h"
#include "base/result.h"
#include "model/config.h"

namespace weft {

/// What a tensor is for. Matrices are [out, in], row-major, as Hugging Face stores them.
enum class Role : uint8_t {
  embedding,   ///< [vocabulary, hidden]
  final_norm,  ///< [hidden]
  final_norm_bias,
  head,            ///< [vocabulary, hidden]; the embedding when tied
  attention_norm,  ///< [hidden]: before attention
  attention_norm_bias,
  attention_out_norm,  ///< [hidden]: on attention's output (NormPlacement)
  query,
  key,
  value,  ///< [query_size | kv_size, hidden]
  query_bias,
  key_bias,
  value_bias,
  query_norm,
  key_norm,       ///< [head_dim] or [query_size | kv_size] (QkNorm)
  attention_out,  ///< [hidden, query_size]
  attention_out_bias,
  ffn_norm,  ///< [hidden]: before the FFN
  ffn_norm_bias,
  ffn_out_norm,  ///< [hidden]: on the FFN's output
  gate,
  up,  ///< [ffn, hidden]; an FFN without a gate has up alone
  gate_bias,
  up_bias,
  down,  ///< [hidden, ffn]
  down_bias,
  router,       ///< [experts, hidden]
  expert_gate,  ///< each expert's [size, hidden]
  expert_up,
  expert_down,    ///< each expert's [hidden, size]
  shared_router,  ///< [1, hidden]: what the shared expert is weighted by
  shared_gate,    ///< [shared size, hidden]
  shared_up,
  shared_down,        ///< [hidden, shared size]
  router_bias,        ///< [experts]
  router_correction,  ///< [experts]: added to scores by which experts are chosen
  expert_gate_bias,
  expert_up_bias,    ///< [experts * size]: those of all
  expert_down_bias,  ///< [experts * hidden]
  attention_sinks,   ///< [query_heads]: a logit of each that joins the softmax
  // Of LatentAttention, in whose models `query` is [heads * (unturned + turned), query_rank or
  // hidden] and `attention_out` [hidden, heads * value].
  query_latent,       ///< [query_rank, hidden]
  query_latent_norm,  ///< [query_rank]
  latent,             ///< [rank + turned, hidden]: the latent, and the key's part that RoPE turns
  latent_norm,        ///< [rank]
  latent_up,          ///< [heads * (unturned + value), rank]: each head's keys, then its values
};
inline constexpr int kRoles = static_cast<int>(Role::latent_up) + 1;

/// A tensor's place: its bytes stay in the mapped file (or the generated block) they come from.
struct Tensor {
  std::string name;  ///< as in the checkpoint: "model.layers.0.mlp.down_proj.weight"
  DType dtype = DType::bf16;
  std::vector<int64_t> shape;       ///< [rows, columns] or [length]
  const std::byte* data = nullptr;  ///< row-major, contiguous, aligned to the element at least
  /// Of codes in e4m3fn; their data are null where the tensor's are.
  WeightScales scales = {};
  float input_scale = 0;  ///< of the activations that it meets (Quantization), where it has one
  /// A matrix in MXFP4, with mx.k > 0: dtype is bf16, which holds its numbers, and data is null; so
  /// are codes and scales where there is no data.
  MxMatrix mx = {};

  int64_t rows() const { return shape.size() == 2 ? shape[0] : 1; }
  int64_t columns() const { return shape.back(); }
  int64_t elements() const { return rows() * columns(); }
  /// Of MXFP4 with its scales.
  int64_t bytes() const {
    return mx.k > 0 ? MxMatrix::bytes_of(elements())
                    : elements() * static_cast<int64_t>(size_of(dtype));
  }
  int64_t scale_count() const { return scale_count_of(scales.scaling, rows(), columns()); }
  static int64_t scale_count_of(Scaling scaling, int64_t rows, int64_t columns);
};

/// Name and shape that a role has in a checkpoint of this model.
struct TensorSpec {
  Role role = Role::embedding;
  int64_t layer = -1;  ///< -1: not in a layer
  std::string name;
  std::vector<int64_t> shape;
  int64_t expert = -1;  ///< -1: not of one; the experts of a role follow one another
  /// Where one matrix of the checkpoint holds those of several roles, one below the other: the
  /// first row of this one, and the rows of all of them. The specs of all follow one another.
  int64_t first_row = 0;
  int64_t rows_of_all = 0;  ///< 0: the matrix is this role's alone
  int64_t row_step = 1;     ///< of it, to this one's next row
  /// Of experts that are in one tensor: their number, which is its first dimension. A vector with
  /// it is of all experts, and its elements are the rows.
  int64_t experts_of_all = 0;
  bool mxfp4 = false;  ///< in MXFP4, the tensor's name being that of its codes
  /// What the stored weights of a norm are less than those that it multiplies with.
  double stored_less = 0;
  /// Of a matrix that is stored in eight bits: Scaling::none where it is not.
  Scaling scaling = Scaling::none;

  /// Where some checkpoints have the matrices of all experts in one tensor: [experts, stacked_rows,
  /// columns], this one in rows from stacked_row on of its expert's. Empty: there is no such form.
  std::string stacked_name = "";
  int64_t stacked_row = 0;
  int64_t stacked_rows = 0;

  bool begins_tensor() const { return first_row == 0; }
  std::vector<int64_t> shape_in_file() const;
  int64_t elements() const { return shape.size() == 2 ? shape[0] * shape[1] : shape[0]; }
};

/// Every tensor the model needs, in file order (embedding, layers, final norm, head if untied).
std::vector<TensorSpec> tensor_specs(const ModelConfig& config);

class Weights {
 public:
  /// Maps DIR/model.safetensors, or the shards DIR/model.safetensors.index.json names. Tensors the
  /// model does not need are ignored. Errors (input): see safetensors.h; missing tensor, wrong
  /// shape or dtype; a head of its own that differs from the embedding it is said to be tied to;
  /// codes without scales, or scales that are not finite (of MXFP4 they are not looked over).
  /// A tensor whose bytes are not aligned to its element is copied; all others stay in the mapping.
  static Result<Weights> open(const std::filesystem::path& directory, const ModelConfig& config);

  /// What generate would make, without the data: names, formats, shapes.
  static Weights describe(const ModelConfig& config);

  /// The values `weft new-model --seed` writes, made in memory (in config.dtype) by `threads`
  /// threads, and in e4m3fn what config.quantization says; see random_weights.h. Error (device):
  /// not enough memory.
  static Result<Weights> generate(const ModelConfig& config, uint64_t seed, int threads);

  /// The tensor in a role; null when the model has none there. `layer` is -1 outside layers.
  const Tensor* find(Role role, int64_t layer = -1) const;
  const Tensor& get(Role role, int64_t layer = -1) const;  ///< must be there
  /// The tensors in a role of `count` experts.
  std::span<const Tensor> of_experts(Role role, int64_t layer, int64_t count) const;

  /// Whether a tensor's bytes will be read again.
  enum class Use : uint8_t { none, rare };
  /// Gives back the memory of a tensor's whole pages: because what is read from now on is made of
  /// it. Bytes in a file come from there again when they are read; others are lost, and are kept
  /// for rare use.
  void release(const Tensor& tensor, Use use);

  /// Bytes of all tensors and their scales, each counted once (a tied head is not counted again).
  int64_t bytes() const;
  const std::vector<Tensor>& tensors() const { return tensors_; }

 private:
  /// Those of generate().
  void make_scales(const ModelConfig& config, uint64_t seed, const std::vector<TensorSpec>& specs);

  std::vector<Tensor> tensors_;
  std::vector<std::array<int32_t, kRoles>> index_;    // [layer + 1][role] -> tensors_, or -1
  std::vector<std::shared_ptr<const void>> storage_;  // mappings and generated blocks
  std::vector<std::span<const std::byte>> owned_;     // of these, what is in no file
};

/// Writes a Hugging Face directory: config.json, generation_config.json, model.safetensors (shards
/// of at most `shard_bytes` of tensors with their index when larger), random weights from the seed.
/// Nothing is left half-written under a final name: files are written beside it and renamed. Errors
/// (input): the directory exists and is not empty, the disk is full (says how much was needed and
/// free), ...; what was written by then is removed. `progress` is called with bytes written so far
/// and in all.
Status write_random_model(const ModelConfig& config, uint64_t seed,
                          const std::filesystem::path& directory,
                          void (*progress)(int64_t done, int64_t total) = nullptr,
                          int64_t shard_bytes = 5'000'000'000);

}  // namespace weft
