#include "model/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/divide.h"
#include "base/pages.h"
#include "model/family.h"
#include "model/json.h"
#include "model/quantization.h"
#include "model/random_weights.h"
#include "model/safetensors.h"

namespace weft {
namespace {

constexpr size_t kLongestIndex = 100'000'000;  // bytes
constexpr size_t kTensorAlignment = 64;        // of generated tensors: a cache line

constexpr const char* kHeadName = "lm_head.weight";
constexpr std::string_view kPrefix = "model.";  // the bare model's place in the class with a head

std::optional<DType> dtype_of(std::string_view name) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32, DType::e4m3fn}) {
    if (name == name_of(dtype)) {
      return dtype;
    }
  }
  return std::nullopt;
}

/// A tensor in an open file.
struct Found {
  std::shared_ptr<const SafetensorsFile> file;
  const SafetensorsEntry* entry = nullptr;

  const std::byte* data() const { return file->data(*entry); }
};

/// The safetensors files of a model directory; shards are opened when a tensor in them is asked
/// for.
class Checkpoint {
 public:
  static Result<Checkpoint> open(const std::filesystem::path& directory) {
    Checkpoint checkpoint(directory);
    const auto index = directory / "model.safetensors.index.json";
    std::error_code ignored;
    if (std::filesystem::exists(directory / kSingle, ignored)) {
      WEFT_TRY(checkpoint.file(kSingle));
      checkpoint.source_ = (directory / kSingle).string();
    } else if (std::filesystem::exists(index, ignored)) {
      WEFT_TRY(checkpoint.read_index(index));
      checkpoint.sharded_ = true;
      checkpoint.source_ = index.string();
    } else {
      return input_error(
          fmt::format("{}: there is neither {} nor model.safetensors.index.json; Weft reads "
                      "weights in the safetensors format alone",
                      directory.string(), kSingle));
    }
    return checkpoint;
  }

  /// Entry is null when the model has no such tensor. Some checkpoints are of the bare model,
  /// without the "model." that the class with a head puts in front.
  Result<Found> find(const std::string& name) {
    WEFT_ASSIGN(Found found, find_exact(name));
    if (found.entry == nullptr && name.starts_with(kPrefix)) {
      return find_exact(name.substr(kPrefix.size()));
    }
    return found;
  }

  /// The names of all tensors, as the single file or the index has them.
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    if (sharded_) {
      for (const auto& [name, shard] : shard_of_) {
        names.push_back(name);
      }
    } else {
      for (const SafetensorsEntry& entry : files_.at(kSingle)->entries()) {
        names.push_back(entry.name);
      }
    }
    std::ranges::sort(names);
    return names;
  }

  /// The file that says which tensors there are, for messages.
  const std::string& source() const { return source_; }

 private:
  static constexpr const char* kSingle = "model.safetensors";

  explicit Checkpoint(std::filesystem::path directory) : directory_(std::move(directory)) {}

  Status read_index(const std::filesystem::path& path) {
    WEFT_ASSIGN(const std::string text, read_text_file(path, kLongestIndex));
    WEFT_ASSIGN(const nlohmann::json document, parse_json(text, path.string()));
    const auto map = document.is_object() ? document.find("weight_map") : document.end();
    if (map == document.end() || !map->is_object()) {
      return input_error(
          fmt::format("{}: weight_map must be an object of tensor and file names", path.string()));
    }
    for (const auto& [tensor, shard] : map->items()) {
      // A plain name: an index must not lead out of its directory.
      const std::string file = shard.is_string() ? shard.get<std::string>() : "";
      const bool plain = std::ranges::none_of(
          file, [](char c) { return c == '/' || static_cast<unsigned char>(c) < ' '; });
      if (file.empty() || !plain || file == "." || file == "..") {
        return input_error(
            fmt::format("{}: weight_map: tensor {} is in {}; it must be the name of a file beside "
                        "the index",
                        path.string(), show(tensor), show(shard)));
      }
      shard_of_[tensor] = file;
    }
    return {};
  }

  Result<std::shared_ptr<const SafetensorsFile>> file(const std::string& name) {
    std::shared_ptr<const SafetensorsFile>& file = files_[name];
    if (file == nullptr) {
      WEFT_ASSIGN(SafetensorsFile opened, SafetensorsFile::open(directory_ / name));
      opened.file().prefetch();
      file = std::make_shared<const SafetensorsFile>(std::move(opened));
    }
    return file;
  }

  Result<Found> find_exact(const std::string& name) {
    Found found;
    const auto shard = shard_of_.find(name);
    if (sharded_ && shard == shard_of_.end()) {
      return found;
    }
    std::error_code ignored;
    if (sharded_ && !std::filesystem::exists(directory_ / shard->second, ignored)) {
      return input_error(
          fmt::format("{}: tensor {} is in {}, which is not there: is the download complete?",
                      source_, show(name), shard->second));
    }
    WEFT_ASSIGN(found.file, file(sharded_ ? shard->second : kSingle));
    found.entry = found.file->find(name);
    if (sharded_ && found.entry == nullptr) {
      return input_error(fmt::format("{}: tensor {} is said to be in {}, which does not have it",
                                     source_, show(name), shard->second));
    }
    return found;
  }

  std::filesystem::path directory_;
  std::string source_;
  bool sharded_ = false;
  std::unordered_map<std::string, std::string> shard_of_;
  std::map<std::string, std::shared_ptr<const SafetensorsFile>> files_;
};

