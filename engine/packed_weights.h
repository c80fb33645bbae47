// The weights of a model's products in the form that the CPU's kernels read fastest: packed without
// loss (arch/cpu/packed.h).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "arch/cpu/packed.h"
#include "base/pages.h"
#include "base/result.h"
#include "engine/worker_team.h"
#include "model/config.h"
#include "model/weights.h"

namespace weft {

class PackedWeights {
 public:
  PackedWeights() = default;  ///< all are plain

  /// Packs every product's bf16 weights, gate and up side by side, on the team's workers. Those of
  /// other formats, or with too many weights to list, stay plain. What has been packed is released
  /// from `weights` as it goes, so that both together never take much more memory than `weights`
  /// alone. Error (device): no memory.
  static Result<PackedWeights> create(const ModelConfig& config, Weights& weights,
                                      WorkerTeam& team);

  /// The time that a row's product with packed weights takes, of that with plain ones, when both
  /// are read from memory by all workers: 128 MiB or so of the largest product's rows, packed for
  /// the purpose, in turns of some 10 ms, the middle of 9. Of the workers' own time, so that
  /// whoever else wants their cores takes no part. Below 1 where the memory is what is waited for;
  /// above where the processor takes longer to unpack than the memory saves (AVX2). nullopt:
  /// nothing can be packed. Error (device): no memory.
  static Result<std::optional<double>> measure_time_over_plain(const ModelConfig& config,
                                                               const Weights& weights,
                                                               WorkerTeam& team);

  /// As create(), when it is `wanted` or, where nothing is, when the weights do not fit the last
  /// cache and packed ones are found to be faster; `time` is what was measured to find out, if it
  /// was. Otherwise all stay plain.
  static Result<PackedWeights> choose(const ModelConfig& config, Weights& weights, WorkerTeam& team,
                                      std::optional<bool> wanted, std::optional<double>& time);

  /// Of a product's weights, of gate also up's; null: they are plain.
  const cpu::PackedMatrix* find(const Tensor& tensor) const;

  /// Where they are, in the order in which a step reads them.
  std::span<const std::byte> memory() const { return {pages_.data(), used_}; }
  /// Bytes that a decode step reads less than of plain weights.
  int64_t saved_bytes() const { return saved_; }

 private:
  /// A product's packed weights and what they list.
  struct Product {
    cpu::PackedMatrix packed;
    std::vector<uint32_t> list_begin;
    std::vector<cpu::ListedWeight> listed;
  };

  /// Packs tensors of the same shape side by side at the end of what is used. False: they list too
  /// much; nothing has changed.
  bool pack(std::span<const Tensor* const> tensors, WorkerTeam& team, Product& product);

  std::vector<Product> products_;
  std::unordered_map<const Tensor*, size_t> index_;  // of a product's first -> products_
  Pages pages_;
  size_t used_ = 0;
  int64_t saved_ = 0;
};

}  // namespace weft
