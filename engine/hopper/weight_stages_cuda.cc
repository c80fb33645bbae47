#include <fmt/format.h>

#include <memory>
#include <utility>
#include <vector>

#include "engine/hopper/weight_stages.h"
#include "engine/hopper/weights_kernel.h"

namespace weft::hopper {
namespace {

Status check(cudaError_t error) {
  return error == cudaSuccess ? Status{}
                              : device_error(fmt::format("cuda: unpacking weights failed: {}",
                                                         cudaGetErrorString(error)));
}

size_t half_of(int64_t stage) { return static_cast<size_t>(stage == kHeadStage ? 0 : stage % 2); }

}  // namespace

std::map<int64_t, StageJobs> stages_of(const std::vector<PackJob>& jobs) {
  std::map<int64_t, StageJobs> stages;
  for (size_t i = 0; i < jobs.size(); ++i) {
    StageJobs& stage =
        stages.try_emplace(jobs[i].stage, StageJobs{.begin = static_cast<int64_t>(i)})
            .first->second;
    ++stage.count;
  }
  return stages;
}

Result<std::unique_ptr<WeightStages>> WeightStages::create(const PackJob* jobs,
                                                           std::map<int64_t, StageJobs> stages,
                                                           const char* packed, char* arena,
                                                           cudaStream_t user) {
  std::unique_ptr<WeightStages> made(new WeightStages);
  made->jobs_ = jobs;
  made->stages_ = std::move(stages);
  made->packed_ = packed;
  made->arena_ = arena;
  made->user_ = user;
  WEFT_TRY(check(cudaStreamCreateWithFlags(made->beside_.put(), cudaStreamNonBlocking)));
  for (EventHandle* event : {&made->used_, &made->ready_[0], &made->ready_[1]}) {
    WEFT_TRY(check(cudaEventCreateWithFlags(event->put(), cudaEventDisableTiming)));
  }
  return made;
}

bool WeightStages::has(int64_t stage) const { return here_[half_of(stage)] == stage; }

Status WeightStages::unpack(int64_t stage) {
  const StageJobs& jobs = stages_.at(stage);
  const size_t half = half_of(stage);
  WEFT_TRY(check(cudaStreamWaitEvent(beside_.get(), used_.get())));
  WEFT_TRY(check(launch_unpack(jobs_ + jobs.begin, jobs.count, packed_, arena_, beside_.get())));
  WEFT_TRY(check(cudaEventRecord(ready_[half].get(), beside_.get())));
  if (stage == kHeadStage || here_[0] == kHeadStage) {  // which lies in both halves
    here_[0] = here_[1] = std::nullopt;
  }
  here_[half] = stage;
  return {};
}

Status WeightStages::bring(int64_t stage, std::optional<int64_t> next) {
  if (!stages_.contains(stage)) {
    return {};  // a tied head: it is the embedding table
  }
  WEFT_TRY(check(cudaEventRecord(used_.get(), user_)));
  if (!has(stage)) {
    WEFT_TRY(unpack(stage));
  }
  WEFT_TRY(check(cudaStreamWaitEvent(user_, ready_[half_of(stage)].get())));
  if (next && !has(*next)) {
    WEFT_TRY(unpack(*next));
  }
  return {};
}

}  // namespace weft::hopper