/// The tensor in the file as the spec wants it, but for its scales. `stacked`: the file has all
/// experts' in one.
Result<Tensor> check_tensor(const Found& found, const TensorSpec& spec, int64_t experts,
                            bool stacked) {
  const SafetensorsEntry& entry = *found.entry;
  const std::vector<int64_t> shape =
      stacked ? std::vector<int64_t>{experts, spec.stacked_rows, spec.shape[1]}
              : spec.shape_in_file();
  const std::optional<DType> dtype = dtype_of(entry.dtype);
  if (!dtype) {
    return input_error(
        fmt::format("{}: tensor {} has dtype {}; Weft reads BF16, F16 and F32, "
                    "and F8_E4M3 with scales",
                    found.file->name(), show(entry.name), entry.dtype));
  }
  if (entry.shape != shape) {
    return input_error(fmt::format("{}: tensor {} has shape {}, but the config makes it {}",
                                   found.file->name(), show(entry.name), show(entry.shape),
                                   show(shape)));
  }
  if (stacked && is_fp8(*dtype)) {
    return input_error(
        fmt::format("{}: tensor {} has all experts in F8_E4M3; Weft reads such "
                    "weights where each expert has tensors of its own",
                    found.file->name(), show(entry.name)));
  }
  Tensor tensor{entry.name, *dtype, spec.shape, found.data()};
  if (spec.row_step > 1) {
    return tensor;  // to be taken apart
  }
  const int64_t row = stacked ? spec.expert * spec.stacked_rows + spec.stacked_row : spec.first_row;
  tensor.data += row * tensor.columns() * static_cast<int64_t>(size_of(*dtype));
  return tensor;
}

/// A matrix in MXFP4: its part of the tensors with the codes and scales of all experts; `storage`
/// keeps the latter.
Result<Tensor> read_mx(Checkpoint& checkpoint, const TensorSpec& spec, const Found& found,
                       std::vector<std::shared_ptr<const void>>& storage) {
  const std::string name = mx_scale_name(spec.name);
  WEFT_ASSIGN(const Found scales, checkpoint.find(name));
  if (scales.entry == nullptr) {
    return input_error(fmt::format("{}: tensor {} is missing: the scales of {}",
                                   checkpoint.source(), show(name), show(spec.name)));
  }
  const std::vector<int64_t> codes_shape = spec.shape_in_file();
  const std::vector<int64_t> scales_shape(codes_shape.begin(), codes_shape.end() - 1);
  for (const auto& [tensor, shape] : {std::pair(found, codes_shape), {scales, scales_shape}}) {
    if (tensor.entry->dtype != "U8" || tensor.entry->shape != shape) {
      return input_error(fmt::format("{}: tensor {} is {} {}, but the config makes it U8 {}: MXFP4",
                                     tensor.file->name(), show(tensor.entry->name),
                                     tensor.entry->dtype, show(tensor.entry->shape), show(shape)));
    }
  }
  if (scales.file != found.file && (storage.empty() || storage.back() != scales.file)) {
    storage.push_back(scales.file);
  }
  Tensor tensor{found.entry->name, DType::bf16, spec.shape};
  tensor.mx = {reinterpret_cast<const uint8_t*>(found.data()),
               reinterpret_cast<const e8m0*>(scales.data()), spec.shape[1]};
  tensor.mx.codes = tensor.mx.row_codes(spec.first_row);
  tensor.mx.scales = tensor.mx.row_scales(spec.first_row);
  tensor.mx.step = spec.row_step;
  return tensor;
}

/// Every so many'th element of a vector, copied.
Result<Pages> take_apart(const TensorSpec& spec, const Tensor& tensor) {
  const size_t size = size_of(tensor.dtype);
  WEFT_ASSIGN(Pages copy, Pages::allocate(static_cast<size_t>(tensor.bytes())));
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    const int64_t from = spec.first_row + i * spec.row_step;
    std::memcpy(copy.data() + static_cast<size_t>(i) * size,
                tensor.data + static_cast<size_t>(from) * size, size);
  }
  return copy;
}

