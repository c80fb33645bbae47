#include "ops/attention_backward/op.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/attention_forward/op.h"
#include "ops/harness/tensor.h"
#include "ops/harness/test_checks.h"

namespace weft {
namespace {

using trial::Random;
using trial::Tensor;

TEST(AttentionBackward, MatchesTheReference) { trial::expect_right("attention_backward"); }

/// The gradients are what the result changes by when an input does: against differences of
/// attention_forward's definition, for a weighted sum of its result.
TEST(AttentionBackward, IsTheForwardsDerivative) {
  for (const bool causal : {false, true}) {
    const SequenceShape shape{.sequences = 2,
                              .tokens = 5,
                              .query_heads = 4,
                              .kv_heads = 2,
                              .head_dim = 8,
                              .causal = causal,
                              .scale = 0.4f};
    const auto rows = Range{0, shape.rows()};
    const auto make = [&](std::string name, int64_t columns) {
      return Tensor(std::move(name), Tensor::Role::input, shape.rows(), columns, DType::bf16);
    };
    Random random(3);
    Tensor q = make("q", shape.query_columns());
    Tensor k = make("k", shape.kv_columns());
    Tensor v = make("v", shape.kv_columns());
    Tensor d_out = make("d_out", shape.query_columns());
    Tensor out = make("out", shape.query_columns());
    for (Tensor* each : {&q, &k, &v, &d_out}) {
      each->fill(random, 1);
    }
    const auto queries = static_cast<size_t>(q.rows() * q.columns());
    const auto keys = static_cast<size_t>(k.rows() * k.columns());
    // In doubles, so that nothing is rounded between the two.
    std::vector<double> result(queries);
    std::vector<double> lse(static_cast<size_t>(shape.rows() * shape.query_heads));
    const auto forward = [&] {
      reference::attention_forward(
          {.shape = shape, .q = q.in(), .k = k.in(), .v = v.in(), .out = {}}, rows, result.data(),
          lse.data());
      double sum = 0;
      for (size_t i = 0; i < result.size(); ++i) {
        const auto at = static_cast<int64_t>(i);
        sum += result[i] * d_out.get(at / q.columns(), at % q.columns());
      }
      return sum;
    };
    forward();
    std::vector<float> of_queries(lse.size());  // [sequences, query_heads, tokens]
    for (size_t i = 0; i < result.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      out.set(at / q.columns(), at % q.columns(), static_cast<float>(result[i]));
    }
    for (int64_t r = 0; r < shape.rows(); ++r) {
      for (int64_t h = 0; h < shape.query_heads; ++h) {
        const int64_t to =
            (r / shape.tokens * shape.query_heads + h) * shape.tokens + r % shape.tokens;
        of_queries[static_cast<size_t>(to)] =
            static_cast<float>(lse[static_cast<size_t>(r * shape.query_heads + h)]);
      }
    }
    std::vector<double> d_q(queries);
    std::vector<double> d_k(keys);
    std::vector<double> d_v(keys);
    reference::attention_backward({.shape = shape,
                                   .q = q.in(),
                                   .k = k.in(),
                                   .v = v.in(),
                                   .out = out.in(),
                                   .d_out = d_out.in(),
                                   .lse = of_queries.data(),
                                   .d_q = {},
                                   .d_k = {},
                                   .d_v = {}},
                                  rows, {d_q.data(), d_k.data(), d_v.data()});
    // Numbers of bf16 about each input: the difference of two is its step.
    for (const auto& [input, gradient] :
         {std::pair(&q, &d_q), std::pair(&k, &d_k), std::pair(&v, &d_v)}) {
      for (size_t i = 0; i < gradient->size(); i += 7) {
        const auto r = static_cast<int64_t>(i) / input->columns();
        const auto c = static_cast<int64_t>(i) % input->columns();
        const double x = input->get(r, c);
        input->set(r, c, static_cast<float>(x + 0.02));
        const double more = input->get(r, c);
        const double up = forward();
        input->set(r, c, static_cast<float>(x - 0.02));
        const double less = input->get(r, c);
        const double down = forward();
        input->set(r, c, static_cast<float>(x));
        // `out` is rounded to bf16, of which delta has the part of |d_out|.
        EXPECT_NEAR((*gradient)[i], (up - down) / (more - less), 0.03) << input->name() << " " << i;
      }
    }
  }
}

TEST(AttentionBackward, RefusesGradientsOfTwoFormats) {
  float f32[64] = {};
  bf16 half[64] = {};
  const ConstMatrix in{half, DType::bf16, 8};
  AttentionBackwardArgs args{
      .shape = {.sequences = 1, .tokens = 4, .query_heads = 1, .kv_heads = 1, .head_dim = 8},
      .q = in,
      .k = in,
      .v = in,
      .out = in,
      .d_out = in,
      .lse = f32,
      .d_q = {f32, DType::f32, 8},
      .d_k = {half, DType::bf16, 8},
      .d_v = {half, DType::bf16, 8}};
  const Status refused = check(args);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("attention_backward: d_k"), std::string::npos);
  args.lse = nullptr;
  EXPECT_EQ(check(args).error().message, "attention_backward: lse is null");
}

}  // namespace
}  // namespace weft
