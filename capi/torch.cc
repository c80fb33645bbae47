// The operations as PyTorch's kernels, for tensors of the CPU and of GPUs. python/weft/ops.py
// declares them and says what they compute.
//
// A kernel here gets the tensors of its arguments, makes those of its results, and starts the
// operation on PyTorch's current stream. Workspaces come from PyTorch's allocator, one for each
// stream, and one for each recording of a graph, so that it is made, cleared and used inside that
// graph.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arch/hopper/device.h"
#include "base/built.h"
#include "capi/interface.h"
#include "capi/torch_abi.h"
#include "ops/check_operands.h"
#include "ops/gemm_bf16/op.h"
#include "ops/gemm_fp8_blockwise/op.h"
#include "ops/gemm_skinny/op.h"
#include "ops/mla_layer/op.h"
#include "ops/moe/experts.h"
#include "ops/moe_layer/op.h"
#include "ops/rmsnorm_quant/op.h"
#include "ops/swiglu_quant/op.h"

namespace weft::capi {
namespace {

using torch_abi::Handle;
using torch_abi::Torch;
using torch_abi::Value;

Torch torch;           // set once, before the first kernel runs
std::string gpu_kind;  // what torch's "cuda" is: "cuda" or "hip"
int32_t cpu_type = 0;

struct Format {
  int32_t torch = 0;
  DType weft = DType::f32;
  std::string_view name;  ///< PyTorch's
};
std::array<Format, 5> formats;

const Format& format_of(DType type) {
  return *std::find_if(formats.begin(), formats.end(),
                       [&](const Format& each) { return each.weft == type; });
}
int32_t to_torch(DType type) { return format_of(type).torch; }

/// A tensor, owned.
class Tensor {
 public:
  Tensor() = default;
  /// Of an argument. Its sizes and strides are PyTorch's own and live as long as it.
  explicit Tensor(Handle handle) : handle_(handle) {
    if (handle == nullptr) {
      return;
    }
    torch.aoti_torch_get_data_ptr(handle, &data);
    torch.aoti_torch_get_dim(handle, &dims);
    torch.aoti_torch_get_sizes(handle, &sizes);
    torch.aoti_torch_get_strides(handle, &strides);
    torch.aoti_torch_get_dtype(handle, &dtype);
    torch.aoti_torch_get_device_type(handle, &device_type);
    torch.aoti_torch_get_device_index(handle, &device_index);
  }
  Tensor(Tensor&& other) noexcept { *this = std::move(other); }
  Tensor& operator=(Tensor&& other) noexcept {
    std::swap(handle_, other.handle_);
    data = other.data;
    dims = other.dims;
    sizes = other.sizes;
    strides = other.strides;
    dtype = other.dtype;
    device_type = other.device_type;
    device_index = other.device_index;
    return *this;
  }
  ~Tensor() {
    if (handle_ != nullptr) {
      torch.aoti_torch_delete_tensor_object(handle_);
    }
  }

  bool there() const { return handle_ != nullptr; }
  Handle handle() const { return handle_; }
  Value release() { return reinterpret_cast<Value>(std::exchange(handle_, nullptr)); }
  int64_t numel() const {
    return std::accumulate(sizes, sizes + dims, int64_t{1}, std::multiplies<>());
  }

  void* data = nullptr;
  int64_t dims = 0;
  int64_t* sizes = nullptr;
  int64_t* strides = nullptr;
  int32_t dtype = 0;
  int32_t device_type = 0;
  int32_t device_index = 0;

 private:
  Handle handle_ = nullptr;
};

Tensor tensor(Value value) { return Tensor(reinterpret_cast<Handle>(value)); }
/// What may be None.
Tensor optional_tensor(Value value) {
  auto* held = reinterpret_cast<Value*>(value);  // NOLINT(performance-no-int-to-ptr)
  if (held == nullptr) {
    return {};
  }
  Tensor result = tensor(*held);
  std::free(held);  // NOLINT: PyTorch allocated it
  return result;
}
float number(Value value) { return static_cast<float>(std::bit_cast<double>(value)); }
bool flag(Value value) { return (value & 0xff) != 0; }

std::string shape_of(const Tensor& t) {
  return fmt::format("[{}]", fmt::join(t.sizes, t.sizes + t.dims, ", "));
}

Format int32_format() { return {.torch = torch.aoti_torch_dtype_int32(), .name = "int32"}; }

/// A tensor's dtype in words.
std::string_view dtype_of(const Tensor& t) {
  for (const Format& each : formats) {
    if (each.torch == t.dtype) {
      return each.name;
    }
  }
  return t.dtype == torch.aoti_torch_dtype_int32()   ? "int32"
         : t.dtype == torch.aoti_torch_dtype_int64() ? "int64"
         : t.dtype == torch.aoti_torch_dtype_uint8() ? "uint8"
                                                     : "of another dtype";
}

Result<DType> format_of(std::string_view name, const Tensor& t) {
  for (const Format& each : formats) {
    if (each.torch == t.dtype) {
      return each.weft;
    }
  }
  return usage_error(fmt::format(
      "{}: its dtype is none of float32, bfloat16, float16, float8_e4m3fn and float8_e4m3fnuz",
      name));
}

/// A tensor as rows: its leading dimensions lie evenly after one another.
struct Rows {
  int64_t rows = 0;
  int64_t columns = 0;
  ConstMatrix matrix;

  Matrix writable() const { return {const_cast<void*>(matrix.data), matrix.dtype, matrix.stride}; }
};

Result<Rows> as_rows(std::string_view name, const Tensor& t) {
  WEFT_ASSIGN(const DType format, format_of(name, t));
  if (t.dims < 1 || t.strides[t.dims - 1] != 1) {
    return usage_error(fmt::format(
        "{}: the elements of its last dimension must be adjacent; call .contiguous()", name));
  }
  Rows result;
  result.columns = t.sizes[t.dims - 1];
  result.rows = 1;
  int64_t stride = result.columns;
  for (int64_t d = t.dims - 2; d >= 0; --d) {
    if (t.sizes[d] == 1) {
      continue;
    }
    if (result.rows == 1) {
      stride = t.strides[d];
    } else if (t.strides[d] != stride * result.rows) {
      return usage_error(
          fmt::format("{}: the rows of its shape {} are not evenly spaced; call .contiguous()",
                      name, shape_of(t)));
    }
    result.rows *= t.sizes[d];
  }
  result.matrix = {t.data, format, stride};
  return result;
}

Status same_shape(std::string_view name, const Tensor& t, std::string_view other_name,
                  const Tensor& other) {
  if (t.dims == other.dims && std::equal(t.sizes, t.sizes + t.dims, other.sizes)) {
    return {};
  }
  return usage_error(fmt::format("{} is {} and {} is {}: they must be alike", name, shape_of(t),
                                 other_name, shape_of(other)));
}

Status same_device(const Tensor& a,
                   std::initializer_list<std::pair<std::string_view, const Tensor*>> others) {
  for (const auto& [name, t] : others) {
    if (t->there() && (t->device_type != a.device_type || t->device_index != a.device_index)) {
      return usage_error(fmt::format("{} is on another device than the first operand", name));
    }
  }
  return {};
}

Result<Tensor> empty(const Tensor& like, std::span<const int64_t> sizes,
                     std::span<const int64_t> strides, int32_t dtype) {
  Handle handle = nullptr;
  if (torch.aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(),
                                     strides.data(), dtype, like.device_type, like.device_index,
                                     &handle) != 0) {
    return device_error(fmt::format("PyTorch could not allocate [{}]", fmt::join(sizes, ", ")));
  }
  return Tensor(handle);
}

/// Contiguous, of the shape of `like` but for its last dimension. Valid until the thread's next.
struct RowsShape {
  RowsShape(const Tensor& like, int64_t columns) {
    thread_local std::vector<int64_t> kept_sizes;  // allocated once
    thread_local std::vector<int64_t> kept_strides;
    kept_sizes.assign(like.sizes, like.sizes + like.dims);
    kept_sizes.back() = columns;
    kept_strides.assign(kept_sizes.size(), 1);
    for (size_t d = kept_sizes.size() - 1; d > 0; --d) {
      kept_strides[d - 1] = kept_strides[d] * std::max<int64_t>(kept_sizes[d], 1);
    }
    sizes = kept_sizes;
    strides = kept_strides;
  }