/// A small tensor of scales as f32. Errors: another shape or format, a scale that is not finite.
Result<std::vector<float>> read_scales(const Found& found,
                                       const std::vector<std::vector<int64_t>>& shapes) {
  const SafetensorsEntry& entry = *found.entry;
  const std::optional<DType> dtype = dtype_of(entry.dtype);
  if (!dtype || is_fp8(*dtype)) {
    return input_error(fmt::format("{}: tensor {} has dtype {}; scales are BF16, F16 or F32",
                                   found.file->name(), show(entry.name), entry.dtype));
  }
  if (std::ranges::find(shapes, entry.shape) == shapes.end()) {
    return input_error(fmt::format("{}: tensor {} has shape {}, but the config makes it {}",
                                   found.file->name(), show(entry.name), show(entry.shape),
                                   show(shapes.front())));
  }
  std::vector<float> scales(entry.bytes / size_of(*dtype));
  for (size_t i = 0; i < scales.size(); ++i) {
    const std::byte* from = found.data() + i * size_of(*dtype);
    if (*dtype == DType::f32) {
      std::memcpy(&scales[i], from, sizeof(float));
    } else {
      uint16_t bits = 0;
      std::memcpy(&bits, from, sizeof(bits));
      scales[i] = *dtype == DType::bf16 ? to_float(bf16{bits}) : to_float(f16{bits});
    }
    if (!std::isfinite(scales[i])) {
      return input_error(fmt::format("{}: tensor {} has {} at place {}; scales must be finite",
                                     found.file->name(), show(entry.name), scales[i], i));
    }
  }
  return scales;
}

/// What a matrix's scales may look like.
std::vector<std::vector<int64_t>> scale_shapes(Scaling scaling, const TensorSpec& spec) {
  const std::vector<int64_t> shape = spec.shape_in_file();
  switch (scaling) {
    case Scaling::block:
      return {{scale_blocks(shape[0]), scale_blocks(shape[1])}};
    case Scaling::row:
      return {{shape[0], 1}, {shape[0]}};
    default:
      return {{1}, {}, {1, 1}};
  }
}

/// Scales of all rows of the checkpoint's matrix, for those of a spec.
Result<WeightScales> scales_of_part(Scaling scaling, const TensorSpec& spec, const float* all) {
  WeightScales scales{scaling, all, scaling == Scaling::block ? scale_blocks(spec.shape[1]) : 0};
  if (scaling == Scaling::block && spec.first_row % kScaleBlock != 0) {
    return input_error(
        fmt::format("{}: its rows from {} on share scales with those before; Weft "
                    "reads matrices that are cut at multiples of {}",
                    show(spec.name), spec.first_row, kScaleBlock));
  }
  if (all != nullptr) {
    scales.data = scales.of_row(spec.first_row);
  }
  return scales;
}

/// A config can say that the head is the embedding while the file has a head of its own. That is
/// harmless when both are the same, and otherwise means that one of the two is wrong.
Status check_tied_head(Checkpoint& checkpoint, const std::string& embedding_name) {
  WEFT_ASSIGN(const Found head, checkpoint.find(kHeadName));
  if (head.entry == nullptr) {
    return {};
  }
  WEFT_ASSIGN(const Found embedding, checkpoint.find(embedding_name));
  const bool same = head.entry->dtype == embedding.entry->dtype &&
                    head.entry->bytes == embedding.entry->bytes &&
                    std::memcmp(head.data(), embedding.data(), head.entry->bytes) == 0;
  if (!same) {
    return input_error(
        fmt::format("{}: tensor \"{}\" differs from {}, but config.json has tie_word_embeddings "
                    "true; set it to false, or remove the tensor",
                    head.file->name(), kHeadName, show(embedding.entry->name)));
  }
  return {};
}

/// A layer's tensor that the config does not ask for means that the two do not belong together (too
/// few layers, no biases or norms where the file has them), and without it the model is another.
Status check_layers_complete(const Checkpoint& checkpoint, const std::vector<TensorSpec>& specs,
                             const ModelConfig& config) {
  const Quantization& quantization = config.quantization;
  const auto bare = [](std::string_view name) {
    return name.substr(name.starts_with(kPrefix) ? kPrefix.size() : 0);
  };
  std::unordered_set<std::string> wanted;
  for (const TensorSpec& spec : specs) {
    wanted.emplace(bare(spec.name));
    wanted.emplace(bare(spec.stacked_name));
    if (spec.mxfp4) {
      wanted.emplace(bare(mx_scale_name(spec.name)));
    } else if (quantization.method != Quantization::Method::none && spec.shape.size() == 2) {
      const std::string input = input_scale_name(spec.name);
      for (const std::string& name : {scale_name(quantization, spec.name), input, input + "_ub"}) {
        wanted.emplace(bare(name));  // the last one repeats what the config says
      }
    }
  }
  const auto ignored = [&](std::string_view name) {
    for (int64_t i = config.layers; i < config.layers + config.ignored_layers; ++i) {
      if (name.starts_with(fmt::format("layers.{}.", i))) {
        return true;
      }
    }
    return false;
  };
  for (const std::string& name : checkpoint.names()) {
    // Old checkpoints hold RoPE's frequencies, which follow from the config.
    if (bare(name).starts_with("layers.") && !name.ends_with(".rotary_emb.inv_freq") &&
        !wanted.contains(std::string(bare(name))) && !ignored(bare(name))) {
      return input_error(
          fmt::format("{}: tensor {} is none of the model that config.json describes; see there "
                      "num_hidden_layers, architectures, attention_bias and mlp_bias",
                      checkpoint.source(), show(name)));
    }
  }
  return {};
}

