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

/// A row that a draw makes is the next code's. What the draw reads of it, it reads before the
/// product would.
Status check_rows_ahead(const Lowered& lowered, const Program& program) {
  for (size_t worker = 0; worker < lowered.codes.size(); ++worker) {
    bool made = false;
    for (const Code& code : lowered.codes[worker]) {
      const bool wanted = code.units > 0 && code.product.form == RowForm::rms_normed;
      if (wanted != made) {
        return resident::code_fault(
            program, worker, code,
            made ? "it has no use for the row that the draw has made" : "no draw has made its row");
      }
      made = code.opcode == Opcode::route && code.route.makes_row != 0;
    }
  }
  return {};
}

}  // namespace

Status verify_codes(const Lowered& lowered, const Program& program, NextToken next,
                    int64_t position) {
  WEFT_TRY(check_pages(lowered, program));
  WEFT_TRY(check_rows_ahead(lowered, program));
  return resident::verify_codes(lowered, program, stream_bytes, next, position);
}

}  // namespace weft::hopper
