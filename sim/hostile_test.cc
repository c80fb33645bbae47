// Programs that nobody would write: random instructions in a sound code object, and code objects
// with bytes flipped anywhere. Whatever they do, the simulator ends with an error or a report, and
// soon. Together with the fuzzer of the code object's reader (arch/cdna/code_object_fuzz.cc) this
// covers what comes from outside.
//
// WEFT_HOSTILE_CASES sets how many flipped objects of each kernel there are, WEFT_HOSTILE_SEED
// their seed, and WEFT_HOSTILE_FIRST the first of them, to have a case again that was reported.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "arch/cdna/code_object.h"
#include "sim/disassembler.h"
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
    options.hang_seconds = 0.02;
    options.sanitize = program % 2 == 0;
    const Result<LaunchReport> report =
        device.launch(*module.value()->kernel("transpose"), {2}, {32, 4}, 0,
                      std::as_bytes(std::span(&arguments, 1)), options);
    ASSERT_TRUE(report.ok());
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, RandomInstructions, testing::ValuesIn(cdna::kTargets),
                         target_name);

/// Words that LLVM does not survive unless it is helped.
class HostileWords : public testing::TestWithParam<Target> {};
class HostileWordsSlow : public HostileWords {};

TEST_P(HostileWords, AreNoInstructions) {
  static constexpr uint32_t kWords[][4] = {
      {0xd28900ff, 0x00008000, 0xbf800000, 0xbf800000},   // v_readlane_b32 LITERAL, v0, s64
      {0x480000ff, 0x000000ff, 0xbf800000, 0xbf800000},   // v_madmk_f16 v0, LITERAL, 255, v0
      {0xd3ad0000, 0x860204f0, 0xbf800000, 0xbf800000},   // v_mfma_f32_16x16x128_f8f6f4 of 0.5
      {0xd3ac0000, 0x00000000, 0xd3ae0000, 0x860204f0}};  // v_mfma_scale_f32_32x32x64_f8f6f4
  for (const auto& words : kWords) {
    const Result<std::vector<AssemblerLine>> lines =
        disassemble(std::as_bytes(std::span(words)), 0, GetParam());
    ASSERT_TRUE(lines.ok());
    EXPECT_EQ(lines.value()[0].text, "");
    EXPECT_EQ(lines.value()[0].bytes, 4U);
    EXPECT_TRUE(words[3] != 0xbf800000 || lines.value().back().text == "s_nop 0");
  }
}

/// A literal (255) wherever an encoding has an operand that may or may not be one.
TEST_P(HostileWordsSlow, NameALiteralAnywhere) {
  std::vector<uint32_t> words;
  // Behind every upper half of a first word: a result or a source of 255, SDWA, DPP; what follows
  // is the second half of a scaled MFMA of gfx950, with a literal of its own.
  static constexpr uint32_t kLower[] = {0x00ff, 0xfef9, 0xfefa};
  static constexpr uint32_t kSecond[] = {0x100, 255, 255U << 9, 255U << 18, 255U << 24, 0x868606ff};
  for (uint32_t upper = 0; upper < 1U << 16; ++upper) {
    for (const uint32_t lower : kLower) {
      for (const uint32_t second : kSecond) {
        words.insert(words.end(), {upper << 16 | lower, second, 0xd3ad0000, 0x03fe0100});
      }
    }
  }
  const Result<std::vector<AssemblerLine>> all =
      disassemble(std::as_bytes(std::span(words)), 0, GetParam());
  ASSERT_TRUE(all.ok());
  size_t instructions = 0;
  for (const AssemblerLine& line : all.value()) {
    instructions += line.text.empty() ? 0 : 1;
    ASSERT_TRUE(line.bytes == 4 || line.bytes == 8 || line.bytes == 16) << line.text;
  }
  EXPECT_GT(instructions, words.size() / 8);
}

INSTANTIATE_TEST_SUITE_P(Targets, HostileWords, testing::ValuesIn(cdna::kTargets), target_name);
INSTANTIATE_TEST_SUITE_P(Targets, HostileWordsSlow, testing::ValuesIn(cdna::kTargets), target_name);

