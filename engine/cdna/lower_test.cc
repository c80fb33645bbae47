#include "engine/cdna/lower.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/fp8.h"
#include "base/number.h"
#include "engine/cdna/layout.h"
#include "engine/test_latents.h"
#include "model/quantization.h"
#include "ops/linear/forms/fp8/words.h"
#include "ops/linear/forms/packed/windowed.h"
#include "program/verify.h"

namespace weft::cdna {
namespace {

using resident::Code;
using resident::NextToken;

constexpr int64_t kCapacity = 1024;
constexpr NextToken kAll[] = {NextToken::best, NextToken::sampled, NextToken::forced};

struct Made {
  ModelConfig config;
  Weights weights;
  Program program;
  Result<Lowered> lowered;
};

Made make(ModelConfig config, int workers, Target target, Weights weights,
          WeightForm form = WeightForm::packed, int64_t sequences = 1) {
  const Program program =
      plan(config, weights, plan_options(config, workers, kCapacity, DType::bf16, sequences));
  EXPECT_TRUE(verify(program).ok());
  auto lowered = lower(program, config, weights, lay_out(program, weights), kCapacity, target,
                       std::vector<bool>(program.operations.size(), form == WeightForm::plain));
  return {std::move(config), std::move(weights), program, std::move(lowered)};
}
/// A preset's first two layers.
Made make(const std::string& name, Target target = Target::gfx942, int workers = 0,
          WeightForm form = WeightForm::packed) {
  ModelConfig config = preset(name).value();
  config.layers = 2;
  Weights weights = Weights::describe(config);
  return make(std::move(config), workers > 0 ? workers : limits_of(target).compute_units, target,
              std::move(weights), form);
}

/// With few workers: what the verifier keeps of each of them, and does, grows with their square.
TEST(CdnaLower, EveryPresetIsSoundOrRefused) {
  int sound = 0;
  for (const std::string& name : preset_names()) {
    SCOPED_TRACE(name);
    const Made made = make(name, Target::gfx950, 20);
    if (!made.lowered.ok()) {
      EXPECT_GT(made.config.latent.rank, 0) << made.lowered.error().message;
      EXPECT_NE(made.lowered.error().message.find("has no kernel for it"), std::string::npos)
          << made.lowered.error().message;
      continue;
    }
    ++sound;
    const Status status = verify_codes(*made.lowered, made.program, NextToken::best, kCapacity - 2);
    EXPECT_TRUE(status.ok()) << status.error().message;
  }
  EXPECT_GT(sound, 15);
}

/// Mixtures of which a code takes all slots, and one each; no stream is shorter than the weights.
TEST(CdnaLower, MixturesAreSound) {
  for (const auto& [name, slots] :
       {std::pair("mixtral-8x7b", 1), std::pair("qwen3-30b-a3b", 8), std::pair("gpt-oss-20b", 4)}) {
    SCOPED_TRACE(name);
    ModelConfig config = preset(name).value();
    config.layers = 2;
    const Made made = make(config, 12, Target::gfx942, Weights::describe(config));
    ASSERT_TRUE(made.lowered.ok()) << made.lowered.error().message;
    for (const auto& codes : made.lowered->codes) {
      for (const Code& code : codes) {
        if (code.units > 0 && code.product.form == resident::RowForm::slots) {
          EXPECT_EQ(code.product.slots, slots);
        }
      }
    }
    for (const NextToken next : kAll) {
      const Status status = verify_codes(*made.lowered, made.program, next, kCapacity - 2);
      EXPECT_TRUE(status.ok()) << status.error().message;
    }
  }
}

/// A model with experts, and weights for which their kernel has no form.
TEST(CdnaLower, MixturesInOtherFormatsAreRefusedByName) {
  const auto folder = std::filesystem::path(WEFT_SOURCE_DIR) / "tests/goldens/models/olmoe-f32";
  const ModelConfig config = read_config(folder).value();
  const Made made = make(config, 4, Target::gfx942, Weights::open(folder, config).value());
  ASSERT_FALSE(made.lowered.ok());
  EXPECT_NE(made.lowered.error().message.find("is F32: the gfx942 device has no kernel for it"),
            std::string::npos)
      << made.lowered.error().message;
}

/// On many workers and on few.
TEST(CdnaLower, LatentRowsAreSound) {
  ModelConfig config = preset("deepseek-v2-lite").value();
  config.layers = 2;
  for (const int workers : {40, 3}) {
    const Made made = make(config, workers, Target::gfx942, Weights::describe(config));
    ASSERT_TRUE(made.lowered.ok()) << made.lowered.error().message;
    for (const NextToken next : kAll) {
      for (const int64_t position : {0, 64, 1000}) {
        const Status status = verify_codes(*made.lowered, made.program, next, position);
        EXPECT_TRUE(status.ok()) << workers << " workers, " << position << ": "
                                 << status.error().message;
      }
    }
  }
  make_like_v3(config);
  const Made made = make(config, 40, Target::gfx950, Weights::describe(config));
  ASSERT_TRUE(made.lowered.ok()) << made.lowered.error().message;
  const Status status = verify_codes(*made.lowered, made.program, NextToken::best, 1000);
  EXPECT_TRUE(status.ok()) << status.error().message;
}

/// With what there is for them: heads' matrices in bf16, and room for rows of so many heads.
TEST(CdnaLower, OtherLatentRowsAreRefusedByName) {
  const auto refusal = [](int workers, const auto& change, int64_t sequences = 1) {
    ModelConfig config = preset("deepseek-v2-lite").value();
    config.layers = 1;
    change(config);
    const Made made = make(config, workers, Target::gfx942, Weights::describe(config),
                           WeightForm::packed, sequences);
    return made.lowered.ok() ? "" : made.lowered.error().message;
  };
  EXPECT_EQ(refusal(20, [](ModelConfig&) {}), "");
  EXPECT_EQ(refusal(20,
                    [](ModelConfig& config) {
                      config.quantization = quantization_of("fp8-block").value();
                    }),
            "attention over latent rows with heads in F8_E4M3: the gfx942 device has no kernel for "
            "it; use --device cpu");
  EXPECT_EQ(refusal(1, [](ModelConfig& config) { config.query_heads = 32; }),
            "deepseek-v2-lite has rows of heads of 16384 elements for a worker, and the gfx942 "
            "device has room for 14336: give it more workers");
  EXPECT_EQ(refusal(
                20, [](ModelConfig&) {}, 2),
            "attention over latent rows of several sequences: the gfx942 device has no kernel for "
            "it; use --device cpu");
}

TEST(CdnaLower, WholeDevicesAreSound) {
  for (const Target target : kTargets) {
    const Made made = make("qwen3-0.6b", target);
    ASSERT_TRUE(made.lowered.ok());
    for (const NextToken next : kAll) {
      const Status status = verify_codes(*made.lowered, made.program, next, kCapacity - 2);
      EXPECT_TRUE(status.ok()) << status.error().message;
    }
  }
}

/// Rows that LDS has no room for come in parts.
TEST(CdnaLower, LongRowsComeInParts) {
  ModelConfig config = preset("llama-3.2-1b").value();
  config.layers = 1;
  config.ffn = most_elements(Target::gfx942, 1) + 16;
  for (const auto& [target, parts] : {std::pair(Target::gfx950, 0), std::pair(Target::gfx942, 2)}) {
    const Made made = make(config, 8, target, Weights::describe(config));
    ASSERT_TRUE(made.lowered.ok()) << made.lowered.error().message;
    int most = 0;
    for (const auto& codes : made.lowered->codes) {
      for (const Code& code : codes) {
        most = std::max<int>(most, code.units > 0 ? code.product.streamed : 0);
      }
    }
    EXPECT_EQ(most, parts);
    EXPECT_TRUE(verify_codes(*made.lowered, made.program, NextToken::best, 100).ok());
  }
}

TEST(CdnaLower, FewWorkersAndFewKeysAreSound) {
  for (const char* name : {"gemma-2-2b", "olmo-2-1b", "llama-3.2-1b"}) {
    for (const int workers : {1, 3, 16}) {
      const Made made = make(name, Target::gfx942, workers);
      ASSERT_TRUE(made.lowered.ok());
      for (const int64_t position : {0, 127, 200}) {
        const Status status = verify_codes(*made.lowered, made.program, NextToken::best, position);
        EXPECT_TRUE(status.ok()) << status.error().message;
      }
    }
  }
}

/// What a step reads of the weights is what there is of them, or three quarters of it, but for
/// units that are not whole.
TEST(CdnaLower, StreamsHaveTheWeightsOnce) {
  for (const char* name : {"llama-3.1-8b", "qwen3-0.6b", "weft-2b"}) {
    for (const WeightForm form : {WeightForm::plain, WeightForm::packed}) {
      const Made made = make(name, Target::gfx942, 0, form);
      ASSERT_TRUE(made.lowered.ok());
      const double least =
          (form == WeightForm::plain ? 1.0 : 0.75) * static_cast<double>(made.lowered->plain_bytes);
      EXPECT_LE(static_cast<double>(made.lowered->packed_bytes), 1.01 * least) << name;
      EXPECT_GE(static_cast<double>(made.lowered->packed_bytes), least);
    }
    for (const char* format : {"fp8-block", "fp8-row"}) {  // and their scales
      ModelConfig config = preset(name).value();
      config.layers = 2;
      config.quantization = quantization_of(format).value();
      const Made made = make(config, limits_of(Target::gfx942).compute_units, Target::gfx942,
                             Weights::describe(config));
      ASSERT_TRUE(made.lowered.ok());
      const auto least = static_cast<double>(made.lowered->plain_bytes);
      EXPECT_LE(static_cast<double>(made.lowered->packed_bytes), 1.03 * least) << name;
      EXPECT_GE(static_cast<double>(made.lowered->packed_bytes), least);
    }
  }
}

/// The unit of a gated product's column, and its row there, or of another's.
struct Row {
  int unit, row;
};
Row row_of(int column, bool gated, bool up) {
  return gated ? Row{column / 8, column % 8 + (up ? 8 : 0)} : Row{column / 16, column % 16};
}

/// A model whose sizes are multiples of nothing, with weights of all sizes.
Made make_ragged(int workers, WeightForm form) {
  ModelConfig config = preset("llama-3.2-1b").value();
  config.layers = 1;
  config.hidden = 72;  // no multiple of a slice
  config.ffn = 88;     // nor of a unit
  config.query_heads = config.kv_heads = 3;
  config.head_dim = 24;
  config.vocabulary = 2500;
  Weights weights = Weights::generate(config, 3, 1).value();
  return make(std::move(config), workers, Target::gfx950, std::move(weights), form);
}

constexpr int kBlock = block_units(1);

/// What the kernel multiplies with: weights of a worker's stream.
class Stream {
 public:
  Stream(const Lowered& lowered, const Streams& packed) : lowered_(lowered), packed_(packed) {}

