// Tensor maps: what the copy engine is told about a matrix in device memory (CUDA driver API,
// "Tensor Map Object Management"). The function that encodes them is asked for at run time, so that
// a program linked with this starts on machines without a driver.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "base/result.h"

namespace weft::hopper {

enum class MapFormat : uint8_t { u8, bf16 };

/// A row-major matrix, or a stack of such, and the box that one copy takes.
struct MapArgs {
  const void* data = nullptr;  ///< aligned to 16 bytes
  MapFormat format = MapFormat::u8;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride_bytes = 0;  ///< a multiple of 16
  int box_rows = 0;          ///< at most 256
  int box_columns = 0;       ///< 128 or 64 bytes where swizzled; at most 256
  bool swizzled = true;      ///< as swizzle_128(), or of 64 bytes the same with the lower two bits
  int64_t planes = 0;        ///< matrices in a stack; 0: no stack, one matrix
  int64_t plane_bytes = 0;   ///< from one to the next, a multiple of 16
  int box_planes = 1;        ///< at most 256
};

/// Errors: device (no driver, or it refuses: the sentence says what).
Result<CUtensorMap> tensor_map(const MapArgs& args);

/// A matrix that is loaded box after box along its rows. A row outside of it takes the copy engine
/// some four times as long as one inside, so where the last box is not full it has a map of its
/// own. Or several such matrices, one behind the other.
struct RowBoxes {
  CUtensorMap whole;
  CUtensorMap last;  ///< of the rows that are left; `whole` again where none are
  int rows = 0;      ///< of one matrix
};
/// Of `matrices` like the one that `args` says, args.rows rows from one to the next. Errors: as
/// tensor_map()'s.
Result<RowBoxes> row_boxes(const MapArgs& args, int64_t matrices = 1);

}  // namespace weft::hopper