using Index = std::vector<std::array<int32_t, kRoles>>;

Index make_index(const ModelConfig& config, const std::vector<TensorSpec>& specs) {
  std::array<int32_t, kRoles> none;
  none.fill(-1);
  Index index(static_cast<size_t>(config.layers) + 1, none);
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].expert <= 0) {  // the others follow their first
      index[static_cast<size_t>(specs[i].layer + 1)][static_cast<size_t>(specs[i].role)] =
          static_cast<int32_t>(i);
    }
  }
  if (config.tied_head) {
    index[0][static_cast<size_t>(Role::head)] = index[0][static_cast<size_t>(Role::embedding)];
  }
  return index;
}

/// Bytes that can be filled: what the kernel calls available, at most the container's limit. Asked
/// before generating, because the kernel grants any range and ends the process that fills it.
uint64_t available_memory() {
  uint64_t available = std::numeric_limits<uint64_t>::max();
  std::ifstream info("/proc/meminfo");
  for (std::string key; info >> key;) {
    if (uint64_t kib = 0; key == "MemAvailable:" && info >> kib) {
      available = kib * 1024;
      break;
    }
  }
  uint64_t limit = 0;  // the file says "max" when there is none
  if (std::ifstream container("/sys/fs/cgroup/memory.max"); container >> limit) {
    available = std::min(available, limit);
  }
  return available;
}

}  // namespace

namespace {

/// Collects the specs of one layer.
class LayerSpecs {
 public:
  LayerSpecs(const ModelConfig& config, const Family& family, int64_t layer,
             std::vector<TensorSpec>& specs)
      : config_(config), family_(family), layer_(layer), specs_(specs) {}

  void add_all() {
    const ModelConfig& c = config_;
    const int64_t hidden = c.hidden;
    norm(Role::attention_norm, Role::attention_norm_bias, family_.attention_norm);
    norm(Role::attention_out_norm, Role::attention_out_norm, family_.attention_out_norm);
    if (c.latent.rank > 0) {
      latent_attention();
    } else {
      attention();
    }
    add(Role::attention_out, "self_attn.o_proj.weight", {hidden, c.attended_size()});
    if (c.attention_out_bias) {
      add(Role::attention_out_bias, "self_attn.o_proj.bias", {hidden});
    }
    norm(Role::ffn_norm, Role::ffn_norm_bias, family_.ffn_norm);
    norm(Role::ffn_out_norm, Role::ffn_out_norm, family_.ffn_out_norm);
    if (c.has_experts(layer_)) {
      experts();
    } else {
      ffn();
    }
  }

 private:
  struct Part {
    Role role;
    std::string name;
    int64_t rows;
  };

  void attention() {
    const ModelConfig& c = config_;
    matrices("self_attn.qkv_proj", {{Role::query, "self_attn.q_proj", c.query_size()},
                                    {Role::key, "self_attn.k_proj", c.kv_size()},
                                    {Role::value, "self_attn.v_proj", c.kv_size()}});
    if (c.qkv_bias) {
      add(Role::query_bias, "self_attn.q_proj.bias", {c.query_size()});
      add(Role::key_bias, "self_attn.k_proj.bias", {c.kv_size()});
      add(Role::value_bias, "self_attn.v_proj.bias", {c.kv_size()});
    }
    if (c.qk_norm != QkNorm::none) {
      const bool per_head = c.qk_norm == QkNorm::per_head;
      add_norm(Role::query_norm, "self_attn.q_norm", per_head ? c.head_dim : c.query_size());
      add_norm(Role::key_norm, "self_attn.k_norm", per_head ? c.head_dim : c.kv_size());
    }
    if (c.sinks) {
      add(Role::attention_sinks, "self_attn.sinks", {c.query_heads});
    }
  }

