// Muon's step of one matrix: against the formula in double, on any number of workers, and what it refuses.
#include "kit/child_process.hpp"
#include "kit/sanitizer.hpp"
#include "kit/seeded_random.hpp"
#include "muon_reference.hpp"

#include <penstock/cpu_adam/optimizers.hpp>

#include <gtest/gtest.h>

#include <sys/resource.h>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace penstock::cpu_adam {
namespace {

const MatrixProduct& product() {
  const auto instance = MatrixProduct::instance();
  if (!instance) {
    ADD_FAILURE() << instance.error().message();
    std::abort();
  }
  return **instance;
}

std::vector<float> random_values(std::size_t count, std::uint64_t seed) {
  penstock::test::SeededRandom random(seed);
  std::vector<float> values(count);
  for (float& value : values) value = random.symmetric();
  return values;
}

/// A matrix and its padding in a tile whose parameters are fp32.
struct MatrixTile {
  MatrixTile(MatrixShape of, StateFormat in, std::size_t padding = 0)
      : shape(of),
        format(in),
        count(of.elements().value() + padding),
        state((*tile_bytes({in, Optimizer::muon}, ElementCount(count))).value() / sizeof(float)),
        parameter(count),
        memory(muon_scratch_bytes(of).value() / sizeof(float) + 16) {
    std::vector<float> masters = initial();
    masters.resize(count);
    EXPECT_TRUE(initialize_tile(ConstHostSpan(std::span(std::as_const(masters))), DType::fp32, tile({})));
  }
  [[nodiscard]] std::vector<float> initial() const { return random_values(shape.elements().value(), 1); }
  [[nodiscard]] OptimizerTile tile(const std::vector<float>& gradient) {
    return {.state = HostSpan(std::span(state)),
            .gradient = ConstHostSpan(std::span(gradient)),
            .parameter = HostSpan(std::span(parameter)),
            .elements = ElementCount(count),
            .gradient_dtype = DType::fp32,
            .parameter_dtype = DType::fp32,
            .format = format,
            .optimizer = Optimizer::muon};
  }
  [[nodiscard]] HostSpan scratch() {
    auto* const bytes = reinterpret_cast<std::byte*>(memory.data());
    const std::size_t skipped = (64 - reinterpret_cast<std::uintptr_t>(bytes) % 64) % 64;
    return {bytes + skipped, muon_scratch_bytes(shape)};
  }
  [[nodiscard]] std::vector<float> read(StateKind kind) {
    std::vector<float> values(count);
    EXPECT_TRUE(read_states(tile({}), kind, {}, values));
    return values;
  }

