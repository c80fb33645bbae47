#include "engine/resident/verify_codes.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "base/divide.h"
#include "engine/resident/split_keys.h"

namespace weft::resident {
namespace {

using Clock = std::vector<int32_t>;  // [worker]: codes of it that are certain to be over

void merge(Clock& into, const Clock& from) {
  const int32_t* theirs = from.data();
  for (int32_t& mine : into) {
    const int32_t their_time = *theirs++;
    mine = mine < their_time ? their_time : mine;
  }
}

/// Bytes of the arena that a code reads or writes. Rows that are operands have a byte an element
/// here: their layout, the target's, deals elements among sequences.
struct Piece {
  int64_t begin = 0;
  int64_t end = 0;
  Version version = kPlain;  ///< 0 or more: the tag that is awaited, or written
  bool write = false;
};

/// What a code touches in memory that others may, too.
class Pieces {
 public:
  Pieces(const ModelShape& shape, int64_t position) : shape_(shape), position_(position) {}

  /// Reads come first.
  std::vector<Piece> of(const Code& code, NextToken next) {
    pieces_.clear();
    switch (code.opcode) {
      case Opcode::begin_step:
        break;
      case Opcode::embed:
        rows(code.embed.out, code.embed.first, code.embed.last, code.embed.columns,
             code.embed.version, true);
        break;
      case Opcode::norm_add:
        norm_add(code.norm_add);
        break;
      case Opcode::linear:
      case Opcode::gated_linear:
        product(code, code.head != 0 && next == NextToken::forced);
        break;
      case Opcode::attention:
        attention(code.attention);
        break;
      case Opcode::combine:
        combine(code.combine);
        break;
      case Opcode::route:
        for (int64_t row = 0; row < shape_.sequences; ++row) {  // each begins at a pair
          add(code.route.logits + row * round_up(code.route.experts, 2) * kElement,
              code.route.experts * kElement, code.route.source, false);
        }
        break;
      case Opcode::sample:
        if (next == NextToken::sampled) {
          rows(code.sample.logits, code.sample.sequence, code.sample.sequence + 1,
               code.sample.vocabulary, kPlain, false);
        }
        break;
    }
    return pieces_;
  }

 private:
  static constexpr int64_t kElement = 4;  // bytes, with its share of the tag