  void latent_attention() {
    const LatentAttention& l = config_.latent;
    const int64_t hidden = config_.hidden;
    const int64_t queries = config_.query_heads * (l.unturned + l.turned);
    if (l.query_rank > 0) {
      add(Role::query_latent, "self_attn.q_a_proj.weight", {l.query_rank, hidden});
      add_norm(Role::query_latent_norm, "self_attn.q_a_layernorm", l.query_rank);
      add(Role::query, "self_attn.q_b_proj.weight", {queries, l.query_rank});
    } else {
      add(Role::query, "self_attn.q_proj.weight", {queries, hidden});
    }
    add(Role::latent, "self_attn.kv_a_proj_with_mqa.weight", {l.rank + l.turned, hidden});
    add_norm(Role::latent_norm, "self_attn.kv_a_layernorm", l.rank);
    add(Role::latent_up, "self_attn.kv_b_proj.weight",
        {config_.query_heads * (l.unturned + l.value), l.rank});
  }

  void ffn() {
    const ModelConfig& c = config_;
    const int64_t hidden = c.hidden;
    const std::string up = fmt::format("mlp.{}", family_.up_projection);
    const std::string down = fmt::format("mlp.{}", family_.down_projection);
    if (c.gated_ffn) {
      matrices("mlp.gate_up_proj", {{Role::gate, "mlp.gate_proj", c.ffn}, {Role::up, up, c.ffn}});
    } else {
      add(Role::up, up + ".weight", {c.ffn, hidden});
    }
    add(Role::down, down + ".weight", {hidden, c.ffn});
    if (c.ffn_bias && c.gated_ffn) {
      add(Role::gate_bias, "mlp.gate_proj.bias", {c.ffn});
    }
    if (c.ffn_bias) {
      add(Role::up_bias, up + ".bias", {c.ffn});
      add(Role::down_bias, down + ".bias", {hidden});
    }
  }

  void experts() {
    const Experts& e = config_.experts;
    const Family::Mixture& names = family_.experts;
    const int64_t hidden = config_.hidden;
    const std::string router = fmt::format("{}.{}", names.module, names.router);
    add(Role::router, router + ".weight", {e.count, hidden});
    if (e.biases) {
      add(Role::router_bias, router + ".bias", {e.count});
    }
    if (e.correction) {
      add(Role::router_correction, router + ".e_score_correction_bias", {e.count});
    }
    if (names.mxfp4) {
      experts_in_mxfp4();
    } else {
      of_experts(Role::expert_gate, names.gate, {e.size, hidden}, "gate_up_proj", 0, 2 * e.size);
      of_experts(Role::expert_up, names.up, {e.size, hidden}, "gate_up_proj", e.size, 2 * e.size);
      of_experts(Role::expert_down, names.down, {hidden, e.size}, "down_proj", 0, hidden);
    }
    if (e.shared_size > 0) {
      const std::string shared = fmt::format("{}.{}", names.module, names.shared);
      if (!e.shared_whole) {
        add(Role::shared_router, shared + "_gate.weight", {1, hidden});
      }
      add(Role::shared_gate, fmt::format("{}.{}.weight", shared, names.gate),
          {e.shared_size, hidden});
      add(Role::shared_up, fmt::format("{}.{}.weight", shared, names.up), {e.shared_size, hidden});
      add(Role::shared_down, fmt::format("{}.{}.weight", shared, names.down),
          {hidden, e.shared_size});
    }
  }

  /// gpt-oss: all experts in one tensor, rows of gate and up by turns.
  void experts_in_mxfp4() {
    const Experts& e = config_.experts;
    const int64_t hidden = config_.hidden;
    const auto add_parts = [&](std::string_view name, const std::vector<Role>& roles,
                               const std::vector<Role>& biases, int64_t rows, int64_t k) {
      const std::string place = fmt::format("{}.experts.{}", family_.experts.module, name);
      const auto step = std::ssize(roles);
      const auto in_file = [&](int64_t first) {
        TensorSpec& spec = specs_.back();
        spec.first_row = first;
        spec.row_step = step;
        spec.rows_of_all = e.count * rows * step;
        spec.experts_of_all = e.count;
      };
      for (int64_t part = 0; part < step; ++part) {
        for (int64_t i = 0; i < e.count; ++i) {
          add(roles[static_cast<size_t>(part)], place + "_blocks", {rows, k});
          in_file(i * rows * step + part);
          specs_.back().expert = i;
          specs_.back().mxfp4 = true;
        }
      }
      for (int64_t part = 0; part < step; ++part) {
        add(biases[static_cast<size_t>(part)], place + "_bias", {e.count * rows});
        in_file(part);
      }
    };
    add_parts("gate_up_proj", {Role::expert_gate, Role::expert_up},
              {Role::expert_gate_bias, Role::expert_up_bias}, e.size, hidden);
    add_parts("down_proj", {Role::expert_down}, {Role::expert_down_bias}, hidden, e.size);
  }

