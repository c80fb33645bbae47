#include "model/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>

#include "model/json.h"

namespace weft {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little,
              "the format's bytes are used as they are");

constexpr uint64_t kLongestHeader = 100'000'000;  // the limit of the format's own library
constexpr size_t kMostDimensions = 16;
constexpr size_t kLengthBytes = sizeof(uint64_t);

struct FormatDType {
  std::string_view name;
  uint64_t bits;
};
constexpr auto kDTypes = std::to_array<FormatDType>({
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},
    {"I8", 8},      {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E5M2FNUZ", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E8M0", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},        {"BF16", 16},
    {"I32", 32},    {"U32", 32},    {"F32", 32},    {"C64", 64},        {"F64", 64},
    {"I64", 64},    {"U64", 64},
});

const FormatDType* find_dtype(std::string_view name) {
  const auto* found = std::ranges::find(kDTypes, name, &FormatDType::name);
  return found == kDTypes.end() ? nullptr : found;
}

/// Bytes of a tensor; nothing when they overflow 64 bits or end inside a byte.
std::optional<uint64_t> size_in_bytes(uint64_t bits, const std::vector<int64_t>& shape) {
  uint64_t total = bits;
  for (const int64_t dimension : shape) {
    if (__builtin_mul_overflow(total, static_cast<uint64_t>(dimension), &total)) {
      return std::nullopt;
    }
  }
  return total % 8 == 0 ? std::optional(total / 8) : std::nullopt;
}

