#include "ops/harness/trial.h"

#include <gtest/gtest.h>

#include <limits>

#include "ops/harness/registry.h"
#include "ops/harness/select.h"

// The checks themselves: each kind of mistake that a kernel can make must be found.
namespace weft::trial {
namespace {

/// Doubles a matrix, with a mistake.
class Doubling : public Trial {
 public:
  enum class Mistake { none, wrong_value, nan, unwritten, before, after, gap, input };

  Doubling(Mistake mistake, Random& random)
      : mistake_(mistake),
        in_(input("in", 3, 5, DType::f32, random, 1, 1)),
        out_(output("out", 3, 5, DType::bf16, 2)) {}

  int64_t rows() const override { return 3; }

  std::vector<Expectation> expect(Range rows) override {
    std::vector<Expectation> result{Expectation(out_, rows)};
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      for (int64_t c = 0; c < 5; ++c) {
        result[0].value[static_cast<size_t>((r - rows.begin) * 5 + c)] = 2 * in_.get(r, c);
      }
    }
    result[0].allow_rounding();
    return result;
  }

  void run(int /*phase*/, Piece piece) override {
    const Range range = share(3, piece);
    for (int64_t r = range.begin; r < range.end; ++r) {
      for (int64_t c = 0; c < 5; ++c) {
        if (mistake_ != Mistake::unwritten || r != 1 || c != 2) {
          out_.set(r, c, static_cast<float>(2 * in_.get(r, c)));
        }
      }
    }
    auto* out = static_cast<bf16*>(out_.data());
    switch (mistake_) {
      case Mistake::wrong_value:
        out_.set(2, 4, static_cast<float>(2.02 * in_.get(2, 4)));
        break;
      case Mistake::nan:
        out_.set(0, 0, std::numeric_limits<float>::quiet_NaN());
        break;
      case Mistake::before:
        out[-1] = {};
        break;
      case Mistake::after:
        out[3 * 7] = {};
        break;
      case Mistake::gap:
        out[5] = {};
        break;
      case Mistake::input:
        in_.set(1, 1, 7);
        break;
      default:
        break;
    }
  }

  Work work() const override { return {}; }

 private:
  Mistake mistake_;
  Tensor& in_;
  Tensor& out_;
};

TEST(Trial, FindsEveryMistake) {
  using Mistake = Doubling::Mistake;
  for (const Mistake mistake :
       {Mistake::none, Mistake::wrong_value, Mistake::nan, Mistake::unwritten, Mistake::before,
        Mistake::after, Mistake::gap, Mistake::input}) {
    Random random(1);
    Doubling trial(mistake, random);
    const auto expectations = trial.expect({0, 3});
    trial.prepare(2);
    trial.restore();
    trial.run_all(2);
    const bool found = compare(expectations).has_value() || trial.damage().has_value();
    EXPECT_EQ(found, mistake != Mistake::none) << static_cast<int>(mistake);
  }
}

TEST(Trial, NamesTheWorstElement) {
  Random random(1);
  Doubling trial(Doubling::Mistake::wrong_value, random);
  const auto expectations = trial.expect({0, 3});
  trial.prepare(1);
  trial.restore();
  trial.run_all(1);
  const auto mismatch = compare(expectations);
  ASSERT_TRUE(mismatch);
  EXPECT_TRUE(mismatch->message.starts_with("out[2, 4] is ")) << mismatch->message;
}

TEST(Trial, SharesCoverTheWhole) {
  for (const int64_t size : {0, 1, 7, 64, 100}) {
    for (const int64_t pieces : {1, 3, 8}) {
      for (const int64_t unit : {1, 8}) {
        int64_t next = 0;
        for (int64_t i = 0; i < pieces; ++i) {
          const Range part = share(size, {i, pieces}, unit);
          EXPECT_EQ(part.begin, next);
          EXPECT_TRUE(part.begin % unit == 0 || part.empty());
          next = part.end;
        }
        EXPECT_EQ(next, size);
      }
    }
  }
}

TEST(Selection, FindsOperationsAndCases) {
  EXPECT_FALSE(operations().empty());
  const auto all = select_cases({}, {Use::check});
  ASSERT_TRUE(all.ok());
  const auto some = select_cases({.operations = {"rmsnorm"}, .cases = "*residual*"}, {Use::check});
  ASSERT_TRUE(some.ok());
  EXPECT_LT(some->size(), all->size());
  for (const SelectedCase& each : *some) {
    EXPECT_EQ(each.operation->name, "rmsnorm");
  }
  const auto unknown = select_cases({.operations = {"convolution"}}, {Use::check});
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().kind, ErrorKind::usage);
  const auto none = select_cases({.operations = {}, .cases = "nothing"}, {Use::check});
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().kind, ErrorKind::usage);
}

