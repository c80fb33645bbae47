#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/harness/prefill_trial.h"
#include "ops/rope_append/op.h"

namespace weft::trial {
namespace {

/// How rotated queries are written.
struct QueryOut {
  DType dtype = DType::f32;
  bool in_place = false;
  bool operator==(const QueryOut&) const = default;
};
constexpr Word<QueryOut> kQueryOuts[] = {{"F32", {DType::f32, false}},
                                         {"F32-in-place", {DType::f32, true}},
                                         {"BF16", {DType::bf16, false}}};

struct Case {
  Use use;
  int64_t rows;
  int64_t query_heads;
  int64_t kv_heads;
  int64_t head_dim;
  int32_t first;
  QueryOut q;
  DType cache;
  int64_t unturned = 0;

  template <class Visitor>
  void fields(Visitor& v) {
    v.size("rows", rows);
    v.pair("heads", query_heads, kv_heads);
    v.size("dim", head_dim, {.least = 2, .unit = 2});
    v.size("first", first, {.least = 0});
    v.word("q", q, kQueryOuts);
    v.word("cache", cache, kFileFloats);
    v.size("unturned", unturned, {.least = 0, .unit = 2, .required = false});
  }
  std::string_view conflict() const {
    return query_heads % kv_heads != 0 ? "query heads are no multiple of KV heads" : "";
  }
  int64_t half() const { return (head_dim - unturned) / 2; }
};

constexpr Case kCases[] = {
#include "ops/rope_append/cases.inc"
};

class RopeAppendTrial : public PrefillTrial {
 public:
  RopeAppendTrial(const Case& c, Random& random)
      : first_(c.first),
        capacity_(c.first + c.rows + 3),
        q_(add("q", c.q.in_place ? Tensor::Role::inout : Tensor::Role::input, c.rows,
               c.query_heads * c.head_dim, DType::f32, gap_after(c.query_heads * c.head_dim))),
        k_(input("k", c.rows, c.kv_heads * c.head_dim, DType::f32, random, 1,
                 gap_after(c.kv_heads * c.head_dim))),
        v_(input("v", c.rows, c.kv_heads * c.head_dim, DType::f32, random, 1,
                 gap_after(c.kv_heads * c.head_dim) + 8)),
        cosines_(input("cosines", c.rows, c.half(), DType::f32, random)),
        sines_(input("sines", c.rows, c.half(), DType::f32, random)),
        q_out_(c.q.in_place
                   ? q_
                   : output("q_out", c.rows, q_.columns(), c.q.dtype, gap_after(q_.columns()))),
        keys_(output("keys", c.kv_heads * capacity_, c.head_dim, c.cache)),
        values_(output("values", c.kv_heads * capacity_, c.head_dim, c.cache)) {
    q_.fill(random, 1);
    for (int64_t r = 0; r < c.rows; ++r) {
      positions_.push_back(c.first + static_cast<int32_t>(r));
    }
    args_ = {.q = q_.in(),
             .k = k_.in(),
             .v = v_.in(),
             .query_heads = c.query_heads,
             .kv_heads = c.kv_heads,
             .head_dim = c.head_dim,
             .positions = positions_.data(),
             .cosines = static_cast<const float*>(cosines_.data()),
             .sines = static_cast<const float*>(sines_.data()),
             .q_out = q_out_.out(),
             .cache = {keys_.data(), values_.data(), c.cache, capacity_ * c.head_dim},
             .unturned = c.unturned};
  }

  int64_t rows() const override { return 1; }

  /// Two products and their sum: three roundings of the products' magnitudes at most, and the
  /// output's own. Values are rounded once.
  std::vector<Expectation> expect(Range /*rows*/) override {
    const Range all{0, q_.rows()};
    const int64_t dim = args_.head_dim;
    Expectation q(q_out_, all);
    Expectation k(keys_, {0, keys_.rows()});
    Expectation v(values_, {0, values_.rows()});
    std::vector<double> rotated(static_cast<size_t>(k_.rows() * k_.columns()));
    reference::rope_append(args_, all, q.value.data(), rotated.data());
    for (size_t i = 0; i < q.value.size(); ++i) {
      q.tolerance[i] = pair_tolerance(q_, static_cast<int64_t>(i));
    }
    // Places of the cache that nothing is appended to keep their poison.
    std::fill(k.value.begin(), k.value.end(), std::numeric_limits<double>::quiet_NaN());
    v.value = k.value;
    for (int64_t r = 0; r < k_.rows(); ++r) {
      for (int64_t c = 0; c < k_.columns(); ++c) {
        const auto from = static_cast<size_t>(r * k_.columns() + c);
        const auto to = static_cast<size_t>((c / dim * capacity_ + first_ + r) * dim + c % dim);
        k.value[to] = rotated[from];
        k.tolerance[to] = pair_tolerance(k_, static_cast<int64_t>(from));
        v.value[to] = v_.get(r, c);
      }
    }
    std::vector<Expectation> result{std::move(q), std::move(k), std::move(v)};
    for (Expectation& each : result) {
      each.allow_rounding();
    }
    return result;
  }

  void run(int /*phase*/, Piece piece) override {
    cpu::rope_append(args_, {0, q_.rows()}, share(args_.kv_heads, piece));
  }

  Work work() const override {
    const double turned = static_cast<double>(q_.rows() * (q_.columns() + k_.columns()));
    const double bytes = static_cast<double>(q_.bytes() + k_.bytes() + v_.bytes() +
                                             cosines_.bytes() + sines_.bytes() + q_out_.bytes()) +
                         2 * static_cast<double>(k_.rows() * k_.columns()) *
                             static_cast<double>(size_of(keys_.dtype()));
    return {.bytes = bytes, .flops = turned * 3};
  }

 protected:
  std::string_view refuse(Arch arch) const override {
    return chunk_kernels(arch)->refuse_rope_append(args_);
  }

  Status launch_rows(Arch arch, Stream stream) override {
    RopeAppendArgs args = args_;
    args.q = q_.in(Side::device);
    args.k = k_.in(Side::device);
    args.v = v_.in(Side::device);
    args.cosines = static_cast<const float*>(cosines_.data(Side::device));
    args.sines = static_cast<const float*>(sines_.data(Side::device));
    args.q_out = q_out_.out(Side::device);
    args.cache.keys = keys_.data(Side::device);
    args.cache.values = values_.data(Side::device);
    return chunk_kernels(arch)->rope_append(args, q_.rows(), first_, stream, {});
  }

 private:
  double pair_tolerance(const Tensor& x, int64_t i) const {
    const int64_t half = (args_.head_dim - args_.unturned) / 2;
    const int64_t r = i / x.columns();
    const int64_t c = i % x.columns();
    if (c % args_.head_dim >= 2 * half) {
      return 0;
    }
    const int64_t at = c % args_.head_dim % half;
    const int64_t head = c / args_.head_dim * args_.head_dim;
    const double largest = std::max(std::fabs(cosines_.get(r, at)), std::fabs(sines_.get(r, at)));
    return 3 * 0x1p-24 * largest *
           (std::fabs(x.get(r, head + at)) + std::fabs(x.get(r, head + half + at)));
  }

  int64_t first_;
  int64_t capacity_;
  Tensor& q_;
  Tensor& k_;
  Tensor& v_;
  Tensor& cosines_;
  Tensor& sines_;
  Tensor& q_out_;
  Tensor& keys_;
  Tensor& values_;
  std::vector<int32_t> positions_;
  RopeAppendArgs args_;
};

}  // namespace

Operation rope_append() { return operation_of<RopeAppendTrial, Case>("rope_append", kCases); }

}  // namespace weft::trial