/// Builds entries while the header is parsed and stops at the first thing that is not the format's:
/// a hostile header never becomes a tree in memory. Offsets are still relative to the data.
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  std::vector<SafetensorsEntry> take() { return std::move(entries_); }
  const std::string& problem() const { return problem_; }

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("true or false"); }
  bool number_integer(number_integer_t value) override {
    return unexpected(fmt::format("the number {}", value));  // negative ones alone arrive here
  }
  bool number_float(number_float_t, const string_t& text) override {
    return unexpected(fmt::format("the number {}", show(text)));
  }
  bool binary(binary_t&) override { return unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ == State::shape) {
      if (value > static_cast<uint64_t>(INT64_MAX)) {
        return fail(fmt::format("{}: shape has a dimension of {}", tensor(), value));
      }
      if (entry_.shape.size() == kMostDimensions) {
        return fail(
            fmt::format("{}: shape has more than {} dimensions", tensor(), kMostDimensions));
      }
      entry_.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (state_ == State::offsets && offsets_seen_ < offsets_.size()) {
      offsets_[offsets_seen_++] = value;
      return true;
    }
    return unexpected(fmt::format("the number {}", value));
  }

  bool string(string_t& text) override {
    if (state_ == State::metadata) {
      return true;
    }
    if (state_ != State::dtype) {
      return unexpected(show(text));
    }
    const FormatDType* known = find_dtype(text);
    if (known == nullptr) {
      std::string sentence = fmt::format("{}: dtype {} is none of", tensor(), show(text));
      for (const FormatDType& dtype : kDTypes) {
        sentence += fmt::format(" {}", dtype.name);
      }
      return fail(std::move(sentence));
    }
    entry_.dtype = known->name;
    bits_ = known->bits;
    state_ = State::entry;
    return true;
  }

  bool start_object(std::size_t) override {
    switch (state_) {
      case State::start:
        state_ = State::top;
        return true;
      case State::before_entry:
        state_ = State::entry;
        return true;
      case State::before_metadata:
        state_ = State::metadata;
        return true;
      default:
        return unexpected("an object");
    }
  }

  bool key(string_t& name) override {
    switch (state_) {
      case State::top:
        if (!names_.insert(name).second) {
          return fail(fmt::format("{} is there twice", show(name)));
        }
        entry_ = {};
        entry_.name = name;
        has_shape_ = false;
        offsets_seen_ = 0;
        state_ = name == "__metadata__" ? State::before_metadata : State::before_entry;
        return true;
      case State::entry: {
        const bool is_dtype = name == "dtype";
        const bool is_shape = name == "shape";
        if (!is_dtype && !is_shape && name != "data_offsets") {
          return fail(fmt::format("{}: unknown key {}", tensor(), show(name)));
        }
        if (is_dtype ? !entry_.dtype.empty() : is_shape ? has_shape_ : offsets_seen_ > 0) {
          return fail(fmt::format("{}: {} is there twice", tensor(), name));
        }
        state_ = is_dtype ? State::dtype : is_shape ? State::before_shape : State::before_offsets;
        return true;
      }
      default:
        return true;  // metadata: any key
    }
  }

  bool end_object() override {
    if (state_ == State::entry) {
      return finish_entry();
    }
    state_ = state_ == State::metadata ? State::top : State::end;
    return true;
  }

  bool start_array(std::size_t) override {
    if (state_ == State::before_shape) {
      has_shape_ = true;
      state_ = State::shape;
      return true;
    }
    if (state_ == State::before_offsets) {
      state_ = State::offsets;
      return true;
    }
    return unexpected("a list");
  }

  bool end_array() override {
    if (state_ == State::offsets && offsets_seen_ != offsets_.size()) {
      return fail(fmt::format("{}: data_offsets must be two numbers", tensor()));
    }
    state_ = State::entry;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception&) override {
    return fail(fmt::format("not valid JSON at byte {} of the header", position));
  }

 private:
  enum class State {
    start,
    top,
    before_metadata,
    metadata,
    before_entry,
    entry,
    dtype,
    before_shape,
    shape,
    before_offsets,
    offsets,
    end,
  };

  std::string tensor() const { return "tensor " + show(entry_.name); }

  bool fail(std::string sentence) {
    problem_ = std::move(sentence);
    return false;
  }

  bool unexpected(std::string_view what) {
    switch (state_) {
      case State::start:
      case State::top:
      case State::end:
        return fail(fmt::format("it must be an object of tensors, not {}", what));
      case State::before_metadata:
      case State::metadata:
        return fail(fmt::format("__metadata__ must be an object of strings, not {}", what));
      case State::before_entry:
      case State::entry:
        return fail(fmt::format("{} must be an object, not {}", tensor(), what));
      case State::dtype:
        return fail(fmt::format("{}: dtype must be a string, not {}", tensor(), what));
      case State::before_shape:
      case State::shape:
        return fail(fmt::format("{}: shape must be a list of non-negative integers, not {}",
                                tensor(), what));
      case State::before_offsets:
      case State::offsets:
        return fail(fmt::format("{}: data_offsets must be two non-negative integers, not {}",
                                tensor(), what));
    }
    return false;
  }

  bool finish_entry() {
    const char* missing = entry_.dtype.empty() ? "dtype"
                          : !has_shape_        ? "shape"
                          : offsets_seen_ == 0 ? "data_offsets"
                                               : nullptr;
    if (missing != nullptr) {
      return fail(fmt::format("{}: {} is missing", tensor(), missing));
    }
    const auto [begin, end] = offsets_;
    if (begin > end) {
      return fail(fmt::format("{}: data_offsets [{}, {}] are reversed", tensor(), begin, end));
    }
    const std::optional<uint64_t> size = size_in_bytes(bits_, entry_.shape);
    if (!size) {
      return fail(fmt::format("{}: shape {} of {} is no whole number of bytes below 2^64", tensor(),
                              show(entry_.shape), entry_.dtype));
    }
    if (*size != end - begin) {
      return fail(fmt::format("{}: shape {} of {} takes {} bytes, data_offsets [{}, {}] hold {}",
                              tensor(), show(entry_.shape), entry_.dtype, *size, begin, end,
                              end - begin));
    }
    entry_.offset = begin;
    entry_.bytes = *size;
    entries_.push_back(std::move(entry_));
    state_ = State::top;
    return true;
  }

  State state_ = State::start;
  SafetensorsEntry entry_;  // being read
  uint64_t bits_ = 0;
  bool has_shape_ = false;
  std::array<uint64_t, 2> offsets_{};
  size_t offsets_seen_ = 0;
  std::unordered_set<std::string> names_;
  std::vector<SafetensorsEntry> entries_;
  std::string problem_;
};

}  // namespace

