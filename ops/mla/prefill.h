// What attention over latent rows takes of a chunk's rows, on any GPU.
#pragma once

#include <cstdint>

#include "ops/kernel.h"
#include "ops/matrix.h"

namespace weft {

struct PrefillLatentAttention {
  ConstMatrix q;  ///< [rows, heads * (rank + turned)], f32 or bf16
  /// The latent rows of a sequence, keys alone, or, of rows that have places, of the first one.
  KvCache cache;
  int64_t capacity = 0;   ///< rows of a sequence's cache
  int64_t sequences = 1;  ///< whose caches lie one behind the other
  int64_t heads = 0;
  int64_t rank = 0;
  int64_t turned = 0;
  float scale = 1;  ///< of q.k before the softmax; positive
  /// A row's bits depend on no other row, nor how many there are.
  bool alone = false;
  Matrix out;           ///< [rows, heads * rank], f32
  Workspace workspace;  ///< see mla_decode_workspace()
};

}  // namespace weft
