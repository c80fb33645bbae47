// Products of few rows in bf16 with weights in 12 bits (forms/packed/windowed.h) on Hopper, which
// reading the weights takes the time of: a second copy of weights that are as the checkpoint has
// them, in tiles that the tensor cores get by registers.
//
// A tile is 64 rows by 64 of k, 6,272 bytes: for each of its four units of 16 rows 8 words of
// weights that are listed, then for each unit two groups of 32 of k, as a resident kernel's slices
// have them (forms/packed/hopper_layout.h) but for the order of k, which is the matrices' own. The
// tiles of 64 rows lie side by side along k. Behind all of them comes a byte a row: the exponent of
// what scales its sums. Of a gate and an up projection a unit has 8 rows each.
#pragma once

#include <cstdint>

#include "arch/device.h"
#include "ops/gated_linear/op.h"
#include "ops/linear/op.h"
#include "ops/linear/prefill.h"

namespace weft::hopper {

/// Rows of a product at most.
inline constexpr int64_t kMostTiledRows = 128;

/// Bytes of the weights' tiles; 0: they have none (their format, or sizes that are no multiples of
/// 64, of rows 128).
int64_t tiles_bytes(const LinearArgs& args);
int64_t tiles_bytes(const GatedLinearArgs& args);

/// Makes the tiles, on the device as the weights are, in the order of the stream; `to` is aligned
/// to 128 bytes. `refused`, a word on the device that is 0 before, is not where some weights
/// cannot be packed: then the tiles are of no use. Errors: device (the launch failed).
Status make_tiles(const LinearArgs& args, char* to, uint32_t* refused, Stream stream);
Status make_tiles(const GatedLinearArgs& args, char* to, uint32_t* refused, Stream stream);

/// Whether so many rows are better multiplied by tiles. `whole_k`: only where k is summed in order,
/// as gemm_bf16 does with it, bit for bit: where the weights have rows for all multiprocessors.
/// Else it is in up to eight parts (tile_parts()).
bool takes_tiles(const LinearArgs& args, int64_t rows, bool whole_k, Stream stream);
bool takes_tiles(const GatedLinearArgs& args, int64_t rows, bool whole_k, Stream stream);

/// out[r, c] (+)= sum_k a[r, k] w[c, k] of rows [0, rows) of a in bf16, where takes_tiles():
/// neither a bias nor anything else that linear has. Errors: device (the launch failed).
Status tiled_linear(const LinearArgs& args, const char* tiles, int64_t rows, Stream stream);
/// Likewise.
Status tiled_gated_linear(const GatedLinearArgs& args, const char* tiles, int64_t rows,
                          Stream stream);

/// Parts of k that blocks of a cluster share of two rows of tiles: so many that all multiprocessors
/// read, and the sizes of the weights alone decide. `tile_rows`, `k_tiles`: tiles along the
/// weights' rows and along k; `units`: multiprocessors.
int tile_parts(int64_t tile_rows, int64_t k_tiles, int units);

}  // namespace weft::hopper