  void add(int64_t begin, int64_t bytes, Version version, bool write) {
    pieces_.push_back({begin, begin + bytes, version, write});
  }
  void rows(Place base, int64_t first, int64_t last, int64_t columns, Version version, bool write) {
    for (int64_t row = first; row < last; ++row) {
      add(base + row * columns * kElement, columns * kElement, version, write);
    }
  }
  void norm_add(const NormAddCode& code) {
    rows(code.x, 0, shape_.sequences, code.columns, code.source, false);
    rows(code.residual, 0, shape_.sequences, code.columns, code.version, true);
  }
  void product(const Code& code, bool skipped) {
    const ProductCode& product = code.product;
    const int64_t head_columns = code.segments > 0 ? product.segment[0].head_columns : 0;
    const Range heads =
        head_columns == 0
            ? Range{0, shape_.query_heads}
            : Range{product.first / head_columns,
                    ceil_div(product.first + int64_t{product.segment[0].columns}, head_columns)};
    if (product.form == RowForm::merged && head_columns > 0) {
      partials(product.row, product.splits, product.source, heads, {0, 1}, product.k);
    } else if (product.form == RowForm::merged) {
      partials(product.row, product.splits, product.source, heads, {0, 1});
    } else if (product.form == RowForm::heads && product.source == kOperands) {
      add(product.row + heads.begin * product.k, heads.size() * product.k, kOperands, false);
    } else if (product.form == RowForm::heads) {
      for (int64_t i = 0; i < shape_.sequences * heads.size(); ++i) {
        const int64_t row = i / heads.size() * shape_.query_heads;
        add(product.row + (row + i % heads.size()) * product.head_pitch * kElement,
            product.k * kElement, product.source, false);
      }
    } else if (product.form == RowForm::slots && product.source == kOperands) {
      // Whichever of the first products' workers writes an expert's columns: all read all of them.
      add(product.row, int64_t{product.slots} * product.slot_elements, kOperands, false);
    } else if (product.form == RowForm::slots) {
      rows(product.row, product.first_slot, product.first_slot + product.slots,
           product.slot_elements, product.source, false);
      if (product.shared.elements > 0) {
        add(product.shared_row, product.shared.elements * kElement, product.shared.source, false);
      }
    } else if (product.source == kOperands) {
      add(product.row, product.k, kOperands, false);
    } else {
      rows(product.row, 0, shape_.sequences, product.k, product.source, false);
    }
    if (skipped) {
      return;
    }
    for (const bool write : {false, true}) {
      for (int i = 0; i < code.segments && (write || product.accumulate != 0); ++i) {
        const Segment& segment = product.segment[i];
        if (segment.version == kOperands) {
          add(segment.out + product.first, segment.columns, kOperands, write);
          continue;
        }
        const bool by_slot = code.opcode == Opcode::gated_linear &&
                             product.draw == DrawOf::experts && product.flat == 0;
        for (int64_t row = 0; row < (by_slot ? product.slots : shape_.sequences); ++row) {
          add(segment.out + row * segment.stride * kElement, segment.columns * kElement,
              write ? segment.version : product.prior, write);
        }
      }
    }
  }
  /// Splits that have keys, of some query heads: sums, then maxima and totals of all.
  /// `latent_rank`: see AttentionCode.
  void partials(Place base, const Splits& splits, Version version, Range heads, Range sequences,
                int64_t latent_rank = 0) {
    const int64_t dim = latent_rank > 0 ? latent_rank : shape_.head_dim;
    const KeysOf keys = latent_rank > 0 ? KeysOf::latents : KeysOf::heads;
    const int64_t active = SplitKeys(splits, position_, 0, keys).active;
    for (int64_t sequence = sequences.begin; sequence < sequences.end; ++sequence) {
      for (int64_t head = heads.begin; head < heads.end; ++head) {
        slots(base, splits, sequence, head, {0, active}, version, false, dim);
      }
    }
  }
  void combine(const CombineCode& combine) {
    partials(combine.partials, combine.splits, combine.source, {combine.first, combine.last},
             {0, shape_.sequences}, combine.latent_rank);
    const int64_t dim = combine.latent_rank > 0 ? combine.latent_rank : shape_.head_dim;
    const int64_t head = dim * (combine.version == kOperands ? 1 : kElement);
    add(combine.out + combine.first * head, (combine.last - combine.first) * head, combine.version,
        true);
  }
  void slots(Place base, const Splits& splits, int64_t sequence, int64_t head, Range slots,
             Version version, bool write, int64_t dim) {
    const int64_t all = int64_t{shape_.query_heads} * splits.count;
    const int64_t sums = base + sequence * all * (dim + 2) * kElement;
    const int64_t tails = sums + all * dim * kElement;
    const int64_t first = head * splits.count + slots.begin;
    add(sums + first * dim * kElement, slots.size() * dim * kElement, version, write);
    add(tails + first * 2 * kElement, slots.size() * 2 * kElement, version, write);
  }
  void latent_attention(const AttentionCode& code) {
    const SplitKeys keys(code.splits, position_, code.split, KeysOf::latents);
    if (code.split >= keys.active) {
      return;
    }
    const int64_t row = shape_.head_dim;
    const bool own = keys.last == position_ + 1;
    const auto heads = [&](Place base, int64_t each, Version version) {
      add(base + (code.sequence * shape_.query_heads + code.first) * each * kElement,
          (code.last - code.first) * each * kElement, version, false);
    };
    heads(code.q, code.latent_rank, code.q_version);
    heads(code.v, code.projected, code.v_version);
    if (own) {
      add(code.k + code.sequence * row * kElement, row * kElement, code.k_version, false);
    }
    constexpr int64_t kElementBytes = 2;
    const Place cache = code.keys + code.sequence * shape_.capacity * row * kElementBytes;
    const int64_t before = keys.last - (own ? 1 : 0);
    add(cache + keys.first * row * kElementBytes, (before - keys.first) * row * kElementBytes,
        kPlain, false);
    if (own && code.first == 0) {
      add(cache + position_ * row * kElementBytes, row * kElementBytes, kPlain, true);
    }
    for (int64_t head = code.first; head < code.last; ++head) {
      slots(code.partials, code.splits, code.sequence, head, {code.split, code.split + 1},
            code.version, true, code.latent_rank);
    }
  }
  void attention(const AttentionCode& code) {
    if (code.latent_rank > 0) {
      latent_attention(code);
      return;
    }
    const SplitKeys keys(code.splits, position_, code.split);
    if (code.split >= keys.active) {
      return;
    }
    const int64_t dim = shape_.head_dim;
    const bool own = keys.last == position_ + 1;
    const bool whole = code.query_norm != kNowhere && code.whole_norm != 0;
    const auto heads = [&](Place base, int64_t count, Range range, Version version) {
      add(base + (code.sequence * count + range.begin) * dim * kElement,
          range.size() * dim * kElement, version, false);
    };
    const int64_t group = shape_.group;
    const Range queries =
        whole ? Range{0, shape_.query_heads} : Range{code.first * group, code.last * group};
    const Range own_heads{code.first, code.last};
    heads(code.q, shape_.query_heads, queries, code.q_version);
    if (own) {
      heads(code.k, shape_.kv_heads, whole ? Range{0, shape_.kv_heads} : own_heads, code.k_version);
      heads(code.v, shape_.kv_heads, own_heads, code.v_version);
    }
    const int64_t element = shape_.kv_f32 ? 4 : 2;
    for (const bool write : {false, true}) {
      const Range positions = write ? Range{position_, position_ + (own ? 1 : 0)}
                                    : Range{keys.first, keys.last - (own ? 1 : 0)};
      for (int64_t head = code.first; head < code.last; ++head) {
        for (const Place cache : {code.keys, code.values}) {
          const int64_t row = (code.sequence * shape_.kv_heads + head) * shape_.capacity;
          add(cache + (row + positions.begin) * dim * element, positions.size() * dim * element,
              kPlain, write);
        }
      }
    }
    for (int64_t head = code.first * group; head < code.last * group; ++head) {
      slots(code.partials, code.splits, code.sequence, head, {code.split, code.split + 1},
            code.version, true, shape_.head_dim);
    }
  }

