#include "sim/decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "base/number.h"
#include "sim/checks.h"
#include "sim/convert.h"
#include "sim/matrix.h"
#include "sim/spin.h"
#include "sim/wave.h"

namespace weft::sim {

std::string_view name_of(Class c) {
  static constexpr std::string_view kNames[kClasses] = {
      "scalar", "scalar memory", "flow",        "vector",       "vector, quarter rate",
      "matrix", "LDS",           "vector load", "vector store", "vector atomic"};
  return kNames[static_cast<int>(c)];
}

const Row* find_row(std::string_view name, Target target) {
  static const auto index = [] {
    std::unordered_map<std::string_view, const Row*> rows;
    for (const auto table : {scalar_rows(), flow_rows(), scalar_memory_rows(), vector_float_rows(),
                             vector_integer_rows(), vector_convert_rows(), vector_compare_rows(),
                             vector_packed_rows(), lane_rows(), memory_rows(), lds_rows()}) {
      for (const Row& row : table) {
        rows.emplace(row.name, &row);
      }
    }
    return rows;
  }();
  const auto found = index.find(name);
  if (found == index.end() ||
      ((found->second->flags & kOnlyGfx950) != 0 && target != Target::gfx950)) {
    return nullptr;
  }
  return found->second;
}

namespace {

std::string_view trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') {
    text.remove_prefix(1);
  }
  while (!text.empty() && text.back() == ' ') {
    text.remove_suffix(1);
  }
  return text;
}

bool starts(std::string_view text, std::string_view prefix) { return text.starts_with(prefix); }

/// Takes `prefix` and `suffix` off, or leaves the text alone.
bool unwrap(std::string_view& text, std::string_view prefix, std::string_view suffix) {
  if (text.size() < prefix.size() + suffix.size() || !text.starts_with(prefix) ||
      !text.ends_with(suffix)) {
    return false;
  }
  text = text.substr(prefix.size(), text.size() - prefix.size() - suffix.size());
  return true;
}

std::optional<int64_t> integer(std::string_view text) {
  const bool negative = !text.empty() && text.front() == '-';
  if (negative) {
    text.remove_prefix(1);
  }
  int base = 10;
  if (starts(text, "0x")) {
    text.remove_prefix(2);
    base = 16;
  }
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return static_cast<int64_t>(negative ? 0 - value : value);
}

/// Splits where a separator is outside of brackets.
std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '[' || text[i] == '(') {
      ++depth;
    } else if (text[i] == ']' || text[i] == ')') {
      --depth;
    } else if (text[i] == separator && depth == 0) {
      parts.push_back(trim(text.substr(begin, i - begin)));
      begin = i + 1;
    }
  }
  parts.push_back(trim(text.substr(begin)));
  return parts;
}

/// A list of bits, "[0,1,1]": bit 0 first.
uint8_t bit_list(std::string_view text) {
  uint8_t bits = 0;
  int position = 0;
  for (const char c : text) {
    if (c == '0' || c == '1') {
      bits |= static_cast<uint8_t>((c - '0') << position++);
    }
  }
  return bits;
}

std::optional<uint8_t> selection(std::string_view text) {
  static constexpr std::array<std::string_view, 7> kNames = {"BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3",
                                                             "WORD_0", "WORD_1", "DWORD"};
  const auto found = std::find(kNames.begin(), kNames.end(), text);
  return found == kNames.end() ? std::nullopt
                               : std::optional(static_cast<uint8_t>(found - kNames.begin()));
}

