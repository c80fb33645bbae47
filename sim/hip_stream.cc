// Of the simulated HIP runtime: streams, events, and waiting for them.
#include <utility>

#include "sim/hip_runtime.h"

namespace weft::hip {
namespace {

using namespace weft::sim;  // NOLINT: what stands behind HIP's functions

/// Waits for a stream or an event, then returns what its device failed with meanwhile.
hipError_t finish(const std::shared_ptr<Work>& work, int device) {
  wait_for(work);
  return result(take_failure(device));
}

std::shared_ptr<Work> last_work(const ihipStream_t& stream) {
  const std::lock_guard lock(runtime().schedule);
  return stream.last;
}
std::shared_ptr<Work> recorded(const ihipEvent_t& event) {
  const std::lock_guard lock(runtime().schedule);
  return event.work;
}
bool is_captured(const ihipEvent_t& event) {
  const std::lock_guard lock(runtime().schedule);
  return event.capture != nullptr;
}

}  // namespace

WEFT_HIP hipError_t hipDeviceSynchronize() {
  if (!known_device(current_device())) {
    return result(hipErrorNoDevice);
  }
  if (const hipError_t error = refuse_while_capturing(); error != hipSuccess) {
    return error;
  }
  wait_for_device(current_device());
  return result(take_failure(current_device()));
}
WEFT_HIP hipError_t hipDeviceReset() { return hipDeviceSynchronize(); }

WEFT_HIP hipError_t hipStreamCreateWithPriority(hipStream_t* stream, unsigned flags, int priority) {
  if (stream == nullptr || (flags & ~hipStreamNonBlocking) != 0) {
    return result(hipErrorInvalidValue);
  }
  if (!known_device(current_device())) {
    return result(hipErrorNoDevice);
  }
  auto made = std::make_unique<ihipStream_t>();
  made->device = current_device();
  made->flags = flags;
  made->priority = priority;
  {
    const std::lock_guard lock(runtime().schedule);
    gpu().streams.push_back(made.get());
  }
  *stream = keep(runtime().streams, std::move(made));
  return hipSuccess;
}
WEFT_HIP hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned flags) {
  return hipStreamCreateWithPriority(stream, flags, 0);
}
WEFT_HIP hipError_t hipStreamCreate(hipStream_t* stream) {
  return hipStreamCreateWithPriority(stream, 0, 0);
}
WEFT_HIP hipError_t hipStreamDestroy(hipStream_t stream) {
  Runtime& r = runtime();
  const std::unique_ptr<ihipStream_t> owned = take(r.streams, stream);
  if (owned == nullptr) {
    return result(hipErrorInvalidHandle);
  }
  leave_capture(*owned);
  retire(*owned);
  const std::lock_guard lock(r.schedule);
  std::erase(gpu(owned->device).streams, owned.get());
  return hipSuccess;
}
WEFT_HIP hipError_t hipStreamSynchronize(hipStream_t stream) {
  ihipStream_t* known = stream_of(stream);
  if (known == nullptr) {
    return result(hipErrorInvalidHandle);
  }
  if (const auto captured = refuse_capture(*known)) {
    return result(*captured);
  }
  if (known == &gpu(known->device).null_stream) {
    perform(*known, {});  // after the streams that its next work would follow
    return result(take_failure(known->device));
  }
  return finish(last_work(*known), known->device);
}
WEFT_HIP hipError_t hipStreamQuery(hipStream_t stream) {
  ihipStream_t* known = stream_of(stream);
  if (known == nullptr) {
    return result(hipErrorInvalidHandle);
  }
  if (const auto captured = refuse_capture(*known)) {
    return result(*captured);
  }
  // Not an error that hipGetLastError would return.
  return is_done(last_work(*known)) ? result(take_failure(known->device)) : hipErrorNotReady;
}
WEFT_HIP hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned) {
  ihipStream_t* known_stream = stream_of(stream);
  if (known_stream == nullptr || !known(runtime().events, event)) {
    return result(hipErrorInvalidHandle);
  }
  if (const auto captured = join_capture(*known_stream, *event)) {
    return result(*captured);
  }
  if (const std::shared_ptr<Work> work = recorded(*event); !is_done(work)) {
    submit(*known_stream, {}, work);
  }
  return hipSuccess;
}
WEFT_HIP hipError_t hipStreamGetFlags(hipStream_t stream, unsigned* flags) {
  const ihipStream_t* known = stream_of(stream);
  if (known == nullptr || flags == nullptr) {
    return result(known == nullptr ? hipErrorInvalidHandle : hipErrorInvalidValue);
  }
  *flags = known->flags;
  return hipSuccess;
}
WEFT_HIP hipError_t hipStreamGetPriority(hipStream_t stream, int* priority) {
  const ihipStream_t* known = stream_of(stream);
  if (known == nullptr || priority == nullptr) {
    return result(known == nullptr ? hipErrorInvalidHandle : hipErrorInvalidValue);
  }
  *priority = known->priority;
  return hipSuccess;
}
WEFT_HIP hipError_t hipStreamGetDevice(hipStream_t stream, hipDevice_t* device) {
  const ihipStream_t* known = stream_of(stream);
  if (known == nullptr || device == nullptr) {
    return result(known == nullptr ? hipErrorInvalidHandle : hipErrorInvalidValue);
  }
  *device = known->device;
  return hipSuccess;
}
WEFT_HIP hipError_t hipStreamAddCallback(hipStream_t stream, hipStreamCallback_t callback,
                                         void* data, unsigned flags) {
  ihipStream_t* known = stream_of(stream);
  if (known == nullptr || callback == nullptr || flags != 0) {
    return result(known == nullptr ? hipErrorInvalidHandle : hipErrorInvalidValue);
  }
  if (const auto captured = refuse_capture(*known)) {
    return result(*captured);
  }
  submit(*known, [=] { callback(stream, gpu(known->device).failed, data); });
  return hipSuccess;
}
WEFT_HIP hipError_t hipLaunchHostFunc(hipStream_t stream, hipHostFn_t function, void* data) {
  ihipStream_t* known = stream_of(stream);
  if (known == nullptr || function == nullptr) {
    return result(known == nullptr ? hipErrorInvalidHandle : hipErrorInvalidValue);
  }
  const auto run = [=] { function(data); };
  if (const auto captured = capture(*known, hipGraphNodeTypeHost, run)) {
    return result(*captured);
  }
  submit(*known, run);
  return hipSuccess;
}

