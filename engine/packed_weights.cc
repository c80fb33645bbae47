#include "engine/packed_weights.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <numeric>

#include "arch/cpu/limits.h"
#include "base/median.h"
#include "ops/linear/op.h"

namespace weft {
namespace {

/// A product's weights, those of gate and up together; `packed_bytes`: 0 where they cannot be
/// packed.
struct Source {
  std::vector<const Tensor*> tensors;
  size_t packed_bytes = 0;
  double share = 1;  ///< of decode steps that read them
};

/// The products in the order of a step. The head is last, so that what the layers have released
/// makes room for it where it is the embedding too, which stays.
std::vector<Source> find_sources(const ModelConfig& config, const Weights& weights) {
  std::vector<Source> sources;
  const auto add = [&](std::vector<const Tensor*> tensors, double share = 1) {
    const Tensor& first = *tensors.front();
    for (const Tensor* tensor : tensors) {
      if (tensor->dtype != DType::bf16 || tensor->mx.k > 0) {
        return;
      }
    }
    const int64_t rows = first.rows() * std::ssize(tensors);
    const auto bytes =
        static_cast<size_t>(cpu::packed_groups(rows) * cpu::packed_group_bytes(first.columns()));
    sources.push_back({std::move(tensors), bytes, share});
  };
  const auto add_ffn = [&](int64_t layer, Role gate, Role up, Role down) {
    if (weights.find(gate, layer) != nullptr) {
      add({&weights.get(gate, layer), &weights.get(up, layer)});
    } else {
      add({&weights.get(up, layer)});
    }
    add({&weights.get(down, layer)});
  };
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    // Of latent rows' heads the matrix is read by other kernels, and stays as it is.
    for (const Role role : {Role::query_latent, Role::query, Role::latent, Role::key, Role::value,
                            Role::attention_out}) {
      if (const Tensor* tensor = weights.find(role, layer)) {
        add({tensor});
      }
    }
    if (!config.has_experts(layer)) {
      add_ffn(layer, Role::gate, Role::up, Role::down);
      continue;
    }
    const int64_t count = config.experts.count;
    const double drawn = static_cast<double>(config.experts.chosen) / static_cast<double>(count);
    const auto gates = weights.of_experts(Role::expert_gate, layer, count);
    const auto ups = weights.of_experts(Role::expert_up, layer, count);
    const auto downs = weights.of_experts(Role::expert_down, layer, count);
    add({&weights.get(Role::router, layer)});
    if (config.experts.shared_size > 0) {
      add_ffn(layer, Role::shared_gate, Role::shared_up, Role::shared_down);
    }
    for (size_t e = 0; e < gates.size(); ++e) {
      add({&gates[e], &ups[e]}, drawn);
      add({&downs[e]}, drawn);
    }
  }
  add({&weights.get(Role::head)});
  return sources;
}

}  // namespace

Result<PackedWeights> PackedWeights::create(const ModelConfig& config, Weights& weights,
                                            WorkerTeam& team) {
  PackedWeights result;
  const std::vector<Source> sources = find_sources(config, weights);
  size_t total = 0;
  for (const Source& source : sources) {
    total += source.packed_bytes;
  }
  WEFT_ASSIGN(result.pages_, Pages::allocate(total, /*huge=*/true));
  result.products_.reserve(sources.size());
  double saved = 0;
  for (const Source& source : sources) {
    Product product;
    if (!result.pack(source.tensors, team, product)) {
      continue;
    }
    int64_t plain_bytes = 0;
    for (const Tensor* tensor : source.tensors) {
      plain_bytes += tensor->bytes();
      const bool embedding = tensor == &weights.get(Role::embedding);
      weights.release(*tensor, embedding ? Weights::Use::rare : Weights::Use::none);
    }
    result.used_ += source.packed_bytes;
    saved +=
        source.share * static_cast<double>(plain_bytes - static_cast<int64_t>(source.packed_bytes));
    result.index_[source.tensors.front()] = result.products_.size();
    result.products_.push_back(std::move(product));
  }
  result.saved_ = std::llround(saved);
  return result;
}

bool PackedWeights::pack(std::span<const Tensor* const> tensors, WorkerTeam& team,
                         Product& product) {
  constexpr int64_t kWeightsPerListed = 256;  // at least, so that listed ones cost little time
  const Tensor& first = *tensors.front();
  const int64_t matrices = std::ssize(tensors);
  const int64_t k = first.columns();
  const int64_t width = cpu::kGroupRows / matrices;  // columns of a group
  const int64_t groups = (first.rows() + width - 1) / width;
  std::byte* out = pages_.data() + used_;
  std::vector<std::vector<cpu::ListedWeight>> listed(static_cast<size_t>(team.size()));
  product.list_begin.resize(static_cast<size_t>(groups) + 1);
  team.run([&](int worker) {
    std::vector<cpu::ListedWeight>& mine = listed[static_cast<size_t>(worker)];
    for (int64_t g = groups * worker / team.size(); g < groups * (worker + 1) / team.size(); ++g) {
      const bf16* rows[cpu::kGroupRows] = {};
      for (int64_t r = 0; r < cpu::kGroupRows; ++r) {
        const int64_t row = g * width + r % width;
        const auto* data = reinterpret_cast<const bf16*>(tensors[r / width]->data);
        rows[r] = row < first.rows() ? data + row * k : nullptr;
      }
      const size_t before = mine.size();
      cpu::pack_group(rows, k, out + g * cpu::packed_group_bytes(k), mine);
      product.list_begin[static_cast<size_t>(g) + 1] = static_cast<uint32_t>(mine.size() - before);
    }
  });
  for (const auto& part : listed) {
    product.listed.insert(product.listed.end(), part.begin(), part.end());
  }
  if (std::ssize(product.listed) * kWeightsPerListed > first.elements() * matrices) {
    return false;
  }
  for (size_t g = 0; g < static_cast<size_t>(groups); ++g) {
    product.list_begin[g + 1] += product.list_begin[g];
  }
  product.packed = {out, k, static_cast<int>(matrices), product.list_begin.data(),
                    product.listed.data()};
  return true;
}

