// Encodes a file with a tokenizer, many times over: the half of scripts/compare-tokenizers that is
// Weft's.
//
//     bench_tokenizer DIRECTORY FILE CHUNK_BYTES SECONDS IDS_FILE
//
// The file is cut at character boundaries into chunks of at most CHUNK_BYTES (0: one chunk), all of
// them are encoded again and again for at least SECONDS, and the best pass counts. The ids go to
// IDS_FILE as 32-bit words. Prints the seconds of the best pass, the seconds that opening took, and
// the seconds of one decode() of all ids.
#include <fmt/format.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/clock.h"
#include "model/tokenizer.h"

namespace {

std::vector<std::string> read_chunks(const char* path, size_t chunk_bytes) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream stream;
  stream << file.rdbuf();
  const std::string text = stream.str();
  std::vector<std::string> chunks;
  for (size_t at = 0; at < text.size();) {
    size_t end = chunk_bytes == 0 ? text.size() : std::min(at + chunk_bytes, text.size());
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) {
      --end;
    }
    chunks.push_back(text.substr(at, end - at));
    at = end;
  }
  return chunks;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    fmt::print(stderr, "usage: bench_tokenizer DIRECTORY FILE CHUNK_BYTES SECONDS IDS_FILE\n");
    return 2;
  }
  const auto opening = std::chrono::steady_clock::now();
  const weft::Result<weft::Tokenizer> tokenizer = weft::Tokenizer::open(argv[1]);
  if (!tokenizer.ok()) {
    fmt::print(stderr, "{}\n", tokenizer.error().message);
    return 3;
  }
  const double open_seconds = weft::seconds_since(opening);
  const std::vector<std::string> chunks = read_chunks(argv[2], std::stoul(argv[3]));
  std::vector<int32_t> ids;
  double best = 1e9;
  const auto start = std::chrono::steady_clock::now();
  do {
    ids.clear();
    const auto pass = std::chrono::steady_clock::now();
    for (const std::string& chunk : chunks) {
      const weft::Result<std::vector<int32_t>> encoded = tokenizer->encode(chunk);
      if (!encoded.ok()) {
        fmt::print(stderr, "{}\n", encoded.error().message);
        return 3;
      }
      ids.insert(ids.end(), encoded->begin(), encoded->end());
    }
    best = std::min(best, weft::seconds_since(pass));
  } while (weft::seconds_since(start) < std::stod(argv[4]));
  const auto decoding = std::chrono::steady_clock::now();
  const std::string text = tokenizer->decode(ids, false);
  const double decode_seconds = weft::seconds_since(decoding);
  std::ofstream(argv[5], std::ios::binary)
      .write(reinterpret_cast<const char*>(ids.data()),
             static_cast<std::streamsize>(ids.size() * sizeof(int32_t)));
  fmt::print("{:.6f} {:.6f} {:.6f} {}\n", best, open_seconds, decode_seconds, text.size());
  return 0;
}