  /// A worker's next product.
  void begin(size_t worker, const Code& code, const ProductPlace& place) {
    at_ = packed_.bytes.data() + lowered_.streams[worker] + int64_t{code.product.stream} * 16;
    place_ = place;
    form_ = static_cast<WeightForm>(code.product.weights);
    k_ = code.product.k;
    gated_ = code.opcode == resident::Opcode::gated_linear;
    head_columns_ = code.product.segment[0].head_columns;
    first_ = code.product.first;
    listed_.clear();
    if (form_ == WeightForm::packed) {
      read_lists();
    }
  }
  /// A weight, in f32.
  float weight(const Row& row, int k) const {
    const SlicePlace places{slices_of(k_), place_.part, kBlock};
    const int first = row.unit / kBlock * kBlock;  // of the block
    const int64_t slice = places.of(row.unit, k / kSliceK, std::min(kBlock, place_.units - first));
    const int lane = k % kSliceK / 8 * kUnitColumns + row.row;
    const std::byte* from = at_ + slice * slice_bytes(form_) + lane * lane_bytes(form_);
    if (form_ == WeightForm::plain) {
      return float_of(load<uint16_t>(from + k % 8 * 2));
    }
    const auto* scales = at_ + units_bytes(k_, place_.units, form_);
    if (form_ == WeightForm::fp8 || form_ == WeightForm::fp8_blocks) {
      const auto word = load<uint32_t>(from + k % 8 / 4 * 4);
      const uint32_t both = k % 4 < 2 ? fp8_words::first_pair(word) : fp8_words::second_pair(word);
      const float scale =
          load<float>(scales + (form_ == WeightForm::fp8
                                    ? int64_t{4} * scale_place(row.unit, row.row, gated_, kBlock)
                                    : slice * kSliceScaleBytes + row.row / 8 * 4));
      return float_of(both >> (k % 2 * 16) & 0xffff) * 0x1p60f * scale;
    }
    const int pair = k % 8 / 2;
    const uint32_t both =
        windowed::join_parts(load<uint32_t>(from + 8), pair, load<uint16_t>(from + pair * 2));
    float x = float_of(both >> (k % 2 * 16) & 0xffff);
    if (const auto found = listed_.find({row.unit, row.row, k}); found != listed_.end()) {
      x = found->second;
    }
    const uint32_t exponent =
        load<uint8_t>(scales + scale_place(row.unit, row.row, gated_, kBlock));
    const uint32_t bits = exponent << 23;
    return x * load<float>(reinterpret_cast<const std::byte*>(&bits));
  }
  size_t listed() const { return listed_.size(); }