/// The first form that a line table's header gives names in: LLVM does not survive those that have
/// no place there.
TEST(HostileLineTable, HasFormsThatItMayHave) {
  const std::vector<std::byte> sound = test_kernels("ordinary", Target::gfx942);
  if (sound.empty()) {
    GTEST_SKIP() << "this build has no clang-22";
  }
  const Result<cdna::CodeObject> object = cdna::CodeObject::parse(sound, "test");
  ASSERT_TRUE(object.ok());
  const cdna::Section table = object.value().section(".debug_line");
  const uint64_t address = object.value().kernel("transpose")->entry;
  EXPECT_NE(SourceLines(sound).at(address), "");
  // DWARF 5, section 6.2.4: behind a header of 17 bytes come the standard opcodes' lengths, how
  // many formats there are, and what the first is of.
  constexpr size_t kOpcodeBase = 17;
  ASSERT_GT(table.bytes.size(), 64U);
  ASSERT_EQ(std::to_integer<int>(table.bytes[4]), 5);
  const size_t form = kOpcodeBase + std::to_integer<size_t>(table.bytes[kOpcodeBase]) + 2;
  constexpr int kLineStrp = 0x1f;
  ASSERT_EQ(std::to_integer<int>(table.bytes[form]), kLineStrp);
  for (int value = 0; value < 128; ++value) {
    std::vector<std::byte> bytes = sound;
    bytes[static_cast<size_t>(table.bytes.data() - sound.data()) + form] =
        static_cast<std::byte>(value);
    const std::string line = SourceLines(bytes).at(address);
    EXPECT_TRUE(line.empty() || value < 0x20) << value;
  }
}

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

/// What a process that runs cases tells the one that watches it.
struct Progress {
  std::atomic<uint64_t> at{0};  ///< the case under way
  std::atomic<uint64_t> refused{0};
  std::atomic<uint64_t> found{0};
  std::atomic<uint64_t> ran{0};
  std::atomic<uint64_t> slowest{0};  ///< milliseconds
  std::atomic<uint64_t> slowest_at{0};
};

/// A kernel of sim/testdata/ordinary.hip and arguments that suit it.
struct Victim {
  const char* kernel;
  Dim3 grid;
  Dim3 block;
};

class FlippedBytesSlow : public testing::TestWithParam<Victim> {
 protected:
  static constexpr unsigned kMostSeconds = 60;  ///< for one case

  void SetUp() override {
    for (const Target target : cdna::kTargets) {
      sound_.push_back(test_kernels("ordinary", target));
      if (sound_.back().empty()) {
        GTEST_SKIP() << "this build has no clang-22";
      }
    }
    void* shared =
        mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(shared, MAP_FAILED);
    progress_ = new (shared) Progress();
  }
  void TearDown() override {
    if (progress_ != nullptr) {
      munmap(progress_, sizeof(Progress));
    }
  }

  /// Half of the cases are damaged anywhere, the others where it hurts: in the headers, the
  /// kernel's descriptor, its code, or what tells of it.
  static void damage(std::vector<std::byte>& bytes, const char* name, std::mt19937_64& random) {
    struct {
      size_t begin, size;
    } where{0, bytes.size()};
    const auto object = cdna::CodeObject::parse(bytes, "sound");
    const cdna::Kernel& kernel = *object.value().kernel(name);
    const auto offset_of = [&](uint64_t address) {
      for (const cdna::Segment& segment : object.value().segments()) {
        if (address >= segment.address && address - segment.address < segment.bytes.size()) {
          return static_cast<size_t>(segment.bytes.data() - bytes.data()) +
                 static_cast<size_t>(address - segment.address);
        }
      }
      return size_t{0};
    };
    switch (random() % 10) {
      case 0:
        where = {0, 64 + 56 * 8};
        break;
      case 1:
        where = {offset_of(kernel.descriptor), 64};
        break;
      case 2:
        where = {0, 4096};  // symbols, hashes and the notes with the metadata
        break;
      case 3:
      case 4:
        where = {offset_of(kernel.entry), 256};
        break;
      default:
        break;
    }
    where.size = std::min(where.size, bytes.size() - where.begin);
    for (uint64_t flips = 1 + random() % 8; flips > 0; --flips) {
      std::byte& at = bytes[where.begin + random() % where.size];
      at = random() % 2 == 0 ? at ^ static_cast<std::byte>(1U << random() % 8)
                             : static_cast<std::byte>(random());
    }
  }

