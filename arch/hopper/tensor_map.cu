#include "arch/hopper/tensor_map.h"

#include <cuda_runtime.h>

#include <string>

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

}  // namespace

Result<CUtensorMap> tensor_map(const MapArgs& args) {
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
  // What misses L2 is brought there by 128 bytes. By 256, kernels in a row that are bound by
  // memory read it up to 7 % slower.
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

Result<RowBoxes> row_boxes(const MapArgs& args) {
  RowBoxes boxes{.rows = static_cast<int>(args.rows)};
  WEFT_ASSIGN(boxes.whole, tensor_map(args));
  boxes.last = boxes.whole;
  const int left = boxes.rows % args.box_rows;
  if (left > 0) {
    MapArgs last = args;
    last.box_rows = left;
    WEFT_ASSIGN(boxes.last, tensor_map(last));
  }
  return boxes;
}

}  // namespace weft::hopper