TEST(Selection, ACasesNameIsAShape) {
  for (const Operation& operation : operations()) {
    for (const CaseInfo& each : operation.cases) {
      const auto read = operation.read(each.name, each.use);
      ASSERT_TRUE(read.ok()) << read.error().message;
      EXPECT_EQ(read->name, each.name);
    }
  }
}

TEST(Selection, ShapesAreCasesOfOneOperation) {
  const auto shapes =
      select_cases({.operations = {"rope_append"},
                    .shapes = {"rows=2,heads=6/2,dim=24,first=5,q=f32-in-place,cache=bf16"}},
                   {Use::check});
  ASSERT_TRUE(shapes.ok()) << shapes.error().message;
  ASSERT_EQ(shapes->size(), 1);
  EXPECT_FALSE(shapes->front().listed);
  Random random(1);
  const auto trial = shapes->front().info.make(random);
  EXPECT_EQ(trial->tensors()[0]->rows(), 2);
  EXPECT_EQ(trial->tensors()[0]->columns(), 6 * 24);
  for (const std::vector<std::string>& names :
       {std::vector<std::string>{}, {"embed", "rmsnorm"}, {"convolution"}}) {
    const auto none = select_cases({.operations = names, .shapes = {"rows=1"}}, {Use::check});
    ASSERT_FALSE(none.ok());
    EXPECT_EQ(none.error().kind, ErrorKind::usage);
  }
  const auto loose =
      select_cases({.operations = {"embed", "rows=2"}, .shapes = {"rows=1"}}, {Use::check});
  ASSERT_FALSE(loose.ok());
  EXPECT_EQ(loose.error().kind, ErrorKind::usage);
  EXPECT_NE(loose.error().message.find("a --shape of its own"), std::string::npos);
}

// What does not go together would be undefined in a trial's data or its kernels.
TEST(Selection, ShapesThatCannotBeAreRefused) {
  const auto refused = [](const std::string& operation, const std::string& shape,
                          const std::string& why) {
    const auto result = select_cases({.operations = {operation}, .shapes = {shape}}, {Use::check});
    ASSERT_FALSE(result.ok()) << shape;
    EXPECT_EQ(result.error().kind, ErrorKind::usage);
    EXPECT_NE(result.error().message.find(why), std::string::npos) << result.error().message;
  };
  refused("gemm_skinny", "m=33,n=8,k=16,bf16,out=f32", "m=33");
  refused("gemm_skinny", "m=1,n=8,k=16,bf16,row,out=f32", "bf16 has none");
  refused("gemm_skinny", "m=1,n=8,k=144,e4m3fn,block,out=f32", "multiple of 128");
  refused("rmsnorm", "rows=3,columns=8,groups=2,weight=f32,out=f32", "groups");
  refused("rmsnorm", "rows=3,columns=8,groups=1,weight=f32,out=nowhere", "nowhere");
  refused("linear", "rows=1,n=1,k=1,a=bf16,w=f32", "weights in bf16");
  refused("linear", "rows=1,n=1,k=1,a=f32,w=f32,alpha=nan", "alpha=nan");
  refused("swiglu_quant", "rows=1,columns=8,f16,out=bf16", "the format that is read");
  refused("swiglu_quant", "rows=1,columns=8,f16,out=e4m3fn", "fp8 has scales");
  refused("sample", "vocabulary=9,draws=1,temperature=1,k=0,p=2,min_p=0,penalty=1", "p=2");
  refused("rope_angles", "rows=0,half=3,first=0", "rows=0");
  refused("rope_angles", "rows=99999999999999999999,half=3,first=0", "rows=9999");
}

TEST(Selection, EveryOperationHasCasesOfBothUses) {
  for (const Operation& operation : operations()) {
    for (const Use use : {Use::check, Use::bench}) {
      const auto cases = select_cases({.operations = {std::string(operation.name)}}, {use});
      EXPECT_TRUE(cases.ok()) << operation.name;
    }
  }
}

TEST(Random, IsNormalEnough) {
  Random random(7);
  double sum = 0;
  double squares = 0;
  constexpr int kCount = 100000;
  for (int i = 0; i < kCount; ++i) {
    const double x = random.normal();
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / kCount, 0, 0.02);
  EXPECT_NEAR(squares / kCount, 1, 0.02);
}

}  // namespace
}  // namespace weft::trial
