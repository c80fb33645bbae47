// Images as hipModuleLoadData gets them, an address without a size: sound ones are found whole,
// hostile ones end in an error and no read beyond what is mapped.
#include "sim/offload_bundle.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "sim/hip.h"
#include "sim/hip_abi.h"
#include "sim/test_kernels.h"

namespace weft::sim {
namespace {

using Bytes = std::vector<std::byte>;

template <class T>
void append(Bytes& to, T value) {
  const auto* p = reinterpret_cast<const std::byte*>(&value);
  to.insert(to.end(), p, p + sizeof value);
}
void append(Bytes& to, std::string_view text) {
  const auto* p = reinterpret_cast<const std::byte*>(text.data());
  to.insert(to.end(), p, p + text.size());
}
template <class T>
void put(Bytes& to, size_t at, T value) {
  std::memcpy(to.data() + at, &value, sizeof value);
}

struct Entry {
  std::string name;
  Bytes content;
};
Bytes bundle_of(const std::vector<Entry>& entries) {
  size_t header = 32;
  for (const Entry& entry : entries) {
    header += 24 + entry.name.size();
  }
  Bytes bundle;
  append(bundle, std::string_view("__CLANG_OFFLOAD_BUNDLE__"));
  append(bundle, uint64_t{entries.size()});
  size_t at = (header + 4095) / 4096 * 4096;
  for (const Entry& entry : entries) {
    append(bundle, uint64_t{at});
    append(bundle, uint64_t{entry.content.size()});
    append(bundle, uint64_t{entry.name.size()});
    append(bundle, std::string_view(entry.name));
    at += entry.content.size();
  }
  bundle.resize((header + 4095) / 4096 * 4096);
  for (const Entry& entry : entries) {
    bundle.insert(bundle.end(), entry.content.begin(), entry.content.end());
  }
  return bundle;
}
Bytes bundle_of_all_targets() {
  std::vector<Entry> entries{{"host-x86_64-unknown-linux-gnu-", {}}};
  for (const Target target : cdna::kTargets) {
    entries.push_back(
        {"hipv4-amdgcn-amd-amdhsa--" + std::string(cdna::name_of(target)) + ":sramecc+:xnack-",
         test_kernels("ordinary", target)});
  }
  return bundle_of(entries);
}
Bytes compressed(const Bytes& bundle, int version, bool zstd) {
  Bytes data;
  if (zstd) {
    data.resize(ZSTD_compressBound(bundle.size()));
    data.resize(ZSTD_compress(data.data(), data.size(), bundle.data(), bundle.size(), 1));
  } else {
    uLongf size = compressBound(bundle.size());
    data.resize(size);
    EXPECT_EQ(compress(reinterpret_cast<Bytef*>(data.data()), &size,
                       reinterpret_cast<const Bytef*>(bundle.data()), bundle.size()),
              Z_OK);
    data.resize(size);
  }
  Bytes out;
  append(out, std::string_view("CCOB"));
  append(out, static_cast<uint16_t>(version));
  append(out, static_cast<uint16_t>(zstd ? 1 : 0));
  if (version == 3) {
    append(out, uint64_t{32 + data.size()});
    append(out, uint64_t{bundle.size()});
  } else {
    if (version == 2) {
      append(out, static_cast<uint32_t>(24 + data.size()));
    }
    append(out, static_cast<uint32_t>(bundle.size()));
  }
  append(out, uint64_t{0});  // the hash, which is not looked at
  out.insert(out.end(), data.begin(), data.end());
  return out;
}

/// Bytes whose last one is the last that can be read.
class AtTheEnd {
 public:
  explicit AtTheEnd(size_t capacity) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    mapped_ = (capacity + page - 1) / page * page;
    void* place =
        mmap(nullptr, mapped_ + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(place, MAP_FAILED);
    begin_ = static_cast<std::byte*>(place);
    EXPECT_EQ(mprotect(begin_ + mapped_, page, PROT_NONE), 0);
    page_ = page;
  }
  ~AtTheEnd() { munmap(begin_, mapped_ + page_); }
  AtTheEnd(const AtTheEnd&) = delete;
  AtTheEnd& operator=(const AtTheEnd&) = delete;
  const std::byte* place(std::span<const std::byte> bytes) {
    std::byte* to = begin_ + mapped_ - bytes.size();
    std::memcpy(to, bytes.data(), bytes.size());
    return to;
  }

