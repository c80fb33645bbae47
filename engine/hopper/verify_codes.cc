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
    const int64_t shared =
        product.form == RowForm::slots
            ? product_slices<int64_t>(product.shared.elements, code.units, product.fold)
            : 0;
    slices -= shared;
    slices = product.flat != 0 ? product_slices(product.k, expert_units(product), 0)
             : several         ? slices
                               : slices / product.slots;  // units and rows are those of all slots
    slices = slices * product.experts + shared;
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

/// A row that a product finds in its place is what the product before it has left there, or what a
/// draw between them has made of it. What a draw reads of a row, it reads before the product would.
Status check_rows_ahead(const Lowered& lowered, const Program& program) {
  for (size_t worker = 0; worker < lowered.codes.size(); ++worker) {
    const Code* left = nullptr;  // the product whose row lies in its place
    NextRow next = NextRow::none;
    for (const Code& code : lowered.codes[worker]) {
      const bool wanted = code.units > 0 && code.product.form == RowForm::rms_normed;
      if (next != NextRow::none && !wanted) {
        return resident::code_fault(program, worker, code,
                                    "it has no use for the row that the draw has made");
      }
      if (code.opcode == Opcode::route) {
        next = code.route.next_row;
        continue;
      }
      if (wanted && next != NextRow::made) {
        const auto mx = [](const Code& product) { return form_of(product) == StreamForm::mx; };
        const bool turned = next == NextRow::turned;
        if (left == nullptr || !same_row(*left, code) || (turned && mx(*left)) ||
            mx(code) != (turned || mx(*left))) {
          return resident::code_fault(program, worker, code, "nobody has made its row");
        }
      }
      left = code.units > 0 ? &code : nullptr;
      next = NextRow::none;
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