/// The registers that have names: special ones, and aliases of numbered SGPRs.
struct NamedRegister {
  std::string_view name;
  Operand::Kind kind;
  uint16_t index;
  uint8_t words;
};
constexpr NamedRegister kNamed[] = {
    {"vcc", Operand::Kind::sgpr, 106, 2},
    {"vcc_lo", Operand::Kind::sgpr, 106, 1},
    {"vcc_hi", Operand::Kind::sgpr, 107, 1},
    {"exec", Operand::Kind::sgpr, 126, 2},
    {"exec_lo", Operand::Kind::sgpr, 126, 1},
    {"exec_hi", Operand::Kind::sgpr, 127, 1},
    {"m0", Operand::Kind::sgpr, 124, 1},
    {"flat_scratch", Operand::Kind::sgpr, 102, 2},
    {"flat_scratch_lo", Operand::Kind::sgpr, 102, 1},
    {"flat_scratch_hi", Operand::Kind::sgpr, 103, 1},
    {"xnack_mask", Operand::Kind::sgpr, 104, 2},
    {"xnack_mask_lo", Operand::Kind::sgpr, 104, 1},
    {"xnack_mask_hi", Operand::Kind::sgpr, 105, 1},
    {"src_vccz", Operand::Kind::special, Operand::vccz, 1},
    {"src_execz", Operand::Kind::special, Operand::execz, 1},
    {"src_scc", Operand::Kind::special, Operand::scc, 1},
    {"src_shared_base", Operand::Kind::special, Operand::shared_base, 2},
    {"src_shared_limit", Operand::Kind::special, Operand::shared_limit, 2},
    {"src_private_base", Operand::Kind::special, Operand::private_base, 2},
    {"src_private_limit", Operand::Kind::special, Operand::private_limit, 2},
};

/// An inline floating-point constant in the bits of a type.
uint64_t float_bits(double value, Type type) {
  // The encoding calls it 1/(2*pi); printed digits are not enough for each format's nearest.
  const bool inverse_two_pi = value > 0.15 && value < 0.16;
  switch (type) {
    case Type::f64:
    case Type::b64:
    case Type::i64:
      return inverse_two_pi ? 0x3fc45f306dc9c882 : std::bit_cast<uint64_t>(value);
    case Type::bf16:
      return float_bits(value, Type::f32) >> 16;
    case Type::f16: {
      if (inverse_two_pi) {
        return 0x3118;
      }
      const auto bits = std::bit_cast<uint64_t>(value);  // powers of two: exact in binary16
      return static_cast<uint64_t>((bits >> 48 & 0x8000) |
                                   ((static_cast<int>(bits >> 52 & 0x7ff) - 1008) << 10));
    }
    default:
      return inverse_two_pi ? 0x3e22f983 : std::bit_cast<uint32_t>(static_cast<float>(value));
  }
}

/// What a literal's 32 bits are to an operand of 64 (CDNA 3 and 4 manuals, section 6.2.1.1).
uint64_t widened_literal(uint32_t literal, Type type) {
  switch (type) {
    case Type::f64:
      return uint64_t{literal} << 32;
    case Type::i64:
      return static_cast<uint64_t>(int64_t{static_cast<int32_t>(literal)});
    default:
      return literal;
  }
}

/// What stands for bytes that LLVM does not decode.
constexpr std::string_view kNoInstruction = ".long ";

void undecodable(Wave& wave, const Instruction& instruction) {
  stop(wave, instruction, FindingKind::unknown_instruction, 0,
       wave.group->launch->code->why_unknown(instruction));
}

}  // namespace

class Decoder {
 public:
  explicit Decoder(Code& code) : code_(code) {}

  /// False: the text is not understood.
  bool read(const AssemblerLine& line, uint32_t word, Instruction& out);

 private:
  bool operand(std::string_view text, Type type, Operand& out);
  bool modifier(std::string_view text, Instruction& out);
  void constant(Operand& out, uint64_t value);

  bool has_literal_ = false;  ///< of a VOP1, VOP2 or VOPC instruction: source 0 is one
  Code& code_;
};

void Decoder::constant(Operand& out, uint64_t value) {
  out.kind = Operand::Kind::constant;
  out.value = value;
  auto& lanes = code_.constants_[value];
  if (lanes == nullptr) {
    lanes = std::make_unique<uint32_t[]>(2 * kLanes);
    std::fill_n(lanes.get(), kLanes, static_cast<uint32_t>(value));
    std::fill_n(lanes.get() + kLanes, kLanes, static_cast<uint32_t>(value >> 32));
  }
  out.lanes = lanes.get();
}