 private:
  std::byte* begin_ = nullptr;
  size_t mapped_ = 0;
  size_t page_ = 0;
};

hip::hipError_t load(const std::byte* image) {
  hip::hipModule_t module = nullptr;
  const hip::hipError_t error = hip::hipModuleLoadData(&module, image);
  if (error == hip::hipSuccess) {
    EXPECT_EQ(hip::hipModuleUnload(module), hip::hipSuccess);
  } else {
    EXPECT_EQ(error, hip::hipErrorInvalidImage);
    EXPECT_FALSE(last_findings().empty());
  }
  return error;
}

class Images : public testing::Test {
 protected:
  void SetUp() override {
    sound_ = test_kernels("ordinary", Target::gfx942);
    if (sound_.empty()) {
      GTEST_SKIP() << "this build has no clang-22";
    }
    ASSERT_EQ(hip::hipSetDevice(0), hip::hipSuccess);
  }
  Bytes sound_;
};

TEST_F(Images, AreFoundWhole) {
  Bytes longer = sound_;
  longer.resize(longer.size() + 5000);
  EXPECT_EQ(image_at(longer).size(), sound_.size());
  const Bytes bundle = bundle_of_all_targets();
  longer = bundle;
  longer.resize(longer.size() + 5000);
  EXPECT_EQ(image_at(longer).size(), bundle.size());
  for (const int version : {2, 3}) {
    const Bytes small = compressed(bundle, version, true);
    longer = small;
    longer.resize(longer.size() + 5000);
    EXPECT_EQ(image_at(longer).size(), small.size());
  }
  EXPECT_TRUE(image_at(Bytes(100, std::byte{'x'})).empty());
}

TEST_F(Images, ReadableBytesEndWithTheMapping) {
  AtTheEnd end(10'000);
  EXPECT_EQ(readable_from(end.place(std::span(sound_).first(1000))).size(), 1000U);
  EXPECT_TRUE(readable_from(nullptr).empty());
}

TEST_F(Images, OfBundlesAreChosenByTarget) {
  for (const bool zstd : {false, true}) {
    for (const int version : {0, 1, 2, 3}) {
      const Bytes plain = bundle_of_all_targets();
      const Bytes bundle = version == 0 ? plain : compressed(plain, version, zstd);
      AtTheEnd end(bundle.size());
      for (int device = 0; device < 2; ++device) {
        ASSERT_EQ(hip::hipSetDevice(device), hip::hipSuccess);
        EXPECT_EQ(load(end.place(bundle)), hip::hipSuccess) << version << last_findings();
      }
      ASSERT_EQ(hip::hipSetDevice(0), hip::hipSuccess);
    }
  }
  Bytes storage;
  const auto none = code_object_in(bundle_of({{"hipv4-amdgcn-amd-amdhsa--gfx90a", sound_},
                                              {"hipv4-amdgcn-amd-amdhsa--gfx942:xnack+", sound_}}),
                                   Target::gfx942, storage);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().message,
            "The offload bundle has no code for gfx942, only hipv4-amdgcn-amd-amdhsa--gfx90a, "
            "hipv4-amdgcn-amd-amdhsa--gfx942:xnack+.");
}

TEST_F(Images, WithHostileHeadersEndInAnError) {
  AtTheEnd end(sound_.size());
  // e_phoff, e_shoff; e_phentsize, e_phnum, e_shentsize, e_shnum, e_shstrndx.
  for (const uint64_t offset :
       {~uint64_t{0}, uint64_t{1} << 63, uint64_t{1} << 40, uint64_t{0xffff'f000}, uint64_t{0},
        uint64_t{sound_.size()}, uint64_t{sound_.size() - 1}, ~uint64_t{63}}) {
    for (const size_t field : {32, 40}) {
      Bytes bytes = sound_;
      put(bytes, field, offset);
      EXPECT_NE(load(end.place(bytes)), hip::hipSuccess) << field << " " << offset;
    }
  }
  for (const size_t field : {54, 56, 58, 60, 62}) {
    Bytes bytes = sound_;
    put(bytes, field, uint16_t{0xffff});
    EXPECT_NE(load(end.place(bytes)), hip::hipSuccess) << field;
  }
  // Cut short, at the end of what can be read.
  for (size_t size = 1; size < sound_.size(); size += size < 100 ? 1 : 97) {
    EXPECT_NE(load(end.place(std::span(sound_).first(size))), hip::hipSuccess) << size;
  }
}

TEST_F(Images, ThatAreDamagedEndInAnError) {
  const unsigned seed = testing::UnitTest::GetInstance()->random_seed() + 1U;
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  const Bytes plain = bundle_of_all_targets();
  for (const Bytes& image :
       {sound_, plain, compressed(plain, 2, false), compressed(plain, 3, true)}) {
    AtTheEnd end(image.size());
    for (int k = 0; k < 100; ++k) {
      Bytes bytes = image;
      // The headers, where sizes and offsets are.
      for (int flips = 0; flips < 3; ++flips) {
        bytes[random() % 160] = static_cast<std::byte>(random());
      }
      (void)load(end.place(bytes));  // expects an error's sentence
      (void)load(end.place(std::span(bytes).first(random() % bytes.size())));
    }
  }
}

}  // namespace
}  // namespace weft::sim