  /// A matrix of each expert. `stacked`: what checkpoints that have them in one tensor call it.
  void of_experts(Role role, std::string_view name, const std::vector<int64_t>& shape,
                  std::string_view stacked, int64_t stacked_row, int64_t stacked_rows) {
    const std::string_view module = family_.experts.module;
    for (int64_t i = 0; i < config_.experts.count; ++i) {
      add(role, fmt::format("{}.experts.{}.{}.weight", module, i, name), shape);
      TensorSpec& spec = specs_.back();
      spec.expert = i;
      spec.stacked_name = fmt::format("model.layers.{}.{}.experts.{}", layer_, module, stacked);
      spec.stacked_row = stacked_row;
      spec.stacked_rows = stacked_rows;
    }
  }

  void add(Role role, std::string_view name, std::vector<int64_t> shape) {
    specs_.push_back(
        {role, layer_, fmt::format("model.layers.{}.{}", layer_, name), std::move(shape)});
  }
  void add_norm(Role role, std::string_view name, int64_t size) {
    add(role, fmt::format("{}.weight", name), {size});
    specs_.back().stored_less = config_.norm_weight_offset;
  }
  void norm(Role weight, Role bias, std::string_view name) {
    if (name.empty()) {
      return;
    }
    add_norm(weight, name, config_.hidden);
    if (config_.norm_kind == NormKind::layer) {
      add(bias, fmt::format("{}.bias", name), {config_.hidden});
    }
  }
  /// Matrices of [rows, hidden], in the checkpoint each by itself or all in one.
  void matrices(std::string_view fused, const std::vector<Part>& parts) {
    int64_t rows = 0;
    for (const Part& part : parts) {
      const std::string_view name = family_.fused_projections ? fused : part.name;
      add(part.role, fmt::format("{}.weight", name), {part.rows, config_.hidden});
      if (family_.fused_projections) {
        specs_.back().first_row = rows;
        rows += part.rows;
      }
    }
    for (size_t i = 0; family_.fused_projections && i < parts.size(); ++i) {
      specs_[specs_.size() - 1 - i].rows_of_all = rows;
    }
  }

  const ModelConfig& config_;
  const Family& family_;
  const int64_t layer_;
  std::vector<TensorSpec>& specs_;
};

}  // namespace

std::vector<int64_t> TensorSpec::shape_in_file() const {
  if (experts_of_all > 0) {
    const int64_t rows = rows_of_all / experts_of_all;
    return mxfp4 ? std::vector<int64_t>{experts_of_all, rows, shape[1] / kMxBlock, kMxBlock / 2}
                 : std::vector<int64_t>{experts_of_all, rows};
  }
  return rows_of_all > 0 ? std::vector<int64_t>{rows_of_all, shape[1]} : shape;
}

std::vector<TensorSpec> tensor_specs(const ModelConfig& config) {
  const Family* family = find_family(config.architecture);
  WEFT_CHECK(family != nullptr);
  const int64_t hidden = config.hidden;
  std::vector<TensorSpec> specs;
  specs.push_back({Role::embedding, -1, "model.embed_tokens.weight", {config.vocabulary, hidden}});
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    LayerSpecs(config, *family, layer, specs).add_all();
  }
  specs.push_back({Role::final_norm, -1, "model.norm.weight", {hidden}});
  specs.back().stored_less = config.norm_weight_offset;
  if (config.norm_kind == NormKind::layer) {
    specs.push_back({Role::final_norm_bias, -1, "model.norm.bias", {hidden}});
  }
  if (!config.tied_head) {
    specs.push_back({Role::head, -1, kHeadName, {config.vocabulary, hidden}});
  }
  const Quantization& quantization = config.quantization;
  const bool cut_within_blocks =
      quantization.weights == Scaling::block && std::ranges::any_of(specs, [](const auto& spec) {
        return spec.first_row % kScaleBlock != 0;
      });
  for (TensorSpec& spec : specs) {
    const bool product = spec.shape.size() == 2 && !spec.mxfp4 && spec.role != Role::embedding &&
                         spec.role != Role::router && spec.role != Role::shared_router;
    if (product && !cut_within_blocks && quantization.converts(spec.name)) {
      spec.scaling = quantization.weights;
    }
  }
  return specs;
}

