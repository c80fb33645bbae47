// Every instruction that LLVM decodes for a target is either executed or in the list below. The
// instructions are found by decoding every opcode of every encoding.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "sim/convert.h"
#include "sim/decode.h"
#include "sim/disassembler.h"
#include "sim/matrix.h"

namespace weft::sim {
namespace {

constexpr uint32_t kNop = 0xbf800000;  // s_nop 0: no decoder takes it for more of what precedes

/// An encoding: the bits that name it, and where its opcode is. Manuals, chapter 13.
struct Encoding {
  std::string_view name;
  uint32_t first;    ///< the fixed bits of the first word
  int opcode_shift;  ///< of the opcode in it
  int opcode_bits;
  std::vector<uint32_t> firsts;   ///< operands to try in the first word
  std::vector<uint32_t> seconds;  ///< and for the second
};

const std::vector<Encoding>& encodings() {
  // Fields that an instruction does not use must be zero, so several sets of operands are tried.
  // Vector operands are v4 and higher, aligned for every width, scalar ones s[16..]. Destinations
  // too.
  constexpr uint32_t kV = 260;
  constexpr uint32_t kVop3 = kV | kV << 9 | kV << 18;
  constexpr uint32_t kSdwa = 4 | 4 << 8 | 5 << 16 | 6 << 24;        // halves
  constexpr uint32_t kDpp = 4 | 0xe4 << 8 | 0xffU << 24;            // a permutation of four lanes
  constexpr uint32_t kDppBroadcast = 4 | 0x151 << 8 | 0xffU << 24;  // what 64-bit ones take
  // Address, data and result, or fewer; 127 and, of flat ones, 0 say that there is no scalar base.
  std::vector<uint32_t> flat;
  for (const uint32_t base : {127U << 16, 0U}) {
    for (const uint32_t rest : {4U | 8 << 8 | 12 << 24, 4U | 8 << 8, 4U | 12 << 24, 0U}) {
      flat.push_back(base | rest);
    }
  }
  static const std::vector<Encoding> all = {
      {"SOP2", 0b10U << 30, 23, 7, {16 | 20 << 8 | 24 << 16}, {0}},
      {"SOPK", 0b1011U << 28, 23, 5, {24 << 16 | 4, 24 << 16 | 0xf801}, {7}},
      {"SOP1", 0b101111101U << 23, 8, 8, {16 | 24 << 16}, {0}},
      {"SOPC", 0b101111110U << 23, 16, 7, {16 | 20 << 8}, {0}},
      {"SOPP", 0b101111111U << 23, 16, 7, {0, 1}, {0}},
      {"SMEM", 0b110000U << 26, 18, 8, {8 | 32 << 6 | 1 << 17, 32 << 6, 0}, {16, 0}},
      {"VOP1", 0b0111111U << 25, 9, 8, {kV | 8 << 17, 16 | 8 << 17, 0}, {0}},
      {"VOP2", 0, 25, 6, {kV | 4 << 9 | 8 << 17}, {0x42}},
      {"VOPC", 0b0111110U << 25, 17, 8, {kV | 4 << 9}, {0}},
      {"VOP3",
       0b110100U << 26,
       16,
       10,
       {8, 8 | 106 << 8},
       {kVop3, 16 | kV << 9 | kV << 18, kV | 16 << 9 | kV << 18, kV | 16 << 9,
        kV | kV << 9 | 106 << 18, 16 | 17 << 9 | kV << 18}},
      {"VOP3P", 0b110100111U << 23, 16, 7, {8, 8 | 1 << 15}, {kVop3, kVop3 | 3 << 27}},
      {"VOP1, SDWA", 0b0111111U << 25, 9, 8, {249 | 8 << 17}, {kSdwa}},
      {"VOP2, SDWA", 0, 25, 6, {249 | 4 << 9 | 8 << 17}, {kSdwa}},
      {"VOPC, SDWA", 0b0111110U << 25, 17, 8, {249 | 4 << 9}, {kSdwa & ~0xff00U}},
      {"VOP1, DPP", 0b0111111U << 25, 9, 8, {250 | 8 << 17}, {kDpp, kDppBroadcast}},
      {"VOP2, DPP", 0, 25, 6, {250 | 4 << 9 | 8 << 17}, {kDpp, kDppBroadcast}},
      {"DS",
       0b110110U << 26,
       17,
       8,
       {0},
       {4 | 8 << 8 | 12 << 16 | 16 << 24, 4 | 8 << 8 | 16 << 24, 4 | 8 << 8 | 12 << 16, 4 | 8 << 8,
        4 | 16 << 24, 16 << 24, 0}},
      {"FLAT", 0b110111U << 26, 18, 7, {0, 1 << 16}, flat},
      {"SCRATCH", 0b110111U << 26 | 1 << 14, 18, 7, {0, 1 << 13}, flat},
      {"GLOBAL", 0b110111U << 26 | 2 << 14, 18, 7, {0, 1 << 16}, flat},
      {"MUBUF", 0b111000U << 26, 18, 7, {0, 1 << 16}, {4 | 8 << 8 | 4 << 16 | 24U << 24}},
      {"MTBUF", 0b111010U << 26, 15, 4, {(4 | 7 << 4) << 19}, {4 | 8 << 8 | 4 << 16 | 24U << 24}},
      {"VINTRP", 0b110101U << 26, 16, 2, {4 | 8 << 18}, {0}},
  };
  return all;
}

std::string mnemonic_of(std::string_view text) {
  std::string_view name = text.substr(0, text.find(' '));
  for (const std::string_view suffix : {"_e32", "_e64"}) {
    if (name.ends_with(suffix)) {
      name.remove_suffix(suffix.size());
    }
  }
  return std::string(name);
}

/// What is not executed, by the beginning of its name, and why.
struct LeftOut {
  std::string_view prefix;
  std::string_view why;
};
constexpr LeftOut kLeftOut[] = {
    {"s_atc_probe", "prefetches a translation of addresses, for an address that may be anything"},
    {"s_cbranch_g_fork", "keeps a stack of paths in scalar registers; compilers never emit it"},
    {"s_cbranch_i_fork", "the same"},
    {"s_cbranch_join", "the same"},
    {"s_rfe", "returns from a trap's handler, which does not exist here"},
    {"s_scratch_", "scalar accesses of a lane's scratch, whose layout the manual leaves open"},
    {"s_sendmsghalt", "stops a wave until a debugger wakes it"},
    {"s_sethalt", "the same"},
    {"s_setvskip", "skips vector instructions; compilers never emit it"},
    {"scratch_load_lds", "loads from scratch straight to LDS; no compiler emits them"},
    {"v_screen_partition", "of graphics, and not in the manuals"},
};

/// What decoding every opcode gives.
struct Found {
  std::set<std::string> names;                 ///< as LLVM prints them
  std::map<std::string, std::string> missing;  ///< those with no row, and a line that has it
  std::set<std::string_view> rows;             ///< of the simulator's tables
};

Found decode_all(Target target) {
  Found found;
  for (const Encoding& encoding : encodings()) {
    std::vector<uint32_t> words;
    for (uint32_t opcode = 0; opcode < 1U << encoding.opcode_bits; ++opcode) {
      for (const uint32_t first : encoding.firsts) {
        for (const uint32_t second : encoding.seconds) {
          words.insert(words.end(), {encoding.first | opcode << encoding.opcode_shift | first,
                                     second, kNop, kNop});
        }
      }
    }
    const Result<Code> code = Code::decode(std::as_bytes(std::span(words)), 0, target);
    EXPECT_TRUE(code.ok());
    for (size_t at = 0; code.ok() && at < words.size(); at += 4) {
      const Instruction* i = code.value().at(4 * at);
      const std::string text = i == nullptr ? "" : code.value().text(*i);
      // LLVM prints operands and modifiers that an instruction does not take with a remark.
      if (text.empty() || text.starts_with(".long") || text.find("/*") != std::string::npos ||
          text.find("; Warning") != std::string::npos) {
        continue;
      }
      found.names.insert(mnemonic_of(text));
      if (i->row == nullptr) {
        found.missing.emplace(mnemonic_of(text), std::string(encoding.name) + ": " + text);
      } else {
        found.rows.insert(i->row->name);
      }
    }
  }
  return found;
}

class Coverage : public testing::TestWithParam<Target> {};

TEST_P(Coverage, EveryInstructionIsExecutedOrKnownNotToBe) {
  auto [names, missing, rows] = decode_all(GetParam());
  EXPECT_GT(names.size(), 1250U);  // _sdwa and _dpp are names of their own
  for (const LeftOut& each : kLeftOut) {
    const size_t before = missing.size();
    std::erase_if(missing, [&](const auto& name) { return name.first.starts_with(each.prefix); });
    EXPECT_LT(missing.size(), before) << each.prefix << " is executed: take it off the list";
  }
  for (const auto& [name, text] : missing) {
    ADD_FAILURE() << "not executed, and not in the list of what is not: " << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, Coverage, testing::ValuesIn(cdna::kTargets),
                         [](const testing::TestParamInfo<Target>& info) {
                           return std::string(cdna::name_of(info.param));
                         });

TEST(Rows, EveryRowIsAnInstruction) {
  std::set<std::string_view> seen;
  for (const Target target : cdna::kTargets) {
    seen.merge(decode_all(target).rows);
  }
  for (const auto table : {scalar_rows(), flow_rows(), scalar_memory_rows(), vector_float_rows(),
                           vector_integer_rows(), vector_convert_rows(), vector_compare_rows(),
                           vector_packed_rows(), lane_rows(), memory_rows(), lds_rows()}) {
    for (const Row& row : table) {
      EXPECT_TRUE(seen.contains(row.name)) << row.name << " is no instruction of either target";
    }
  }
  for (const MatrixOp& op : matrix_ops()) {
    // Those with scales take four words; sim/isa_matrix_test.cc runs them.
    EXPECT_TRUE(seen.contains(op.name) || op.name.starts_with("v_mfma_scale_")) << op.name;
  }
  for (const ConvertOp& op : convert_ops()) {
    EXPECT_TRUE(seen.contains(op.name)) << op.name;
  }
}

}  // namespace
}  // namespace weft::sim