Result<std::vector<SafetensorsEntry>> parse_safetensors(std::span<const std::byte> file,
                                                        const std::string& name) {
  if (file.size() < kLengthBytes) {
    return input_error(
        fmt::format("{}: is {} bytes long, too short for a safetensors file", name, file.size()));
  }
  uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  const uint64_t after_length = file.size() - kLengthBytes;
  if (length > kLongestHeader) {
    return input_error(
        fmt::format("{}: header length {} is more than the format's limit of {}: this is not a "
                    "safetensors file",
                    name, length, kLongestHeader));
  }
  if (length > after_length) {
    return input_error(
        fmt::format("{}: header length {} is more than the {} bytes that follow: the file is "
                    "truncated",
                    name, length, after_length));
  }
  const auto* text = reinterpret_cast<const char*>(file.data()) + kLengthBytes;
  HeaderReader reader;
  if (!json::sax_parse(text, text + length, &reader)) {
    return input_error(fmt::format("{}: header: {}", name, reader.problem()));
  }

  // One tensor must follow the other, from the first byte of the data to the last of the file.
  std::vector<SafetensorsEntry> entries = reader.take();
  std::ranges::sort(entries, {}, [](const SafetensorsEntry& entry) {
    return std::pair(entry.offset, entry.bytes);
  });
  const uint64_t data_bytes = after_length - length;
  uint64_t end = 0;
  for (SafetensorsEntry& entry : entries) {
    const uint64_t begin = entry.offset;
    if (begin + entry.bytes > data_bytes) {  // the sum is the end offset of the header
      return input_error(
          fmt::format("{}: tensor {} ends at byte {} of {} bytes of data: the file is truncated",
                      name, show(entry.name), begin + entry.bytes, data_bytes));
    }
    if (begin != end) {
      return input_error(fmt::format(
          "{}: tensor {} starts at byte {} of the data, but the one before it ends at {}: they {}",
          name, show(entry.name), begin, end, begin < end ? "overlap" : "leave a hole"));
    }
    end += entry.bytes;
    entry.offset = begin + kLengthBytes + length;
  }
  if (end != data_bytes) {
    return input_error(
        fmt::format("{}: {} bytes of data follow the last tensor", name, data_bytes - end));
  }
  return entries;
}

std::string make_safetensors_header(std::span<const SafetensorsEntry> tensors) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};  // transformers refuses files without it
  uint64_t offset = 0;
  for (const SafetensorsEntry& tensor : tensors) {
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + tensor.bytes}}};
    offset += tensor.bytes;
  }
  std::string text = header.dump();
  text.append(63 - (text.size() + kLengthBytes + 63) % 64, ' ');
  const uint64_t length = text.size();
  std::string bytes(kLengthBytes, '\0');
  std::memcpy(bytes.data(), &length, kLengthBytes);
  return bytes + text;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
  WEFT_ASSIGN(MappedFile file, MappedFile::open(path));
  WEFT_ASSIGN(std::vector<SafetensorsEntry> entries,
              parse_safetensors(file.bytes(), path.string()));
  std::ranges::sort(entries, {}, &SafetensorsEntry::name);
  return SafetensorsFile(path.string(), std::move(file), std::move(entries));
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto at = std::ranges::lower_bound(entries_, name, {}, [](const SafetensorsEntry& entry) {
    return std::string_view(entry.name);
  });
  return at == entries_.end() || at->name != name ? nullptr : &*at;
}

}  // namespace weft
