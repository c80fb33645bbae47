// Of the simulated HIP runtime: copies and fills.
#include "sim/hip_transfer.h"

#include <cstring>
#include <utility>

#include "sim/hip_runtime.h"

namespace weft::sim {

using namespace weft::hip;  // NOLINT: this is HIP's other side

namespace {

/// Bytes from the first to the last; false: rows overlap, or they are more than there can be.
bool span_of(const Rows& rows, const hipExtent& extent, size_t& bytes) {
  size_t slices = 0;
  size_t lines = 0;
  if ((extent.height > 1 && rows.pitch < extent.width) ||
      __builtin_mul_overflow(rows.pitch, extent.height - 1, &lines) ||
      __builtin_add_overflow(lines, extent.width, &lines) ||
      (extent.depth > 1 && rows.slice < lines) ||
      __builtin_mul_overflow(rows.slice, extent.depth - 1, &slices)) {
    return false;
  }
  return !__builtin_add_overflow(slices, lines, &bytes);
}

bool is_empty(const hipExtent& extent) {
  return extent.width == 0 || extent.height == 0 || extent.depth == 0;
}

template <class Row>
void for_each_row(const hipExtent& extent, Row row) {
  for (size_t z = 0; z < extent.depth; ++z) {
    for (size_t y = 0; y < extent.height; ++y) {
      row(y, z);
    }
  }
}

std::byte* at(const Rows& rows, size_t y, size_t z) {
  return rows.begin + z * rows.slice + y * rows.pitch;
}

}  // namespace

hipError_t make_copy(const Rows& to, const Rows& from, const hipExtent& extent, hipMemcpyKind kind,
                     Transfer& transfer) {
  if (kind > hipMemcpyDefault) {
    return hipErrorInvalidMemcpyDirection;
  }
  if (is_empty(extent)) {
    transfer = [] { return hipSuccess; };
    return hipSuccess;
  }
  size_t to_bytes = 0;
  size_t from_bytes = 0;
  if (!span_of(to, extent, to_bytes) || !span_of(from, extent, from_bytes)) {
    return hipErrorInvalidValue;
  }
  const bool to_device = kind == hipMemcpyHostToDevice || kind == hipMemcpyDeviceToDevice;
  const bool from_device = kind == hipMemcpyDeviceToHost || kind == hipMemcpyDeviceToDevice;
  const auto possible = [=] {
    return holds(to.begin, to_bytes, to_device) && holds(from.begin, from_bytes, from_device);
  };
  transfer = [=] {
    if (!possible()) {
      return hipErrorInvalidValue;
    }
    for_each_row(extent, [&](size_t y, size_t z) {
      std::memmove(at(to, y, z), at(from, y, z), extent.width);
    });
    return hipSuccess;
  };
  return possible() ? hipSuccess : hipErrorInvalidValue;
}

hipError_t make_fill(const Rows& to, const hipExtent& extent, uint32_t value, size_t value_bytes,
                     Transfer& transfer) {
  if (is_empty(extent)) {
    transfer = [] { return hipSuccess; };
    return hipSuccess;
  }
  size_t bytes = 0;
  if (!span_of(to, extent, bytes)) {
    return hipErrorInvalidValue;
  }
  transfer = [=] {
    if (!holds(to.begin, bytes, true)) {
      return hipErrorInvalidValue;
    }
    for_each_row(extent, [&](size_t y, size_t z) {
      std::byte* row = at(to, y, z);
      if (value_bytes == 1) {
        std::memset(row, static_cast<int>(value), extent.width);
        return;
      }
      for (size_t k = 0; k < extent.width; k += value_bytes) {
        std::memcpy(row + k, &value, value_bytes);
      }
    });
    return hipSuccess;
  };
  return holds(to.begin, bytes, true) ? hipSuccess : hipErrorInvalidValue;
}

std::function<void()> done_later(Transfer transfer, int device) {
  return [transfer = std::move(transfer), device] {
    const Memory::Use use(memory());
    if (const hipError_t error = transfer(); error != hipSuccess) {
      gpu(device).failed = error;
    }
    memory().note_progress();
  };
}

}  // namespace weft::sim