  const ModelShape& shape_;
  const int64_t position_;
  std::vector<Piece> pieces_;
};

/// What is known of some bytes: their last write, and who has read it since.
struct Cell {
  int64_t end = 0;
  int64_t tag = -1;     ///< step * versions + version; -1: the write has none, or there was none
  int32_t worker = -1;  ///< that wrote; -1: nobody in these steps
  int32_t time = 0;     ///< its code, counted from 1
  std::vector<std::pair<int32_t, int32_t>> readers;  ///< worker, time
};

class Verifier {
 public:
  Verifier(const Lowered& lowered, const Program& program, const StreamBytes& stream_bytes,
           NextToken next, int64_t position)
      : lowered_(lowered),
        program_(program),
        stream_bytes_(stream_bytes),
        next_token_(next),
        position_(position),
        versions_(std::ssize(program.operations)) {}

  Status run() {
    const size_t workers = lowered_.codes.size();
    for (size_t worker = 0; worker < workers; ++worker) {
      WEFT_TRY(check_list(worker));
      WEFT_TRY(check_stream(worker));
    }
    done_.assign(workers, 0);
    known_.assign(workers, Clock(workers, 0));
    visible_.assign(workers, Clock(workers, 0));
    known_after_.resize(workers);
    signals_.assign(lowered_.event_signals.size(), 0);
    event_known_.assign(lowered_.event_signals.size() * kSteps, Clock(workers, 0));
    event_visible_ = event_known_;
    published_.resize(kSteps);
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t worker = 0; worker < workers; ++worker) {
        while (done_[worker] < kSteps * length(worker)) {
          WEFT_ASSIGN(const bool ran, try_next(worker));
          if (!ran) {
            break;
          }
          progress = true;
        }
      }
    }
    for (size_t worker = 0; worker < workers; ++worker) {
      if (done_[worker] < kSteps * length(worker)) {
        return fault(worker, "never goes on: what it waits for does not come");
      }
    }
    return {};
  }

 private:
  static constexpr int32_t kSteps = 2;

  int32_t length(size_t worker) const {
    return static_cast<int32_t>(lowered_.codes[worker].size());
  }
  const Code& at(size_t worker) const {
    return lowered_.codes[worker][static_cast<size_t>(done_[worker] % length(worker))];
  }
  int32_t step(size_t worker) const { return done_[worker] / length(worker); }
  Error fault(size_t worker, const std::string& what) const {
    return fault(worker, at(worker), what);
  }
  Error fault(size_t worker, const Code& code, const std::string& what) const {
    return code_fault(program_, worker, code, what);
  }