namespace {

/// What this thread has computed so far, and waited for memory: not what others took of its core.
double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// The seconds that a row's product with these weights takes of all workers, at once.
double time_product(const LinearArgs& args, WorkerTeam& team, std::span<std::byte> scratch) {
  const auto part = scratch.size() / static_cast<size_t>(team.size());
  const int64_t groups = cpu::packed_groups(args.n);
  std::vector<double> seconds(static_cast<size_t>(team.size()));
  team.run([&](int worker) {
    const double start = thread_seconds();
    const Range columns{groups * worker / team.size() * cpu::kGroupRows,
                        std::min(args.n, groups * (worker + 1) / team.size() * cpu::kGroupRows)};
    if (!columns.empty()) {
      cpu::linear(args, {0, 1}, columns, scratch.subspan(static_cast<size_t>(worker) * part, part));
    }
    seconds[static_cast<size_t>(worker)] = thread_seconds() - start;
  });
  return std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

}  // namespace

Result<std::optional<double>> PackedWeights::measure_time_over_plain(const ModelConfig& config,
                                                                     const Weights& weights,
                                                                     WorkerTeam& team) {
  constexpr int64_t kLeastBytes = int64_t{128} << 20;  // of plain weights, and twice the last cache
  constexpr int kTurns = 9;
  const Tensor* largest = nullptr;
  for (const Source& source : find_sources(config, weights)) {
    const Tensor* tensor = source.tensors.front();
    largest = largest == nullptr || tensor->bytes() > largest->bytes() ? tensor : largest;
  }
  if (largest == nullptr) {
    return std::optional<double>();
  }
  Tensor sample = *largest;
  const int64_t k = sample.columns();
  const int64_t wanted = std::max(kLeastBytes, 2 * cpu::last_cache_bytes());
  sample.shape[0] = std::min(sample.rows(), wanted / (k * static_cast<int64_t>(sizeof(bf16))));
  PackedWeights packed;
  WEFT_ASSIGN(packed.pages_, Pages::allocate(static_cast<size_t>(cpu::packed_groups(sample.rows()) *
                                                                 cpu::packed_group_bytes(k)),
                                             /*huge=*/true));
  Product product;
  const Tensor* only = &sample;
  if (!packed.pack({&only, 1}, team, product)) {
    return std::optional<double>();
  }
  const std::vector<float> a(static_cast<size_t>(k), 1.0F);
  std::vector<float> out(static_cast<size_t>(sample.rows()));
  LinearArgs plain;
  plain.a = {a.data(), DType::f32, k};
  plain.w = {sample.data, DType::bf16, k};
  plain.n = sample.rows();
  plain.k = k;
  plain.out = {out.data(), DType::f32, plain.n};
  LinearArgs other = plain;
  other.packed = &product.packed;
  constexpr size_t kPage = 4096;
  const size_t part =
      (std::max(cpu::linear_scratch_bytes(plain, 1), cpu::linear_scratch_bytes(other, 1)) + kPage -
       1) /
      kPage * kPage;
  WEFT_ASSIGN(const Pages scratch, Pages::allocate(part * static_cast<size_t>(team.size())));
  std::vector<double> shares;
  for (int turn = 0; turn <= kTurns; ++turn) {  // the first one touches memory
    const double of_plain = time_product(plain, team, {scratch.data(), scratch.size()});
    const double of_packed = time_product(other, team, {scratch.data(), scratch.size()});
    if (turn > 0) {
      shares.push_back(of_packed / of_plain);
    }
  }
  return std::optional<double>(median(shares));
}

Result<PackedWeights> PackedWeights::choose(const ModelConfig& config, Weights& weights,
                                            WorkerTeam& team, std::optional<bool> wanted,
                                            std::optional<double>& time) {
  bool pack = wanted.value_or(false);
  if (!wanted && weights.bytes() > cpu::last_cache_bytes()) {
    WEFT_ASSIGN(time, measure_time_over_plain(config, weights, team));
    pack = time.value_or(1) < 1;
  }
  return pack ? create(config, weights, team) : PackedWeights();
}

const cpu::PackedMatrix* PackedWeights::find(const Tensor& tensor) const {
  const auto found = index_.find(&tensor);
  return found == index_.end() ? nullptr : &products_[found->second].packed;
}

}  // namespace weft
