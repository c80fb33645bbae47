#include "engine/resident/readback.h"

#include <algorithm>
#include <cstring>
#include <variant>

#include "base/check.h"
#include "base/divide.h"
#include "base/number.h"

namespace weft::resident {
namespace {

/// A word of two values and a tag as resident kernels exchange them: from the lowest bits, 24 upper
/// bits of each value and 16 of the tag.
struct TaggedWord {
  uint64_t bits;

  static float value(uint32_t upper24) {
    const uint32_t bits = upper24 << 8;
    float x;
    std::memcpy(&x, &bits, sizeof(x));
    return x;
  }
  float first() const { return value(static_cast<uint32_t>(bits & 0xffffff)); }
  float second() const { return value(static_cast<uint32_t>(bits >> 24 & 0xffffff)); }
  uint32_t tag() const { return static_cast<uint32_t>(bits >> 48); }
};

const AttentionOp* attention_into(const Program& program, BufferId partials) {
  for (const Operation& operation : program.operations) {
    const auto* attention = std::get_if<AttentionOp>(&operation.body);
    if (attention != nullptr && attention->partials == partials) {
      return attention;
    }
  }
  return nullptr;
}

/// The kernel keeps all slots' sums before all slots' maxima and totals; a program has each slot's
/// together (ops/attention/op.h). Works on values and writers alike.
template <class T>
void interleave_slots(std::vector<T>& elements, int64_t slots, int64_t dim) {
  const std::vector<T> from = elements;
  for (int64_t slot = 0; slot < slots; ++slot) {
    const auto sums = from.begin() + slot * dim;
    const auto tail = from.begin() + slots * dim + slot * 2;
    const auto to = elements.begin() + slot * (dim + 2);
    std::copy(sums, sums + dim, to);
    std::copy(tail, tail + 2, to + dim);
  }
}

}  // namespace

std::vector<Code> codes_until(std::span<const Code> codes, int32_t end) {
  std::vector<Code> result;
  for (const Code& code : codes) {
    if (code.operation >= end) {
      break;
    }
    result.push_back(code);
    // A product may be the products of several operations, in their order.
    Code& last = result.back();
    // Its weights lie as those of the whole are dealt: it is done whole, and stores less.
    while (last.segments > 1 && last.product.segment[last.segments - 1].version >= end) {
      --last.segments;
    }
    if (last.opcode == Opcode::linear && last.product.form == RowForm::slots &&
        last.product.shared.elements > 0 && last.product.segment[0].version >= end) {
      last.product.shared_row = kNowhere;
      last.product.segment[0].version = last.operation;
    }
  }
  if (!result.empty()) {
    result.back().ends_step = 1;
    if (result.back().opcode == Opcode::route) {
      result.back().route.next_row = NextRow::none;  // the product whose row it is does not come
    }
  }
  return result;
}

std::vector<bool> kept_buffers(const Program& program) {
  std::vector<bool> kept;
  for (const Buffer& buffer : program.buffers) {
    kept.push_back(buffer.space == Space::activation || buffer.space == Space::worker ||
                   buffer.space == Space::kv);
  }
  const auto drop = [&](BufferId id) {
    if (id != kNone) {
      kept[static_cast<size_t>(id)] = false;
    }
  };
  for (const Operation& operation : program.operations) {
    if (const auto* angles = std::get_if<RopeAnglesOp>(&operation.body)) {
      drop(angles->cosines);
      drop(angles->sines);
    } else if (const auto* norm = std::get_if<RmsNormOp>(&operation.body)) {
      drop(norm->out);
    } else if (const auto* layer_norm = std::get_if<LayerNormOp>(&operation.body)) {
      drop(layer_norm->out);
    } else if (const auto* route = std::get_if<RouteOp>(&operation.body)) {
      drop(route->ids);
      drop(route->weights);
    } else if (const auto* combine = std::get_if<AttentionCombineOp>(&operation.body)) {
      const Buffer& out = program.buffers[static_cast<size_t>(combine->attention.out)];
      if (out.space == Space::worker || program.sequences > 1) {
        drop(combine->attention.out);
      }
    }
  }
  return kept;
}

int64_t image_bytes(const Buffer& buffer) { return round_up(buffer.bytes(), 8); }

Image decode_buffer(const Program& program, const Arena& arena, BufferId id,
                    std::span<const std::byte> bytes, uint32_t first_tag) {
  const auto index = static_cast<size_t>(id);
  const Buffer& buffer = program.buffers[index];
  WEFT_CHECK(bytes.size() == static_cast<size_t>(image_bytes(buffer)));
  const auto elements = static_cast<size_t>(buffer.rows * buffer.columns);
  Image image;
  image.values.resize(elements);
  if (!arena.tagged[index]) {
    if (buffer.element == Element::bf16) {
      const auto* from = reinterpret_cast<const bf16*>(bytes.data());
      for (size_t i = 0; i < elements; ++i) {
        image.values[i] = to_float(from[i]);
      }
    } else {
      WEFT_CHECK(buffer.element == Element::f32);
      std::memcpy(image.values.data(), bytes.data(), elements * sizeof(float));
    }
    return image;
  }
  WEFT_CHECK(buffer.element == Element::f32);
  image.writers.resize(elements);
  const auto versions = static_cast<uint32_t>(program.operations.size());
  for (size_t i = 0; i < elements; i += 2) {
    TaggedWord word;
    std::memcpy(&word, bytes.data() + i * sizeof(float), sizeof(word));
    const uint32_t version = word.tag() - first_tag;  // wraps where the tag is an earlier run's
    for (size_t of_pair = 0; of_pair < std::min<size_t>(2, elements - i); ++of_pair) {
      image.values[i + of_pair] = of_pair == 0 ? word.first() : word.second();
      image.writers[i + of_pair] = version < versions ? static_cast<int32_t>(version) : kNone;
    }
  }
  if (const AttentionOp* attention = attention_into(program, id)) {
    const int64_t slots = attention->query_heads * attention->splits;
    interleave_slots(image.values, slots, attention->head_dim);
    interleave_slots(image.writers, slots, attention->head_dim);
  }
  return image;
}

}  // namespace weft::resident