bool Decoder::operand(std::string_view text, Type type, Operand& out) {
  out.type = type;
  out.words = static_cast<uint8_t>(words_of(type));
  // A minus before a number belongs to the number.
  if (text.size() > 1 && text.front() == '-' && (text[1] < '0' || text[1] > '9')) {
    out.negate = true;
    text.remove_prefix(1);
  }
  if (unwrap(text, "neg(", ")")) {
    out.negate = true;
  }
  if (unwrap(text, "|", "|") || unwrap(text, "abs(", ")")) {
    out.absolute = true;
  }
  (void)unwrap(text, "lit(", ")");  // a literal that could have been an inline constant
  if (unwrap(text, "sext(", ")")) {
    out.sign_extend = true;
  }
  if (text.empty()) {
    return false;
  }
  for (const NamedRegister& named : kNamed) {
    if (text == named.name) {
      out.kind = named.kind;
      out.index = named.index;
      if (type == Type::any) {
        out.words = named.words;
      }
      return true;
    }
  }
  if (text == "off" || text == "null") {
    return true;
  }
  // v7, a7, s7, ttmp7 and their ranges, v[4:7].
  uint16_t base = 0;
  std::string_view number = text;
  Operand::Kind kind = Operand::Kind::none;
  if (starts(text, "ttmp")) {
    kind = Operand::Kind::sgpr;
    base = 108;
    number.remove_prefix(4);
  } else if (text[0] == 'v' || text[0] == 'a' || text[0] == 's') {
    kind = text[0] == 's' ? Operand::Kind::sgpr : Operand::Kind::vgpr;
    base = text[0] == 'a' ? 256 : 0;
    number.remove_prefix(1);
  }
  if (kind != Operand::Kind::none) {
    int64_t first = 0;
    int64_t last = 0;
    if (unwrap(number, "[", "]")) {
      const size_t colon = number.find(':');
      const auto begin = integer(number.substr(0, colon));
      const auto end = colon == std::string_view::npos ? begin : integer(number.substr(colon + 1));
      if (!begin || !end) {
        return false;
      }
      first = *begin;
      last = *end;
    } else {
      const auto only = integer(number);
      if (!only) {
        return false;
      }
      first = last = *only;
    }
    const int64_t limit = kind == Operand::Kind::sgpr ? 128 : 256;
    if (first < 0 || last < first || base % 256 + last >= limit) {
      return false;
    }
    const auto named_words = static_cast<uint8_t>(last - first + 1);
    if (type == Type::any || named_words > out.words) {
      out.words = named_words;
    }
    // Never past the register file, whatever the row expects.
    if (base % 256 + first + out.words > limit) {
      return false;
    }
    out.kind = kind;
    out.index = static_cast<uint16_t>(base + first);
    return true;
  }
  if (text.find('.') != std::string_view::npos) {
    const double value = std::strtod(std::string(text).c_str(), nullptr);
    uint64_t bits = float_bits(value, type);
    if (type == Type::pk32) {
      bits |= bits << 32;
    }
    constant(out, bits);
    return true;
  }
  const auto value = integer(text);
  if (!value) {
    return false;
  }
  auto bits = static_cast<uint64_t>(*value);
  const bool hexadecimal = starts(text, "0x");  // whole inline numbers are printed in decimal
  if (hexadecimal && type == Type::b16 && !has_literal_) {
    // An inline float, which LLVM prints as the bits of a binary16.
    bits = float_bits(to_float(f16{static_cast<uint16_t>(bits)}), Type::f32);
  } else if (hexadecimal && bits <= 0xffffffff) {
    bits = widened_literal(static_cast<uint32_t>(bits), type);
  } else if (type == Type::pk32) {
    bits = (bits & 0xffffffff) | bits << 32;
  }
  constant(out, bits);
  return true;
}

