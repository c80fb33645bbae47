// Copies of KV pages on the device: a block for each page and head of a cache.
#include "engine/hopper/kv_pages.h"
#include "ops/matrix.h"

namespace weft::hopper {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    copy_pages_kernel(const __grid_constant__ PagedCaches caches,
                      const __grid_constant__ PageList list, bool to_pool) {
  const auto page = static_cast<int>(blockIdx.x);
  const int cache = static_cast<int>(blockIdx.y) / caches.heads;
  const int head = static_cast<int>(blockIdx.y) % caches.heads;
  const int64_t bytes = kKvPage * caches.row_bytes;
  char* pooled =
      caches.pool +
      ((static_cast<int64_t>(list.page[page]) * caches.count + cache) * caches.heads + head) *
          bytes;
  char* own = caches.caches[cache] +
              (static_cast<int64_t>(list.sequence) * caches.heads + head) * caches.capacity *
                  caches.row_bytes +
              (list.first + page) * bytes;
  auto* to = reinterpret_cast<uint4*>(to_pool ? pooled : own);
  const auto* from = reinterpret_cast<const uint4*>(to_pool ? own : pooled);
  for (int64_t i = threadIdx.x; i < bytes / 16; i += kThreads) {
    to[i] = from[i];
  }
}

__global__ void set_tokens_kernel(const __grid_constant__ TokenList list, int32_t* to) {
  const auto i = static_cast<int>(threadIdx.x);
  if (i < list.count) {
    to[list.place[i]] = list.token[i];
  }
}

}  // namespace

int64_t PagedCaches::page_bytes() const { return count * heads * kKvPage * row_bytes; }

cudaError_t launch_copy_pages(const PagedCaches& caches, const PageList& list, bool to_pool,
                              cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>(list.count),
                    static_cast<unsigned>(caches.count * caches.heads));
  copy_pages_kernel<<<blocks, kThreads, 0, stream>>>(caches, list, to_pool);
  return cudaGetLastError();
}

cudaError_t launch_set_tokens(const TokenList& list, int32_t* to, cudaStream_t stream) {
  set_tokens_kernel<<<1, TokenList::kMost, 0, stream>>>(list, to);
  return cudaGetLastError();
}

}  // namespace weft::hopper
