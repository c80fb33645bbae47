#include "engine/packed_weights.h"

#include <algorithm>
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
  Role role = Role::head;
  int64_t layer = -1;
  std::vector<const Tensor*> tensors;
  size_t packed_bytes = 0;
};

/// The products in the order of a step. The head is last, so that what the layers have released
/// makes room for it where it is the embedding too, which stays.
std::vector<Source> find_sources(const ModelConfig& config, const Weights& weights) {
  std::vector<Source> sources;
  const auto add = [&](int64_t layer, Role role, std::vector<const Tensor*> tensors) {
    const Tensor& first = *tensors.front();
    for (const Tensor* tensor : tensors) {
      if (tensor->dtype != DType::bf16) {
        return;
      }
    }
    const int64_t rows = first.rows() * std::ssize(tensors);
    const auto bytes =
        static_cast<size_t>(cpu::packed_groups(rows) * cpu::packed_group_bytes(first.columns()));
    sources.push_back({role, layer, std::move(tensors), bytes});
  };
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    for (const Role role : {Role::query, Role::key, Role::value, Role::attention_out}) {
      add(layer, role, {&weights.get(role, layer)});
    }
    if (const Tensor* gate = weights.find(Role::gate, layer)) {
      add(layer, Role::gate, {gate, &weights.get(Role::up, layer)});
    } else {
      add(layer, Role::up, {&weights.get(Role::up, layer)});
    }
    add(layer, Role::down, {&weights.get(Role::down, layer)});
  }
  add(-1, Role::head, {&weights.get(Role::head)});
  return sources;
}

}  // namespace

Result<PackedWeights> PackedWeights::create(const ModelConfig& config, Weights& weights,
                                            WorkerTeam& team) {
  PackedWeights result;
  std::array<int32_t, kRoles> none;
  none.fill(-1);
  result.index_.assign(static_cast<size_t>(config.layers) + 1, none);
  const std::vector<Source> sources = find_sources(config, weights);
  size_t total = 0;
  for (const Source& source : sources) {
    total += source.packed_bytes;
  }
  WEFT_ASSIGN(result.pages_, Pages::allocate(total, /*huge=*/true));
  result.products_.reserve(sources.size());
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
    result.saved_ += plain_bytes - static_cast<int64_t>(source.packed_bytes);
    result.index_[static_cast<size_t>(source.layer + 1)][static_cast<size_t>(source.role)] =
        static_cast<int32_t>(result.products_.size());
    result.products_.push_back(std::move(product));
  }
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

const cpu::PackedMatrix* PackedWeights::find(Role role, int64_t layer) const {
  if (index_.empty()) {
    return nullptr;
  }
  const int32_t i = index_[static_cast<size_t>(layer + 1)][static_cast<size_t>(role)];
  return i < 0 ? nullptr : &products_[static_cast<size_t>(i)].packed;
}

}  // namespace weft
