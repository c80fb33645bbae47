// The functions of libtorch that Weft calls: PyTorch's stable C interface
// (torch/csrc/inductor/aoti_torch/c/shim.h, the same since PyTorch 2.8), looked up in the libtorch
// that the process has loaded. No header of PyTorch is needed, and one library serves its versions.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace weft::torch_abi {

using Handle = struct AtenTensorOpaque*;
using LibraryHandle = struct TorchLibraryOpaque*;
using GuardHandle = struct CUDAGuardOpaque*;
/// An argument or a result: a number, the handle of a tensor (whose owner is who gets it), or for
/// what may be None a pointer to another one, allocated by malloc, null for None.
using Value = uint64_t;
using BoxedKernel = void (*)(Value* stack, uint64_t arguments, uint64_t results);

// Each returns 0 where it succeeds, but for those that return a code.
#define WEFT_TORCH_FUNCTIONS(X)                                                                   \
  X(int32_t, aoti_torch_library_init_impl,                                                        \
    (const char* space, const char* key, const char* file, uint32_t line, LibraryHandle* out))    \
  X(int32_t, aoti_torch_library_impl, (LibraryHandle self, const char* name, BoxedKernel kernel)) \
  X(void, aoti_torch_check,                                                                       \
    (bool condition, const char* function, const char* file, uint32_t line, const char* message)) \
  X(int32_t, aoti_torch_delete_tensor_object, (Handle tensor))                                    \
  X(int32_t, aoti_torch_get_data_ptr, (Handle tensor, void** out))                                \
  X(int32_t, aoti_torch_get_dim, (Handle tensor, int64_t * out))                                  \
  X(int32_t, aoti_torch_get_sizes, (Handle tensor, int64_t * *out))                               \
  X(int32_t, aoti_torch_get_strides, (Handle tensor, int64_t * *out))                             \
  X(int32_t, aoti_torch_get_dtype, (Handle tensor, int32_t * out))                                \
  X(int32_t, aoti_torch_get_device_type, (Handle tensor, int32_t * out))                          \
  X(int32_t, aoti_torch_get_device_index, (Handle tensor, int32_t * out))                         \
  X(int32_t, aoti_torch_empty_strided,                                                            \
    (int64_t dims, const int64_t* sizes, const int64_t* strides, int32_t dtype,                   \
     int32_t device_type, int32_t device_index, Handle* out))                                     \
  X(int32_t, aoti_torch_zero_, (Handle tensor))                                                   \
  X(int32_t, aoti_torch_dtype_float32, ())                                                        \
  X(int32_t, aoti_torch_dtype_bfloat16, ())                                                       \
  X(int32_t, aoti_torch_dtype_float16, ())                                                        \
  X(int32_t, aoti_torch_dtype_float8_e4m3fn, ())                                                  \
  X(int32_t, aoti_torch_dtype_float8_e4m3fnuz, ())                                                \
  X(int32_t, aoti_torch_dtype_uint8, ())                                                          \
  X(int32_t, aoti_torch_dtype_int32, ())                                                          \
  X(int32_t, aoti_torch_dtype_int64, ())                                                          \
  X(int32_t, aoti_torch_device_type_cpu, ())                                                      \
  X(int32_t, aoti_torch_device_type_cuda, ())

/// Those of the library for GPUs; a PyTorch without one lacks them.
#define WEFT_TORCH_GPU_FUNCTIONS(X)                                             \
  X(int32_t, aoti_torch_get_current_cuda_stream, (int32_t device, void** out))  \
  X(int32_t, aoti_torch_create_cuda_guard, (int32_t device, GuardHandle * out)) \
  X(int32_t, aoti_torch_delete_cuda_guard, (GuardHandle guard))

struct Torch {
#define WEFT_TORCH_POINTER(result, name, parameters) result(*name) parameters = nullptr;
  WEFT_TORCH_FUNCTIONS(WEFT_TORCH_POINTER)
  WEFT_TORCH_GPU_FUNCTIONS(WEFT_TORCH_POINTER)
#undef WEFT_TORCH_POINTER
};

/// Looks all up. Error (device): PyTorch is not loaded, or is too old and lacks a function, which
/// is named.
Result<Torch> look_up();

}  // namespace weft::torch_abi
