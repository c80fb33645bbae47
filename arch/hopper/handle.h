// What the CUDA runtime hands out, freed with the object that holds it. Host code.
#pragma once

#include <cuda_runtime.h>

namespace weft::hopper {

/// Frees what it names when it goes; T is a CUDA handle.
template <class T, cudaError_t (*kDestroy)(T)>
class Handle {
 public:
  Handle() = default;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (value_ != nullptr) {
      kDestroy(value_);
    }
  }
  T get() const { return value_; }
  T* put() { return &value_; }

 private:
  T value_ = nullptr;
};
using StreamHandle = Handle<cudaStream_t, cudaStreamDestroy>;
using EventHandle = Handle<cudaEvent_t, cudaEventDestroy>;

}  // namespace weft::hopper
