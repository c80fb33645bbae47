#include "sim/hopper/ptx_fuse.h"

#include <utility>

namespace weft::ptx {
namespace {

/// "mul.f32" or "mul.ftz.f32": neither rounded in a way of its own nor saturated.
bool is_plain(const Statement& s, std::string_view op) {
  return s.words[0] == op && s.words.back() == "f32" &&
         (s.words.size() == 2 || (s.words.size() == 3 && s.has("ftz"))) && s.operands.size() == 3;
}

bool is_register(const Operand& operand) {
  return operand.kind == Operand::Kind::reg && !operand.address;
}

}  // namespace

void Fusion::fuse(Statement& s) const {
  const bool sub = s.words[0] == "sub";
  for (size_t i : {size_t{1}, size_t{2}}) {
    const auto found =
        is_register(s.operands[i]) ? products_.find(s.operands[i].slot.offset) : products_.end();
    if (found == products_.end() || found->second.flushes != s.has("ftz")) {
      continue;
    }
    const Product& product = found->second;
    Operand addend = std::move(s.operands[3 - i]);
    s.operands = {s.operands[0], product.a, product.b, std::move(addend)};
    s.words[0] = "fma";
    if (sub) {
      s.words.insert(s.words.begin() + 1, i == 1 ? kMinusAddend : kMinusProduct);
    }
    return;
  }
}

void Fusion::see(Statement& s, bool guarded) {
  const bool product = is_plain(s, "mul") && !guarded;
  if (is_plain(s, "add") || is_plain(s, "sub")) {
    fuse(s);
  }
  if (s.operands.empty()) {
    return;
  }
  overwrite(s.operands[0]);
  const Operand& to = s.operands[0];
  if (!product || !is_register(to)) {
    return;
  }
  for (const Operand* factor : {&s.operands[1], &s.operands[2]}) {
    if (is_register(*factor)) {
      if (factor->slot.offset == to.slot.offset) {
        return;
      }
      factor_of_.emplace(factor->slot.offset, to.slot.offset);
    }
  }
  products_[to.slot.offset] = {s.operands[1], s.operands[2], s.has("ftz")};
}

void Fusion::overwrite(const Operand& operand) {
  for (const Operand& element : operand.elements) {
    overwrite(element);
  }
  if (!is_register(operand)) {
    return;
  }
  products_.erase(operand.slot.offset);
  const auto [begin, end] = factor_of_.equal_range(operand.slot.offset);
  for (auto at = begin; at != end; ++at) {
    products_.erase(at->second);
  }
  factor_of_.erase(begin, end);
}

void Fusion::forget() {
  products_.clear();
  factor_of_.clear();
}

}  // namespace weft::ptx
