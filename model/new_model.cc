// write_random_model: a Hugging Face directory with random weights.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "model/config.h"
#include "model/quantization.h"
#include "model/random_weights.h"
#include "model/safetensors.h"
#include "model/weights.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBatch = 1 << 20;  // elements made and written at once

/// A file under a passing name, renamed to its own when it is complete and removed when it is not.
class NewFile {
 public:
  static Result<NewFile> create(const fs::path& path) {
    NewFile file;
    file.path_ = path;
    file.partial_ = path;
    file.partial_ += ".partial";
    file.descriptor_ = ::open(file.partial_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file.descriptor_ < 0) {
      return input_error(
          fmt::format("{}: cannot be created: {}", file.partial_.string(), std::strerror(errno)));
    }
    return file;
  }

  NewFile(NewFile&& other) noexcept
      : path_(std::move(other.path_)),
        partial_(std::move(other.partial_)),
        descriptor_(std::exchange(other.descriptor_, -1)) {}
  NewFile& operator=(NewFile&&) = delete;
  ~NewFile() {
    if (descriptor_ >= 0) {
      ::close(descriptor_);
      ::unlink(partial_.c_str());
    }
  }

  /// errno of the failure, 0 when all was written.
  int write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
      if (written < 0) {
        if (errno == EINTR) {
          continue;
        }
        return errno;
      }
      bytes = bytes.subspan(static_cast<size_t>(written));
    }
    return 0;
  }

  int finish() {
    // Some file systems report a full disk only here.
    if (::close(descriptor_) != 0 || ::rename(partial_.c_str(), path_.c_str()) != 0) {
      const int failure = errno;
      ::unlink(partial_.c_str());
      descriptor_ = -1;
      return failure;
    }
    descriptor_ = -1;
    return 0;
  }

 private:
  NewFile() = default;

  fs::path path_;
  fs::path partial_;
  int descriptor_ = -1;
};

/// A safetensors file to be: consecutive tensors of the model.
struct Shard {
  std::string name;
  std::vector<TensorSpec> specs;
  std::vector<SafetensorsEntry> entries = {};
  std::string header;
  int64_t bytes = 0;  ///< behind the header
};

/// What a file has of a matrix or vector: its elements, and before them its scales, which are made
/// first.
std::vector<SafetensorsEntry> entries_of(const ModelConfig& config, const TensorSpec& spec) {
  std::vector<SafetensorsEntry> entries;
  const auto add = [&](std::string name, DType dtype, std::vector<int64_t> shape) {
    uint64_t bytes = size_of(dtype);
    for (const int64_t size : shape) {
      bytes *= static_cast<uint64_t>(size);
    }
    entries.push_back({std::move(name), name_of(dtype), std::move(shape), 0, bytes});
  };
  const std::vector<int64_t> shape = spec.shape_in_file();
  if (spec.mxfp4) {
    std::vector<int64_t> scales = shape;
    scales.pop_back();
    const auto codes = static_cast<uint64_t>(spec.rows_of_all * spec.shape[1] / 2);
    entries.push_back({spec.name, "U8", shape, 0, codes});
    entries.push_back({mx_scale_name(spec.name), "U8", scales, 0, codes / (kMxBlock / 2)});
    return entries;
  }
  if (spec.scaling == Scaling::none) {
    add(spec.name, config.dtype, shape);
    return entries;
  }
  const std::vector<int64_t> scales =
      spec.scaling == Scaling::block ? std::vector{scale_blocks(shape[0]), scale_blocks(shape[1])}
      : spec.scaling == Scaling::row ? std::vector{shape[0], int64_t{1}}
                                     : std::vector{int64_t{1}};
  add(scale_name(config.quantization, spec.name), DType::f32, scales);
  if (config.quantization.activations.scaling == Scaling::tensor) {
    add(input_scale_name(spec.name), DType::f32, {1});
  }
  add(spec.name, DType::e4m3fn, shape);
  return entries;
}

std::vector<Shard> plan_shards(const ModelConfig& config, int64_t shard_bytes) {
  std::vector<Shard> shards(1);
  int64_t used = 0;
  for (TensorSpec& spec : tensor_specs(config)) {
    if (spec.begins_tensor()) {  // the parts of a matrix follow its first
      const std::vector<SafetensorsEntry> stored = entries_of(config, spec);
      int64_t bytes = 0;
      for (const SafetensorsEntry& entry : stored) {
        bytes += static_cast<int64_t>(entry.bytes);
      }
      if (used > 0 && used + bytes > shard_bytes) {
        shards.emplace_back();
        used = 0;
      }
      used += bytes;
      Shard& shard = shards.back();
      shard.entries.insert(shard.entries.end(), stored.begin(), stored.end());
      shard.bytes += bytes;
    }
    shards.back().specs.push_back(std::move(spec));
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].name = shards.size() == 1
                         ? "model.safetensors"
                         : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    shards[i].header = make_safetensors_header(shards[i].entries);
  }
  return shards;
}

