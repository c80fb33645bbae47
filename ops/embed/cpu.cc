// embed on the CPU: a converting copy of one table row per token.
#include "ops/embed/op.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/embed/cpu.cc"
#include "hwy/foreach_target.h"
// after foreach_target
#include "arch/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

template <class T, class Copy>
void embed_row(const T* table_row, float scale, int64_t columns, float* out, Copy* copy) {
  const FloatTag d;
  const auto factor = hn::Set(d, scale);
  const int64_t lanes = kFloatLanes;
  int64_t c = 0;
  for (; c + lanes <= columns; c += lanes) {
    const auto y = hn::Mul(load(d, table_row + c), factor);
    store(d, y, out + c);
    if (copy != nullptr) {
      store(d, y, copy + c);
    }
  }
  if (c < columns) {
    const auto y = hn::Mul(load_first(d, table_row + c, columns - c), factor);
    store_first(d, y, out + c, columns - c);
    if (copy != nullptr) {
      store_first(d, y, copy + c, columns - c);
    }
  }
}

void embed_rows(const EmbedArgs& args, Range rows) {
  with_type(args.table.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      const T* from = row<T>(args.table, args.tokens[r]);
      float* to = row<float>(args.out, r);
      if (args.copy.data != nullptr && args.copy.dtype == DType::bf16) {
        embed_row(from, args.scale, args.columns, to, row<bf16>(args.copy, r));
      } else {
        embed_row(from, args.scale, args.columns, to,
                  args.copy.data != nullptr ? row<float>(args.copy, r) : nullptr);
      }
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "arch/cpu/dispatch.h"

namespace weft::cpu {

void embed(const EmbedArgs& args, Range rows) { WEFT_CPU_DISPATCH(embed_rows)(args, rows); }

}  // namespace weft::cpu
#endif  // HWY_ONCE