  std::span<const int64_t> sizes, strides;
};

/// Devices and their workspaces are for one thread at a time, whatever it runs.
std::mutex kept_mutex;

/// A GPU of PyTorch's as a device of Weft's; opened once.
Result<Device*> device_of(int32_t index) {
  static auto& devices = *new std::map<int32_t, std::unique_ptr<Device>>;  // for the whole process
  auto& device = devices[index];
  if (device == nullptr) {
    WEFT_ASSIGN(device, open(fmt::format("{}:{}", gpu_kind, index)));
  }
  return device.get();
}

/// Whether a GPU is the calling thread's already: Guard and Device::use() have nothing to do.
bool in_use(int32_t index) {
  if constexpr (built::kCuda) {
    return gpu_kind == "cuda" && hopper::in_use(index);
  }
  return false;
}

/// The recording of a graph that a stream is in, 0 for none; nullopt where that cannot be told
/// (HIP).
std::optional<uint64_t> recording_of(Stream stream) {
  if constexpr (built::kCuda) {
    if (stream.device->info().arch == Arch::hopper) {
      return hopper::recording(stream);
    }
  }
  return std::nullopt;
}

/// The workspace of a stream, or of the graph that it is recorded into, at least so large. Its
/// counters are zero: cleared when it is made, in the order of the stream, and left so by every
/// operation.
Result<Workspace> workspace_of(const Tensor& like, Stream stream, size_t bytes) {
  struct Kept {
    uint64_t recording = 0;
    Tensor tensor;
  };
  // Never destroyed: PyTorch may be gone by then.
  static auto& all = *new std::map<std::tuple<int32_t, void*, bool>, Kept>;
  const std::optional<uint64_t> recording = recording_of(stream);
  Kept& kept = all[{like.device_index, stream.native, recording.value_or(1) != 0}];
  const bool fits = kept.tensor.there() && static_cast<size_t>(kept.tensor.sizes[0]) >= bytes;
  if (!fits || !recording || kept.recording != *recording) {
    const int64_t sizes[] = {static_cast<int64_t>(std::max(bytes, kCounterBytes))};
    const int64_t strides[] = {1};
    WEFT_ASSIGN(kept.tensor, empty(like, sizes, strides, torch.aoti_torch_dtype_uint8()));
    kept.recording = recording.value_or(0);
    if (torch.aoti_torch_zero_(kept.tensor.handle()) != 0) {
      return device_error("PyTorch could not clear a workspace");
    }
  }
  return Workspace{kept.tensor.data, static_cast<size_t>(kept.tensor.sizes[0])};
}

/// The calling thread's scratch on the CPU.
Workspace scratch_of(size_t bytes) {
  thread_local std::vector<std::byte> scratch;
  constexpr size_t kAlignment = 256;
  if (scratch.size() < bytes + kAlignment) {
    scratch.resize(bytes + kAlignment);
  }
  const auto address = reinterpret_cast<uintptr_t>(scratch.data());
  return {scratch.data() + (kAlignment - address % kAlignment) % kAlignment, bytes};
}

/// Makes a device the calling thread's for a scope.
class Guard {
 public:
  explicit Guard(int32_t index) { torch.aoti_torch_create_cuda_guard(index, &guard_); }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
  ~Guard() { torch.aoti_torch_delete_cuda_guard(guard_); }

 private:
  torch_abi::GuardHandle guard_ = nullptr;
};

/// An operation of ops/; one that is made of others has no kernel of its own.
template <class Args>
struct Functions {
  std::string_view name;
  Status (*run)(const Args&, Stream);
  Result<size_t> (*workspace)(const Args&, Stream);
  const Kernel<Args>* (*kernel)(Arch);
};
#define WEFT_FUNCTIONS(Args, op) \
  constexpr Functions<Args> k##Args { #op, op, op##_workspace, op##_kernel }
WEFT_FUNCTIONS(GemmBf16Args, gemm_bf16);
WEFT_FUNCTIONS(GemmFp8BlockwiseArgs, gemm_fp8_blockwise);
WEFT_FUNCTIONS(GemmSkinnyArgs, gemm_skinny);
WEFT_FUNCTIONS(RmsNormQuantArgs, rmsnorm_quant);
WEFT_FUNCTIONS(SwigluQuantArgs, swiglu_quant);
WEFT_FUNCTIONS(MoeLayerArgs, moe_layer);
constexpr Functions<MlaLayerArgs> kMlaLayerArgs{"mla_layer", mla_layer, mla_layer_workspace,
                                                nullptr};
constexpr Functions<MoeArgs> kMoeArgs{"moe", moe, moe_workspace, nullptr};
#undef WEFT_FUNCTIONS

/// Does what starts work on a GPU, the one that `like` is on, and on PyTorch's current stream.
template <class Body>
Status on_gpu(const Tensor& like, Body&& body) {
  const std::lock_guard lock(kept_mutex);
  std::optional<Guard> guard;
  const bool ready = in_use(like.device_index);
  if (!ready) {
    guard.emplace(like.device_index);
  }
  WEFT_ASSIGN(Device * device, device_of(like.device_index));
  if (!ready) {
    // PyTorch's guard does nothing in a thread that is new and whose device is the first, and
    // memory from its cache needs none either: the thread has no context, and the driver makes no
    // tensor map.
    WEFT_TRY(device->use());
  }
  Stream stream{device, nullptr};
  if (torch.aoti_torch_get_current_cuda_stream(like.device_index, &stream.native) != 0) {
    return device_error("PyTorch has no current stream");
  }
  return body(stream);
}

/// Runs an operation where `like` lies, of which it has a row for each of the result's; none, and
/// there is nothing to do.
template <class Args>
Status run(const Functions<Args>& op, Args& args, const Tensor& like) {
  const std::span rows(like.sizes, static_cast<size_t>(like.dims - 1));
  if (std::find(rows.begin(), rows.end(), 0) != rows.end()) {
    return {};
  }
  if (like.device_type == cpu_type) {
    WEFT_ASSIGN(const size_t bytes, op.workspace(args, {}));
    args.workspace = scratch_of(bytes);
    return op.run(args, {});
  }
  WEFT_TRY(check(args));
  return on_gpu(like, [&](Stream stream) -> Status {
    if (op.kernel == nullptr) {
      WEFT_ASSIGN(const size_t bytes, op.workspace(args, stream));
      WEFT_ASSIGN(args.workspace, workspace_of(like, stream, bytes));
      return op.run(args, stream);
    }
    const DeviceInfo& info = stream.device->info();
    const Kernel<Args>* kernel = op.kernel(info.arch);
    const Plan plan = kernel != nullptr ? kernel->plan(args, info) : Plan{};
    if (plan.kernel.empty()) {
      return no_kernel(op.name, info, plan.why);
    }
    if (const size_t bytes = kernel->workspace(args, plan); bytes > 0) {
      WEFT_ASSIGN(args.workspace, workspace_of(like, stream, bytes));
    }
    return kernel->launch(args, plan, stream);
  });
}

/// An operation's results: made, or given by who calls.
class Results {
 public:
  Results() = default;
  Results(const Value* given, size_t count) : given_(true) {
    for (size_t i = 0; i < count; ++i) {
      tensors_[i] = tensor(given[i]);
    }
  }

