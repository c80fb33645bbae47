#include "program/plan_moe.h"

#include <string>

#include "base/divide.h"

namespace weft::planning {
namespace {

/// The first layer with experts; the number of layers: there is none.
int64_t first_with_experts(const ModelConfig& config) {
  int64_t layer = 0;
  while (layer < config.layers && !config.has_experts(layer)) {
    ++layer;
  }
  return layer;
}

void append(Waits& waits, const Waits& more) {
  waits.insert(waits.end(), more.begin(), more.end());
}

/// Whether the slots' columns are dealt as those of one row (ExpertsUpOp::flat).
bool flat(const Weaver& weaver, const Section& section) {
  return weaver.options().flat_slots && section.one_row() && !weaver.chunk();
}

/// A layer's mixture. Its parts are called in the order in which a worker computes them.
class Mixer {
 public:
  Mixer(Weaver& weaver, Section& section, const LayerSpec& spec, int64_t layer)
      : weaver_(weaver),
        section_(section),
        spec_(spec),
        experts_(spec.ffn.experts),
        shares_(experts_.shared_size > 0),
        layer_(layer) {
    const int64_t hidden = weaver.config().hidden;
    const std::vector<int64_t> logits = {experts_.count, 1};  // the last one is the shared expert's
    routers_ = section.products({logits.begin(), logits.end() - (weighs_shared() ? 0 : 1)}, hidden);
    if (shares_) {
      // Before the draw, which all wait for: not by those who have the router's products, too.
      Users busy;
      for (const Tiles& tiles : routers_) {
        add_users(tiles, busy);
      }
      shared_ = section.gated_product(experts_.shared_size, hidden, busy);
    }
    up_ = flat(weaver, section) ? weaver.by_grains(experts_.chosen * spec.ffn.size, 2 * hidden,
                                                   weaver.options().gated_columns)
                                : section.gated_product(spec.ffn.size, hidden * experts_.chosen);
    down_ = section.product(hidden, spec.ffn.size * experts_.chosen + experts_.shared_size);
  }

  void read(Residual& residual) {
    Users users;
    for (const Tiles& tiles : routers_) {
      add_users(tiles, users);
    }
    add_users(up_, users);
    if (shares_) {
      add_users(shared_, users);
    }
    input_ = residual.input(section_, spec_, "ffn_norm", layer_, Role::ffn_norm,
                            Role::ffn_norm_bias, users, read_);
  }

  /// The shared expert's gated product stands before the draw, so that the exchange of logits
  /// passes meanwhile.
  void route() {
    Waits routed = {router("router", Role::router, section_.drawn, experts_.count, routers_[0])};
    if (weighs_shared()) {
      routed.push_back(
          router("shared_router", Role::shared_router, section_.shared, 1, routers_[1]));
    }
    if (shares_) {
      made_.push_back(shared_up());
    }
    RouteOp op;
    op.experts = experts_.count;
    op.chosen = experts_.chosen;
    op.sigmoid = experts_.sigmoid;
    op.renormalise = experts_.renormalise;
    op.correction = weaver_.weight(Role::router_correction, layer_);
    op.groups = experts_.groups;
    op.kept_groups = experts_.kept_groups;
    op.scale = static_cast<float>(experts_.scale);
    append(drawn_, draw("route", section_.drawn, op, routed));
    if (weighs_shared()) {
      RouteOp shared;
      shared.experts = shared.chosen = 1;
      shared.sigmoid = true;
      append(drawn_, draw("shared_route", section_.shared, shared, routed));
    }
  }

  void up() {
    ExpertsUpOp op;
    op.gate = weaver_.weight(Role::expert_gate, layer_);
    op.up = weaver_.weight(Role::expert_up, layer_);
    op.gate_bias = weaver_.weight(Role::expert_gate_bias, layer_);
    op.up_bias = weaver_.weight(Role::expert_up_bias, layer_);
    op.limit = static_cast<float>(experts_.limit);
    op.a = input_;
    op.ids = section_.drawn.ids;
    op.out = section_.drawn.between;
    op.experts = experts_.count;
    op.chosen = experts_.chosen;
    op.n = spec_.ffn.size;
    op.k = weaver_.config().hidden;
    op.flat = flat(weaver_, section_);
    op.alone = alone();
    op.activation = spec_.ffn.activation;
    Waits waits = read_;
    append(waits, drawn_);
    made_.push_back({spread("experts_up", op, up_, waits)});
  }

  void down(Residual& residual) {
    Waits waits = made_;
    append(waits, drawn_);
    ExpertsDownOp drawn =
        down_op(Role::expert_down, section_.drawn, experts_.count, experts_.chosen, spec_.ffn.size);
    drawn.bias = weaver_.weight(Role::expert_down_bias, layer_);
    drawn.flat = flat(weaver_, section_);
    std::vector<BlockOutput> outputs = {{"experts_down", drawn}};
    if (shares_ && !weighs_shared()) {
      outputs.push_back(
          {"shared_down", output_product(weaver_, Role::shared_down, Role::down_bias, layer_,
                                         section_.shared.between, experts_.shared_size)});
    } else if (shares_) {
      outputs.push_back(
          {"shared_down", down_op(Role::shared_down, section_.shared, 1, 1, experts_.shared_size)});
    }
    residual.add(section_, spec_, layer_, outputs, Role::ffn_out_norm, down_, waits);
  }

