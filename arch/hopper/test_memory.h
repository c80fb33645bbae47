// Device memory that a test fills and reads.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <vector>

namespace weft::hopper {

template <class T>
class Memory {
 public:
  explicit Memory(size_t count) : count_(count) {
    EXPECT_EQ(cudaMalloc(&data_, count * sizeof(T)), cudaSuccess);
    EXPECT_EQ(cudaMemset(data_, 0xff, count * sizeof(T)), cudaSuccess);
  }
  explicit Memory(const std::vector<T>& values) : Memory(values.size()) {
    EXPECT_EQ(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  ~Memory() { cudaFree(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  T* data() const { return data_; }
  std::vector<T> read() const {
    std::vector<T> values(count_);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return values;
  }

 private:
  T* data_ = nullptr;
  size_t count_;
};

}  // namespace weft::hopper