  Status check_list(size_t worker) const {
    const std::vector<Code>& codes = lowered_.codes[worker];
    if (codes.empty()) {
      return input_error(fmt::format("codes of {}: worker {} has none", program_.name, worker));
    }
    for (size_t i = 0; i < codes.size(); ++i) {
      if ((codes[i].opcode == Opcode::begin_step) != (i == 0) ||
          (codes[i].ends_step != 0) != (i + 1 == codes.size())) {
        return fault(worker, codes[i], "a step begins or ends within the list");
      }
      if (codes[i].opcode == Opcode::sample &&
          static_cast<size_t>(codes[i].sample.sequence) % lowered_.codes.size() != worker) {
        return fault(worker, codes[i], "it samples a sequence that others look for elsewhere");
      }
      WEFT_TRY(check_draw(worker, i));
      if (i > 0 && codes[i - 1].head != 0 && codes[i].head == 0) {
        return fault(worker, codes[i], "it follows the head, after which nothing is published");
      }
    }
    return {};
  }
  /// What a product of experts takes has been drawn, of as many: since the layer's draw no other
  /// was.
  Status check_draw(size_t worker, size_t i) const {
    const std::vector<Code>& codes = lowered_.codes[worker];
    const ProductCode& product = codes[i].product;
    if (codes[i].units == 0 || product.draw == DrawOf::none) {
      return {};
    }
    for (size_t before = i; before-- > 0;) {
      const Code& route = codes[before];
      if (route.opcode != Opcode::route || route.route.draw != product.draw) {
        continue;
      }
      const int64_t layer = program_.operations[static_cast<size_t>(route.operation)].layer;
      const bool same = layer == program_.operations[static_cast<size_t>(codes[i].operation)].layer;
      if (!same || route.route.experts != product.experts ||
          product.first_slot + product.slots > route.route.chosen) {
        break;
      }
      return {};
    }
    return fault(worker, codes[i], "its experts are not those that were drawn last");
  }
  /// The loaders go through the stream without looking at what comes: products must, too.
  Status check_stream(size_t worker) const {
    int64_t bytes = 0;
    int64_t last = 0;  // of the product before
    for (const Code& code : lowered_.codes[worker]) {
      if (code.units == 0) {
        continue;
      }
      const ProductCode& product = code.product;
      const int64_t stream = int64_t{product.stream} * 16;
      if (product.first_slot > 0) {  // of the same experts as the code before
        if (stream + last != bytes || stream_bytes_(code) != last) {
          return fault(worker, code, "its experts' weights are not where the first slots' are");
        }
        continue;
      }
      if (product.flat != 0) {
        WEFT_TRY(check_shared(worker, code, bytes));
        continue;
      }
      if (stream != bytes) {
        return fault(worker, code,
                     fmt::format("its weights are looked for at byte {} of the "
                                 "stream, those before end at {}",
                                 stream, bytes));
      }
      last = stream_bytes_(code);
      bytes += last;
    }
    const int64_t end =
        worker + 1 < lowered_.streams.size() ? lowered_.streams[worker + 1] : lowered_.packed_bytes;
    if (lowered_.streams[worker] + bytes != end) {
      return fault(worker, lowered_.codes[worker].back(),
                   fmt::format("the stream has {} bytes, products use {}",
                               end - lowered_.streams[worker], bytes));
    }
    return {};
  }

  /// Weights that several workers read are packed once, where the first of them finds them.
  /// `bytes`: of the worker's stream before.
  Status check_shared(size_t worker, const Code& code, int64_t& bytes) const {
    const auto place = lowered_.shared.find(code.operation);
    const int64_t begin = int64_t{code.product.stream} * kSharedGrain;
    if (place == lowered_.shared.end() || place->second != begin) {
      return fault(worker, code,
                   fmt::format("its experts' weights are looked for at byte {} of all, where "
                               "nobody packed them",
                               begin));
    }
    bytes += begin == lowered_.streams[worker] + bytes ? stream_bytes_(code) : 0;
    return {};
  }

