// Programs that nobody would write: random instructions in a sound code object. Whatever they do,
// the simulator ends with a report. Together with the fuzzer of the code object's reader
// (arch/cdna/code_object_fuzz.cc) this covers what comes from outside.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "arch/cdna/code_object.h"
#include "sim/test_kernels.h"

namespace weft::sim {
namespace {

class RandomInstructions : public testing::TestWithParam<Target> {};

TEST_P(RandomInstructions, EndWithAReport) {
  const std::vector<std::byte> sound = test_kernels("ordinary", GetParam());
  if (sound.empty()) {
    GTEST_SKIP() << "this build has no clang-22";
  }
  const Result<cdna::CodeObject> object = cdna::CodeObject::parse(sound, "test");
  ASSERT_TRUE(object.ok());
  const cdna::Section text = object.value().section(".text");
  const cdna::Kernel* kernel = object.value().kernel("transpose");
  ASSERT_NE(kernel, nullptr);
  const auto place =
      static_cast<size_t>(text.bytes.data() - sound.data()) + (kernel->entry - text.address);

  const unsigned seed = testing::UnitTest::GetInstance()->random_seed() + 1U;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  // The leading bits of every format, so that most words are instructions (CDNA 3 manual, chapter
  // 13).
  static constexpr struct {
    uint32_t bits;
    int width;
    bool two_words;
  } kFormats[] = {{0b10, 2, false},        {0b1011, 4, false},      {0b101111101, 9, false},
                  {0b101111110, 9, false}, {0b101111111, 9, false}, {0b110000, 6, true},
                  {0b0, 1, false},         {0b0111111, 7, false},   {0b0111110, 7, false},
                  {0b110100, 6, true},     {0b110100111, 9, true},  {0b110110, 6, true},
                  {0b110111, 6, true},     {0b111000, 6, true}};
  constexpr int kPrograms = 150;
  constexpr size_t kWords = 60;
  for (int program = 0; program < kPrograms; ++program) {
    std::vector<std::byte> bytes = sound;
    std::vector<uint32_t> words;
    while (words.size() < kWords) {
      const auto& format = kFormats[random() % std::size(kFormats)];
      const int shift = 32 - format.width;
      words.push_back(format.bits << shift |
                      (static_cast<uint32_t>(random()) & ((1U << shift) - 1)));
      if (format.two_words) {
        words.push_back(static_cast<uint32_t>(random()));
      }
    }
    words.push_back(0xbf810000);  // s_endpgm
    std::memcpy(bytes.data() + place, words.data(), words.size() * sizeof(uint32_t));
    Device device(GetParam());
    const Result<std::shared_ptr<Module>> module = device.load(bytes);
    ASSERT_TRUE(module.ok()) << module.error().message;
    const Result<uint64_t> memory = device.allocate(1 << 16);
    ASSERT_TRUE(memory.ok());
    struct {
      uint64_t in, out;
      int rows, columns;
    } const arguments{memory.value(), memory.value(), 32, 32};
    LaunchOptions options;
    options.hang_instructions = 20'000;
    options.sanitize = program % 2 == 0;
    const Result<LaunchReport> report =
        device.launch(*module.value()->kernel("transpose"), {2}, {32, 4}, 0,
                      std::as_bytes(std::span(&arguments, 1)), options);
    ASSERT_TRUE(report.ok());
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, RandomInstructions, testing::ValuesIn(cdna::kTargets),
                         target_name);

}  // namespace
}  // namespace weft::sim
