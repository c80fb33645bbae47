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
  std::string header;
};

std::vector<Shard> plan_shards(const ModelConfig& config, int64_t shard_bytes) {
  std::vector<Shard> shards(1);
  std::vector<std::vector<SafetensorsEntry>> entries(1);
  int64_t used = 0;
  for (TensorSpec& spec : tensor_specs(config)) {
    if (spec.begins_tensor()) {  // the parts of a matrix follow its first
      const std::vector<int64_t> shape = spec.shape_in_file();
      const int64_t elements = shape.size() == 2 ? shape[0] * shape[1] : shape[0];
      const int64_t bytes = elements * static_cast<int64_t>(size_of(config.dtype));
      if (used > 0 && used + bytes > shard_bytes) {
        shards.emplace_back();
        entries.emplace_back();
        used = 0;
      }
      used += bytes;
      entries.back().push_back(
          {spec.name, name_of(config.dtype), shape, 0, static_cast<uint64_t>(bytes)});
    }
    shards.back().specs.push_back(std::move(spec));
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].name = shards.size() == 1
                         ? "model.safetensors"
                         : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    shards[i].header = make_safetensors_header(entries[i]);
  }
  return shards;
}

std::string index_json(const std::vector<Shard>& shards, int64_t bytes) {
  nlohmann::ordered_json index;
  index["metadata"]["total_size"] = bytes;
  for (const Shard& shard : shards) {
    for (const TensorSpec& spec : shard.specs) {
      index["weight_map"][spec.name] = shard.name;
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

  Status write_shard(const Shard& shard, DType dtype, uint64_t seed,
                     void (*progress)(int64_t done, int64_t total)) {
    WEFT_ASSIGN(NewFile file, NewFile::create(directory_ / shard.name));
    WEFT_TRY(check(shard.name, file.write(std::as_bytes(std::span(shard.header)))));
    done_ += std::ssize(shard.header);
    const auto element = static_cast<int64_t>(size_of(dtype));
    std::vector<std::byte> buffer(static_cast<size_t>(kBatch * element));
    for (const TensorSpec& spec : shard.specs) {
      const RandomTensor tensor = random_tensor(seed, spec);
      for (int64_t first = 0; first < spec.elements(); first += kBatch) {
        const int64_t count = std::min(kBatch, spec.elements() - first);
        fill_random(tensor, dtype, first, count, buffer.data());
        const auto bytes = static_cast<size_t>(count * element);
        WEFT_TRY(check(shard.name, file.write(std::span(buffer).first(bytes))));
        done_ += count * element;
        if (progress != nullptr) {
          progress(done_, needed_);
        }
      }
    }
    return finish(shard.name, file);
  }

  void complete() {
    written_.clear();
    created_.clear();
  }

 private:
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
    for (const TensorSpec& spec : shard.specs) {
      tensor_bytes += spec.elements() * static_cast<int64_t>(size_of(config.dtype));
    }
  }
  needed += tensor_bytes;

  ModelWriter writer(directory);
  WEFT_TRY(writer.prepare(config, needed));
  for (const Shard& shard : shards) {
    WEFT_TRY(writer.write_shard(shard, config.dtype, seed, progress));
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