WEFT_HIP hipError_t hipEventCreate(hipEvent_t* event) {
  if (event == nullptr) {
    return result(hipErrorInvalidValue);
  }
  *event = keep(runtime().events, std::make_unique<ihipEvent_t>());
  return hipSuccess;
}
WEFT_HIP hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned) {
  return hipEventCreate(event);
}
WEFT_HIP hipError_t hipEventDestroy(hipEvent_t event) {
  return result(take(runtime().events, event) != nullptr ? hipSuccess : hipErrorInvalidHandle);
}
WEFT_HIP hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream) {
  ihipStream_t* known_stream = stream_of(stream);
  if (known_stream == nullptr || !known(runtime().events, event)) {
    return result(hipErrorInvalidHandle);
  }
  if (const auto captured = record_in_capture(*known_stream, *event)) {
    return result(*captured);
  }
  std::shared_ptr<Work> work = submit(*known_stream, {});
  const std::lock_guard lock(runtime().schedule);
  event->device = known_stream->device;
  event->work = std::move(work);
  event->capture = nullptr;
  return hipSuccess;
}
WEFT_HIP hipError_t hipEventRecordWithFlags(hipEvent_t event, hipStream_t stream, unsigned) {
  return hipEventRecord(event, stream);
}
WEFT_HIP hipError_t hipEventSynchronize(hipEvent_t event) {
  if (!known(runtime().events, event)) {
    return result(hipErrorInvalidHandle);
  }
  if (is_captured(*event)) {
    return result(hipErrorCapturedEvent);
  }
  const std::shared_ptr<Work> work = recorded(*event);
  return work == nullptr ? hipSuccess : finish(work, event->device);
}
WEFT_HIP hipError_t hipEventQuery(hipEvent_t event) {
  if (!known(runtime().events, event)) {
    return result(hipErrorInvalidHandle);
  }
  if (is_captured(*event)) {
    return result(hipErrorCapturedEvent);
  }
  return is_done(recorded(*event)) ? hipSuccess : hipErrorNotReady;
}
WEFT_HIP hipError_t hipEventElapsedTime(float* milliseconds, hipEvent_t start, hipEvent_t stop) {
  if (milliseconds == nullptr) {
    return result(hipErrorInvalidValue);
  }
  if (!known(runtime().events, start) || !known(runtime().events, stop)) {
    return result(hipErrorInvalidHandle);
  }
  const std::lock_guard lock(runtime().schedule);
  if (start->work == nullptr || stop->work == nullptr) {
    return result(hipErrorInvalidHandle);
  }
  if (!start->work->done || !stop->work->done) {
    return hipErrorNotReady;
  }
  *milliseconds =
      std::chrono::duration<float, std::milli>(stop->work->ended - start->work->ended).count();
  return hipSuccess;
}

WEFT_HIP hipError_t hipIpcGetEventHandle(hipIpcEventHandle_t*, hipEvent_t) {
  return refuse(hipErrorNotSupported, "", kOneProcess);
}
WEFT_HIP hipError_t hipIpcOpenEventHandle(hipEvent_t*, hipIpcEventHandle_t) {
  return refuse(hipErrorNotSupported, "", kOneProcess);
}

}  // namespace weft::hip
