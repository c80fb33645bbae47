// Pages of a KV cache between a pool and the caches that the kernels read, where each sequence's
// positions lie one after the other.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace weft::hopper {

/// The caches of a model's layers, keys and values, each [sequences][heads][capacity] rows, and a
/// pool of pages [page][cache][head][kKvPage] rows.
struct PagedCaches {
  char* const* caches = nullptr;  ///< [count]
  int32_t count = 0;
  int32_t heads = 0;
  int64_t capacity = 0;   ///< positions; a multiple of kKvPage
  int64_t row_bytes = 0;  ///< a multiple of 16
  char* pool = nullptr;

  int64_t page_bytes() const;
};

/// Pages of one sequence that are copied by one launch.
struct PageList {
  static constexpr int kMost = 256;
  int32_t sequence = 0;
  int32_t first = 0;  ///< of the sequence's pages
  int32_t count = 0;
  int32_t page[kMost] = {};  ///< in the pool
};

/// Copies pages to the pool, or from it.
cudaError_t launch_copy_pages(const PagedCaches& caches, const PageList& list, bool to_pool,
                              cudaStream_t stream);

/// Tokens to be written one by one: to[place[i]] = token[i].
struct TokenList {
  static constexpr int kMost = 8;
  int32_t count = 0;
  int32_t token[kMost] = {};
  int64_t place[kMost] = {};
};
cudaError_t launch_set_tokens(const TokenList& list, int32_t* to, cudaStream_t stream);

}  // namespace weft::hopper