  /// The next one's of two: f32 if that is asked for or what is given has it.
  DType format(bool f32, DType other) const {
    const bool given_f32 = given_ && tensors_[count_].dtype == format_of(DType::f32).torch;
    return f32 || given_f32 ? DType::f32 : other;
  }
  /// The next: contiguous, of the shape of `like` but for its last dimension.
  Result<const Tensor*> rows(const Tensor& like, int64_t columns, DType format,
                             std::string_view name = "out") {
    const RowsShape shape(like, columns);
    return next(name, like, shape.sizes, shape.strides, format_of(format));
  }
  Result<const Tensor*> scales(const Tensor& like, std::span<const int64_t> sizes,
                               std::span<const int64_t> strides) {
    return next("scales", like, sizes, strides, format_of(DType::f32));
  }
  Result<const Tensor*> ids(const Tensor& like, int64_t columns) {
    const RowsShape shape(like, columns);
    return next("ids", like, shape.sizes, shape.strides, int32_format());
  }

  /// Those that were made, to PyTorch.
  void release(Value* stack) {
    for (size_t i = 0; i < count_; ++i) {
      stack[i] = tensors_[i].release();
    }
  }

 private:
  Result<const Tensor*> next(std::string_view name, const Tensor& like,
                             std::span<const int64_t> sizes, std::span<const int64_t> strides,
                             const Format& format) {
    Tensor& result = tensors_[count_++];
    if (!given_) {
      WEFT_ASSIGN(result, empty(like, sizes, strides, format.torch));
      return &result;
    }
    WEFT_TRY(same_device(like, {{name, &result}}));
    bool alike = result.dtype == format.torch &&
                 std::equal(sizes.begin(), sizes.end(), result.sizes, result.sizes + result.dims);
    for (size_t d = 0; alike && d < sizes.size(); ++d) {
      alike = sizes[d] <= 1 || result.strides[d] == strides[d];
    }
    if (!alike) {
      return usage_error(fmt::format("{} is {}: it must be {} [{}] with strides [{}]", name,
                                     shape_of(result), format.name, fmt::join(sizes, ", "),
                                     fmt::join(strides, ", ")));
    }
    return &result;
  }