bool Decoder::modifier(std::string_view text, Instruction& out) {
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const std::string_view value =
      colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  const auto number = integer(value);
  static constexpr struct {
    std::string_view name;
    bool Instruction::*field;
  } kFlags[] = {
      {"clamp", &Instruction::clamp}, {"sc0", &Instruction::sc0},     {"glc", &Instruction::sc0},
      {"sc1", &Instruction::sc1},     {"nt", &Instruction::nt},       {"lds", &Instruction::lds},
      {"offen", &Instruction::offen}, {"idxen", &Instruction::idxen}, {"gds", &Instruction::gds}};
  if (value.empty()) {
    for (const auto& flag : kFlags) {
      if (name == flag.name) {
        out.*flag.field = true;
        return true;
      }
    }
  }
  static constexpr struct {
    std::string_view name;
    Dpp dpp;
  } kDpp[] = {{"row_shl", Dpp::row_shl},
              {"row_shr", Dpp::row_shr},
              {"row_ror", Dpp::row_ror},
              {"wave_shl", Dpp::wave_shl},
              {"wave_rol", Dpp::wave_rol},
              {"wave_shr", Dpp::wave_shr},
              {"wave_ror", Dpp::wave_ror},
              {"row_mirror", Dpp::row_mirror},
              {"row_half_mirror", Dpp::row_half_mirror},
              {"row_newbcast", Dpp::row_newbcast}};
  for (const auto& row : kDpp) {
    if (name == row.name) {
      out.dpp = row.dpp;
      out.dpp_control = static_cast<uint8_t>(number.value_or(0));
      return true;
    }
  }
  if (name == "quad_perm") {
    int shift = 0;
    out.dpp = Dpp::quad_perm;
    for (const char c : value) {
      if (c >= '0' && c <= '3') {
        out.dpp_control |= static_cast<uint8_t>((c - '0') << shift);
        shift += 2;
      }
    }
    return true;
  }
  if (name == "row_bcast") {
    out.dpp = number == 31 ? Dpp::row_bcast31 : Dpp::row_bcast15;
    return true;
  }
  if (name == "bound_ctrl") {
    out.bound_control = true;  // printed only when the bit is set, as bound_ctrl:0 or :1
    return true;
  }
  if (name == "op_sel") {
    out.op_sel = bit_list(value);
    return true;
  }
  if (name == "op_sel_hi") {
    out.op_sel_hi = bit_list(value);
    return true;
  }
  if (name == "neg_lo") {
    out.neg_lo = bit_list(value);
    return true;
  }
  if (name == "neg_hi") {
    out.neg_hi = bit_list(value);
    return true;
  }
  if (name == "neg") {
    out.blgp = bit_list(value);
    return true;
  }
  if (name == "mul") {
    out.omod = number == 2 ? 1 : number == 4 ? 2 : 0;
    return out.omod != 0;
  }
  if (name == "div") {
    out.omod = 3;
    return number == 2;
  }
  if (name == "dst_unused") {
    out.destination_unused = value == "UNUSED_PAD" ? 0 : value == "UNUSED_SEXT" ? 1 : 2;
    return true;
  }
  if (name == "dst_sel" || name == "src0_sel" || name == "src1_sel") {
    const auto select = selection(value);
    if (!select) {
      return false;
    }
    if (name == "dst_sel") {
      out.destination_select = *select;
    } else {
      // Sources follow the results; a carry or mask is no source of SDWA.
      const int first = out.row->results;
      out.operand[first + (name == "src1_sel" ? 1 : 0)].select = *select;
    }
    return true;
  }
  if (!number) {
    return false;
  }
  static constexpr struct {
    std::string_view name;
    uint8_t Instruction::*field;
  } kNumbers[] = {{"row_mask", &Instruction::row_mask}, {"bank_mask", &Instruction::bank_mask},
                  {"cbsz", &Instruction::cbsz},         {"abid", &Instruction::abid},
                  {"blgp", &Instruction::blgp},         {"offset0", &Instruction::offset0},
                  {"offset1", &Instruction::offset1}};
  for (const auto& field : kNumbers) {
    if (name == field.name) {
      out.*field.field = static_cast<uint8_t>(*number);
      return true;
    }
  }
  if (name == "bitop3") {
    out.offset0 = static_cast<uint8_t>(*number);  // the truth table; no other use of this field
    return true;
  }
  if (name == "offset") {
    out.offset = static_cast<int32_t>(*number);
    return true;
  }
  return false;
}

