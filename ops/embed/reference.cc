#include "ops/embed/op.h"

namespace weft::reference {

void embed(const EmbedArgs& args, Range rows, double* out) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    for (int64_t c = 0; c < args.columns; ++c) {
      *out++ = args.scale * element(args.table, args.tokens[r], c);
    }
  }
}

}  // namespace weft::reference