  bool given_ = false;
  size_t count_ = 0;
  std::array<Tensor, 2> tensors_;
};

/// Operands [m, k] and [n, k] of a product.
struct Product {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  Rows a;
  Rows b;
};

Result<Product> product(const Tensor& a, const Tensor& b) {
  if (b.dims != 2 || a.dims < 1 || a.sizes[a.dims - 1] != b.sizes[1]) {
    return usage_error(fmt::format("a is {} and b is {}: they must be [..., k] and [n, k]",
                                   shape_of(a), shape_of(b)));
  }
  Product p;
  WEFT_ASSIGN(p.a, as_rows("a", a));
  WEFT_ASSIGN(p.b, as_rows("b", b));
  p.m = p.a.rows;
  p.n = b.sizes[0];
  p.k = b.sizes[1];
  return p;
}

/// f32 scales [rows, blocks] of any strides.
Result<ConstScales> scales_of(std::string_view name, const Tensor& t, int64_t rows,
                              int64_t blocks) {
  if (t.dtype != to_torch(DType::f32) || t.dims != 2 || t.sizes[0] != rows ||
      t.sizes[1] != blocks) {
    return usage_error(
        fmt::format("{} is {}: it must be float32 [{}, {}]", name, shape_of(t), rows, blocks));
  }
  return ConstScales{static_cast<const float*>(t.data), t.strides[0], t.strides[1]};
}

/// f32 scales [groups, rows, blocks], the rows of all groups evenly spaced.
Result<ConstScales> scales_of_groups(std::string_view name, const Tensor& t, int64_t groups,
                                     int64_t rows, int64_t blocks) {
  const int64_t sizes[] = {groups, rows, blocks};
  if (t.dtype == to_torch(DType::f32) &&
      std::equal(std::begin(sizes), std::end(sizes), t.sizes, t.sizes + t.dims)) {
    const int64_t row_stride = t.strides[rows > 1 ? 1 : 0];
    if (groups == 1 || t.strides[0] == rows * row_stride) {
      return ConstScales{static_cast<const float*>(t.data), row_stride, t.strides[2]};
    }
  }
  return usage_error(fmt::format("{} is {}: it must be float32 [{}], its rows evenly spaced", name,
                                 shape_of(t), fmt::join(sizes, ", ")));
}

int64_t blocks_of(int64_t n) { return (n + kScaleBlock - 1) / kScaleBlock; }

/// gemm_bf16(Tensor a, Tensor b, bool out_f32) -> Tensor
Status torch_gemm_bf16(const Value* stack, Results& results) {
  const Tensor a = tensor(stack[0]);
  const Tensor b = tensor(stack[1]);
  const DType format = results.format(flag(stack[2]), DType::bf16);
  WEFT_TRY(same_device(a, {{"b", &b}}));
  WEFT_ASSIGN(const Product p, product(a, b));
  WEFT_ASSIGN(const Tensor* out, results.rows(a, p.n, format));
  GemmBf16Args args{.m = p.m,
                    .n = p.n,
                    .k = p.k,
                    .a = p.a.matrix,
                    .b = p.b.matrix,
                    .out = {out->data, format, p.n},
                    .workspace = {}};
  return run(kGemmBf16Args, args, a);
}

/// gemm_fp8_blockwise(Tensor a, Tensor b, Tensor a_scale, Tensor b_scale) -> Tensor. Both operands
/// row-major, or both column-major.
Status torch_gemm_fp8_blockwise(const Value* stack, Results& results) {
  const Tensor a = tensor(stack[0]);
  const Tensor b = tensor(stack[1]);
  const Tensor a_scale = tensor(stack[2]);
  const Tensor b_scale = tensor(stack[3]);
  WEFT_TRY(same_device(a, {{"b", &b}, {"a_scale", &a_scale}, {"b_scale", &b_scale}}));
  if (a.dims != 2 || b.dims != 2 || a.sizes[1] != b.sizes[1]) {
    return usage_error(fmt::format("a is {} and b is {}: they must be [m, k] and [n, k]",
                                   shape_of(a), shape_of(b)));
  }
  GemmFp8BlockwiseArgs args{.m = a.sizes[0],
                            .n = b.sizes[0],
                            .k = a.sizes[1],
                            .a = {},
                            .b = {},
                            .a_scale = {},
                            .b_scale = {},
                            .out = {},
                            .workspace = {}};
  const bool columns = a.strides[1] != 1 || b.strides[1] != 1;
  const int along = columns ? 0 : 1;
  if (a.strides[along] != 1 || b.strides[along] != 1) {
    return usage_error("a and b must both be row-major or both be column-major");
  }
  args.layout = columns ? Fp8Layout::mn_major : Fp8Layout::k_major;
  WEFT_ASSIGN(const DType a_format, format_of("a", a));
  WEFT_ASSIGN(const DType b_format, format_of("b", b));
  args.a = {a.data, a_format, a.strides[1 - along]};
  args.b = {b.data, b_format, b.strides[1 - along]};
  WEFT_ASSIGN(args.a_scale, scales_of("a_scale", a_scale, args.m, blocks_of(args.k)));
  WEFT_ASSIGN(args.b_scale, scales_of("b_scale", b_scale, blocks_of(args.n), blocks_of(args.k)));
  WEFT_ASSIGN(const Tensor* out, results.rows(a, args.n, DType::bf16));
  args.out = {out->data, DType::bf16, args.n};
  return run(kGemmFp8BlockwiseArgs, args, a);
}

/// gemm_fp8_grouped(Tensor a, Tensor b, Tensor a_scale, Tensor b_scale, Tensor group_of) -> Tensor.
/// gemm_fp8_blockwise with groups.
Status torch_gemm_fp8_grouped(const Value* stack, Results& results) {
  const Tensor a = tensor(stack[0]);
  const Tensor b = tensor(stack[1]);
  const Tensor a_scale = tensor(stack[2]);
  const Tensor b_scale = tensor(stack[3]);
  const Tensor group_of = tensor(stack[4]);
  WEFT_TRY(same_device(
      a, {{"b", &b}, {"a_scale", &a_scale}, {"b_scale", &b_scale}, {"group_of", &group_of}}));
  if (a.dims != 2 || b.dims != 3 || a.sizes[1] != b.sizes[2]) {
    return usage_error(fmt::format("a is {} and b is {}: they must be [m, k] and [groups, n, k]",
                                   shape_of(a), shape_of(b)));
  }
  WEFT_ASSIGN(const Rows a_rows, as_rows("a", a));
  WEFT_ASSIGN(const Rows b_rows, as_rows("b", b));
  GemmFp8BlockwiseArgs args{.m = a.sizes[0],
                            .n = b.sizes[1],
                            .k = a.sizes[1],
                            .groups = b.sizes[0],
                            .group_of = static_cast<const int32_t*>(group_of.data),
                            .a = a_rows.matrix,
                            .b = b_rows.matrix,
                            .a_scale = {},
                            .b_scale = {},
                            .out = {},
                            .workspace = {}};
  if (group_of.dtype != torch.aoti_torch_dtype_int32() || group_of.dims != 1 ||
      group_of.sizes[0] * kGroupRows != args.m ||
      (group_of.sizes[0] > 1 && group_of.strides[0] != 1)) {
    return usage_error(
        fmt::format("group_of is {}: it must be int32, contiguous, one for each {} of a's {} rows",
                    shape_of(group_of), kGroupRows, args.m));
  }
  WEFT_ASSIGN(args.a_scale, scales_of("a_scale", a_scale, args.m, blocks_of(args.k)));
  WEFT_ASSIGN(args.b_scale, scales_of_groups("b_scale", b_scale, args.groups, blocks_of(args.n),
                                             blocks_of(args.k)));
  WEFT_ASSIGN(const Tensor* out, results.rows(a, args.n, DType::bf16));
  args.out = {out->data, DType::bf16, args.n};
  return run(kGemmFp8BlockwiseArgs, args, a);
}

/// gemm_skinny(Tensor a, Tensor b, Tensor? a_scale, Tensor? b_scale, bool out_f32) -> Tensor. The
/// scales' shapes say how many numbers share one.
Status torch_gemm_skinny(const Value* stack, Results& results) {
  const Tensor a = tensor(stack[0]);
  const Tensor b = tensor(stack[1]);
  const Tensor a_scale = optional_tensor(stack[2]);
  const Tensor b_scale = optional_tensor(stack[3]);
  const DType format = results.format(flag(stack[4]), DType::bf16);
  WEFT_TRY(same_device(a, {{"b", &b}, {"a_scale", &a_scale}, {"b_scale", &b_scale}}));
  WEFT_ASSIGN(const Product p, product(a, b));
  GemmSkinnyArgs args{.m = p.m,
                      .n = p.n,
                      .k = p.k,
                      .a = p.a.matrix,
                      .b = p.b.matrix,
                      .a_scale = {},
                      .b_scale = {},
                      .out = {},
                      .workspace = {}};
  if (a_scale.there() != b_scale.there()) {
    return usage_error("a_scale and b_scale come together");
  }
  if (a_scale.there()) {
    const bool blocks = a_scale.dims == 2 && b_scale.dims == 2 &&
                        a_scale.sizes[1] == blocks_of(p.k) && b_scale.sizes[1] == blocks_of(p.k) &&
                        b_scale.sizes[0] == blocks_of(p.n);
    if (blocks) {
      args.scaling = Scaling::block;
      WEFT_ASSIGN(args.a_scale, scales_of("a_scale", a_scale, p.m, blocks_of(p.k)));
      WEFT_ASSIGN(args.b_scale, scales_of("b_scale", b_scale, blocks_of(p.n), blocks_of(p.k)));
    } else {
      const bool whole = a_scale.numel() == 1 && b_scale.numel() == 1;
      if (!whole && (a_scale.numel() != p.m || b_scale.numel() != p.n)) {
        return usage_error(
            fmt::format("a_scale is {} and b_scale is {}: they must have one number each, [{}] and "
                        "[{}] for rows, or [{}, {}] and [{}, {}] for blocks",
                        shape_of(a_scale), shape_of(b_scale), p.m, p.n, p.m, blocks_of(p.k),
                        blocks_of(p.n), blocks_of(p.k)));
      }
      if (a_scale.dtype != to_torch(DType::f32) || b_scale.dtype != to_torch(DType::f32)) {
        return usage_error("a_scale and b_scale must be float32");
      }
      const auto stride = [](const Tensor& t) {
        return t.dims == 0                     ? int64_t{1}
               : t.sizes[0] > 1 || t.dims == 1 ? t.strides[0]
                                               : t.strides[t.dims - 1];
      };
      args.scaling = whole ? Scaling::tensor : Scaling::row;
      args.a_scale = {static_cast<const float*>(a_scale.data), stride(a_scale), 0};
      args.b_scale = {static_cast<const float*>(b_scale.data), stride(b_scale), 0};
    }
  }
  WEFT_ASSIGN(const Tensor* out, results.rows(a, p.n, format));
  args.out = {out->data, format, p.n};
  return run(kGemmSkinnyArgs, args, a);
}

/// A quantised result and its scales: of rows [..., 1], or of groups of 128 [..., blocks], in which
/// the rows of a group are adjacent, as products read them fastest.
Result<Quantised> quantised(Results& results, const Tensor& like, const Rows& x, int64_t group,
                            bool fnuz) {
  if (group != 0 && group != kScaleBlock) {
    return usage_error(
        fmt::format("group {} is not known: 0 for a scale of each row, or 128", group));
  }
  const DType format = fnuz ? DType::e4m3fnuz : DType::e4m3fn;
  WEFT_ASSIGN(const Tensor* out, results.rows(like, x.columns, format));
  const int64_t blocks = group == 0 ? 1 : blocks_of(x.columns);
  const int64_t sizes[] = {x.rows, blocks};
  const int64_t strides[] = {1, std::max<int64_t>(x.rows, 1)};
  WEFT_ASSIGN(const Tensor* scales, results.scales(like, sizes, strides));
  return Quantised{.out = {out->data, format, x.columns},
                   .scaling = group == 0 ? Scaling::row : Scaling::block,
                   .scales = {static_cast<float*>(scales->data), 1, strides[1]}};
}

/// The result in fp8 by a scale that is given.
Result<Quantised> quantised_by(Results& results, const Tensor& like, const Rows& x,
                               const Tensor& scale, bool fnuz) {
  if (scale.dtype != to_torch(DType::f32) || scale.numel() != 1) {
    return usage_error(fmt::format("scale is {}: it must be one float32", shape_of(scale)));
  }
  const DType format = fnuz ? DType::e4m3fnuz : DType::e4m3fn;
  WEFT_ASSIGN(const Tensor* out, results.rows(like, x.columns, format));
  return Quantised{.out = {out->data, format, x.columns},
                   .scaling = Scaling::tensor,
                   .scales = {static_cast<float*>(scale.data), 1, 1}};
}

Result<Quantised> rounded(Results& results, const Tensor& like, const Rows& x) {
  WEFT_ASSIGN(const Tensor* out, results.rows(like, x.columns, x.matrix.dtype));
  return Quantised{
      .out = {out->data, x.matrix.dtype, x.columns}, .scaling = Scaling::none, .scales = {}};
}

Status rmsnorm(const Tensor& x, const Rows& rows, const Tensor& weight, const Tensor& residual,
               float epsilon, const Quantised& y) {
  WEFT_TRY(same_device(x, {{"weight", &weight}, {"residual", &residual}}));
  if (weight.dims != 1 || weight.sizes[0] != rows.columns || weight.strides[0] != 1 ||
      weight.dtype != x.dtype) {
    return usage_error(fmt::format("weight is {}: it must be [{}], adjacent, with the dtype of x",
                                   shape_of(weight), rows.columns));
  }
  RmsNormQuantArgs args{.rows = rows.rows,
                        .columns = rows.columns,
                        .x = rows.matrix,
                        .residual = {},
                        .weight = {weight.data, rows.matrix.dtype},
                        .epsilon = epsilon,
                        .y = y,
                        .workspace = {}};
  if (residual.there()) {
    WEFT_TRY(same_shape("residual", residual, "x", x));
    WEFT_ASSIGN(const Rows r, as_rows("residual", residual));
    args.residual = r.writable();
  }
  return run(kRmsNormQuantArgs, args, x);
}

/// rmsnorm(Tensor x, Tensor weight, Tensor(a!)? residual, float epsilon) -> Tensor
Status torch_rmsnorm(const Value* stack, Results& results) {
  const Tensor x = tensor(stack[0]);
  const Tensor weight = tensor(stack[1]);
  const Tensor residual = optional_tensor(stack[2]);
  WEFT_ASSIGN(const Rows rows, as_rows("x", x));
  WEFT_ASSIGN(const Quantised y, rounded(results, x, rows));
  return rmsnorm(x, rows, weight, residual, number(stack[3]), y);
}

/// rmsnorm_quant(Tensor x, Tensor weight, Tensor(a!)? residual, float epsilon, int group, bool
/// fnuz)
/// -> (Tensor, Tensor)
Status torch_rmsnorm_quant(const Value* stack, Results& results) {
  const Tensor x = tensor(stack[0]);
  const Tensor weight = tensor(stack[1]);
  const Tensor residual = optional_tensor(stack[2]);
  WEFT_ASSIGN(const Rows rows, as_rows("x", x));
  WEFT_ASSIGN(const Quantised y,
              quantised(results, x, rows, static_cast<int64_t>(stack[4]), flag(stack[5])));
  return rmsnorm(x, rows, weight, residual, number(stack[3]), y);
}

/// rmsnorm_quant_static(Tensor x, Tensor weight, Tensor scale, Tensor(a!)? residual, float epsilon,
/// bool fnuz) -> Tensor
Status torch_rmsnorm_quant_static(const Value* stack, Results& results) {
  const Tensor x = tensor(stack[0]);
  const Tensor weight = tensor(stack[1]);
  const Tensor scale = tensor(stack[2]);
  const Tensor residual = optional_tensor(stack[3]);
  WEFT_TRY(same_device(x, {{"scale", &scale}}));
  WEFT_ASSIGN(const Rows rows, as_rows("x", x));
  WEFT_ASSIGN(const Quantised y, quantised_by(results, x, rows, scale, flag(stack[5])));
  return rmsnorm(x, rows, weight, residual, number(stack[4]), y);
}

Status swiglu(const Tensor& gate, const Rows& rows, const Tensor& up, const Quantised& y) {
  WEFT_TRY(same_device(gate, {{"up", &up}}));
  WEFT_TRY(same_shape("up", up, "gate", gate));
  WEFT_ASSIGN(const Rows other, as_rows("up", up));
  SwigluQuantArgs args{.rows = rows.rows,
                       .columns = rows.columns,
                       .gate = rows.matrix,
                       .up = other.matrix,
                       .y = y,
                       .workspace = {}};
  return run(kSwigluQuantArgs, args, gate);
}

/// swiglu(Tensor gate, Tensor up) -> Tensor
Status torch_swiglu(const Value* stack, Results& results) {
  const Tensor gate = tensor(stack[0]);
  const Tensor up = tensor(stack[1]);
  WEFT_ASSIGN(const Rows rows, as_rows("gate", gate));
  WEFT_ASSIGN(const Quantised y, rounded(results, gate, rows));
  return swiglu(gate, rows, up, y);
}

/// swiglu_quant(Tensor gate, Tensor up, int group, bool fnuz) -> (Tensor, Tensor)
Status torch_swiglu_quant(const Value* stack, Results& results) {
  const Tensor gate = tensor(stack[0]);
  const Tensor up = tensor(stack[1]);
  WEFT_ASSIGN(const Rows rows, as_rows("gate", gate));
  WEFT_ASSIGN(const Quantised y,
              quantised(results, gate, rows, static_cast<int64_t>(stack[2]), flag(stack[3])));
  return swiglu(gate, rows, up, y);
}

/// swiglu_quant_static(Tensor gate, Tensor up, Tensor scale, bool fnuz) -> Tensor
Status torch_swiglu_quant_static(const Value* stack, Results& results) {
  const Tensor gate = tensor(stack[0]);
  const Tensor up = tensor(stack[1]);
  const Tensor scale = tensor(stack[2]);
  WEFT_TRY(same_device(gate, {{"scale", &scale}}));
  WEFT_ASSIGN(const Rows rows, as_rows("gate", gate));
  WEFT_ASSIGN(const Quantised y, quantised_by(results, gate, rows, scale, flag(stack[3])));
  return swiglu(gate, rows, up, y);
}

/// A tensor of this dtype and shape, without gaps.
Status contiguous(std::string_view name, const Tensor& t, const Format& format,
                  std::span<const int64_t> shape) {
  bool alike =
      t.dtype == format.torch && std::equal(shape.begin(), shape.end(), t.sizes, t.sizes + t.dims);
  int64_t stride = 1;
  for (int64_t d = t.dims - 1; alike && d >= 0; --d) {
    alike = t.sizes[d] <= 1 || t.strides[d] == stride;
    stride *= t.sizes[d];
  }
  return alike ? Status()
               : usage_error(fmt::format("{} is {} {}: it must be {} [{}], contiguous", name,
                                         dtype_of(t), shape_of(t), format.name,
                                         fmt::join(shape, ", ")));
}
Status contiguous(std::string_view name, const Tensor& t, DType format,
                  std::initializer_list<int64_t> shape) {
  return contiguous(name, t, format_of(format), std::span(shape.begin(), shape.size()));
}

/// Matrices [in, out] of experts, one behind the other.
Result<std::vector<ConstMatrix>> experts_of(std::string_view name, const Tensor& t, int64_t in,
                                            int64_t out) {
  WEFT_ASSIGN(const DType format, format_of(name, t));
  if (t.dims != 3 || t.sizes[1] != in || t.sizes[2] != out || t.strides[2] != 1) {
    return usage_error(
        fmt::format("{} is {}: it must be [experts, {}, {}], its rows adjacent or evenly spaced",
                    name, shape_of(t), in, out));
  }
  const auto size = static_cast<int64_t>(size_of(format));
  std::vector<ConstMatrix> matrices;
  for (int64_t e = 0; e < t.sizes[0]; ++e) {
    matrices.push_back(
        {static_cast<const std::byte*>(t.data) + e * t.strides[0] * size, format, t.strides[1]});
  }
  return matrices;
}

/// moe_layer(Tensor x, Tensor router, Tensor gate, Tensor up, Tensor down, int chosen) -> Tensor.
/// An expert that the router does not know is shared.
Status torch_moe_layer(const Value* stack, Results& results) {
  const Tensor x = tensor(stack[0]);
  const Tensor router = tensor(stack[1]);
  const Tensor gate = tensor(stack[2]);
  const Tensor up = tensor(stack[3]);
  const Tensor down = tensor(stack[4]);
  WEFT_TRY(same_device(x, {{"router", &router}, {"gate", &gate}, {"up", &up}, {"down", &down}}));
  WEFT_ASSIGN(const Rows rows, as_rows("x", x));
  if (router.dims != 2 || router.sizes[1] != rows.columns) {
    return usage_error(
        fmt::format("x is {} and router is {}: they must be [..., hidden] and "
                    "[experts, hidden]",
                    shape_of(x), shape_of(router)));
  }
  WEFT_ASSIGN(const Rows routed, as_rows("router", router));
  if (gate.dims != 3 || (gate.sizes[0] != routed.rows && gate.sizes[0] != routed.rows + 1)) {
    return usage_error(
        fmt::format("gate is {}: it must be [{}, {}, inner], or one expert more "
                    "that is shared",
                    shape_of(gate), routed.rows, rows.columns));
  }
  MoeLayerArgs args{.rows = rows.rows,
                    .hidden = rows.columns,
                    .inner = gate.sizes[2],
                    .experts = routed.rows,
                    .chosen = static_cast<int64_t>(stack[5]),
                    .shared = gate.sizes[0] > routed.rows,
                    .x = rows.matrix,
                    .router = routed.matrix,
                    .out = {},
                    .workspace = {}};
  WEFT_ASSIGN(args.gate, experts_of("gate", gate, args.hidden, args.inner));
  WEFT_ASSIGN(args.up, experts_of("up", up, args.hidden, args.inner));
  WEFT_ASSIGN(args.down, experts_of("down", down, args.inner, args.hidden));
  WEFT_ASSIGN(const Tensor* out, results.rows(x, args.hidden, DType::f16));
  args.out = {out->data, DType::f16, args.hidden};
  return run(kMoeLayerArgs, args, x);
}

/// route(Tensor logits, int chosen, bool sigmoid, bool renormalise, Tensor? correction, int groups,
/// int kept_groups, float scale) -> (Tensor, Tensor)
Status torch_route(const Value* stack, Results& results) {
  const Tensor logits = tensor(stack[0]);
  const Tensor correction = optional_tensor(stack[4]);
  WEFT_TRY(same_device(logits, {{"correction", &correction}}));
  WEFT_ASSIGN(const Rows rows, as_rows("logits", logits));
  RouteArgs args{.logits = rows.matrix,
                 .experts = rows.columns,
                 .sigmoid = flag(stack[2]),
                 .renormalise = flag(stack[3]),
                 .drawn = {},
                 .groups = static_cast<int64_t>(stack[5]),
                 .kept_groups = static_cast<int64_t>(stack[6]),
                 .scale = number(stack[7])};
  const auto chosen = static_cast<int64_t>(stack[1]);
  WEFT_TRY(check_size("route", "chosen", chosen, 1));
  WEFT_TRY(check_at_most("route", "chosen", chosen, args.experts));  // before results are made
  if (correction.there()) {
    WEFT_TRY(contiguous("correction", correction, DType::f32, {args.experts}));
    args.correction = {correction.data, DType::f32};
  }
  WEFT_ASSIGN(const Tensor* ids, results.ids(logits, chosen));
  WEFT_ASSIGN(const Tensor* weights, results.rows(logits, chosen, DType::f32, "weights"));
  args.drawn = {static_cast<int32_t*>(ids->data), static_cast<float*>(weights->data), chosen,
                chosen};
  if (rows.rows == 0) {
    return {};
  }
  if (logits.device_type == cpu_type) {
    return route(args, rows.rows, {});
  }
  return on_gpu(logits, [&](Stream stream) { return route(args, rows.rows, stream); });
}

/// Scales of 128 x 128 of so many matrices in e4m3fn; those of each lie together.
Status add_scales(std::string_view name, const Tensor& scale, int64_t experts, int64_t n, int64_t k,
                  ExpertMatrices& to) {
  const int64_t sizes[] = {experts, blocks_of(n), blocks_of(k)};
  if (scale.dtype != to_torch(DType::f32) ||
      !std::equal(std::begin(sizes), std::end(sizes), scale.sizes, scale.sizes + scale.dims) ||
      (sizes[2] > 1 && scale.strides[2] != 1) || (sizes[1] > 1 && scale.strides[1] != sizes[2])) {
    return usage_error(
        fmt::format("{}_scale is {} {}: it must be float32 [{}], those of an expert contiguous",
                    name, dtype_of(scale), shape_of(scale), fmt::join(sizes, ", ")));
  }
  to.block_scales = static_cast<const float*>(scale.data);
  to.block_scales_pitch = (experts > 1 ? scale.strides[0] : 0) * int64_t{sizeof(float)};
  return {};
}

/// Matrices [n, k] of so many experts: in bf16 or f16, in e4m3fn with scales, or bytes of MXFP4.
Result<ExpertMatrices> expert_matrices(std::string_view name, const Tensor& t, const Tensor& scale,
                                       int64_t experts, int64_t n, int64_t k) {
  const bool mx = t.dtype == torch.aoti_torch_dtype_uint8();
  const int64_t sizes[] = {experts, n, mx ? MxMatrix::bytes_of(k) : k};
  if (!std::equal(std::begin(sizes), std::end(sizes), t.sizes, t.sizes + t.dims)) {
    return usage_error(fmt::format("{} is {} {}: it must be [{}], of {} experts {} x {}", name,
                                   dtype_of(t), shape_of(t), fmt::join(sizes, ", "), experts, n,
                                   k));
  }
  const int64_t stride = n > 1 ? t.strides[1] : sizes[2];
  const int64_t pitch = experts > 1 ? t.strides[0] : n * stride;
  if (t.strides[2] != 1 || (mx && stride != sizes[2])) {
    return usage_error(
        fmt::format("{}: the elements of its last dimension must be adjacent{}; call .contiguous()",
                    name, mx ? ", and the rows of an expert in MXFP4" : ""));
  }
  ExpertMatrices all;
  if (mx) {
    all = mx_experts(t.data, n, k);
    all.pitch = pitch;
  } else {
    WEFT_ASSIGN(const DType format, format_of(name, t));
    all = {.first = {t.data, format, stride},
           .pitch = pitch * static_cast<int64_t>(size_of(format))};
  }
  if (is_fp8(all.first.dtype) != scale.there()) {
    return usage_error(fmt::format("{} is {}, {} {}_scale", name, dtype_of(t),
                                   scale.there() ? "which has no" : "and needs a", name));
  }
  if (scale.there()) {
    WEFT_TRY(add_scales(name, scale, experts, n, k, all));
  }
  return all;
}

/// moe(Tensor x, Tensor gate, Tensor up, Tensor down, Tensor ids, Tensor weights, Tensor?
/// gate_scale, Tensor? up_scale, Tensor? down_scale, Tensor? gate_bias, Tensor? up_bias, Tensor?
/// down_bias, float limit, bool out_f32) -> Tensor
Status torch_moe(const Value* stack, Results& results) {
  const Tensor x = tensor(stack[0]);
  const Tensor gate = tensor(stack[1]);
  const Tensor up = tensor(stack[2]);
  const Tensor down = tensor(stack[3]);
  const Tensor ids = tensor(stack[4]);
  const Tensor weights = tensor(stack[5]);
  const Tensor gate_scale = optional_tensor(stack[6]);
  const Tensor up_scale = optional_tensor(stack[7]);
  const Tensor down_scale = optional_tensor(stack[8]);
  const Tensor gate_bias = optional_tensor(stack[9]);
  const Tensor up_bias = optional_tensor(stack[10]);
  const Tensor down_bias = optional_tensor(stack[11]);
  WEFT_TRY(same_device(x, {{"gate", &gate},
                           {"up", &up},
                           {"down", &down},
                           {"ids", &ids},
                           {"weights", &weights},
                           {"gate_scale", &gate_scale},
                           {"up_scale", &up_scale},
                           {"down_scale", &down_scale},
                           {"gate_bias", &gate_bias},
                           {"up_bias", &up_bias},
                           {"down_bias", &down_bias}}));
  WEFT_ASSIGN(const Rows rows, as_rows("x", x));
  if (rows.rows > 0) {  // in the operation's own words x is `a`
    WEFT_TRY(
        check_matrix(kMoeArgs.name, "x", rows.matrix, rows.columns, {DType::bf16, DType::f16}));
  }
  if (gate.dims != 3) {
    return usage_error(fmt::format("gate is {} {}: it must be [experts, inner, {}]", dtype_of(gate),
                                   shape_of(gate), rows.columns));
  }
  MoeArgs args{.rows = rows.rows,
               .chosen = ids.dims > 0 ? ids.sizes[ids.dims - 1] : 0,
               .experts = gate.sizes[0],
               .hidden = rows.columns,
               .inner = gate.sizes[1],
               .a = rows.matrix,
               .ids = static_cast<const int32_t*>(ids.data),
               .weights = static_cast<const float*>(weights.data),
               .gate = {},
               .up = {},
               .down = {},
               .limit = number(stack[12]),
               .out = {},
               .workspace = {}};
  if (gate.dtype == torch.aoti_torch_dtype_uint8()) {  // what sizes of its bytes follow from
    WEFT_TRY(check_size(kMoeArgs.name, "hidden", args.hidden, kMxBlock, kMxBlock));
    WEFT_TRY(check_size(kMoeArgs.name, "inner", args.inner, kMxBlock, kMxBlock));
  }
  WEFT_ASSIGN(args.gate,
              expert_matrices("gate", gate, gate_scale, args.experts, args.inner, args.hidden));
  WEFT_ASSIGN(args.up, expert_matrices("up", up, up_scale, args.experts, args.inner, args.hidden));
  WEFT_ASSIGN(args.down,
              expert_matrices("down", down, down_scale, args.experts, args.hidden, args.inner));
  const RowsShape drawn(x, args.chosen);
  WEFT_TRY(contiguous("ids", ids, int32_format(), drawn.sizes));
  WEFT_TRY(contiguous("weights", weights, format_of(DType::f32), drawn.sizes));
  for (const auto& [name, bias, n, to] :
       {std::tuple{"gate_bias", &gate_bias, args.inner, &args.gate_bias},
        {"up_bias", &up_bias, args.inner, &args.up_bias},
        {"down_bias", &down_bias, args.hidden, &args.down_bias}}) {
    if (bias->there()) {
      WEFT_TRY(contiguous(name, *bias, rows.matrix.dtype, {args.experts, n}));
      *to = {bias->data, rows.matrix.dtype};
    }
  }
  const DType format = results.format(flag(stack[13]), rows.matrix.dtype);
  WEFT_ASSIGN(const Tensor* out, results.rows(x, args.hidden, format));
  args.out = {out->data, format, args.hidden};
  return run(kMoeArgs, args, x);
}

/// mla_layer(Tensor x, Tensor q_down, Tensor q_up, Tensor kv_down, Tensor kv_up, Tensor o,
/// Tensor(a!) cache, Tensor angles, int prefill) -> Tensor
Status torch_mla_layer(const Value* stack, Results& results) {
  const Tensor x = tensor(stack[0]);
  const Tensor q_down = tensor(stack[1]);
  const Tensor q_up = tensor(stack[2]);
  const Tensor kv_down = tensor(stack[3]);
  const Tensor kv_up = tensor(stack[4]);
  const Tensor o = tensor(stack[5]);
  const Tensor cache = tensor(stack[6]);
  const Tensor angles = tensor(stack[7]);
  WEFT_TRY(same_device(x, {{"q_down", &q_down},
                           {"q_up", &q_up},
                           {"kv_down", &kv_down},
                           {"kv_up", &kv_up},
                           {"o", &o},
                           {"cache", &cache},
                           {"angles", &angles}}));
  WEFT_ASSIGN(const Rows rows, as_rows("x", x));
  MlaLayerArgs args{.batch = rows.rows,
                    .dim = rows.columns,
                    .q_rank = q_down.dims == 2 ? q_down.sizes[0] : 0,
                    .heads = kv_up.dims == 2 ? kv_up.sizes[0] / kLayerHeadRows : 0,
                    .prefill = static_cast<int64_t>(stack[8]),
                    .capacity = cache.dims == 3 ? cache.sizes[1] : 0,
                    .x = rows.matrix,
                    .q_down = {},
                    .q_up = {},
                    .kv_down = {},
                    .kv_up = {},
                    .o = {},
                    .cache = cache.data,
                    .angles = angles.data,
                    .out = {},
                    .workspace = {}};
  struct Weight {
    std::string_view name;
    const Tensor* tensor;
    int64_t rows, columns;
    ConstMatrix* to;
  };
  for (const Weight& w : {Weight{"q_down", &q_down, args.q_rank, args.dim, &args.q_down},
                          {"q_up", &q_up, args.heads * kLayerQuery, args.q_rank, &args.q_up},
                          {"kv_down", &kv_down, kLatentRow, args.dim, &args.kv_down},
                          {"kv_up", &kv_up, args.heads * kLayerHeadRows, kLatentRank, &args.kv_up},
                          {"o", &o, args.dim, args.heads * kLayerValue, &args.o}}) {
    const Tensor& t = *w.tensor;
    if (t.dims != 2 || t.sizes[0] != w.rows || t.sizes[1] != w.columns) {
      return usage_error(
          fmt::format("{} is {}: it must be [{}, {}] for x, q_down's rows and "
                      "kv_up's heads of {}",
                      w.name, shape_of(t), w.rows, w.columns, kLayerHeadRows));
    }
    WEFT_ASSIGN(const Rows weight, as_rows(w.name, t));
    *w.to = weight.matrix;
  }
  WEFT_TRY(contiguous("cache", cache, DType::bf16, {args.batch, args.capacity, kLatentRow}));
  WEFT_TRY(contiguous("angles", angles, DType::bf16,
                      {angles.dims > 0 ? angles.sizes[0] : 0, kLatentTurned}));
  if (args.prefill < 0 || angles.sizes[0] <= args.prefill) {
    return usage_error(
        fmt::format("angles are of {} positions: prefill must be 0 or more, and "
                    "below that, and is {}",
                    angles.sizes[0], args.prefill));
  }
  WEFT_ASSIGN(const Tensor* out, results.rows(x, args.dim, DType::bf16));
  args.out = {out->data, DType::bf16, args.dim};
  return run(kMlaLayerArgs, args, x);
}

using Body = Status (*)(const Value* arguments, Results& results);

/// What PyTorch calls: a body whose results are made, or with kGiven of them before its arguments.
/// A failure becomes PyTorch's exception, which is thrown inside PyTorch and passes through this
/// function, so that nothing here may have a destructor.
template <Body kBody, size_t kGiven>
void boxed(Value* stack, uint64_t /*arguments*/, uint64_t /*results*/) {
  const auto call = [&]() -> Status {
    if constexpr (kGiven != 0) {
      Results results(stack, kGiven);
      return kBody(stack + kGiven, results);
    } else {
      Results results;
      WEFT_TRY(kBody(stack, results));
      results.release(stack);
      return {};
    }
  };
  if (guarded(call) != WEFT_OK) {
    torch.aoti_torch_check(false, "weft", "weft", 0, weft_error());
  }
}

struct Entry {
  const char* name;
  torch_abi::BoxedKernel kernel;
};
#define WEFT_ENTRIES(name, results) \
  {#name, boxed<torch_##name, 0>}, { #name "_out", boxed < torch_##name, results> }
constexpr Entry kEntries[] = {
    WEFT_ENTRIES(gemm_bf16, 1),
    WEFT_ENTRIES(gemm_fp8_blockwise, 1),
    WEFT_ENTRIES(gemm_fp8_grouped, 1),
    WEFT_ENTRIES(gemm_skinny, 1),
    WEFT_ENTRIES(rmsnorm, 1),
    WEFT_ENTRIES(rmsnorm_quant, 2),
    WEFT_ENTRIES(rmsnorm_quant_static, 1),
    WEFT_ENTRIES(swiglu, 1),
    WEFT_ENTRIES(swiglu_quant, 2),
    WEFT_ENTRIES(swiglu_quant_static, 1),
    WEFT_ENTRIES(route, 2),
    WEFT_ENTRIES(moe, 1),
    WEFT_ENTRIES(moe_layer, 1),
    WEFT_ENTRIES(mla_layer, 1),
};
#undef WEFT_ENTRIES

}  // namespace
}  // namespace weft::capi