bool Decoder::read(const AssemblerLine& line, uint32_t word, Instruction& out) {
  const std::string_view text = line.text;
  if (text.empty()) {
    return false;
  }
  const size_t space = text.find(' ');
  std::string_view mnemonic = text.substr(0, space);
  std::string_view rest =
      space == std::string_view::npos ? std::string_view() : trim(text.substr(space + 1));
  for (const std::string_view suffix : {"_e64_dpp", "_e32", "_e64", "_sdwa", "_dpp"}) {
    if (mnemonic.ends_with(suffix)) {
      mnemonic.remove_suffix(suffix.size());
      break;
    }
  }
  out.word = word;
  has_literal_ = word >> 31 == 0 && (word & 511) == 255;
  out.vector = starts(mnemonic, "v_");
  if (out.vector) {
    out.matrix = find_matrix_op(mnemonic, code_.target_);
    out.convert = find_convert_op(mnemonic, code_.target_);
  }
  out.row = out.matrix != nullptr    ? find_matrix_row(*out.matrix)
            : out.convert != nullptr ? find_convert_row(*out.convert)
                                     : find_row(mnemonic, code_.target_);
  if (out.row == nullptr) {
    return false;
  }
  out.run = out.row->run;
  if (out.row->types[1] == Type::mix) {
    out.op_sel_hi = 0;  // here the bits choose between float and half, and unprinted means float
  }
  const uint32_t format = word >> 23;
  if (format == 0b101111111) {  // SOPP: only the 16-bit field matters
    out.offset = static_cast<int16_t>(word & 0xffff);
    return true;
  }
  if (word >> 26 == 0b110110) {  // DS: swizzle patterns print as words, so the bits are read
    out.offset = static_cast<int32_t>(word & 0xffff);
    out.offset0 = static_cast<uint8_t>(word & 0xff);
    out.offset1 = static_cast<uint8_t>(word >> 8 & 0xff);
  }
  if (rest.empty()) {
    return true;
  }
  std::vector<std::string_view> parts = split(rest, ',');
  // Modifiers follow the last operand, separated by spaces.
  std::vector<std::string_view> modifiers;
  {
    const std::vector<std::string_view> tokens_of_last = split(parts.back(), ' ');
    std::vector<std::string_view> tokens;
    std::copy_if(tokens_of_last.begin(), tokens_of_last.end(), std::back_inserter(tokens),
                 [](std::string_view token) { return !token.empty(); });
    if (tokens.empty()) {
      return false;
    }
    const bool no_operands = out.row->types[0] == Type::none;
    if (no_operands && parts.size() == 1) {
      parts.clear();
      modifiers = std::move(tokens);
    } else {
      parts.back() = tokens[0];
      modifiers.assign(tokens.begin() + 1, tokens.end());
    }
  }
  if (parts.size() > std::size(out.operand)) {
    return false;
  }
  for (const std::string_view text_of : modifiers) {
    // Bits of a swizzle's pattern and of a typed buffer's format are read from the encoding.
    const bool read_elsewhere = starts(text_of, "offset:swizzle(") || starts(text_of, "format:");
    if (!read_elsewhere && !modifier(text_of, out)) {
      return false;
    }
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    if (starts(parts[i], "hwreg(")) {
      out.offset = static_cast<int32_t>(word & 0xffff);
      continue;
    }
    if (starts(parts[i], "gpr_idx(")) {  // which operands are indexed
      out.offset = static_cast<int32_t>(word >> 8 & 15);
      continue;
    }
    Type type = out.row->types[i];
    if (type == Type::none && i >= 1 && out.matrix != nullptr) {
      type = Type::any;
    }
    if (type == Type::mix) {
      const bool is_half = (out.op_sel_hi >> (i - out.row->results) & 1) != 0;
      type = is_half ? Type::f16 : Type::f32;
    }
    if (!operand(parts[i], type, out.operand[i])) {
      return false;
    }
    out.operands = static_cast<uint8_t>(i + 1);
  }
  if (word >> 28 == 0b1011 && (format & 31) < 29) {  // SOPK: the same
    out.offset = static_cast<int16_t>(word & 0xffff);
  }
  for (const Operand& operand : std::span(out.operand, out.operands)) {
    out.modified |=
        operand.negate || operand.absolute || operand.sign_extend || operand.select != 6;
  }
  out.modified |= out.dpp != Dpp::none;
  out.results = out.row->results;
  if (out.row->cost == Class::vmem_atomic && out.sc0 && !starts(mnemonic, "buffer_")) {
    out.results = 1;  // the old value is printed first
  } else if (out.lds) {
    out.results = 0;
  }
  out.altered = out.clamp || out.omod != 0 || out.destination_select != 6;
  return true;
}

