#include "sim/disassembler.h"

#include <fmt/format.h>
#include <llvm/DebugInfo/DIContext.h>
#include <llvm/DebugInfo/DWARF/DWARFContext.h>
#include <llvm/MC/MCAsmInfo.h>
#include <llvm/MC/MCContext.h>
#include <llvm/MC/MCDisassembler/MCDisassembler.h>
#include <llvm/MC/MCInst.h>
#include <llvm/MC/MCInstPrinter.h>
#include <llvm/MC/MCInstrInfo.h>
#include <llvm/MC/MCRegisterInfo.h>
#include <llvm/MC/MCSubtargetInfo.h>
#include <llvm/MC/MCTargetOptions.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Object/ObjectFile.h>
#include <llvm/Support/MemoryBuffer.h>
#include <llvm/Support/raw_ostream.h>

#include <algorithm>
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

/// What LLVM 22 goes astray on without saying that it is no instruction: SDWA that selects a part
/// of a register that there is not, which its printer has no name for; v_madmk_f16 and v_madak_f16,
/// which the simulator leaves out, with a constant of 255, which its decoder takes for a literal;
/// and MFMAs of mixed formats, scaled or not, whose matrices are no vector registers.
bool leads_astray(const uint8_t* bytes) {
  uint32_t words[4];
  std::memcpy(words, bytes, sizeof words);
  constexpr uint32_t kScaled = 0xd3ac;
  const uint32_t* matrix = words[0] >> 16 == kScaled ? words + 2 : words;
  if (matrix[0] >> 16 == 0xd3ad || matrix[0] >> 16 == 0xd3ae) {  // ..._f8f6f4
    return (matrix[1] >> 8 & 1) == 0 || (matrix[1] >> 17 & 1) == 0;
  }
  constexpr uint32_t kMadmkF16 = 0x24;
  constexpr uint32_t kMadakF16 = 0x25;
  if (words[0] >> 25 == kMadmkF16 || words[0] >> 25 == kMadakF16) {
    return words[1] == 255;
  }
  constexpr uint32_t kSdwa = 249;
  if (words[0] >> 31 != 0 || (words[0] & 511) != kSdwa) {
    return false;
  }
  const bool is_compare = words[0] >> 25 == 0b0111110;  // no selection of its result
  return (words[1] >> 16 & 7) == 7 || (words[1] >> 24 & 7) == 7 ||
         (!is_compare && ((words[1] >> 8 & 7) == 7 || (words[1] >> 11 & 3) == 3));
}

/// The longest instruction, and a literal behind it.
constexpr unsigned kMostBytes = 16 + 4;

/// What LLVM's decoder asks about the target. Left to itself it looks at no more bytes than the
/// target's longest instruction has; where that names a literal (255) as an operand that cannot be
/// one, a scalar result or a source of VOP3, no byte is left for it, and LLVM 22 reports that to a
/// stream that is no longer there. With bytes for the literal it always succeeds, and the length
/// tells.
class RoomForLiteral : public llvm::MCAsmInfo {
 public:
  unsigned getMaxInstLength(const llvm::MCSubtargetInfo* /*target*/) const override {
    return kMostBytes;
  }
};

/// LLVM's decoder and printer for a target.
class Llvm {
 public:
  /// Null: LLVM has no AMDGPU target.
  static std::unique_ptr<Llvm> create(Target target) {
    static std::once_flag once;
    std::call_once(once, [] {
      LLVMInitializeAMDGPUTargetInfo();
      LLVMInitializeAMDGPUTargetMC();
      LLVMInitializeAMDGPUDisassembler();
    });
    auto result = std::make_unique<Llvm>();
    const llvm::Triple triple("amdgcn-amd-amdhsa");
    std::string error;
    const llvm::Target* llvm_target = llvm::TargetRegistry::lookupTarget(triple, error);
    if (llvm_target == nullptr) {
      return nullptr;
    }
    result->registers_.reset(llvm_target->createMCRegInfo(triple));
    result->assembler_.reset(
        llvm_target->createMCAsmInfo(*result->registers_, triple, llvm::MCTargetOptions()));
    result->instructions_.reset(llvm_target->createMCInstrInfo());
    result->subtarget_.reset(
        llvm_target->createMCSubtargetInfo(triple, std::string(cdna::name_of(target)), ""));
    result->context_ = std::make_unique<llvm::MCContext>(
        triple, &result->room_, result->registers_.get(), result->subtarget_.get());
    result->decoder_.reset(
        llvm_target->createMCDisassembler(*result->subtarget_, *result->context_));
    result->printer_.reset(llvm_target->createMCInstPrinter(
        triple, result->assembler_->getAssemblerDialect(), *result->assembler_,
        *result->instructions_, *result->registers_));
    return result;
  }