  /// A case; what came of it, for who has it run again alone.
  std::string run_case(uint64_t seed, uint64_t number) {
    std::seed_seq mixed{seed, number, uint64_t{std::hash<std::string>()(GetParam().kernel)}};
    std::mt19937_64 random(mixed);
    const Target target = cdna::kTargets[number % 2];
    std::vector<std::byte> bytes = sound_[number % 2];
    damage(bytes, GetParam().kernel, random);
    Device device(target);
    const Result<std::shared_ptr<Module>> module = device.load(bytes);
    const Kernel* kernel = module.ok() ? module.value()->kernel(GetParam().kernel) : nullptr;
    if (kernel == nullptr) {
      ++progress_->refused;
      return module.ok() ? "no such kernel" : module.error().message;
    }
    // Two arrays and sizes serve all of them.
    const uint64_t memory = device.allocate(1 << 16).value();
    struct {
      uint64_t in, out;
      int n, columns;
    } const arguments{memory, memory + (1 << 15), 32, 32};
    std::vector<std::byte> given(4096);
    std::memcpy(given.data(), &arguments, sizeof arguments);
    LaunchOptions options;
    options.threads = 1;
    options.hang_seconds = 0.2;
    options.sanitize = number % 4 < 2;
    const Result<LaunchReport> report =
        device.launch(*kernel, GetParam().grid, GetParam().block, 0, given, options);
    if (!report.ok()) {
      ++progress_->refused;
      return report.error().message;
    }
    ++(report.value().ok() ? progress_->ran : progress_->found);
    std::string text;
    for (const Finding& finding : report.value().findings) {
      text += finding.text() + "\n";
    }
    return text + report.value().text();
  }

  /// Cases from `first` on, in a process of their own. True: it came to their end.
  bool run_apart(uint64_t seed, uint64_t first, uint64_t end) {
    const pid_t child = fork();
    if (child == 0) {
      std::signal(SIGALRM, SIG_DFL);
      for (uint64_t number = first; number < end; ++number) {
        progress_->at = number;
        alarm(kMostSeconds);
        const auto begin = std::chrono::steady_clock::now();
        const std::string what = run_case(seed, number);
        if (end - first == 1) {
          std::cout << what << std::endl;
        }
        const auto took =
            static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(
                                      std::chrono::steady_clock::now() - begin)
                                      .count());
        if (took > progress_->slowest) {
          progress_->slowest = took;
          progress_->slowest_at = number;
        }
      }
      _exit(0);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
      return true;
    }
    const std::string how = WIFEXITED(status) ? "exit status " + std::to_string(WEXITSTATUS(status))
                            : WTERMSIG(status) == SIGALRM
                                ? "more than " + std::to_string(kMostSeconds) + " seconds"
                                : "signal " + std::to_string(WTERMSIG(status));
    ADD_FAILURE() << how << " in case " << progress_->at << " of seed " << seed;
    return false;
  }

  std::vector<std::vector<std::byte>> sound_;  ///< by target
  Progress* progress_ = nullptr;
};

TEST_P(FlippedBytesSlow, EndInAnErrorOrAReport) {
  const uint64_t seed =
      from_environment("WEFT_HOSTILE_SEED",
                       static_cast<uint64_t>(testing::UnitTest::GetInstance()->random_seed()) + 1);
  const uint64_t first = from_environment("WEFT_HOSTILE_FIRST", 0);
  const uint64_t end = first + from_environment("WEFT_HOSTILE_CASES", 100);
  constexpr int kMostFailures = 10;
  uint64_t at = first;
  for (int failures = 0; at < end && failures < kMostFailures;) {
    if (run_apart(seed, at, end)) {
      at = end;
    } else {
      at = progress_->at + 1;
      ++failures;
    }
  }
  const uint64_t cases = at - first;
  std::cout << GetParam().kernel << ": seed " << seed << ", " << cases
            << " cases: " << progress_->refused << " refused, " << progress_->found
            << " with findings, " << progress_->ran << " without; the slowest, case "
            << progress_->slowest_at << ", took " << progress_->slowest << " ms\n";
  if (cases >= 100) {  // were none found or all refused, the test would not be one
    EXPECT_GT(progress_->refused, 0U);
    EXPECT_GT(progress_->found, 0U);
    EXPECT_GT(progress_->ran, 0U);
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, FlippedBytesSlow,
                         testing::Values(Victim{"transpose", {2}, {32, 4}},
                                         Victim{"scratch", {2}, {128}}, Victim{"calls", {2}, {64}},
                                         Victim{"bytes_of_words", {2}, {256}},
                                         Victim{"arithmetic", {2}, {64}}),
                         [](const auto& info) { return std::string(info.param.kernel); });

}  // namespace
}  // namespace weft::sim