  /// Executes the worker's next code if it need not wait. False: it must.
  Result<bool> try_next(size_t worker) {
    const Code& code = at(worker);
    const int32_t now = step(worker);
    Clock known = known_[worker];
    Clock visible = visible_[worker];
    if (code.opcode == Opcode::begin_step && now > 0 && !await_tokens(now - 1, known, visible)) {
      return false;
    }
    const bool eventless = code.head != 0 && next_token_ == NextToken::best;
    for (int i = 0; i < code.waits && !eventless; ++i) {
      if (!await_event(code.wait[i], now, known, visible)) {
        return false;
      }
    }
    const std::vector<Piece> pieces = Pieces(lowered_.shape, position_ + now).of(code, next_token_);
    const auto awaits_tag = [](const Piece& piece) { return !piece.write && piece.version >= 0; };
    for (const Piece& piece : pieces) {
      if (awaits_tag(piece)) {
        WEFT_ASSIGN(const bool there, has_tag(worker, piece, tag(now, piece.version)));
        if (!there) {
          return false;
        }
      }
    }
    for (const Piece& piece : pieces) {
      if (awaits_tag(piece)) {
        learn(piece, known);
      }
    }
    known_[worker] = std::move(known);
    visible_[worker] = std::move(visible);
    const int32_t time = ++done_[worker];
    known_[worker][worker] = visible_[worker][worker] = time;
    for (const Piece& piece : pieces) {
      WEFT_TRY(touch(worker, code, piece, now, time));
    }
    known_after_[worker].push_back(known_[worker]);
    for (int i = 0; i < code.signals && !eventless; ++i) {
      signal(code.signal[i], worker);
    }
    publish(worker, code, now);
    return true;
  }

  int64_t tag(int32_t step, Version version) const { return step * versions_ + version; }

  bool await_event(uint16_t wait, int32_t now, Clock& known, Clock& visible) const {
    const auto event = static_cast<size_t>(wait & ~kPreviousStep);
    const int32_t steps = now + ((wait & kPreviousStep) != 0 ? 0 : 1);
    if (signals_[event] < static_cast<int64_t>(steps) * lowered_.event_signals[event]) {
      return false;
    }
    if (steps > 0) {
      const size_t index = event * kSteps + static_cast<size_t>(steps - 1);
      merge(known, event_known_[index]);
      merge(visible, event_visible_[index]);
    }
    return true;
  }
  void signal(uint16_t event, size_t worker) {
    const auto of_step = signals_[event]++ / lowered_.event_signals[event];
    const size_t index =
        event * kSteps + static_cast<size_t>(std::min<int64_t>(of_step, kSteps - 1));
    merge(event_known_[index], known_[worker]);
    merge(event_visible_[index], visible_[worker]);
  }

  /// What workers have published of a step's next tokens.
  struct Published {
    std::map<size_t, std::pair<Clock, Clock>> by_worker;  ///< known and visible
  };
  /// By the publisher, or by who samples. It has fenced what the worker wrote before the head.
  void publish(size_t worker, const Code& code, int32_t now) {
    const bool last = done_[worker] % length(worker) == 0;
    const bool head = code.head != 0 && code.units > 0;
    auto& published = published_[static_cast<size_t>(now)].by_worker;
    if (next_token_ != NextToken::best) {
      if (code.opcode == Opcode::sample) {
        published[worker] = {known_[worker], visible_[worker]};
      }
      return;
    }
    if (head || (last && !published.contains(worker))) {
      Clock visible = visible_[worker];
      visible[worker] -= head ? 1 : 0;
      published[worker] = {known_[worker], std::move(visible)};
    }
  }
  bool await_tokens(int32_t of_step, Clock& known, Clock& visible) const {
    const auto& published = published_[static_cast<size_t>(of_step)].by_worker;
    const size_t workers = lowered_.codes.size();
    const bool all = next_token_ == NextToken::best;
    const size_t wanted = all ? workers : static_cast<size_t>(lowered_.shape.sequences);
    for (size_t i = 0; i < wanted; ++i) {
      const auto from = published.find(i % workers);
      if (from == published.end()) {
        return false;
      }
      merge(known, from->second.first);
      merge(visible, from->second.second);
    }
    return true;
  }