 private:
  /// (A step has few rows, however many they are.)
  bool alone() const { return weaver_.chunk() && weaver_.options().cut_anywhere; }
  /// Whether the shared expert has a weight of its own, which it draws as the others are.
  bool weighs_shared() const { return shares_ && !experts_.shared_whole; }

  EventId spread(const char* name, decltype(Operation::body) body, const Tiles& tiles,
                 const Waits& waits) {
    const int32_t id = weaver_.operation(name, layer_, section_.rows, std::move(body));
    return weaver_.spread(id, tiles, waits);
  }

  Wait router(const char* name, Role role, const Section::Mixture& mixture, int64_t experts,
              const Tiles& tiles) {
    LinearOp op;
    op.weight = weaver_.weight(role, layer_);
    if (role == Role::router) {
      op.bias = weaver_.weight(Role::router_bias, layer_);
    }
    op.a = input_;
    op.out = mixture.logits;
    op.n = experts;
    op.k = weaver_.config().hidden;
    return {spread(name, op, tiles, read_)};
  }

  Wait shared_up() {
    GatedLinearOp op;
    op.a = input_;
    op.gate = weaver_.weight(Role::shared_gate, layer_);
    op.up = weaver_.weight(Role::shared_up, layer_);
    op.out = section_.shared.between;
    op.n = experts_.shared_size;
    op.k = weaver_.config().hidden;
    op.activation = spec_.ffn.activation;
    return {spread("shared_up", op, shared_, read_)};
  }

  /// By everyone who uses the draw; what they wait for then.
  Waits draw(const char* name, const Section::Mixture& mixture, RouteOp op, const Waits& routed) {
    op.logits = mixture.logits;
    op.ids = mixture.ids;
    op.weights = mixture.weights;
    Users users;
    add_users(up_, users);
    add_users(down_, users);
    return section_.prepare(weaver_.operation(name, layer_, section_.rows, op), routed, users);
  }

  ExpertsDownOp down_op(Role role, const Section::Mixture& mixture, int64_t experts, int64_t chosen,
                        int64_t size) const {
    ExpertsDownOp op;
    op.weight = weaver_.weight(role, layer_);
    op.a = mixture.between;
    op.ids = mixture.ids;
    op.weights = mixture.weights;
    op.experts = experts;
    op.chosen = chosen;
    op.n = weaver_.config().hidden;
    op.k = size;
    op.alone = alone();
    return op;
  }

  Weaver& weaver_;
  Section& section_;
  const LayerSpec& spec_;
  const Experts& experts_;
  const bool shares_;
  const int64_t layer_;
  std::vector<Tiles> routers_;
  Tiles shared_, up_, down_;
  BufferId input_ = kNone;
  Waits read_, drawn_, made_;  // until there is the input, the draw, what the second products read
};

}  // namespace

void make_moe_buffers(Weaver& weaver, Section& section, int64_t rows) {
  const ModelConfig& config = weaver.config();
  const Experts& experts = config.experts;
  const int64_t layer = first_with_experts(config);
  if (layer == config.layers) {
    return;
  }
  const bool one = section.one_row();
  const Space routed = one ? Space::worker : Space::activation;
  const auto mixture = [&](const std::string& name, Role down, int64_t count, int64_t chosen,
                           int64_t size) {
    const auto add = [&](const char* what, Space space, Element element, int64_t each,
                         int64_t columns) {
      return weaver.buffer(name + what + (one ? "_row" : ""), space, element, rows * each, columns);
    };
    const Element between = one ? Element::f32 : weaver.chunk_element(down, layer);
    Section::Mixture made;
    // Of several rows each begins at a pair of elements: so they are exchanged.
    made.logits =
        add("_logits", Space::activation, Element::f32, 1, rows > 1 ? round_up(count, 2) : count);
    made.ids = add("_ids", routed, Element::i32, 1, chosen);
    made.weights = add("_weights", routed, Element::f32, 1, chosen);
    made.between = flat(weaver, section) ? add("", Space::activation, between, 1, chosen * size)
                                         : add("", Space::activation, between, chosen, size);
    return made;
  };
  section.drawn =
      mixture("experts", Role::expert_down, experts.count, experts.chosen, experts.size);
  if (experts.shared_size > 0) {
    section.shared = mixture("shared", Role::shared_down, 1, 1, experts.shared_size);
  }
}

void plan_moe(Weaver& weaver, Residual& residual, Section& section, const LayerSpec& spec,
              int64_t layer) {
  Mixer mixer(weaver, section, spec, layer);
  mixer.read(residual);
  mixer.route();
  mixer.up();
  mixer.down(residual);
}

}  // namespace weft::planning