  template <class T>
  static T load(const std::byte* from) {
    T x;
    std::memcpy(&x, from, sizeof(x));
    return x;
  }
  static float float_of(uint32_t bf16_bits) {
    const uint32_t bits = bf16_bits << 16;
    return load<float>(reinterpret_cast<const std::byte*>(&bits));
  }

 private:
  /// Of a unit, from the product's first head on.
  int head_of(int unit) const {
    return head_columns_ == 0
               ? 0
               : (first_ + unit * kUnitColumns) / head_columns_ - first_ / head_columns_;
  }
  void read_lists() {
    for (int block = 0; block * kBlock < place_.units; ++block) {
      const int units = std::min(kBlock, place_.units - block * kBlock);
      const Runs runs(units * place_.slices);
      for (int wave = 0; wave < kTeamWaves; ++wave) {
        const size_t list = place_.lists + static_cast<size_t>(block * kTeamWaves + wave);
        std::set<uint32_t> in_round;
        for (uint32_t i = packed_.list_begin[list]; i < packed_.list_begin[list + 1]; ++i) {
          if ((i - packed_.list_begin[list]) % kWaveLanes == 0) {
            in_round.clear();
          }
          const Listed& each = packed_.listed[i];
          if (each.sums == Listed::kNoSums) {
            continue;
          }
          EXPECT_TRUE(in_round.insert(each.sums).second) << "a column twice in a round";
          const int unit = static_cast<int>(each.sums) / kUnitColumns - wave;
          const int k = each.k % (place_.slices * kSliceK);  // heads' rows follow one another
          EXPECT_EQ(each.k - k, head_of(block * kBlock + unit) * place_.slices * kSliceK);
          const int slice = unit * place_.slices + k / kSliceK;
          EXPECT_GE(slice, runs.first(wave));
          EXPECT_LT(slice, runs.first(wave + 1));
          const std::tuple key(block * kBlock + unit, int(each.sums % kUnitColumns), k);
          EXPECT_TRUE(listed_.insert({key, float_of(each.weight)}).second);
        }
      }
    }
  }

