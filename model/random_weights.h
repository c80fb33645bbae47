// Random weights as a function of (seed, tensor name, element index), so that any processor can
// make any part of a model by itself and all of them agree bit for bit.
//
// Element i of a tensor, in integer arithmetic modulo 2^64 and IEEE binary32:
//   mix(z)  = z ^= z >> 30; z *= 0xbf58476d1ce4e5b9; z ^= z >> 27; z *= 0x94d049bb133111eb; z ^ z
//   >> 31 key     = mix(mix(seed) + fnv1a(name))          fnv1a: 64-bit FNV-1a over the name's
//   bytes bits    = mix(key + (i / 4) * 0x9e3779b97f4a7c15) u       = bits >> (16 * (i % 4)) &
//   0xffff       uniform in 0 .. 65535 element = float(2 * u - 65535 + offset) * scale rounded
//   once, then to the format (nearest even)
// mix is the finaliser of SplitMix64 (Steele, Lea, Flood 2014), and i / 4 its counter. The integer
// in front of the product is exact in binary32, so a fused multiply-add cannot change the result.
//
// Of a checkpoint's matrix that holds those of several roles, each is made by itself: the second
// and later ones by the name "NAME:ROW", ROW their first row.
//
// A tensor's offset and scale follow from its role and shape:
//   matrix [out, in]  uniform in +-sqrt(3 / in): standard deviation 1 / sqrt(in), which keeps the
//                     magnitude of a normalised vector through the product
//   norm weight       uniform in 7/8 .. 9/8, less TensorSpec::stored_less
//   bias              uniform in +-1/16
// A matrix that is stored in eight bits (TensorSpec::scaling) is made as such: codes uniform in
// +-448, rounded to e4m3fn; scales, by their own name, uniform in 3/4 .. 5/4 of what gives the
// matrix its standard deviation; an input's scale, by its name, in 3/4 .. 5/4 of 8 / 448. One in
// MXFP4 has codes uniform in all sixteen, and scales that are one of two powers of two.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/number.h"
#include "model/weights.h"

namespace weft {

/// The constants of one tensor in the formula above.
struct RandomTensor {
  uint64_t key = 0;
  int32_t offset = 0;
  float scale = 1;
};

/// Of a matrix in eight bits: its codes.
RandomTensor random_tensor(uint64_t seed, const TensorSpec& spec);
/// The scales of a matrix in eight bits, all of the checkpoint's one, as it has them.
std::vector<float> make_random_scales(const Quantization& quantization, uint64_t seed,
                                      const TensorSpec& spec);
/// Of the activations that it meets.
float make_random_input_scale(uint64_t seed, const TensorSpec& spec);

/// Writes elements [first, first + count) of a tensor in a format; `first` is a multiple of 4 and
/// `out` aligned to the element.
void fill_random(const RandomTensor& tensor, DType dtype, int64_t first, int64_t count,
                 std::byte* out);

/// The same of a matrix in MXFP4, and the scales of those elements; `first` and `count` are
/// multiples of kMxBlock.
void fill_random_mx(uint64_t seed, const TensorSpec& spec, int64_t first, int64_t count,
                    uint8_t* codes, uint8_t* scales);

}  // namespace weft