  /// The instruction at the beginning of `code`, which lies at `address`; "": there is none.
  /// `bytes`: its length. `code` is of kMostBytes at least.
  std::string print(std::span<const std::byte> code, uint64_t address, uint64_t& bytes) const {
    const llvm::ArrayRef<uint8_t> words(reinterpret_cast<const uint8_t*>(code.data()), code.size());
    llvm::MCInst instruction;
    bytes = 0;
    if (leads_astray(words.data()) ||
        decoder_->getInstruction(instruction, bytes, words, address, llvm::nulls()) !=
            llvm::MCDisassembler::Success) {
      return {};
    }
    if (bytes != 4 && bytes != 8 && bytes != 16) {
      return {};  // only instructions of four bytes take a literal
    }
    // Some encodings become instructions with a register that there is not, which the printer looks
    // up far outside of its table.
    for (const llvm::MCOperand& operand : instruction) {
      if (operand.isReg() &&
          (!operand.getReg().isValid() || operand.getReg().id() >= registers_->getNumRegs())) {
        return {};
      }
    }
    std::string text;
    llvm::raw_string_ostream stream(text);
    printer_->printInst(&instruction, address, "", *subtarget_, stream);
    return text;
  }

 private:
  RoomForLiteral room_;
  std::unique_ptr<llvm::MCRegisterInfo> registers_;
  std::unique_ptr<llvm::MCAsmInfo> assembler_;
  std::unique_ptr<llvm::MCInstrInfo> instructions_;
  std::unique_ptr<llvm::MCSubtargetInfo> subtarget_;
  std::unique_ptr<llvm::MCContext> context_;
  std::unique_ptr<llvm::MCDisassembler> decoder_;
  std::unique_ptr<llvm::MCInstPrinter> printer_;
};

}  // namespace

Result<std::vector<AssemblerLine>> disassemble(std::span<const std::byte> code, uint64_t address,
                                               Target target) {
  const std::unique_ptr<Llvm> llvm = Llvm::create(target);
  if (llvm == nullptr) {
    return device_error(
        fmt::format("LLVM cannot disassemble for {}: it was built without its AMDGPU target.",
                    cdna::name_of(target)));
  }
  // LLVM does not survive an instruction whose literal is missing: none ever is.
  std::vector<std::byte> padded(code.begin(), code.end());
  padded.insert(padded.end(), kMostBytes, std::byte{0});
  std::vector<AssemblerLine> lines;
  lines.reserve(code.size() / 6);
  for (size_t at = 0; at + 4 <= code.size();) {
    uint64_t size = 0;
    AssemblerLine line{.address = address + at, .bytes = 4, .text = {}};
    std::string text = llvm->print(std::span(padded).subspan(at), address + at, size);
    if (size > 0 && size <= code.size() - at && size % 4 == 0 && !text.empty()) {
      line.bytes = static_cast<uint32_t>(size);
      line.text = text.substr(std::min(text.find_first_not_of(" \t"), text.size()));
    }
    at += line.bytes;
    lines.push_back(std::move(line));
  }
  return lines;
}