  const Lowered& lowered_;
  const Streams& packed_;
  const std::byte* at_ = nullptr;
  ProductPlace place_;
  WeightForm form_ = WeightForm::plain;
  int k_ = 0;
  bool gated_ = false;
  int head_columns_ = 0;
  int first_ = 0;
  std::map<std::tuple<int, int, int>, float> listed_;  // by unit, row and k
};

/// Reads products' weights back from the streams as the kernel does.
class CdnaPack : public testing::TestWithParam<WeightForm> {};

TEST_P(CdnaPack, StreamsAreTheModelsWeights) {
  const Made made = make_ragged(1, GetParam());
  ASSERT_TRUE(made.lowered.ok()) << made.lowered.error().message;
  const Lowered& lowered = *made.lowered;
  // Some weights far from the others, and zeros.
  for (const Role role : {Role::gate, Role::up, Role::embedding}) {
    const int64_t layer = role == Role::embedding ? -1 : 0;
    const Tensor& tensor = made.weights.get(role, layer);
    auto* bits =
        const_cast<uint16_t*>(static_cast<const uint16_t*>(static_cast<const void*>(tensor.data)));
    for (int64_t i = 0; i < tensor.elements(); i += 509) {
      bits[i] = i % 2 == 0 ? 0 : i % 3 == 0 ? 0x4a70 : 0x9911;
    }
  }
  const Products products = products_of(lowered, lowered.codes);
  const Streams packed = pack(lowered);
  EXPECT_TRUE(packed.refused.empty());
  Stream stream(lowered, packed);
  const auto weight_at = [](const Tensor& tensor, int64_t row, int64_t k) {
    return Stream::float_of(Stream::load<uint16_t>(tensor.data + (row * tensor.columns() + k) * 2));
  };
  int gated = 0;
  int heads = 0;
  size_t listed = 0;
  for (size_t worker = 0; worker < lowered.codes.size(); ++worker) {
    size_t next = products.begin[worker];
    for (const Code& code : lowered.codes[worker]) {
      if (code.units == 0) {
        continue;
      }
      stream.begin(worker, code, products.places[next++]);
      listed += stream.listed();
      const resident::ProductCode& product = code.product;
      const auto columns = static_cast<int>(product.segment[0].columns);
      if (code.opcode == resident::Opcode::gated_linear) {
        ++gated;
        for (int c = 0; c < columns; ++c) {
          for (int k = 0; k < product.k; ++k) {
            ASSERT_EQ(stream.weight(row_of(c, true, false), k),
                      weight_at(made.weights.get(Role::gate, 0), product.first + c, k));
            ASSERT_EQ(stream.weight(row_of(c, true, true), k),
                      weight_at(made.weights.get(Role::up, 0), product.first + c, k));
          }
        }
      } else if (code.opcode == resident::Opcode::linear && code.head != 0) {
        ++heads;
        const Role role = made.config.tied_head ? Role::embedding : Role::head;
        for (int c = 0; c < columns; ++c) {
          for (int k = 0; k < product.k; ++k) {
            ASSERT_EQ(stream.weight(row_of(c, false, false), k),
                      weight_at(made.weights.get(role), product.first + c, k));
          }
        }
      }
    }
  }
  EXPECT_GT(gated, 0);
  EXPECT_GT(heads, 0);
  EXPECT_EQ(listed > 2 * kWaveLanes, GetParam() == WeightForm::packed) << listed;
}

/// Of weights in e4m3fn, the model's numbers times their scales.
TEST(CdnaLower, StreamsHaveCodesWithTheirScales) {
  for (const char* format : {"fp8-block", "fp8-row", "fp8-tensor"}) {
    SCOPED_TRACE(format);
    ModelConfig config = preset("llama-3.2-1b").value();
    config.layers = 1;
    config.hidden = 136;
    config.ffn = 200;
    config.query_heads = config.kv_heads = 3;
    config.head_dim = 24;
    config.vocabulary = 500;
    config.quantization = quantization_of(format).value();
    Weights weights = Weights::generate(config, 3, 1).value();
    const Made made = make(config, 1, Target::gfx942, std::move(weights));
    ASSERT_TRUE(made.lowered.ok()) << made.lowered.error().message;
    const Lowered& lowered = *made.lowered;
    EXPECT_EQ(lowered.weights, KernelWeights::fp8);
    const Products products = products_of(lowered, lowered.codes);
    const Streams packed = pack(lowered);
    Stream stream(lowered, packed);
    const auto weight_at = [](const Tensor& tensor, int64_t row, int64_t k) {
      const auto code = Stream::load<e4m3fn>(tensor.data + row * tensor.columns() + k);
      return to_float(code) * tensor.scales.at(row, k);
    };
    size_t next = products.begin[0];
    int gated = 0;
    for (const Code& code : lowered.codes[0]) {
      if (code.units == 0) {
        continue;
      }
      stream.begin(0, code, products.places[next++]);
      if (code.opcode != resident::Opcode::gated_linear) {
        continue;
      }
      ++gated;
      for (int c = 0; c < config.ffn; ++c) {
        for (int k = 0; k < config.hidden; ++k) {
          for (const bool up : {false, true}) {
            const Tensor& tensor = made.weights.get(up ? Role::up : Role::gate, 0);
            ASSERT_FLOAT_EQ(stream.weight(row_of(c, true, up), k), weight_at(tensor, c, k));
          }
        }
      }
    }
    EXPECT_EQ(gated, 1);
  }
}

/// Heads' matrices: keys' parts as columns, values' as rows, by workers that have parts of heads.
TEST_P(CdnaPack, HeadsOfLatentRowsAreTheModelsWeights) {
  ModelConfig config = latent_config("bf16");
  config.layers = 1;
  config.latent.unturned = 40;  // no whole slices
  Weights weights = Weights::generate(config, 3, 1).value();
  const Made made = make(std::move(config), 5, Target::gfx942, std::move(weights), GetParam());
  ASSERT_TRUE(made.lowered.ok()) << made.lowered.error().message;
  const Lowered& lowered = *made.lowered;
  const LatentAttention& latent = made.config.latent;
  const Tensor& tensor = made.weights.get(Role::latent_up, 0);
  auto* bits =
      const_cast<uint16_t*>(static_cast<const uint16_t*>(static_cast<const void*>(tensor.data)));
  for (int64_t i = 0; i < tensor.elements(); i += 509) {
    bits[i] = 0x4040;  // 3
  }
  const Products products = products_of(lowered, lowered.codes);
  const Streams packed = pack(lowered);
  EXPECT_TRUE(packed.refused.empty());
  Stream stream(lowered, packed);
  int64_t weights_seen = 0;
  size_t listed = 0;
  for (size_t worker = 0; worker < lowered.codes.size(); ++worker) {
    size_t next = products.begin[worker];
    for (const Code& code : lowered.codes[worker]) {
      if (code.units == 0) {
        continue;
      }
      const ProductPlace& place = products.places[next++];
      const resident::ProductCode& product = code.product;
      const int64_t of_head = product.segment[0].head_columns;
      if (of_head == 0) {
        continue;
      }
      stream.begin(worker, code, place);
      listed += stream.listed();
      const bool across = product.form == resident::RowForm::heads;
      for (int c = 0; c < static_cast<int>(product.segment[0].columns); ++c) {
        const int64_t head = (product.first + c) / of_head;
        const int64_t column = (product.first + c) % of_head;
        const int64_t begin = head * (latent.unturned + latent.value);
        for (int k = 0; k < product.k; ++k, ++weights_seen) {
          const int64_t row = across ? begin + k : begin + latent.unturned + column;
          ASSERT_EQ(stream.weight(row_of(c, false, false), k),
                    Stream::float_of(bits[row * latent.rank + (across ? column : k)]));
        }
      }
    }
  }
  EXPECT_EQ(weights_seen, tensor.elements());
  EXPECT_EQ(listed > 0, GetParam() == WeightForm::packed);
}

INSTANTIATE_TEST_SUITE_P(Forms, CdnaPack, testing::Values(WeightForm::plain, WeightForm::packed),
                         [](const auto& info) {
                           return info.param == WeightForm::plain ? "plain" : "packed";
                         });

/// An operation with a weight that cannot be moved, or with too many to list, is named, and no
/// other.
TEST(CdnaLower, WeightsThatDoNotFitTheWindowsAreNamed) {
  const Made made = make_ragged(2, WeightForm::packed);
  ASSERT_TRUE(made.lowered.ok());
  const auto spoil = [&](Role role, int64_t row, int64_t first, int64_t step, uint16_t value) {
    const Tensor& tensor = made.weights.get(role, 0);
    auto* bits =
        const_cast<uint16_t*>(static_cast<const uint16_t*>(static_cast<const void*>(tensor.data)));
    for (int64_t k = first; k < tensor.columns(); k += step) {
      bits[row * tensor.columns() + k] = value;
    }
  };
  spoil(Role::down, 3, 5, 1000, 0x7f80);  // infinite
  spoil(Role::query, 1, 0, 3, 0x4a70);    // a third of a column
  const Streams packed = pack(*made.lowered);
  std::set<std::string> refused;
  for (const int32_t operation : packed.refused) {
    refused.insert(made.program.operations[static_cast<size_t>(operation)].name);
  }
  EXPECT_EQ(refused.size(), 2u) << testing::PrintToString(refused);
}

TEST(CdnaLower, SeveralSequencesAreSound) {
  const auto make_several = [](int64_t sequences, Target target, int64_t position) {
    ModelConfig config = preset("llama-3.2-1b").value();
    config.layers = 2;
    config.ffn = 4096;
    const Weights weights = Weights::describe(config);
    const Program program =
        plan(config, weights, plan_options(config, 20, kCapacity, DType::bf16, sequences));
    EXPECT_TRUE(verify(program).ok());
    auto lowered = lower(program, config, weights, lay_out(program, weights), kCapacity, target,
                         std::vector<bool>(program.operations.size()));
    for (const NextToken next : kAll) {
      if (lowered.ok()) {
        const Status status = verify_codes(*lowered, program, next, position);
        EXPECT_TRUE(status.ok()) << status.error().message;
      }
    }
    return lowered;
  };
  for (const int64_t sequences : {2, 3, 7}) {
    EXPECT_TRUE(make_several(sequences, Target::gfx950, 200).ok()) << sequences;
  }
  EXPECT_TRUE(make_several(8, Target::gfx942, 0).ok());
}

/// A product's slices fill the stream, each once, those of a part of a block one behind the other.
TEST(CdnaLayout, SlicesOfPartsFollowOneAnother) {
  constexpr int kUnits = 11;
  constexpr int kSlices = 17;
  const SlicePlace places{kSlices, 6, 4};
  std::set<int64_t> seen;
  for (int unit = 0; unit < kUnits; ++unit) {
    const int units = std::min(4, kUnits - unit / 4 * 4);
    for (int slice = 0; slice < kSlices; ++slice) {
      seen.insert(places.of(unit, slice, units));
    }
    EXPECT_EQ(places.of(unit, 5, units), places.of(unit, 0, units) + 5);
  }
  EXPECT_EQ(std::ssize(seen), kUnits * kSlices);
  EXPECT_EQ(*seen.begin(), 0);
  EXPECT_EQ(*seen.rbegin(), kUnits * kSlices - 1);
  EXPECT_EQ(places.of(1, 0, 4), 6);            // behind the part of unit 0
  EXPECT_EQ(places.of(0, 6, 4), 4 * 6);        // behind the first part of all units
  EXPECT_EQ(places.of(4, 0, 4), 4 * kSlices);  // behind the first block
}

/// No more of the rows than LDS has room for, and no more parts than that takes.
TEST(CdnaLayout, PartsFitLds) {
  for (const Target target : kTargets) {
    for (const int64_t sequences : {1, 2, 8}) {
      for (const int k : {64, 4096, 14336, 14368, 28672}) {
        const int parts = parts_of(target, sequences, k);
        const auto elements = [&](int of) {
          const int part = part_slices(slices_of(k), of) * kSliceK;
          return sequences > 1 ? sequences * row_pitch(part) : part;
        };
        EXPECT_LE(elements(parts), most_elements(target, sequences));
        EXPECT_TRUE(parts == 1 || elements(parts - 1) > most_elements(target, sequences));
      }
    }
  }
}

/// Dealing leaves out nothing, and nobody has two more than another.
TEST(CdnaLayout, RunsAreEven) {
  for (int slices = 0; slices < 100; ++slices) {
    const Runs runs(slices);
    EXPECT_EQ(runs.first(0), 0);
    EXPECT_EQ(runs.first(kTeamWaves), slices);
    for (int wave = 0; wave < kTeamWaves; ++wave) {
      EXPECT_EQ(runs.first(wave) + runs.count(wave), runs.first(wave + 1));
      EXPECT_LE(runs.count(0) - runs.count(wave), 1);
    }
  }
}

}  // namespace
}  // namespace weft::cdna