namespace weft::hip {
namespace {

using namespace weft::sim;  // NOLINT: what stands behind HIP's functions

std::byte* bytes_at(const void* pointer) {
  return static_cast<std::byte*>(const_cast<void*>(pointer));
}
constexpr hipExtent row_of(size_t bytes) { return {bytes, 1, 1}; }

/// Who waits for a copy or a fill.
enum class Waits : uint8_t {
  caller,    ///< a call that returns when it is done
  stream,    ///< one that returns at once
  borrowed,  ///< the same, with bytes of the host that may be the caller's stack: done at once,
             ///< or, in a graph, wherever they then are
};

/// Does it in its turn, and returns the error: at once, with what the stream's device failed with
/// before, or when the stream is next waited for.
hipError_t do_in(hipStream_t handle, Waits waits, hipGraphNodeType type, Transfer transfer) {
  ihipStream_t* stream = stream_of(handle);
  if (stream == nullptr) {
    return result(hipErrorInvalidHandle);
  }
  const int device = stream->device;
  if (const auto captured = waits == Waits::caller
                                ? refuse_capture(*stream)
                                : capture(*stream, type, done_later(transfer, device))) {
    return result(*captured);
  }
  if (waits == Waits::stream) {
    submit(*stream, done_later(std::move(transfer), device));
    return hipSuccess;
  }
  hipError_t error = hipSuccess;
  perform(*stream, [&] {
    const Memory::Use use(memory());
    error = transfer();
    memory().note_progress();
  });
  const hipError_t before = take_failure(device);
  return result(error != hipSuccess ? error : before);
}

hipError_t copy(const Rows& to, const Rows& from, const hipExtent& extent, hipMemcpyKind kind,
                hipStream_t stream, bool later) {
  Transfer transfer;
  if (const hipError_t error = make_copy(to, from, extent, kind, transfer); error != hipSuccess) {
    return result(error);
  }
  const bool known = holds(to.begin, 0, true) && holds(from.begin, 0, true);
  return do_in(stream,
               !later  ? Waits::caller
               : known ? Waits::stream
                       : Waits::borrowed,
               hipGraphNodeTypeMemcpy, std::move(transfer));
}
hipError_t copy_row(void* to, const void* from, size_t bytes, hipMemcpyKind kind,
                    hipStream_t stream, bool later) {
  return copy({bytes_at(to)}, {bytes_at(from)}, row_of(bytes), kind, stream, later);
}
hipError_t copy_rows(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                     size_t height, hipMemcpyKind kind, hipStream_t stream, bool later) {
  return copy({bytes_at(to), to_pitch}, {bytes_at(from), from_pitch}, {width, height, 1}, kind,
              stream, later);
}

hipError_t fill(const Rows& to, const hipExtent& extent, uint32_t value, size_t value_bytes,
                hipStream_t stream, bool later) {
  Transfer transfer;
  const hipError_t error = make_fill(to, extent, value, value_bytes, transfer);
  return error != hipSuccess ? result(error)
                             : do_in(stream, later ? Waits::stream : Waits::caller,
                                     hipGraphNodeTypeMemset, std::move(transfer));
}
template <class T>
hipError_t fill_row(void* pointer, T value, size_t count, hipStream_t stream, bool later) {
  return count > SIZE_MAX / sizeof(T) ? result(hipErrorInvalidValue)
                                      : fill({bytes_at(pointer)}, row_of(count * sizeof(T)), value,
                                             sizeof(T), stream, later);
}
uint8_t byte_of(int value) { return static_cast<uint8_t>(value); }

/// From the middle of a box: false where that is more than addresses reach.
bool move_to(Rows& rows, const hipPos& position) {
  size_t y = 0;
  size_t z = 0;
  if (__builtin_mul_overflow(position.y, rows.pitch, &y) ||
      __builtin_mul_overflow(position.z, rows.slice, &z)) {
    return false;
  }
  rows.begin += z + y + position.x;
  return true;
}
Rows rows_of(const hipPitchedPtr& p) { return {bytes_at(p.ptr), p.pitch, p.pitch * p.ysize}; }

hipError_t copy_box(const hipMemcpy3DParms* parameters, hipStream_t stream, bool later) {
  if (parameters == nullptr) {
    return result(hipErrorInvalidValue);
  }
  const hipMemcpy3DParms& p = *parameters;
  if (p.srcArray != nullptr || p.dstArray != nullptr) {
    return refuse(hipErrorNotSupported, "", "The simulator has no arrays: they are for images.");
  }
  Rows to = rows_of(p.dstPtr);
  Rows from = rows_of(p.srcPtr);
  if (!move_to(to, p.dstPos) || !move_to(from, p.srcPos)) {
    return result(hipErrorInvalidValue);
  }
  return copy(to, from, p.extent, p.kind, stream, later);
}

hipError_t copy_part(const hip_Memcpy2D* parameters, hipStream_t stream, bool later) {
  if (parameters == nullptr) {
    return result(hipErrorInvalidValue);
  }
  const hip_Memcpy2D& p = *parameters;
  if (p.srcArray != nullptr || p.dstArray != nullptr) {
    return refuse(hipErrorNotSupported, "", "The simulator has no arrays: they are for images.");
  }
  const bool from_host = p.srcMemoryType == hipMemoryTypeHost;
  const bool to_host = p.dstMemoryType == hipMemoryTypeHost;
  Rows to{bytes_at(to_host ? p.dstHost : p.dstDevice), p.dstPitch, 0};
  Rows from{bytes_at(from_host ? p.srcHost : p.srcDevice), p.srcPitch, 0};
  if (!move_to(to, {p.dstXInBytes, p.dstY, 0}) || !move_to(from, {p.srcXInBytes, p.srcY, 0})) {
    return result(hipErrorInvalidValue);
  }
  const hipMemcpyKind kind = from_host ? to_host ? hipMemcpyHostToHost : hipMemcpyHostToDevice
                             : to_host ? hipMemcpyDeviceToHost
                                       : hipMemcpyDeviceToDevice;
  return copy(to, from, {p.WidthInBytes, p.Height, 1}, kind, stream, later);
}

}  // namespace

WEFT_HIP hipError_t hipMemcpy(void* to, const void* from, size_t bytes, hipMemcpyKind kind) {
  return copy_row(to, from, bytes, kind, nullptr, false);
}
WEFT_HIP hipError_t hipMemcpyAsync(void* to, const void* from, size_t bytes, hipMemcpyKind kind,
                                   hipStream_t stream) {
  return copy_row(to, from, bytes, kind, stream, true);
}
WEFT_HIP hipError_t hipMemcpyWithStream(void* to, const void* from, size_t bytes,
                                        hipMemcpyKind kind, hipStream_t stream) {
  return copy_row(to, from, bytes, kind, stream, false);
}
WEFT_HIP hipError_t hipMemcpyHtoD(hipDeviceptr_t to, void* from, size_t bytes) {
  return copy_row(to, from, bytes, hipMemcpyHostToDevice, nullptr, false);
}
WEFT_HIP hipError_t hipMemcpyDtoH(void* to, hipDeviceptr_t from, size_t bytes) {
  return copy_row(to, from, bytes, hipMemcpyDeviceToHost, nullptr, false);
}
WEFT_HIP hipError_t hipMemcpyDtoD(hipDeviceptr_t to, hipDeviceptr_t from, size_t bytes) {
  return copy_row(to, from, bytes, hipMemcpyDeviceToDevice, nullptr, false);
}
WEFT_HIP hipError_t hipMemcpyHtoDAsync(hipDeviceptr_t to, void* from, size_t bytes,
                                       hipStream_t stream) {
  return copy_row(to, from, bytes, hipMemcpyHostToDevice, stream, true);
}
WEFT_HIP hipError_t hipMemcpyDtoHAsync(void* to, hipDeviceptr_t from, size_t bytes,
                                       hipStream_t stream) {
  return copy_row(to, from, bytes, hipMemcpyDeviceToHost, stream, true);
}
WEFT_HIP hipError_t hipMemcpyDtoDAsync(hipDeviceptr_t to, hipDeviceptr_t from, size_t bytes,
                                       hipStream_t stream) {
  return copy_row(to, from, bytes, hipMemcpyDeviceToDevice, stream, true);
}
WEFT_HIP hipError_t hipMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device,
                                       size_t bytes, hipStream_t stream) {
  const auto lies_in = [](const void* pointer, int device) {
    Memory::Range range;
    return memory().find(address_of(pointer), range) && range.placement.home == device;
  };
  if (!known_device(to_device) || !known_device(from_device)) {
    return result(hipErrorInvalidDevice);
  }
  if (bytes != 0 && (!lies_in(to, to_device) || !lies_in(from, from_device))) {
    return result(hipErrorInvalidValue);
  }
  return copy_row(to, from, bytes, hipMemcpyDeviceToDevice, stream, true);
}
WEFT_HIP hipError_t hipMemcpyPeer(void* to, int to_device, const void* from, int from_device,
                                  size_t bytes) {
  // It begins when both devices are done with what their default streams have.
  for (const int device : {to_device, from_device}) {
    if (known_device(device)) {
      perform(gpu(device).null_stream, {});
    }
  }
  const hipError_t error = hipMemcpyPeerAsync(to, to_device, from, from_device, bytes, nullptr);
  if (error != hipSuccess) {
    return error;
  }
  perform(gpu().null_stream, {});
  return result(take_failure(current_device()));
}
WEFT_HIP hipError_t hipMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                                size_t width, size_t height, hipMemcpyKind kind) {
  return copy_rows(to, to_pitch, from, from_pitch, width, height, kind, nullptr, false);
}
WEFT_HIP hipError_t hipMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                                     size_t width, size_t height, hipMemcpyKind kind,
                                     hipStream_t stream) {
  return copy_rows(to, to_pitch, from, from_pitch, width, height, kind, stream, true);
}
WEFT_HIP hipError_t hipMemcpyParam2D(const hip_Memcpy2D* parameters) {
  return copy_part(parameters, nullptr, false);
}
WEFT_HIP hipError_t hipMemcpyParam2DAsync(const hip_Memcpy2D* parameters, hipStream_t stream) {
  return copy_part(parameters, stream, true);
}
WEFT_HIP hipError_t hipMemcpy3D(const hipMemcpy3DParms* parameters) {
  return copy_box(parameters, nullptr, false);
}
WEFT_HIP hipError_t hipMemcpy3DAsync(const hipMemcpy3DParms* parameters, hipStream_t stream) {
  return copy_box(parameters, stream, true);
}

