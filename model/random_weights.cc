#include "model/random_weights.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <string_view>

#include "base/check.h"

namespace weft {
namespace {

static_assert(std::endian::native == std::endian::little, "u of element i is the i-th 16-bit word");

constexpr uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

constexpr uint64_t fnv1a(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return hash;
}

float convert(float x, float /*format*/) { return x; }
bf16 convert(float x, bf16 /*format*/) {
  // to_bf16 without its test for NaN, which never comes here: the loop below stays vector code.
  const uint32_t u = std::bit_cast<uint32_t>(x);
  return {static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16)};
}
f16 convert(float x, f16 /*format*/) { return to_f16(x); }

template <class T>
void fill(const RandomTensor& tensor, int64_t first, int64_t count, T* out) {
  constexpr int64_t kBatch = 1024;  // elements made at once: their bits stay in the L1 cache
  std::array<uint64_t, kBatch / 4> bits;
  std::array<uint16_t, kBatch> uniform;
  for (int64_t done = 0; done < count; done += kBatch) {
    const uint64_t group = static_cast<uint64_t>(first + done) / 4;
    for (size_t i = 0; i < bits.size(); ++i) {
      bits[i] = mix(tensor.key + (group + i) * 0x9e3779b97f4a7c15);
    }
    std::memcpy(uniform.data(), bits.data(), sizeof(uniform));
    const int64_t now = std::min(kBatch, count - done);
    for (int64_t i = 0; i < now; ++i) {
      const int32_t integer = 2 * static_cast<int32_t>(uniform[static_cast<size_t>(i)]) - 65535;
      out[done + i] = convert(static_cast<float>(integer + tensor.offset) * tensor.scale, T{});
    }
  }
}

}  // namespace

RandomTensor random_tensor(uint64_t seed, const TensorSpec& spec) {
  RandomTensor tensor;
  std::string name = spec.name;
  if (!spec.begins_tensor()) {
    name.append(":").append(std::to_string(spec.first_row));
  }
  tensor.key = mix(mix(seed) + fnv1a(name));
  double half_width = 1.0 / 16;  // bias
  if (spec.shape.size() == 2) {
    half_width = std::sqrt(3.0 / static_cast<double>(spec.shape[1]));
  } else if (spec.role == Role::attention_norm || spec.role == Role::ffn_norm ||
             spec.role == Role::attention_out_norm || spec.role == Role::ffn_out_norm ||
             spec.role == Role::final_norm || spec.role == Role::query_norm ||
             spec.role == Role::key_norm) {
    half_width = 1.0 / 8;
    tensor.offset = static_cast<int32_t>(8 * (1 - spec.stored_less)) * 65535;  // in units of scale
  }
  tensor.scale = static_cast<float>(half_width / 65535);
  return tensor;
}

void fill_random(const RandomTensor& tensor, DType dtype, int64_t first, int64_t count,
                 std::byte* out) {
  WEFT_CHECK(first % 4 == 0);
  switch (dtype) {
    case DType::f32:
      return fill(tensor, first, count, reinterpret_cast<float*>(out));
    case DType::bf16:
      return fill(tensor, first, count, reinterpret_cast<bf16*>(out));
    case DType::f16:
      return fill(tensor, first, count, reinterpret_cast<f16*>(out));
    default:
      WEFT_CHECK(!"a model's format");
  }
}

}  // namespace weft
