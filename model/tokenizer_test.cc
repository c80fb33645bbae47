#include "model/tokenizer.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

namespace weft {
namespace {

using testing::HasSubstr;
using Ids = std::vector<int32_t>;

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

const std::filesystem::path kGoldens = std::filesystem::path(WEFT_SOURCE_DIR) / "tests/tokenizer";

/// FNV-1a, as make_goldens.py has it.
class Hash {
 public:
  void add(std::string_view bytes) {
    for (const char byte : bytes) {
      value_ = (value_ ^ static_cast<uint8_t>(byte)) * 0x100000001b3u;
    }
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325u;
};

uint64_t hash_of(std::string_view text) {
  Hash hash;
  hash.add(text);
  return hash.value();
}

uint64_t hash_of(const Ids& ids) {
  Hash hash;
  for (const int32_t id : ids) {
    const char bytes[] = {static_cast<char>(id), static_cast<char>(id >> 8),
                          static_cast<char>(id >> 16), static_cast<char>(id >> 24)};
    hash.add({bytes, 4});
  }
  return hash.value();
}

std::vector<std::string> corpus_chunks() {
  const std::string corpus = read_file(kGoldens / "corpus.txt");
  std::istringstream sizes(read_file(kGoldens / "chunks.txt"));
  std::vector<std::string> chunks;
  size_t at = 0;
  for (size_t size = 0; sizes >> size; at += size) {
    chunks.push_back(corpus.substr(at, size));
  }
  EXPECT_EQ(at, corpus.size());
  EXPECT_GE(at, 2'000'000u);
  return chunks;
}

Tokenizer open_kind(const std::string& kind) {
  Result<Tokenizer> tokenizer = Tokenizer::open(kGoldens / kind);
  if (!tokenizer.ok()) {
    ADD_FAILURE() << tokenizer.error().message;
  }
  return std::move(tokenizer).value();
}

bool is_whole_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<uint8_t>(text[i]);
    const size_t size = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (size == 0 || i + size > text.size()) {
      return false;
    }
    for (size_t j = 1; j < size; ++j) {
      if ((static_cast<uint8_t>(text[i + j]) & 0xc0) != 0x80) {
        return false;
      }
    }
    i += size;
  }
  return true;
}

/// Every piece of a stream is whole characters, and together they are what decode() gives.
void expect_stream_equals_decode(const Tokenizer& tokenizer, const Ids& ids, bool skip_special) {
  StreamDecoder decoder(tokenizer, skip_special);
  std::string streamed;
  for (const int32_t id : ids) {
    const std::string piece = decoder.push(id);
    ASSERT_TRUE(is_whole_utf8(piece)) << id;
    streamed += piece;
  }
  const std::string rest = decoder.flush();
  ASSERT_TRUE(is_whole_utf8(rest));
  ASSERT_EQ(streamed + rest, tokenizer.decode(ids, skip_special));
}

class Golden : public testing::TestWithParam<const char*> {};

TEST_P(Golden, EncodesAndDecodesTheCorpusAsTheReference) {
  const Tokenizer tokenizer = open_kind(GetParam());
  std::istringstream golden(read_file(kGoldens / GetParam() / "golden.txt"));
  const std::vector<std::string> chunks = corpus_chunks();
  size_t done = 0;
  size_t count = 0;
  uint64_t id_hash = 0;
  uint64_t text_hash = 0;
  uint64_t full_hash = 0;
  while (golden >> std::dec >> count >> std::hex >> id_hash >> text_hash >> full_hash) {
    ASSERT_LT(done, chunks.size());
    const Result<Ids> ids = tokenizer.encode(chunks[done]);
    ASSERT_TRUE(ids.ok()) << ids.error().message;
    ASSERT_EQ(ids->size(), count) << "chunk " << done;
    ASSERT_EQ(hash_of(*ids), id_hash) << "chunk " << done;
    ASSERT_EQ(hash_of(tokenizer.decode(*ids, true)), text_hash) << "chunk " << done;
    ASSERT_EQ(hash_of(tokenizer.decode(*ids, false)), full_hash) << "chunk " << done;
    ++done;
  }
  // make_goldens.py says which kinds are compared on a part.
  EXPECT_GE(done, chunks.size() * 9 / 20);
}

TEST_P(Golden, StreamsRandomIdsInWholeCharacters) {
  const Tokenizer tokenizer = open_kind(GetParam());
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    Ids ids(random() % 60);
    for (int32_t& id : ids) {
      id = static_cast<int32_t>(random() % static_cast<uint32_t>(tokenizer.vocab_size() + 10)) - 5;
    }
    expect_stream_equals_decode(tokenizer, ids, round % 2 == 0);
  }
}

TEST_P(Golden, ManyThreadsGiveTheSameIds) {
  const Tokenizer tokenizer = open_kind(GetParam());
  const std::string text = read_file(kGoldens / "corpus.txt").substr(0, 20000);
  const std::string whole = text.substr(0, text.rfind('\n'));
  const Ids expected = tokenizer.encode(whole).value();
  std::vector<std::thread> threads;
  std::vector<Ids> found(4);
  for (Ids& ids : found) {
    threads.emplace_back([&] { ids = tokenizer.encode(whole).value(); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const Ids& ids : found) {
    EXPECT_EQ(ids, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizer, Golden,
                         testing::Values("gpt2", "llama3", "qwen2", "granite", "tekken", "neox",
                                         "engine", "llama2", "mistral", "metaspace"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace weft