  /// Whether all of a piece carries a tag. A later one: it came too late.
  Result<bool> has_tag(size_t worker, const Piece& piece, int64_t wanted) {
    for (auto cell = cut(piece.begin, piece.end); cell != cells_.end() && cell->first < piece.end;
         ++cell) {
      if (cell->second.tag > wanted) {
        return fault(worker, "what it reads is overwritten before it has read it");
      }
      if (cell->second.tag != wanted) {
        return false;
      }
    }
    return true;
  }
  /// What the writers of a piece knew when they had written. Who knows that a code is over knows
  /// all that it knew: such clocks are only handed on as a whole.
  void learn(const Piece& piece, Clock& known) const {
    for (auto cell = cells_.find(piece.begin); cell != cells_.end() && cell->first < piece.end;
         ++cell) {
      const auto writer = static_cast<size_t>(cell->second.worker);
      const int32_t time = cell->second.time;
      if (known[writer] < time) {
        merge(known, known_after_[writer][static_cast<size_t>(time - 1)]);
      }
    }
  }

  /// Records an access, and holds it against those before.
  Status touch(size_t worker, const Code& code, const Piece& piece, int32_t now, int32_t time) {
    const auto by = static_cast<int32_t>(worker);
    for (auto cell = cut(piece.begin, piece.end); cell != cells_.end() && cell->first < piece.end;
         ++cell) {
      Cell& seen = cell->second;
      const Clock& order = piece.version < 0 && !piece.write ? visible_[worker] : known_[worker];
      const auto may_be_late = [&](int32_t other, int32_t their_time) {
        return other >= 0 && other != by && order[static_cast<size_t>(other)] < their_time;
      };
      if (may_be_late(seen.worker, seen.time)) {
        return fault(worker, code,
                     fmt::format("it {} what worker {} may still be writing",
                                 piece.write ? "writes" : "reads", seen.worker));
      }
      if (!piece.write) {
        if (seen.worker < 0 && piece.version == kOperands) {
          return fault(worker, code, "it reads what nobody has written");
        }
        seen.readers.emplace_back(by, time);
        continue;
      }
      for (const auto& [reader, read_time] : seen.readers) {
        if (may_be_late(reader, read_time)) {
          return fault(worker, code,
                       fmt::format("it overwrites what worker {} may not have read", reader));
        }
      }
      const int64_t end = seen.end;
      seen = {end, piece.version >= 0 ? tag(now, piece.version) : -1, by, time, {}};
    }
    return {};
  }
  /// The first cell of a range, all of which has cells with no others in between.
  std::map<int64_t, Cell>::iterator cut(int64_t begin, int64_t end) {
    const auto split = [&](int64_t at) {
      auto after = cells_.upper_bound(at);
      if (after == cells_.begin()) {
        return;
      }
      auto before = std::prev(after);
      if (before->first < at && at < before->second.end) {
        Cell rest = before->second;
        before->second.end = at;
        cells_.emplace(at, std::move(rest));
      }
    };
    split(begin);
    split(end);
    auto next = cells_.lower_bound(begin);
    for (int64_t at = begin; at < end;) {
      if (next == cells_.end() || next->first > at) {
        Cell hole;
        hole.end = next == cells_.end() ? end : std::min(end, next->first);
        next = cells_.emplace(at, std::move(hole)).first;
      }
      at = next->second.end;
      ++next;
    }
    return cells_.lower_bound(begin);
  }

  const Lowered& lowered_;
  const Program& program_;
  const StreamBytes& stream_bytes_;
  const NextToken next_token_;
  const int64_t position_;
  const int64_t versions_;
  std::vector<int32_t> done_;                       // [worker]: codes executed
  std::vector<Clock> known_, visible_;              // [worker]: what is over; whose writes it sees
  std::vector<std::vector<Clock>> known_after_;     // [worker][code]
  std::vector<int64_t> signals_;                    // [event]
  std::vector<Clock> event_known_, event_visible_;  // [event, step]
  std::vector<Published> published_;                // [step]
  std::map<int64_t, Cell> cells_;                   // by first byte
};

}  // namespace

Error code_fault(const Program& program, size_t worker, const Code& code, std::string_view what) {
  const Operation& operation = program.operations[static_cast<size_t>(code.operation)];
  return input_error(fmt::format("codes of {}: worker {}, {} of layer {}: {}", program.name, worker,
                                 operation.name, operation.layer, what));
}

Status verify_codes(const Lowered& lowered, const Program& program, const StreamBytes& stream_bytes,
                    NextToken next, int64_t position) {
  return Verifier(lowered, program, stream_bytes, next, position).run();
}

}  // namespace weft::resident
