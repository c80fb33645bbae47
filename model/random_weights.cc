#include "model/random_weights.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/fp8.h"
#include "base/splitmix.h"
#include "model/quantization.h"

namespace weft {
namespace {

static_assert(std::endian::native == std::endian::little, "u of element i is the i-th 16-bit word");

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
e4m3fn convert(float x, e4m3fn /*format*/) { return saturate_to<e4m3fn>(x); }

template <class T>
void fill(const RandomTensor& tensor, int64_t first, int64_t count, T* out) {
  constexpr int64_t kBatch = 1024;  // elements made at once: their bits stay in the L1 cache
  std::array<uint64_t, kBatch / 4> bits;
  std::array<uint16_t, kBatch> uniform;
  for (int64_t done = 0; done < count; done += kBatch) {
    const uint64_t group = static_cast<uint64_t>(first + done) / 4;
    for (size_t i = 0; i < bits.size(); ++i) {
      bits[i] = splitmix(tensor.key + (group + i) * kSplitMixStep);
    }
    std::memcpy(uniform.data(), bits.data(), sizeof(uniform));
    const int64_t now = std::min(kBatch, count - done);
    for (int64_t i = 0; i < now; ++i) {
      const int32_t integer = 2 * static_cast<int32_t>(uniform[static_cast<size_t>(i)]) - 65535;
      out[done + i] = convert(static_cast<float>(integer + tensor.offset) * tensor.scale, T{});
    }
  }
}

uint64_t key_of(uint64_t seed, std::string_view name) {
  return splitmix(splitmix(seed) + fnv1a(name));
}

/// `count` numbers uniform in 3/4 .. 5/4 of `middle`.
std::vector<float> around(uint64_t key, double middle, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  fill({.key = key, .offset = 4 * 65535, .scale = static_cast<float>(middle / 4 / 65535)}, 0, count,
       values.data());
  return values;
}

/// Of a matrix of [out, in].
double half_width_of(int64_t in) { return std::sqrt(3.0 / static_cast<double>(in)); }

}  // namespace

std::vector<float> make_random_scales(const Quantization& quantization, uint64_t seed,
                                      const TensorSpec& spec) {
  const std::vector<int64_t> shape = spec.shape_in_file();
  return around(key_of(seed, scale_name(quantization, spec.name)),
                half_width_of(shape[1]) / kMax<e4m3fn>,
                Tensor::scale_count_of(spec.scaling, shape[0], shape[1]));
}

float make_random_input_scale(uint64_t seed, const TensorSpec& spec) {
  return around(key_of(seed, input_scale_name(spec.name)), 8 / kMax<e4m3fn>, 1).front();
}

namespace {

/// The name of a part of a tensor.
std::string own_name(const TensorSpec& spec) {
  std::string name = spec.name;
  if (!spec.begins_tensor()) {
    name.append(":").append(std::to_string(spec.first_row));
  }
  return name;
}

}  // namespace

RandomTensor random_tensor(uint64_t seed, const TensorSpec& spec) {
  RandomTensor tensor;
  tensor.key = key_of(seed, own_name(spec));
  double half_width = 1.0 / 16;  // bias
  if (spec.scaling != Scaling::none) {
    half_width = kMax<e4m3fn>;
  } else if (spec.shape.size() == 2) {
    half_width = half_width_of(spec.shape[1]);
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
    case DType::e4m3fn:
      return fill(tensor, first, count, reinterpret_cast<e4m3fn*>(out));
    default:
      WEFT_CHECK(!"a model's format");
  }
}

void fill_random_mx(uint64_t seed, const TensorSpec& spec, int64_t first, int64_t count,
                    uint8_t* codes, uint8_t* scales) {
  WEFT_CHECK(first % kMxBlock == 0 && count % kMxBlock == 0);
  constexpr double kDeviation = 2.926;  // of codes that are uniform
  constexpr int64_t kWord = 16;         // codes
  const double wanted = 1 / (kDeviation * std::sqrt(static_cast<double>(spec.shape[1])));
  const auto power = static_cast<int>(std::floor(std::log2(wanted))) + 127;
  const uint64_t key = key_of(seed, own_name(spec));
  const uint64_t scale_key = key_of(seed, mx_scale_name(spec.name)) ^ key;
  for (int64_t i = 0; i < count; i += kWord) {
    const uint64_t word =
        splitmix(key + static_cast<uint64_t>((first + i) / kWord) * kSplitMixStep);
    std::memcpy(codes + i / 2, &word, sizeof(word));
  }
  for (int64_t i = 0; i < count / kMxBlock; ++i) {
    const uint64_t word =
        splitmix(scale_key + static_cast<uint64_t>(first / kMxBlock + i) * kSplitMixStep);
    scales[i] = static_cast<uint8_t>(power + static_cast<int>(word & 1));
  }
}

}  // namespace weft