using namespace weft;        // NOLINT: the function below is C's
using namespace weft::capi;  // NOLINT

weft_status weft_torch_register(const char* gpu) {
  return guarded([&]() -> Status {
    WEFT_TRY(check_pointer(gpu, "gpu"));
    if (torch.aoti_torch_check != nullptr) {
      return {};
    }
    WEFT_ASSIGN(const Torch found, torch_abi::look_up());
    gpu_kind = gpu;
    cpu_type = found.aoti_torch_device_type_cpu();
    formats = {{{found.aoti_torch_dtype_float32(), DType::f32, "float32"},
                {found.aoti_torch_dtype_bfloat16(), DType::bf16, "bfloat16"},
                {found.aoti_torch_dtype_float16(), DType::f16, "float16"},
                {found.aoti_torch_dtype_float8_e4m3fn(), DType::e4m3fn, "float8_e4m3fn"},
                {found.aoti_torch_dtype_float8_e4m3fnuz(), DType::e4m3fnuz, "float8_e4m3fnuz"}}};
    torch = found;
    const bool with_gpu = found.aoti_torch_get_current_cuda_stream != nullptr;
    for (const char* key : {"CPU", "CUDA"}) {
      if (key == std::string_view("CUDA") && !with_gpu) {
        continue;
      }
      torch_abi::LibraryHandle library = nullptr;  // lives as long as the process
      bool good = found.aoti_torch_library_init_impl("weft", key, "weft", 0, &library) == 0;
      for (const Entry& entry : kEntries) {
        good = good && found.aoti_torch_library_impl(library, entry.name, entry.kernel) == 0;
      }
      if (!good) {
        return device_error(fmt::format("PyTorch refused Weft's kernels for {}", key));
      }
    }
    return {};
  });
}
