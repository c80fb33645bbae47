#include "program/planner.h"

#include <algorithm>
#include <memory>
#include <variant>

#include "base/number.h"
#include "program/plan_attention.h"
#include "program/plan_ffn.h"
#include "program/plan_moe.h"

namespace weft {
namespace planning {
namespace {

/// A step: its rows, the residual stream through its layers, the token drawn at its end.
class StepPlanner {
 public:
  StepPlanner(const ModelConfig& config, const Weights& weights, const PlanOptions& options)
      : weaver_(config, weights, options), attention_(make_attention_planner(weaver_)) {}

  Program run() {
    make_buffers();
    const ModelConfig& config = weaver_.config();
    const Logits logits = weaver_.options().logits;
    const Waits next_step = begin();
    attention_->angles(all(), next_step);
    residual_->embed(all(), next_step);
    for (int64_t layer = 0; layer < config.layers; ++layer) {
      const bool last = layer + 1 == config.layers;
      const LayerSpec spec = layer_spec(config, layer);
      attention_->project(*residual_, all(), spec, layer);
      if (last && logits == Logits::none) {
        break;  // the cache is all that is wanted
      }
      // Only the last row's logits are wanted: from here on, only that row is.
      Section& section = last && logits == Logits::last ? *one_ : all();
      attention_->attend(*residual_, section, spec, layer);
      if (spec.ffn.experts.count > 0) {
        plan_moe(weaver_, *residual_, section, spec, layer);
      } else {
        plan_ffn(weaver_, *residual_, section, spec, layer);
      }
    }
    if (logits != Logits::none) {
      const EventId done = residual_->logits(logits == Logits::all ? all() : *one_);
      if (weaver_.options().sample) {
        sample(done);
      }
    }
    return std::move(weaver_.program);
  }

 private:
  /// All rows of the step: a chunk's, or a decode step's one.
  Section& all() { return many_ != nullptr ? *many_ : *one_; }

  void make_buffers();
  Waits begin();
  void sample(EventId logits);

