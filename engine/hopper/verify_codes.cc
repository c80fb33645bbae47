#include "engine/hopper/verify_codes.h"

#include <fmt/format.h>

#include "ops/linear/hopper_layout.h"

namespace weft::hopper {
namespace {

int64_t stream_bytes(const Code& code) {
  const ProductCode& product = code.product;
  int64_t slices = product_slices(product.k, code.units, product.fold);
  if (product.draw == DrawOf::experts) {
    const bool several = product.source == kOperands;
    slices = product.flat != 0 ? product_slices(product.k, expert_units(product), 0)
             : several         ? slices
                               : slices / product.slots;  // units and rows are those of all slots
    slices *= product.experts;
  }
  return slices * weight_slice_bytes(form_of(code));
}

Status check_pages(const Lowered& lowered, const Program& program) {
  for (size_t worker = 0; worker < lowered.codes.size(); ++worker) {
    for (const Code& code : lowered.codes[worker]) {
      if (code.units > 0 && page_bytes(form_of(code)) > lowered.page_bytes) {
        return resident::code_fault(program, worker, code, "its pages are larger than the ring's");
      }
    }
  }
  return {};
}

}  // namespace

Status verify_codes(const Lowered& lowered, const Program& program, NextToken next,
                    int64_t position) {
  WEFT_TRY(check_pages(lowered, program));
  return resident::verify_codes(lowered, program, stream_bytes, next, position);
}

}  // namespace weft::hopper