WEFT_HIP hipError_t hipMemset(void* pointer, int value, size_t bytes) {
  return fill_row(pointer, byte_of(value), bytes, nullptr, false);
}
WEFT_HIP hipError_t hipMemsetAsync(void* pointer, int value, size_t bytes, hipStream_t stream) {
  return fill_row(pointer, byte_of(value), bytes, stream, true);
}
WEFT_HIP hipError_t hipMemsetD8(hipDeviceptr_t pointer, unsigned char value, size_t count) {
  return fill_row(pointer, value, count, nullptr, false);
}
WEFT_HIP hipError_t hipMemsetD8Async(hipDeviceptr_t pointer, unsigned char value, size_t count,
                                     hipStream_t stream) {
  return fill_row(pointer, value, count, stream, true);
}
WEFT_HIP hipError_t hipMemsetD16(hipDeviceptr_t pointer, unsigned short value, size_t count) {
  return fill_row(pointer, value, count, nullptr, false);
}
WEFT_HIP hipError_t hipMemsetD16Async(hipDeviceptr_t pointer, unsigned short value, size_t count,
                                      hipStream_t stream) {
  return fill_row(pointer, value, count, stream, true);
}
WEFT_HIP hipError_t hipMemsetD32(hipDeviceptr_t pointer, int value, size_t count) {
  return fill_row(pointer, static_cast<uint32_t>(value), count, nullptr, false);
}
WEFT_HIP hipError_t hipMemsetD32Async(hipDeviceptr_t pointer, int value, size_t count,
                                      hipStream_t stream) {
  return fill_row(pointer, static_cast<uint32_t>(value), count, stream, true);
}
WEFT_HIP hipError_t hipMemset2D(void* to, size_t pitch, int value, size_t width, size_t height) {
  return fill({bytes_at(to), pitch}, {width, height, 1}, byte_of(value), 1, nullptr, false);
}
WEFT_HIP hipError_t hipMemset2DAsync(void* to, size_t pitch, int value, size_t width, size_t height,
                                     hipStream_t stream) {
  return fill({bytes_at(to), pitch}, {width, height, 1}, byte_of(value), 1, stream, true);
}
WEFT_HIP hipError_t hipMemset3D(hipPitchedPtr to, int value, hipExtent extent) {
  return fill(rows_of(to), extent, byte_of(value), 1, nullptr, false);
}
WEFT_HIP hipError_t hipMemset3DAsync(hipPitchedPtr to, int value, hipExtent extent,
                                     hipStream_t stream) {
  return fill(rows_of(to), extent, byte_of(value), 1, stream, true);
}

}  // namespace weft::hip