std::string index_json(const std::vector<Shard>& shards, int64_t bytes) {
  nlohmann::ordered_json index;
  index["metadata"]["total_size"] = bytes;
  for (const Shard& shard : shards) {
    for (const SafetensorsEntry& entry : shard.entries) {
      index["weight_map"][entry.name] = shard.name;
    }
  }
  return index.dump(2) + "\n";
}

std::string generation_config_json(const ModelConfig& config) {
  nlohmann::ordered_json out;
  out["_from_model_config"] = true;
  if (config.bos >= 0) {
    out["bos_token_id"] = config.bos;
  }
  if (!config.eos.empty()) {
    out["eos_token_id"] = config.eos;
  }
  return out.dump(2) + "\n";
}

/// Writes the files of one model; what was written is removed again unless the model was completed.
class ModelWriter {
 public:
  explicit ModelWriter(fs::path directory) : directory_(std::move(directory)) {}
  ModelWriter(const ModelWriter&) = delete;
  ModelWriter& operator=(const ModelWriter&) = delete;
  ~ModelWriter() {
    std::error_code ignored;
    for (const fs::path& path : written_) {
      fs::remove(path, ignored);
    }
    for (const fs::path& directory : created_) {
      fs::remove(directory, ignored);
    }
  }

  Status prepare(const ModelConfig& config, int64_t needed) {
    std::error_code error;
    if (!fs::exists(directory_, error)) {
      for (fs::path path = directory_; !path.empty() && !fs::exists(path, error);
           path = path.parent_path()) {
        created_.push_back(path);
      }
      fs::create_directories(directory_, error);
      if (error) {
        return input_error(
            fmt::format("{}: cannot be created: {}", directory_.string(), error.message()));
      }
    } else if (!fs::is_directory(directory_, error)) {
      return input_error(fmt::format("{}: exists and is not a directory", directory_.string()));
    } else if (!fs::is_empty(directory_, error) || error) {
      return input_error(
          fmt::format("{}: exists and is not empty; choose a new directory", directory_.string()));
    }
    needed_ = needed;
    const fs::space_info space = fs::space(directory_, error);
    if (!error && space.available < static_cast<uintmax_t>(needed)) {
      return input_error(fmt::format(
          "{}: {} takes {} bytes, but the disk has {} free; free some space or choose another "
          "directory",
          directory_.string(), config.name, needed, space.available));
    }
    return {};
  }

  Status write_text(const std::string& name, std::string_view text) {
    WEFT_ASSIGN(NewFile file, NewFile::create(directory_ / name));
    WEFT_TRY(check(name, file.write(std::as_bytes(std::span(text)))));
    return finish(name, file);
  }

  Status write_shard(const Shard& shard, const ModelConfig& config, uint64_t seed,
                     void (*progress)(int64_t done, int64_t total)) {
    WEFT_ASSIGN(NewFile file, NewFile::create(directory_ / shard.name));
    const auto write = [&](std::span<const std::byte> bytes) -> Status {
      WEFT_TRY(check(shard.name, file.write(bytes)));
      done_ += std::ssize(bytes);
      if (progress != nullptr) {
        progress(done_, needed_);
      }
      return {};
    };
    WEFT_TRY(write(std::as_bytes(std::span(shard.header))));
    std::vector<std::byte> buffer(static_cast<size_t>(kBatch) * sizeof(float));
    for (size_t i = 0; i < shard.specs.size(); ++i) {
      const TensorSpec& spec = shard.specs[i];
      if (spec.experts_of_all > 0) {
        size_t end = i + 1;
        while (end < shard.specs.size() && shard.specs[end].name == spec.name) {
          ++end;
        }
        const std::span<const TensorSpec> parts = std::span(shard.specs).subspan(i, end - i);
        WEFT_TRY(spec.mxfp4 ? write_mx(parts, seed, write)
                            : write_by_turns(parts, config.dtype, seed, write));
        i = end - 1;
        continue;
      }
      if (spec.scaling != Scaling::none && spec.begins_tensor()) {
        const Quantization& quantization = config.quantization;
        const std::vector<float> scales = make_random_scales(quantization, seed, spec);
        WEFT_TRY(write(std::as_bytes(std::span(scales))));
        if (quantization.activations.scaling == Scaling::tensor) {
          const float scale = make_random_input_scale(seed, spec);
          WEFT_TRY(write(std::as_bytes(std::span(&scale, 1))));
        }
      }
      const DType dtype = spec.scaling == Scaling::none ? config.dtype : DType::e4m3fn;
      const RandomTensor tensor = random_tensor(seed, spec);
      for (int64_t first = 0; first < spec.elements(); first += kBatch) {
        const int64_t count = std::min(kBatch, spec.elements() - first);
        fill_random(tensor, dtype, first, count, buffer.data());
        WEFT_TRY(write(std::span(buffer).first(static_cast<size_t>(count) * size_of(dtype))));
      }
    }
    return finish(shard.name, file);
  }