  Weaver weaver_;
  std::unique_ptr<AttentionPlanner> attention_;
  std::unique_ptr<Residual> residual_;
  std::unique_ptr<Section> many_, one_;  // many_: of chunks alone
};

void StepPlanner::make_buffers() {
  const ModelConfig& config = weaver_.config();
  const PlanOptions& options = weaver_.options();
  Program& program = weaver_.program;
  const int64_t rows = program.rows;
  const int64_t one = program.sequences;  // rows of what a chunk has one of
  const bool norms_outputs = config.norm_placement != NormPlacement::before;
  program.tokens = weaver_.buffer("tokens", Space::state, Element::i32, rows, 1);
  program.positions = weaver_.buffer("positions", Space::state, Element::i32, rows, 1);
  // [sequences][ropes]: LongRoPE's are chosen by each sequence's length.
  program.inverse_frequencies =
      weaver_.buffer("inverse_frequencies", Space::constant, Element::f32,
                     one * std::ssize(weaver_.ropes()), weaver_.ropes().front().dim / 2);
  attention_->make_angle_buffers();
  residual_ = std::make_unique<Residual>(weaver_);
  int64_t dense = 0;  // the first layer without experts
  while (dense < config.layers && config.has_experts(dense)) {
    ++dense;
  }
  if (weaver_.chunk()) {
    const Element format = weaver_.chunk_element(Role::query, 0);
    if (config.norm_placement == NormPlacement::after && format == Element::bf16) {
      residual_->make_copy();
    }
    const auto add = [&](const char* name, Element element, int64_t columns) {
      return weaver_.buffer(name, Space::activation, element, rows, columns);
    };
    many_ = make_many_rows(weaver_);
    many_->input = add("input", format, config.hidden);
    many_->attention_out =
        add("attention", weaver_.chunk_element(Role::attention_out, 0), config.attended_size());
    if (dense != config.layers) {
      many_->ffn = add("ffn", weaver_.chunk_element(Role::down, dense), config.ffn);
    }
    make_moe_buffers(weaver_, *many_, rows);
    many_->delta = norms_outputs ? add("delta", Element::f32, config.hidden) : kNone;
  }
  if (options.logits != Logits::all) {
    const auto add = [&](const char* name, Space space, int64_t columns) {
      return weaver_.buffer(name, space, Element::f32, one, columns);
    };
    const Space merged =
        merges_for_itself(weaver_) && config.latent.rank == 0 ? Space::worker : Space::activation;
    one_ = make_one_row(weaver_, weaver_.chunk() ? Rows::last : Rows::all);
    one_->input = add("input_row", Space::worker, config.hidden);
    one_->attention_out = add("attention_row", merged, config.attended_size());
    if (dense != config.layers) {
      one_->ffn = add("ffn_row", Space::activation, config.ffn);
    }
    make_moe_buffers(weaver_, *one_, one);
    one_->delta = norms_outputs ? add("delta_row", Space::activation, config.hidden) : kNone;
  }
  attention_->make_buffers();
  if (options.logits != Logits::none) {
    program.logits = weaver_.buffer("logits", Space::activation, Element::f32,
                                    options.logits == Logits::all ? rows : one, config.vocabulary);
  }
}

/// What the step's first instructions wait for.
Waits StepPlanner::begin() {
  if (!weaver_.options().sample || weaver_.chunk()) {
    return {};
  }
  Program& program = weaver_.program;
  program.sampled = static_cast<EventId>(program.events.size());
  program.events.push_back({"sampled", 0});
  return {{program.sampled, true}};
}

void StepPlanner::sample(EventId logits) {
  Program& program = weaver_.program;
  const int32_t id = weaver_.operation(
      "sample", -1, one_->rows,
      SampleOp{program.logits, program.tokens, program.positions, weaver_.config().vocabulary});
  if (program.sampled != kNone) {
    program.events[static_cast<size_t>(program.sampled)].signals =
        static_cast<int32_t>(program.sequences);
  }
  const Tiles draws = weaver_.by_sequences({0, 1});
  for (size_t w = 0; w < draws.size(); ++w) {
    for (const Tile& tile : draws[w]) {
      program.workers[w].push_back({id, tile.rows, tile.tile, 0, {{logits}}, program.sampled});
    }
  }
}

}  // namespace
}  // namespace planning

int most_workers(const ModelConfig& config, const PlanOptions& options) {
  if (options.rows > 1) {
    return options.workers;
  }
  const auto with_columns = [&](int64_t columns) {
    return static_cast<int>(std::min<int64_t>(options.workers, ceil_div(columns, options.columns)));
  };
  if (config.latent.rank > 0) {  // who attends to nothing has some columns at least
    return with_columns(std::max({config.query_size(), config.vocabulary, config.ffn}));
  }
  return config.norm_placement == NormPlacement::before
             ? options.workers
             : with_columns(std::min({config.hidden, config.ffn, config.query_size()}));
}

Program plan(const ModelConfig& config, const Weights& weights, const PlanOptions& options) {
  PlanOptions dealt = options;
  dealt.workers = most_workers(config, options);
  Program program = planning::StepPlanner(config, weights, dealt).run();
  for (std::vector<Instruction>& worker : program.workers) {
    // Angles alone are for nobody, and who writes the next positions would not know when a worker
    // that signals nothing has read these.
    if (std::ranges::all_of(worker, [&](const Instruction& instruction) {
          const auto index = static_cast<size_t>(instruction.operation);
          return instruction.signal == kNone &&
                 std::holds_alternative<RopeAnglesOp>(program.operations[index].body);
        })) {
      worker.clear();
    }
  }
  program.workers.resize(static_cast<size_t>(options.workers));
  return program;
}

}  // namespace weft