namespace {

/// Whether the names of a line table's header are in the forms that DWARF 5, section 6.2.4.1, has
/// for them. LLVM goes astray on any other.
bool has_known_forms(const llvm::DataExtractor& data, uint64_t at) {
  namespace dwarf = llvm::dwarf;
  llvm::DataExtractor::Cursor cursor(at);
  const bool wide = data.getU32(cursor) == dwarf::DW_LENGTH_DWARF64;
  data.skip(cursor, wide ? 8 : 0);
  bool known = true;
  if (data.getU16(cursor) >= 5) {
    // Sizes of an address and of a segment, the header's length, five of its parameters.
    data.skip(cursor, 2 + (wide ? 8 : 4) + 5);
    const uint8_t opcode_base = data.getU8(cursor);
    data.skip(cursor, opcode_base == 0 ? 0 : opcode_base - 1);
    for (int table = 0; table < 2 && known && cursor; ++table) {  // directories, then files
      std::vector<uint64_t> forms(data.getU8(cursor));
      for (uint64_t& form : forms) {
        data.getULEB128(cursor);  // what it is
        form = data.getULEB128(cursor);
      }
      uint64_t entries = data.getULEB128(cursor);
      known &= entries == 0 || !forms.empty();
      for (; entries > 0 && known && cursor; --entries) {
        for (const uint64_t form : forms) {
          switch (form) {
            case dwarf::DW_FORM_string:
              data.getCStrRef(cursor);
              break;
            case dwarf::DW_FORM_udata:
              data.getULEB128(cursor);
              break;
            case dwarf::DW_FORM_block:
              data.skip(cursor, data.getULEB128(cursor));
              break;
            case dwarf::DW_FORM_data1:
              data.skip(cursor, 1);
              break;
            case dwarf::DW_FORM_data2:
              data.skip(cursor, 2);
              break;
            case dwarf::DW_FORM_data4:
              data.skip(cursor, 4);
              break;
            case dwarf::DW_FORM_data8:
              data.skip(cursor, 8);
              break;
            case dwarf::DW_FORM_data16:
              data.skip(cursor, 16);
              break;
            case dwarf::DW_FORM_strp:
            case dwarf::DW_FORM_line_strp:
              data.skip(cursor, wide ? 8 : 4);
              break;
            default:
              known = false;
          }
        }
      }
    }
  }
  if (llvm::Error failure = cursor.takeError()) {
    llvm::consumeError(std::move(failure));
    return false;
  }
  return known;
}

/// Likewise, of all units' line tables.
bool have_known_forms(llvm::DWARFContext& context) {
  for (const auto& unit : context.normal_units()) {
    const auto at =
        llvm::dwarf::toSectionOffset(unit->getUnitDIE().find(llvm::dwarf::DW_AT_stmt_list));
    if (at && !has_known_forms({unit->getLineSection().Data, true, 8}, *at)) {
      return false;
    }
  }
  return true;
}

}  // namespace

struct SourceLines::Impl {
  std::mutex mutex;  ///< LLVM reads the tables when it is first asked
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
  if (!have_known_forms(*context)) {
    return;
  }
  impl_ = std::make_unique<Impl>();
  impl_->buffer = std::move(buffer);
  impl_->object = std::move(*object);
  impl_->context = std::move(context);
}

SourceLines::~SourceLines() = default;
SourceLines::SourceLines(SourceLines&&) noexcept = default;
SourceLines& SourceLines::operator=(SourceLines&&) noexcept = default;

std::string SourceLines::at(uint64_t address) const {
  if (impl_ == nullptr) {
    return {};
  }
  const std::lock_guard lock(impl_->mutex);
  const auto info = impl_->context->getLineInfoForAddress(
      {address, llvm::object::SectionedAddress::UndefSection},
      llvm::DILineInfoSpecifier(llvm::DILineInfoSpecifier::FileLineInfoKind::RawValue));
  if (!info || info->Line == 0 || info->FileName == llvm::DILineInfo::BadString) {
    return {};
  }
  return info->FileName + ":" + std::to_string(info->Line);
}

}  // namespace weft::sim
