// Weights that are held packed alone (Hold::once), unpacked for the products of prompts: while one
// layer is worked on, the next is unpacked to the other half of the stage, on a stream beside.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "arch/hopper/handle.h"
#include "base/result.h"
#include "engine/hopper/lower.h"

namespace weft::hopper {

/// Jobs of a stage, side by side.
struct StageJobs {
  int64_t begin = 0, count = 0;
};
/// Of jobs that are sorted by stage.
std::map<int64_t, StageJobs> stages_of(const std::vector<PackJob>& jobs);

class WeightStages {
 public:
  /// `jobs`, `packed` and `arena` are on the device; `user` is the stream that products run on.
  static Result<std::unique_ptr<WeightStages>> create(const PackJob* jobs,
                                                      std::map<int64_t, StageJobs> stages,
                                                      const char* packed, char* arena,
                                                      cudaStream_t user);

  /// What `user` is given from now on finds a stage's weights in the arena, and no other's but
  /// those of `next`, which are unpacked meanwhile. Waits for nothing.
  Status bring(int64_t stage, std::optional<int64_t> next);

 private:
  WeightStages() = default;
  bool has(int64_t stage) const;
  Status unpack(int64_t stage);

  const PackJob* jobs_ = nullptr;
  std::map<int64_t, StageJobs> stages_;
  const char* packed_ = nullptr;
  char* arena_ = nullptr;
  cudaStream_t user_ = nullptr;
  StreamHandle beside_;
  EventHandle used_;      ///< all that was given to `user_` before the last bring()
  EventHandle ready_[2];  ///< halves of the stage are unpacked
  std::optional<int64_t> here_[2];
};

}  // namespace weft::hopper