namespace {

/// Reads the scales of a matrix in eight bits; `storage` keeps them.
Status add_scales(Checkpoint& checkpoint, const Quantization& quantization, const TensorSpec& spec,
                  Tensor& tensor, std::vector<std::shared_ptr<const void>>& storage) {
  if (quantization.method == Quantization::Method::none || spec.shape.size() != 2 ||
      spec.role == Role::embedding) {
    return input_error(
        fmt::format("{}: tensor {} has dtype F8_E4M3, but config.json has no quantization_config "
                    "that says its scales",
                    checkpoint.source(), show(spec.name)));
  }
  const auto read = [&](const std::string& name, Scaling scaling) -> Result<std::vector<float>> {
    WEFT_ASSIGN(const Found found, checkpoint.find(name));
    if (found.entry == nullptr) {
      return input_error(fmt::format("{}: tensor {} is missing: the scales of {}",
                                     checkpoint.source(), show(name), show(spec.name)));
    }
    return read_scales(found, scale_shapes(scaling, spec));
  };
  WEFT_ASSIGN(std::vector<float> all,
              read(scale_name(quantization, spec.name), quantization.weights));
  const auto kept = std::make_shared<const std::vector<float>>(std::move(all));
  WEFT_ASSIGN(tensor.scales, scales_of_part(quantization.weights, spec, kept->data()));
  storage.push_back(kept);
  if (quantization.activations.scaling == Scaling::tensor) {
    WEFT_ASSIGN(const std::vector<float> scale, read(input_scale_name(spec.name), Scaling::tensor));
    tensor.input_scale = scale.front();
    if (!(tensor.input_scale > 0)) {
      return input_error(fmt::format("{}: tensor {} is {}; it must be more than 0",
                                     checkpoint.source(), show(input_scale_name(spec.name)),
                                     tensor.input_scale));
    }
  }
  return {};
}

}  // namespace

Result<Weights> Weights::open(const std::filesystem::path& directory, const ModelConfig& config) {
  WEFT_ASSIGN(Checkpoint checkpoint, Checkpoint::open(directory));
  const std::vector<TensorSpec> specs = tensor_specs(config);
  Weights weights;
  weights.index_ = make_index(config, specs);
  for (const TensorSpec& spec : specs) {
    WEFT_ASSIGN(Found found, checkpoint.find(spec.name));
    const bool stacked = found.entry == nullptr && !spec.stacked_name.empty();
    if (stacked) {
      WEFT_ASSIGN(found, checkpoint.find(spec.stacked_name));
    }
    if (found.entry == nullptr) {
      return input_error(
          fmt::format("{}: tensor {} is missing", checkpoint.source(), show(spec.name)));
    }
    WEFT_ASSIGN(Tensor tensor, spec.mxfp4
                                   ? read_mx(checkpoint, spec, found, weights.storage_)
                                   : check_tensor(found, spec, config.experts.count, stacked));
    if (is_fp8(tensor.dtype)) {
      WEFT_TRY(add_scales(checkpoint, config.quantization, spec, tensor, weights.storage_));
    }
    if (!spec.mxfp4 && spec.row_step > 1) {
      WEFT_ASSIGN(Pages copy, take_apart(spec, tensor));
      tensor.data = copy.data();
      weights.owned_.emplace_back(copy.data(), copy.size());
      weights.storage_.push_back(std::make_shared<Pages>(std::move(copy)));
    } else if (reinterpret_cast<uintptr_t>(tensor.data) % size_of(tensor.dtype) != 0) {
      // Files older than the format's padded header can start anywhere: such a tensor is copied.
      const auto bytes = static_cast<size_t>(tensor.bytes());
      WEFT_ASSIGN(Pages copy, Pages::allocate(bytes, /*huge=*/true));
      std::memcpy(copy.data(), tensor.data, bytes);
      tensor.data = copy.data();
      weights.owned_.emplace_back(copy.data(), copy.size());
      weights.storage_.push_back(std::make_shared<Pages>(std::move(copy)));
    } else if (weights.storage_.empty() || weights.storage_.back() != found.file) {
      weights.storage_.push_back(found.file);
    }
    weights.tensors_.push_back(std::move(tensor));
  }
  if (config.tied_head) {
    WEFT_TRY(check_tied_head(checkpoint, specs.front().name));
  }
  WEFT_TRY(check_layers_complete(checkpoint, specs, config));
  return weights;
}

Weights Weights::describe(const ModelConfig& config) {
  const std::vector<TensorSpec> specs = tensor_specs(config);
  Weights weights;
  weights.index_ = make_index(config, specs);
  for (const TensorSpec& spec : specs) {
    const bool plain = spec.scaling == Scaling::none;
    Tensor tensor{spec.name, plain ? config.dtype : DType::e4m3fn, spec.shape};
    tensor.scales = scales_of_part(spec.scaling, spec, nullptr).value();
    tensor.mx.k = spec.mxfp4 ? spec.shape[1] : 0;
    weights.tensors_.push_back(std::move(tensor));
  }
  return weights;
}

