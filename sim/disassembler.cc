#include "sim/disassembler.h"

#include <llvm-c/Disassembler.h>
#include <llvm/DebugInfo/DIContext.h>
#include <llvm/DebugInfo/DWARF/DWARFContext.h>
#include <llvm/Object/ObjectFile.h>
#include <llvm/Support/MemoryBuffer.h>

#include <cstring>
#include <mutex>
#include <string_view>
#include <utility>

// The AMDGPU back end's registration, which llvm-c/Target.h only declares for all targets at once.
extern "C" {
void LLVMInitializeAMDGPUTargetInfo();    // NOLINT: LLVM's name
void LLVMInitializeAMDGPUTargetMC();      // NOLINT
void LLVMInitializeAMDGPUDisassembler();  // NOLINT
}

namespace weft::sim {

namespace {

/// What LLVM 22 crashes on while it says that it is no instruction: a literal as a source where the
/// encoding has no place for it (VOP3, VOP3P, SDWA, MUBUF, MTBUF), and SDWA selections that do not
/// exist.
bool crashes_llvm(const uint8_t* bytes, size_t left) {
  uint32_t words[2];
  if (left < sizeof words) {
    return false;
  }
  std::memcpy(words, bytes, sizeof words);
  constexpr uint32_t kLiteral = 255;
  constexpr uint32_t kSdwa = 249;
  if (words[0] >> 26 == 0b110100) {
    return (words[1] & 511) == kLiteral || (words[1] >> 9 & 511) == kLiteral ||
           (words[1] >> 18 & 511) == kLiteral;
  }
  if (words[0] >> 26 == 0b111000 || words[0] >> 26 == 0b111010) {
    return words[1] >> 24 == kLiteral;
  }
  if (words[0] >> 31 == 0 && (words[0] & 511) == kSdwa) {
    const bool first_is_scalar = (words[1] >> 23 & 1) != 0;
    const bool second_is_scalar = words[1] >> 31 != 0;
    const bool is_compare = words[0] >> 25 == 0b0111110;  // no selection of its result
    return (first_is_scalar && (words[1] & 255) == kLiteral) ||
           (second_is_scalar && (words[0] >> 9 & 255) == kLiteral) || (words[1] >> 16 & 7) == 7 ||
           (words[1] >> 24 & 7) == 7 ||
           (!is_compare && ((words[1] >> 8 & 7) == 7 || (words[1] >> 11 & 3) == 3));
  }
  return false;
}

}  // namespace

Result<std::vector<AssemblerLine>> disassemble(std::span<const std::byte> code, uint64_t address,
                                               Target target) {
  static std::once_flag once;
  std::call_once(once, [] {
    LLVMInitializeAMDGPUTargetInfo();
    LLVMInitializeAMDGPUTargetMC();
    LLVMInitializeAMDGPUDisassembler();
  });
  const std::string cpu(cdna::name_of(target));
  const std::unique_ptr<void, decltype(&LLVMDisasmDispose)> context(
      LLVMCreateDisasmCPU("amdgcn-amd-amdhsa", cpu.c_str(), nullptr, 0, nullptr, nullptr),
      &LLVMDisasmDispose);
  if (context == nullptr) {
    return device_error("LLVM cannot disassemble for " + cpu +
                        ": it was built without its AMDGPU target.");
  }
  std::vector<AssemblerLine> lines;
  lines.reserve(code.size() / 6);
  char text[512];
  for (size_t at = 0; at + 4 <= code.size();) {
    // LLVM takes bytes it may write to, and does not.
    auto* bytes = const_cast<uint8_t*>(reinterpret_cast<const uint8_t*>(code.data() + at));
    const size_t size = crashes_llvm(bytes, code.size() - at)
                            ? 0
                            : LLVMDisasmInstruction(context.get(), bytes, code.size() - at,
                                                    address + at, text, sizeof text);
    AssemblerLine line{.address = address + at, .bytes = static_cast<uint32_t>(size), .text = {}};
    if (size == 0 || size % 4 != 0) {
      line.bytes = 4;
    } else {
      std::string_view trimmed = text;
      trimmed.remove_prefix(std::min(trimmed.find_first_not_of(" \t"), trimmed.size()));
      line.text = trimmed;
    }
    at += line.bytes;
    lines.push_back(std::move(line));
  }
  return lines;
}

struct SourceLines::Impl {
  std::unique_ptr<llvm::MemoryBuffer> buffer;
  std::unique_ptr<llvm::object::ObjectFile> object;
  std::unique_ptr<llvm::DWARFContext> context;
};

SourceLines::SourceLines(std::span<const std::byte> code_object) {
  auto buffer = llvm::MemoryBuffer::getMemBufferCopy(
      llvm::StringRef(reinterpret_cast<const char*>(code_object.data()), code_object.size()));
  auto object = llvm::object::ObjectFile::createELFObjectFile(buffer->getMemBufferRef());
  if (!object) {
    llvm::consumeError(object.takeError());
    return;
  }
  const auto ignore = [](llvm::Error error) { llvm::consumeError(std::move(error)); };
  auto context = llvm::DWARFContext::create(
      **object, llvm::DWARFContext::ProcessDebugRelocations::Ignore, nullptr, "", ignore, ignore);
  impl_ = std::make_unique<Impl>(Impl{std::move(buffer), std::move(*object), std::move(context)});
}

SourceLines::~SourceLines() = default;
SourceLines::SourceLines(SourceLines&&) noexcept = default;
SourceLines& SourceLines::operator=(SourceLines&&) noexcept = default;

std::string SourceLines::at(uint64_t address) const {
  if (impl_ == nullptr) {
    return {};
  }
  const auto info = impl_->context->getLineInfoForAddress(
      {address, llvm::object::SectionedAddress::UndefSection},
      llvm::DILineInfoSpecifier(llvm::DILineInfoSpecifier::FileLineInfoKind::RawValue));
  if (!info || info->Line == 0 || info->FileName == llvm::DILineInfo::BadString) {
    return {};
  }
  return info->FileName + ":" + std::to_string(info->Line);
}

}  // namespace weft::sim
