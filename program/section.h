// The rows of a step that a layer's block works on, and how its operations are cut for them: all
// rows of a chunk, or one row, which is a decode step's (one of each sequence) or a chunk's last.
#pragma once

#include <memory>
#include <vector>

#include "program/weaver.h"

namespace weft::planning {

class Section {
 public:
  Section(Weaver& weaver, Rows rows) : rows(rows), weaver_(weaver) {}
  Section(const Section&) = delete;
  Section& operator=(const Section&) = delete;
  virtual ~Section() = default;

  /// Products of one input, of columns[i] columns with k weights each.
  virtual std::vector<Tiles> products(const std::vector<int64_t>& columns, int64_t k) = 0;
  Tiles product(int64_t n, int64_t k) { return std::move(products({n}, k).front()); }
  /// Both products of a gated FFN, n columns of each with k weights. `busy`: see
  /// Weaver::by_weights().
  virtual Tiles gated_product(int64_t n, int64_t k, const Users& busy) = 0;
  Tiles gated_product(int64_t n, int64_t k) { return gated_product(n, k, {}); }
  /// What is done for each KV head by itself, `each` parts of it; of a chunk for rows.
  virtual Tiles heads(int64_t kv_heads, int64_t each) const = 0;
  /// What is done at once; of a chunk for rows. `worker`: who does it for one row.
  virtual Tiles whole(int64_t worker) const = 0;
  /// A row of `columns` for each token.
  virtual Tiles tokens(int64_t columns) const = 0;
  /// Attention that is not split by keys.
  virtual Tiles attention(int64_t kv_heads) const = 0;
  /// What the products of `users` read, a norm or a draw of experts; what they wait for then.
  virtual Waits prepare(int32_t op, const Waits& waits, const Users& users) = 0;

  /// Whether a row is prepared by each worker for itself.
  virtual bool one_row() const = 0;

  const Rows rows;
  // Activations, shared but where it is said.
  BufferId input = kNone;  ///< a projection's input: the normed residual; of one row each user's
  BufferId attention_out = kNone;
  BufferId ffn = kNone;  ///< between the FFN's products
  /// Of experts: the router's logits, what it drew, and what lies between their products. Those
  /// that are drawn, and the one that every row has.
  struct Mixture {
    BufferId logits = kNone, ids = kNone, weights = kNone, between = kNone;
  };
  Mixture drawn, shared;
  BufferId delta = kNone;  ///< a block's output, when a norm follows it

 protected:
  Weaver& weaver_;
};

std::unique_ptr<Section> make_many_rows(Weaver& weaver);
/// Rows::all: a decode step's; Rows::last: a chunk's.
std::unique_ptr<Section> make_one_row(Weaver& weaver, Rows rows);

}  // namespace weft::planning
