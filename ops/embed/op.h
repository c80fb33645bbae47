// embed: out[r, :] = scale * table[token[r], :], the rows of the embedding table.
#pragma once

#include "base/range.h"
#include "ops/matrix.h"

namespace weft {

struct EmbedArgs {
  ConstMatrix table;                ///< [vocabulary, columns], f32, bf16 or f16
  const int32_t* tokens = nullptr;  ///< [rows], each in [0, vocabulary)
  int64_t columns = 0;
  float scale = 1;  ///< Granite's embedding_multiplier
  Matrix out;       ///< [rows, columns], f32
  Matrix copy;      ///< the same rounded to its own format (bf16), or null data
};

namespace reference {
void embed(const EmbedArgs& args, Range rows, double* out);  ///< out: [rows.size(), columns]
}
namespace cpu {
void embed(const EmbedArgs& args, Range rows);
}

}  // namespace weft