Result<Weights> Weights::generate(const ModelConfig& config, uint64_t seed, int threads) {
  const std::vector<TensorSpec> specs = tensor_specs(config);
  Weights weights = describe(config);
  std::vector<size_t> offsets;
  size_t total = 0;
  for (const Tensor& tensor : weights.tensors_) {
    offsets.push_back(total);
    total = round_up(total + static_cast<size_t>(tensor.bytes()), kTensorAlignment);
  }
  if (const uint64_t available = available_memory(); total > available) {
    return device_error(fmt::format("{}: its weights take {} bytes, {} bytes of memory are free",
                                    config.name, total, available));
  }
  WEFT_ASSIGN(Pages block, Pages::allocate(total, /*huge=*/true));

  struct Part {
    size_t tensor;
    int64_t first;
    int64_t count;
  };
  weights.make_scales(config, seed, specs);
  constexpr int64_t kPart = 1 << 20;  // elements a thread takes at a time: a huge page of bf16
  std::vector<Part> parts;
  for (size_t i = 0; i < specs.size(); ++i) {
    Tensor& tensor = weights.tensors_[i];
    std::byte* const place = block.data() + offsets[i];
    if (specs[i].mxfp4) {
      tensor.mx.codes = reinterpret_cast<const uint8_t*>(place);
      tensor.mx.scales = reinterpret_cast<const e8m0*>(place + tensor.elements() / 2);
    } else {
      tensor.data = place;
    }
    const int64_t elements = weights.tensors_[i].elements();
    for (int64_t first = 0; first < elements; first += kPart) {
      parts.push_back({i, first, std::min(kPart, elements - first)});
    }
  }
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t p = next++; p < parts.size(); p = next++) {
      const Part& part = parts[p];
      const TensorSpec& spec = specs[part.tensor];
      if (spec.mxfp4) {
        auto* codes = reinterpret_cast<uint8_t*>(block.data() + offsets[part.tensor]);
        fill_random_mx(seed, spec, part.first, part.count, codes + part.first / 2,
                       codes + spec.elements() / 2 + part.first / kMxBlock);
        continue;
      }
      const DType dtype = weights.tensors_[part.tensor].dtype;
      const size_t skipped = static_cast<size_t>(part.first) * size_of(dtype);
      fill_random(random_tensor(seed, spec), dtype, part.first, part.count,
                  block.data() + offsets[part.tensor] + skipped);
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (int i = 1; i < threads; ++i) {
      helpers.emplace_back(work);
    }
    work();
  }
  weights.owned_.emplace_back(block.data(), block.size());
  weights.storage_.push_back(std::make_shared<Pages>(std::move(block)));
  return weights;
}

void Weights::make_scales(const ModelConfig& config, uint64_t seed,
                          const std::vector<TensorSpec>& specs) {
  const float* all = nullptr;
  for (size_t i = 0; i < specs.size(); ++i) {
    const TensorSpec& spec = specs[i];
    Tensor& tensor = tensors_[i];
    if (spec.scaling == Scaling::none) {
      continue;
    }
    if (spec.begins_tensor()) {
      const auto made = std::make_shared<const std::vector<float>>(
          make_random_scales(config.quantization, seed, spec));
      all = made->data();
      storage_.push_back(made);
    }
    tensor.scales = scales_of_part(spec.scaling, spec, all).value();
    if (config.quantization.activations.scaling == Scaling::tensor) {
      tensor.input_scale = make_random_input_scale(seed, spec);
    }
  }
}

void Weights::release(const Tensor& tensor, Use use) {
  const std::byte* end = tensor.data + tensor.bytes();
  const bool owned = std::any_of(owned_.begin(), owned_.end(), [&](const auto& block) {
    return tensor.data >= block.data() && end <= block.data() + block.size();
  });
  if (!owned || use == Use::none) {
    release_pages({tensor.data, end});
  }
}

const Tensor* Weights::find(Role role, int64_t layer) const {
  WEFT_CHECK(layer >= -1 && layer + 1 < std::ssize(index_));
  const int32_t i = index_[static_cast<size_t>(layer + 1)][static_cast<size_t>(role)];
  return i < 0 ? nullptr : &tensors_[static_cast<size_t>(i)];
}

const Tensor& Weights::get(Role role, int64_t layer) const {
  const Tensor* tensor = find(role, layer);
  WEFT_CHECK(tensor != nullptr);
  return *tensor;
}

std::span<const Tensor> Weights::of_experts(Role role, int64_t layer, int64_t count) const {
  return {&get(role, layer), static_cast<size_t>(count)};
}

int64_t Tensor::scale_count_of(Scaling scaling, int64_t rows, int64_t columns) {
  switch (scaling) {
    case Scaling::none:
      return 0;
    case Scaling::tensor:
      return 1;
    case Scaling::row:
      return rows;
    case Scaling::block:
      return scale_blocks(rows) * scale_blocks(columns);
  }
  return 0;
}

int64_t Weights::bytes() const {
  int64_t total = 0;
  for (const Tensor& tensor : tensors_) {
    total += tensor.bytes() + tensor.scale_count() * static_cast<int64_t>(sizeof(float));
  }
  return total;
}

}  // namespace weft
