// A matrix product in bf16 on any device, and how long it takes there:
//
//     product [DEVICE [M N K]]        cpu, cuda, hip, sim:gfx942 (see `weft devices`)
//
// Shows all that an operation asks of its caller: operands by address and stride in the device's
// memory, a workspace, a stream, and errors that come back as values.
#include <weft/arch/device.h>
#include <weft/ops/gemm_bf16/op.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

namespace {

using weft::bf16;

/// Memory of a device, or of the host where there is none; zeros.
class Buffer {
 public:
  static weft::Result<Buffer> allocate(weft::Device* device, size_t bytes) {
    Buffer buffer;
    buffer.zeros_.resize(bytes + 256);
    if (device != nullptr) {
      WEFT_ASSIGN(buffer.memory_, device->allocate(bytes));
      WEFT_TRY(device->upload(buffer.memory_.data(), buffer.zeros_.data(), bytes));
    }
    return buffer;
  }
  void* data() {
    if (memory_.size() > 0) {
      return memory_.data();
    }
    const auto address = reinterpret_cast<uintptr_t>(zeros_.data());
    return zeros_.data() + (256 - address % 256) % 256;
  }

 private:
  weft::DeviceMemory memory_;
  std::vector<std::byte> zeros_;
};

/// Ones times twos: every element of the product is 2 k.
weft::Status run(const std::string& name, int64_t m, int64_t n, int64_t k) {
  std::unique_ptr<weft::Device> device;
  if (name != "cpu") {
    WEFT_ASSIGN(device, weft::open_device(name));
  }
  const weft::Stream stream = device != nullptr ? device->stream() : weft::Stream{};
  const auto put = [&](void* to, const void* from, size_t bytes) -> weft::Status {
    if (device != nullptr) {
      return device->upload(to, from, bytes);
    }
    std::memcpy(to, from, bytes);
    return {};
  };

  const std::vector<bf16> ones(m * k, weft::to_bf16(1));
  const std::vector<bf16> twos(n * k, weft::to_bf16(2));
  std::vector<float> result(m * n);
  WEFT_ASSIGN(Buffer a, Buffer::allocate(device.get(), ones.size() * sizeof(bf16)));
  WEFT_ASSIGN(Buffer b, Buffer::allocate(device.get(), twos.size() * sizeof(bf16)));
  WEFT_ASSIGN(Buffer out, Buffer::allocate(device.get(), result.size() * sizeof(float)));
  WEFT_TRY(put(a.data(), ones.data(), ones.size() * sizeof(bf16)));
  WEFT_TRY(put(b.data(), twos.data(), twos.size() * sizeof(bf16)));

  weft::GemmBf16Args args{.m = m,
                          .n = n,
                          .k = k,
                          .a = {a.data(), weft::DType::bf16, k},
                          .b = {b.data(), weft::DType::bf16, k},
                          .out = {out.data(), weft::DType::f32, n},
                          .workspace = {}};
  WEFT_ASSIGN(const size_t bytes, weft::gemm_bf16_workspace(args, stream));
  WEFT_ASSIGN(Buffer workspace, Buffer::allocate(device.get(), bytes));  // zeros, as is asked for
  args.workspace = {workspace.data(), bytes};

  WEFT_TRY(weft::gemm_bf16(args, stream));
  if (device != nullptr) {
    WEFT_TRY(device->download(result.data(), out.data(), result.size() * sizeof(float)));
  } else {
    std::memcpy(result.data(), out.data(), result.size() * sizeof(float));
  }
  for (const float each : result) {
    if (each != 2 * static_cast<float>(k)) {
      return weft::device_error("the product is wrong");
    }
  }
  std::cout << m << " x " << n << " x " << k << " on " << name << ": every element is " << result[0]
            << '\n';
  if (device != nullptr && device->info().keeps_time) {
    WEFT_ASSIGN(std::vector<double> seconds,
                device->time([&](weft::Stream s) { return weft::gemm_bf16(args, s); }, 30));
    std::sort(seconds.begin(), seconds.end());
    std::cout << seconds[seconds.size() / 2] * 1e6 << " us\n";
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 1 && argc != 2 && argc != 5) {
    std::cerr << "usage: product [DEVICE [M N K]]\n";
    return 2;
  }
  const auto size = [&](int i) { return argc == 5 ? std::atoll(argv[i]) : 512; };
  const weft::Status status = run(argc > 1 ? argv[1] : "cpu", size(2), size(3), size(4));
  if (!status.ok()) {
    std::cerr << status.error().message << '\n';
    return weft::exit_code(status.error().kind);
  }
}
