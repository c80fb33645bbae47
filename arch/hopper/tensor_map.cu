#include "arch/hopper/tensor_map.h"

#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>

namespace weft::hopper {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                             12000, cudaEnableDefault, &found);
  return error == cudaSuccess && found == cudaDriverEntryPointSuccess
             ? reinterpret_cast<Encode>(function)
             : nullptr;
}

Result<CUtensorMap> encoded(const MapArgs& args) {
  static const Encode encode = find_encode();
  if (encode == nullptr) {
    return device_error(
        "the CUDA driver has no cuTensorMapEncodeTiled; Weft needs one for CUDA 12 or later");
  }
  CUtensorMap map;
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(args.columns),
                               static_cast<cuuint64_t>(args.rows),
                               static_cast<cuuint64_t>(args.planes)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(args.stride_bytes),
                                 static_cast<cuuint64_t>(args.plane_bytes)};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(args.box_columns),
                             static_cast<cuuint32_t>(args.box_rows),
                             static_cast<cuuint32_t>(args.box_planes)};
  const cuuint32_t steps[3] = {1, 1, 1};
  const bool bytes = args.format == MapFormat::u8;
  const CUtensorMapSwizzle swizzle = !args.swizzled ? CU_TENSOR_MAP_SWIZZLE_NONE
                                     : args.box_columns * (bytes ? 1 : 2) == 64
                                         ? CU_TENSOR_MAP_SWIZZLE_64B
                                         : CU_TENSOR_MAP_SWIZZLE_128B;
  // What misses L2 is brought there by 128 bytes. By 256, what is bound by memory reads it 5 to 7 %
  // slower: attention_decode 263 us for 248, mla_decode 240 for 226 (H200).
  const CUresult result =
      encode(&map, bytes ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
             args.planes > 0 ? 3 : 2, const_cast<void*>(args.data), sizes, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return device_error("the CUDA driver refuses a tensor map of " + std::to_string(args.rows) +
                        " x " + std::to_string(args.columns) + " with boxes of " +
                        std::to_string(args.box_rows) + " x " + std::to_string(args.box_columns) +
                        ": error " + std::to_string(result));
  }
  return map;
}

}  // namespace

Result<CUtensorMap> tensor_map(const MapArgs& args) {
  // A product has up to five, and the driver's work on them would be a tenth of a launch: the
  // thread keeps its last ones. They say nothing but what `args` does.
  const auto key = std::make_tuple(args.data, args.format, args.rows, args.columns,
                                   args.stride_bytes, args.box_rows, args.box_columns,
                                   args.swizzled, args.planes, args.plane_bytes, args.box_planes);
  struct Kept {
    std::remove_const_t<decltype(key)> of;
    CUtensorMap map;
  };
  thread_local std::array<Kept, 64> kept;
  const uint64_t hash = reinterpret_cast<uintptr_t>(args.data) / 256 * 3 + args.rows * 5 +
                        args.columns / 8 * 7 + args.box_rows;
  Kept& place = kept[hash * 0x9e3779b97f4a7c15 >> 58];
  if (place.of != key) {
    WEFT_ASSIGN(place.map, encoded(args));
    place.of = key;
  }
  return place.map;
}

Result<RowBoxes> row_boxes(const MapArgs& args, int64_t matrices) {
  RowBoxes boxes{.rows = static_cast<int>(args.rows)};
  MapArgs all = args;
  all.rows *= matrices;
  WEFT_ASSIGN(boxes.whole, tensor_map(all));
  boxes.last = boxes.whole;
  const int left = boxes.rows % args.box_rows;
  if (left > 0) {
    all.box_rows = left;
    WEFT_ASSIGN(boxes.last, tensor_map(all));
  }
  return boxes;
}

}  // namespace weft::hopper