  MatrixShape shape;
  StateFormat format;
  std::size_t count;
  std::vector<float> state, parameter, memory;
};

constexpr MuonConfig config{.learning_rate = 0.5f, .momentum = 0.9f, .weight_decay = 0.25f};

std::vector<float> padded(std::vector<float> gradient, std::size_t count) {
  gradient.resize(count);
  return gradient;
}

TEST(MuonStep, IsTheFormulaForMatricesOfEveryShape) {
  for (const MatrixShape shape :
       {MatrixShape{37, 53}, {53, 37}, {1, 300}, {300, 1}, {129, 129}, {300, 130}, {130, 400}}) {
    for (const StateFormat format : {StateFormat::fp32, StateFormat::moments}) {
      SCOPED_TRACE(std::to_string(shape.rows) + " x " + std::to_string(shape.columns));
      MatrixTile matrix(shape, format, 128);
      test::MuonReference reference(shape, matrix.initial());
      for (std::uint64_t step = 1; step <= 3; ++step) {
        const auto gradient = random_values(shape.elements().value(), 10 + step);
        reference.step(config, gradient, 2.0);

        const auto outcome = muon_step(config, shape, 2.0f, matrix.tile(padded(gradient, matrix.count)),
                                       matrix.scratch(), product());

        ASSERT_TRUE(outcome) << outcome.error().message();
        EXPECT_EQ(outcome->blocks_updated, ceil_divide(matrix.count, block_elements.value()));
        EXPECT_FALSE(outcome->first_non_finite_block);
      }
      const auto masters = matrix.read(StateKind::master), momentum = matrix.read(StateKind::first_moment);
      for (std::size_t i = 0; i < reference.master.size(); ++i) {
        ASSERT_NEAR(momentum[i], reference.momentum[i], 1e-5) << i;
        ASSERT_NEAR(masters[i], reference.master[i], 5e-4) << i;
      }
      for (std::size_t i = reference.master.size(); i < matrix.count; ++i) ASSERT_EQ(masters[i], 0.0f);
      EXPECT_EQ(matrix.parameter, masters);
    }
  }
}

TEST(MuonStep, GivesTheSameBitsOnAnyNumberOfWorkers) {
  constexpr MatrixShape shape{600, 400};
  const auto after = [&](parallel::Workers* workers) {
    MatrixTile matrix(shape, StateFormat::fp32);
    const auto gradient = random_values(matrix.count, 3);
    EXPECT_TRUE(muon_step(config, shape, 1, matrix.tile(gradient), matrix.scratch(), product(),
                          {.workers = workers}));
    return matrix.read(StateKind::master);
  };
  const auto alone = after(nullptr);
  for (const std::uint32_t threads : {1u, 2u, 3u, 8u}) {
    auto workers = parallel::Workers::create({.threads = threads}).value();
    EXPECT_EQ(after(&workers), alone) << threads << " threads";
  }
}

TEST(MuonStep, LeavesAMatrixWithoutGradientButForItsDecay) {
  constexpr MatrixShape shape{10, 20};
  MatrixTile matrix(shape, StateFormat::fp32);
  ASSERT_TRUE(muon_step(config, shape, 1, matrix.tile(std::vector<float>(200)), matrix.scratch(), product()));
  const auto initial = matrix.initial(), masters = matrix.read(StateKind::master);
  for (std::size_t i = 0; i < 200; ++i) ASSERT_EQ(masters[i], (1 - 0.5f * 0.25f) * initial[i]);
}

TEST(MuonStep, TakesATileOfPaddingAlone) {
  MatrixTile matrix({}, StateFormat::fp32, 256);
  const auto outcome =
      muon_step(config, {}, 1, matrix.tile(std::vector<float>(256)), matrix.scratch(), product());
  ASSERT_TRUE(outcome) << outcome.error().message();
  EXPECT_EQ(outcome->blocks_updated, 1u);
}

/// The calls in their order: the number of a block, negative after its update.
class Recorder final : public BlockObserver {
 public:
  bool before_update(std::size_t block, ConstHostSpan) noexcept override {
    calls.push_back(static_cast<int>(block) + 1);
    return block != rejected;
  }
  void after_update(std::size_t block, ConstHostSpan) noexcept override {
    calls.push_back(-static_cast<int>(block) - 1);
  }
  std::vector<int> calls;
  std::size_t rejected = std::numeric_limits<std::size_t>::max();
};

TEST(MuonStep, PassesEachBlockToTheObserverBeforeAndAfter) {
  constexpr MatrixShape shape{200, 200};  // three blocks
  MatrixTile matrix(shape, StateFormat::fp32);
  const auto gradient = random_values(matrix.count, 3);
  Recorder recorder;
  ASSERT_TRUE(muon_step(config, shape, 1, matrix.tile(gradient), matrix.scratch(), product(),
                        {.observer = &recorder}));
  EXPECT_EQ(recorder.calls, (std::vector<int>{1, 2, 3, -1, -2, -3}));

  Recorder rejecting;
  rejecting.rejected = 1;
  const auto masters = matrix.read(StateKind::master);
  const auto outcome = muon_step(config, shape, 1, matrix.tile(gradient), matrix.scratch(), product(),
                                 {.observer = &rejecting});
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->first_rejected_block, 1u);
  EXPECT_EQ(rejecting.calls, (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(matrix.read(StateKind::master), masters);
}

TEST(MuonStep, ReportsAMatrixThatBecomesNonFinite) {
  constexpr MatrixShape shape{4, 4};
  MatrixTile matrix(shape, StateFormat::fp32);
  auto gradient = random_values(16, 3);
  gradient[5] = std::numeric_limits<float>::infinity();
  const auto outcome = muon_step(config, shape, 1, matrix.tile(gradient), matrix.scratch(), product());
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->first_non_finite_block, 0u);
}

TEST(MuonStep, RefusesWhatDoesNotFitAndChangesNothing) {
  constexpr MatrixShape shape{8, 16};
  MatrixTile matrix(shape, StateFormat::fp32);
  const auto gradient = random_values(128, 3);
  const auto masters = matrix.read(StateKind::master);
  const auto refusal = [&](const MuonConfig& of, MatrixShape as, OptimizerTile tile, HostSpan scratch,
                           float factor = 1) {
    const auto outcome = muon_step(of, as, factor, tile, scratch, product());
    EXPECT_FALSE(outcome);
    EXPECT_EQ(matrix.read(StateKind::master), masters);
    return outcome ? std::string() : outcome.error().message();
  };
  const auto expect = [](const std::string& message, const char* object) {
    EXPECT_NE(message.find(object), std::string::npos) << message;
  };
  const OptimizerTile tile = matrix.tile(gradient);
  const HostSpan scratch = matrix.scratch();
  expect(refusal(config, {8, 17}, tile, scratch), "elements");
  expect(refusal(config, {std::uint64_t{1} << 31, 1}, tile, scratch), "shape");
  expect(refusal(config, shape, tile, scratch.subspan({}, scratch.size() - 4_B)), "scratch");
  expect(refusal(config, shape, tile, scratch.subspan(4_B, scratch.size() - 4_B)), "scratch");
  expect(refusal({.momentum = 1}, shape, tile, scratch), "momentum");
  expect(refusal({.learning_rate = -1}, shape, tile, scratch), "learning_rate");
  expect(refusal({.weight_decay = NAN}, shape, tile, scratch), "weight_decay");
  expect(refusal(config, shape, tile, scratch, NAN), "gradient_factor");
  OptimizerTile adam = tile;
  adam.optimizer = Optimizer::adam;
  expect(refusal(config, shape, adam, scratch), "optimizer");
  EXPECT_FALSE(optimizer_step(AdamConfig{}, 1, 1, tile));
  OptimizerTile narrow = MatrixTile(shape, StateFormat::moments).tile(gradient);
  narrow.parameter_dtype = DType::bf16;
  narrow.parameter = narrow.parameter.subspan({}, 256_B);
  expect(refusal(config, shape, narrow, scratch), "parameter_dtype");
}

TEST(MatrixProduct, IsRefusedByNameWithoutALibrary) {
  const auto missing = MatrixProduct::load("/no/libblas.so");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), ErrorCode::unsupported);
  for (const char* const part : {"/no/libblas.so", "PENSTOCK_BLAS", "cannot be loaded"}) {
    EXPECT_NE(missing.error().message().find(part), std::string::npos) << missing.error().message();
  }
  const auto other = MatrixProduct::load("libm.so.6");
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().message().find("cblas_sgemm"), std::string::npos) << other.error().message();
}

TEST(MatrixProduct, IsRefusedWhereItCouldNotStartItsThreads) {
  if (penstock::test::any_sanitizer) GTEST_SKIP() << "a sanitizer needs more address space";
  // Whether it is refused for its threads.
  const auto is_refused = [](rlim_t address_space, const char* threads) {
    return penstock::test::in_child([&] {
      const rlimit limit{address_space, address_space};
      if (::setenv("OPENBLAS_NUM_THREADS", threads, 1) != 0 || ::setrlimit(RLIMIT_AS, &limit) != 0) return 2;
      const auto product = MatrixProduct::load("libopenblas.so.0");
      return !product && product.error().message().find("RLIMIT_AS") != std::string::npos ? 1 : 0;
    });
  };
  constexpr rlim_t mib = 1 << 20;
  EXPECT_EQ(is_refused(256 * mib, ""), 1);
  EXPECT_EQ(is_refused(256 * mib, "1000"), 1);
  EXPECT_EQ(is_refused(512 * mib, "1"), 0);
  EXPECT_EQ(is_refused(64 * 1024 * mib, ""), 0);
}

}  // namespace
}  // namespace penstock::cpu_adam