Result<Code> Code::decode(std::span<const std::byte> text, uint64_t address, Target target) {
  Code code;
  code.target_ = target;
  code.address_ = address;
  code.bytes_.assign(text.begin(), text.end());
  WEFT_ASSIGN(code.lines_, disassemble(text, address, target));
  code.instructions_.resize(code.lines_.size());
  code.by_word_.assign(text.size() / 4 + 1, -1);
  Decoder decoder(code);
  for (size_t i = 0; i < code.lines_.size(); ++i) {
    AssemblerLine& line = code.lines_[i];
    Instruction& instruction = code.instructions_[i];
    const size_t at = line.address - address;
    uint32_t word = 0;
    std::memcpy(&word, text.data() + at, 4);
    if (!decoder.read(line, word, instruction)) {
      instruction = Instruction{};
      instruction.run = &undecodable;
      instruction.word = word;
      if (line.text.empty()) {
        line.text = fmt::format("{}{:#010x}", kNoInstruction, word);
      }
    }
    instruction.ordinal = static_cast<uint32_t>(i);
    instruction.address = line.address;
    instruction.bytes = line.bytes;
    prepare_checks(instruction);
    code.by_word_[at / 4] = static_cast<int32_t>(i);
  }
  // Branches count words from the next instruction.
  for (Instruction& instruction : code.instructions_) {
    if (instruction.row != nullptr && instruction.row->cost == Class::branch) {
      const Instruction* target_instruction =
          code.at(instruction.address + 4 + static_cast<int64_t>(instruction.offset) * 4);
      instruction.target =
          target_instruction == nullptr ? -1 : static_cast<int32_t>(target_instruction->ordinal);
    }
  }
  code.spins_ = mark_spins(code.instructions_);
  // A wave that runs past the end reaches this.
  Instruction end;
  end.run = &undecodable;
  end.ordinal = static_cast<uint32_t>(code.instructions_.size());
  end.address = address + text.size();
  code.instructions_.push_back(end);
  code.lines_.push_back({end.address, 0, "(end of the program's text)"});
  return code;
}

std::string Code::why_unknown(const Instruction& instruction) const {
  const AssemblerLine& line = lines_[instruction.ordinal];
  if (line.bytes == 0) {
    return "the wave has run past its last instruction";
  }
  if (!line.text.starts_with(kNoInstruction)) {
    // LLVM remarks on operands that it prints all the same.
    return line.text.find("/*Invalid") != std::string::npos
               ? "the instruction does not take such operands"
               : "the simulator leaves this instruction out";
  }
  constexpr size_t kLongest = 16;
  const std::span<const std::byte> rest = std::span(bytes_).subspan(instruction.address - address_);
  const std::span<const std::byte> bytes = rest.first(std::min(rest.size(), kLongest));
  for (const Target other : cdna::kTargets) {
    if (other == target_) {
      continue;
    }
    const auto lines = disassemble(bytes, instruction.address, other);
    if (lines.ok() && !lines.value().front().text.empty()) {
      return fmt::format("{} has no such instruction, but {} has: {}", cdna::name_of(target_),
                         cdna::name_of(other), lines.value().front().text);
    }
  }
  std::string hex;
  for (const std::byte byte : bytes.first(std::min<size_t>(bytes.size(), 8))) {
    hex += fmt::format(" {:02x}", static_cast<int>(byte));
  }
  return fmt::format("no instruction of {} begins with the bytes{}", cdna::name_of(target_), hex);
}

const Instruction* Code::at(uint64_t address) const {
  if (address < address_ || address % 4 != 0 || (address - address_) / 4 >= by_word_.size()) {
    return nullptr;
  }
  const int32_t ordinal = by_word_[(address - address_) / 4];
  return ordinal < 0 ? nullptr : &instructions_[ordinal];
}

}  // namespace weft::sim