  void complete() {
    written_.clear();
    created_.clear();
  }

 private:
  /// Parts of a tensor of all experts in MXFP4, row by row: the codes, then the scales.
  template <class Write>
  static Status write_mx(std::span<const TensorSpec> parts, uint64_t seed, const Write& write) {
    const TensorSpec& any = parts.front();
    const int64_t k = any.shape[1];
    std::vector<const TensorSpec*> part_of(static_cast<size_t>(any.rows_of_all));
    for (const TensorSpec& part : parts) {
      for (int64_t r = 0; r < part.shape[0]; ++r) {
        part_of[static_cast<size_t>(part.first_row + r * part.row_step)] = &part;
      }
    }
    std::vector<uint8_t> codes(static_cast<size_t>(k / 2));
    std::vector<uint8_t> scales(static_cast<size_t>(k / kMxBlock));
    for (const std::vector<uint8_t>* wanted : {&codes, &scales}) {
      std::vector<uint8_t> batch;
      for (int64_t r = 0; r < any.rows_of_all; ++r) {
        const TensorSpec& part = *part_of[static_cast<size_t>(r)];
        fill_random_mx(seed, part, (r - part.first_row) / part.row_step * k, k, codes.data(),
                       scales.data());
        batch.insert(batch.end(), wanted->begin(), wanted->end());
        if (std::ssize(batch) >= kBatch || r + 1 == any.rows_of_all) {
          WEFT_TRY(write(std::as_bytes(std::span(batch))));
          batch.clear();
        }
      }
    }
    return {};
  }

  /// Vectors whose elements stand in the file by turns.
  template <class Write>
  static Status write_by_turns(std::span<const TensorSpec> parts, DType dtype, uint64_t seed,
                               const Write& write) {
    const size_t size = size_of(dtype);
    std::vector<std::byte> all(static_cast<size_t>(parts.front().rows_of_all) * size);
    for (const TensorSpec& part : parts) {
      std::vector<std::byte> own(static_cast<size_t>(part.elements()) * size);
      fill_random(random_tensor(seed, part), dtype, 0, part.elements(), own.data());
      for (int64_t i = 0; i < part.elements(); ++i) {
        std::memcpy(all.data() + static_cast<size_t>(part.first_row + i * part.row_step) * size,
                    own.data() + static_cast<size_t>(i) * size, size);
      }
    }
    return write(all);
  }

  Status check(const std::string& name, int failure) const {
    if (failure == 0) {
      return {};
    }
    const std::string path = (directory_ / name).string();
    if (failure == ENOSPC || failure == EDQUOT || failure == EFBIG) {
      std::error_code error;
      const fs::space_info space = fs::space(directory_, error);
      return input_error(fmt::format(
          "{}: the disk is full, or a quota or file size limit is reached, after {} bytes of the "
          "model: {} are needed, {} are free now",
          path, done_, needed_, error ? 0 : space.available));
    }
    return input_error(fmt::format("{}: cannot be written: {}", path, std::strerror(failure)));
  }

  Status finish(const std::string& name, NewFile& file) {
    WEFT_TRY(check(name, file.finish()));
    written_.push_back(directory_ / name);
    return {};
  }

  fs::path directory_;
  int64_t needed_ = 0;  // bytes of all files but the small ones
  int64_t done_ = 0;
  std::vector<fs::path> created_;  // directories, the innermost first
  std::vector<fs::path> written_;
};

}  // namespace

Status write_random_model(const ModelConfig& config, uint64_t seed, const fs::path& directory,
                          void (*progress)(int64_t done, int64_t total), int64_t shard_bytes) {
  const std::vector<Shard> shards = plan_shards(config, shard_bytes);
  int64_t tensor_bytes = 0;
  int64_t needed = 0;
  for (const Shard& shard : shards) {
    needed += std::ssize(shard.header);
    tensor_bytes += shard.bytes;
  }
  needed += tensor_bytes;

  ModelWriter writer(directory);
  WEFT_TRY(writer.prepare(config, needed));
  for (const Shard& shard : shards) {
    WEFT_TRY(writer.write_shard(shard, config, seed, progress));
  }
  if (shards.size() > 1) {
    WEFT_TRY(writer.write_text("model.safetensors.index.json", index_json(shards, tensor_bytes)));
  }
  WEFT_TRY(writer.write_text("generation_config.json", generation_config_json(config)));
  // Last: a directory with a config.json is a complete model.
  WEFT_TRY(writer.write_text("config.json", write_config(config)));
  writer.complete();
  return {};
}

}  // namespace weft
