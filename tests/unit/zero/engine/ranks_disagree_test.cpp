// Ranks whose trainers call differently: every rank gets an error that names the difference, and no weight changes.
#include <penstock/zero/comm/in_process_group.hpp>
#include <penstock/zero/rank.hpp>

#include <gtest/gtest.h>
#include <algorithm>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace penstock::zero {
namespace {

constexpr std::uint32_t ranks = 2;

/// Four units of equal size.
ModelLayout equal_units() {
  ModelLayout model;
  for (const char* name : {"first", "second", "third", "fourth"}) {
    model.units.push_back({.name = name, .parameters = {{"weight", ElementCount(1024), 0}}});
  }
  return model;
}

/// What one rank's trainer does.
using Trainer = std::function<Result<void>(std::uint32_t rank, Engine& engine, tiers::Stream& stream)>;
using Configure = std::function<void(std::uint32_t rank, Rank::Options& options)>;

/// Runs `trainer` on every rank, in a thread each, and returns their errors; empty for none.
std::vector<std::string> run(const Trainer& trainer, const Configure& configure = {}) {
  auto group = InProcessGroup::create(ranks).value();
  std::vector<std::string> errors(ranks);
  std::vector<std::thread> threads;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      Rank::Options options{.config = {}, .model = equal_units()};
      options.identity = RankIdentity::local(r, ranks);
      options.group = in_process_membership(group, r);
      if (configure) configure(r, options);
      auto rank = Rank::create(std::move(options)).value();
      rank->engine()
          .initialize([](ParameterId, std::uint64_t, std::span<float> values) {
            std::fill(values.begin(), values.end(), 1.0f);
          })
          .value();
      auto stream = rank->device().create_stream().value();
      const auto outcome = trainer(r, rank->engine(), *stream);
      if (!outcome) errors[r] = outcome.error().message();
      stream->synchronize().value();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

Result<void> reduce_zeros(Engine& engine, tiers::Stream& stream, std::uint32_t unit) {
  PENSTOCK_TRY_ASSIGN(auto weights, engine.acquire(unit, stream));
  PENSTOCK_TRY_ASSIGN(auto gradients, engine.gradients(unit, stream));
  for (const GradientSlot& slot : gradients.slots()) {
    const DeviceSpan bytes = slot.tensor.bytes;
    stream.handle().host_queue()->enqueue([bytes] {
      auto* const first = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(bytes.address()));
      std::fill(first, first + bytes.size().value(), std::byte(0));
    });
  }
  weights.end();
  return engine.reduce(std::move(gradients), stream);
}

Result<void> whole_step(Engine& engine, tiers::Stream& stream, const Engine::StepOptions& options) {
  PENSTOCK_TRY(engine.begin_step(options));
  for (std::uint32_t micro = 0; micro < options.micro_batches.value_or(1); ++micro) {
    for (std::uint32_t unit = 4; unit-- > 0;) {
      const auto& without = options.units_without_gradient;
      if (std::find(without.begin(), without.end(), unit) != without.end()) continue;
      PENSTOCK_TRY(reduce_zeros(engine, stream, unit));
    }
  }
  PENSTOCK_TRY(engine.step());
  return ok();
}

/// Every rank has an error, and together they contain each of `texts`.
void expect_named(const std::vector<std::string>& errors, const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& error : errors) {
    EXPECT_NE(error, "");
    all += error;
  }
  for (const std::string& text : texts) EXPECT_NE(all.find(text), std::string::npos) << text << " in " << all;
}

// A second rank with the place of the first is refused, which is a mistake of its caller alone.
TEST(InProcessGroup, GoesOnWhereASecondRankIsGivenUp) {
  std::vector<GroupMembership> memberships(ranks);
  const auto errors = run(
      [&](std::uint32_t rank, Engine& engine, tiers::Stream& stream) -> Result<void> {
        memberships[rank].abandon(Error(ErrorCode::in_use, "of a directory that the first one has"));
        return whole_step(engine, stream, {});
      },
      [&](std::uint32_t rank, Rank::Options& options) { memberships[rank] = options.group; });
  EXPECT_EQ(errors, std::vector<std::string>(ranks));
}

TEST(RanksDisagree, OnTheUnitThatTheyAcquire) {
  const auto errors = run([](std::uint32_t rank, Engine& engine, tiers::Stream& stream) -> Result<void> {
    PENSTOCK_TRY(engine.begin_step({}));
    for (std::uint32_t i = 0; i < 4; ++i) {
      PENSTOCK_TRY_ASSIGN(const auto weights, engine.acquire((rank + i) % 4, stream));
    }
    return ok();
  });

  expect_named(errors, {"all-gather", "parameters of unit 0", "parameters of unit 1",
                        "flats   first, on rank 0", "flats   second, on rank 1"});
}

/// A step that reduces the last two units first, perhaps one before the other.
Result<void> reduce_in_order(Engine& engine, tiers::Stream& stream, bool swapped) {
  PENSTOCK_TRY(engine.begin_step({}));
  std::vector<UnitGradients> gradients;
  for (const std::uint32_t unit : {3u, 2u}) {
    PENSTOCK_TRY_ASSIGN(auto of_unit, engine.gradients(unit, stream));
    gradients.push_back(std::move(of_unit));
  }
  if (swapped) std::swap(gradients[0], gradients[1]);
  for (UnitGradients& of_unit : gradients) PENSTOCK_TRY(engine.reduce(std::move(of_unit), stream));
  for (const std::uint32_t unit : {1u, 0u}) PENSTOCK_TRY(reduce_zeros(engine, stream, unit));
  PENSTOCK_TRY(engine.step());
  return ok();
}

/// Compares no signatures, as NCCL.
class UncheckedCommunicator final : public Communicator {
 public:
  explicit UncheckedCommunicator(std::unique_ptr<Communicator> of) : of_(std::move(of)) {}
  std::uint32_t rank() const override { return of_->rank(); }
  std::uint32_t size() const override { return of_->size(); }
  bool supports(Reduction reduction) const override { return of_->supports(reduction); }
  void set_wake(std::function<void()> wake) override { of_->set_wake(std::move(wake)); }
  Result<void> start_all_gather(tiers::Stream& stream, DeviceSpan flat, const CollectiveSignature&) override {
    return of_->start_all_gather(stream, flat, {});
  }
  Result<void> start_reduce_scatter(tiers::Stream& stream, std::span<const DeviceTensor> flats,
                                    Reduction reduction, const CollectiveSignature&) override {
    return of_->start_reduce_scatter(stream, flats, reduction, {});
  }
  Result<void> start_exchange(ConstHostSpan mine, HostSpan all, const CollectiveSignature&) override {
    return of_->start_exchange(mine, all, {});
  }
  Result<bool> poll() override { return of_->poll(); }
  void abort(const Error& error) noexcept override { of_->abort(error); }
  void interrupt(const Error& cause) noexcept override { of_->interrupt(cause); }
  Result<void> start_recovery(tiers::Stream& stream) override { return of_->start_recovery(stream); }
  void retire(tiers::Stream& stream) noexcept override { of_->retire(stream); }

 private:
  std::unique_ptr<Communicator> of_;
};

TEST(RanksDisagree, OnTheOrderOfCollectivesThatTheTransportDoesNotCompare) {
  const auto unchecked = [](std::uint32_t, Rank::Options& options) {
    options.group.join = [join = options.group.join](
                             tiers::Device& device, Compute& compute,
                             const CollectiveNeeds& needs) -> Result<std::unique_ptr<Communicator>> {
      PENSTOCK_TRY_ASSIGN(auto communicator, join(device, compute, needs));
      return std::make_unique<UncheckedCommunicator>(std::move(communicator));
    };
  };
  for (const bool same : {true, false}) {
    const auto errors = run(
        [same](std::uint32_t rank, Engine& engine, tiers::Stream& stream) -> Result<void> {
          PENSTOCK_TRY(whole_step(engine, stream, {}));
          return reduce_in_order(engine, stream, /*swapped=*/!same && rank == 1);
        },
        unchecked);
    if (same) {
      for (const std::string& error : errors) EXPECT_EQ(error, "");
    } else {
      expect_named(errors, {"the order of their collectives", "ranks 0 and 1"});
    }
  }
}

TEST(RanksDisagree, OnTheOrderInWhichTheyReduce) {
  const auto errors = run([](std::uint32_t rank, Engine& engine, tiers::Stream& stream) {
    return reduce_in_order(engine, stream, /*swapped=*/rank == 1);
  });

  expect_named(errors, {"reduce-scatter", "gradients of unit 3", "gradients of unit 2"});
}

TEST(RanksDisagree, OnGradientsOfEqualSizeThatTheyReduceTogether) {
  const auto reduce = [](std::uint32_t rank, Engine& engine, tiers::Stream& stream) -> Result<void> {
    PENSTOCK_TRY(engine.begin_step({}));
    const std::vector<std::uint32_t> units = {3, 1 + rank, 2 - rank, 0};
    for (const std::uint32_t unit : units) {
      PENSTOCK_TRY_ASSIGN(auto gradients, engine.gradients(unit, stream));
      PENSTOCK_TRY(engine.reduce(std::move(gradients), stream));
    }
    PENSTOCK_TRY(engine.step());
    return ok();
  };
  const auto with_room = [](std::uint32_t, Rank::Options& options) {
    options.config.penstock.device_budget = 1_MiB;
  };

  expect_named(run(reduce, with_room), {"reduce-scatter of 4 flats", "gradients of unit 3",
                                        "flats   fourth, second, third, first, on rank 0",
                                        "flats   fourth, third, second, first, on rank 1"});
}

TEST(RanksDisagree, OnTheLearningRate) {
  const auto errors = run([](std::uint32_t rank, Engine& engine, tiers::Stream& stream) {
    return whole_step(engine, stream, {.learning_rate = rank == 0 ? 0.5f : 0.25f});
  });

  expect_named(errors, {"learning_rate", "0.5", "0.25", "rank 1"});
}

TEST(RanksDisagree, OnWhatTheyDoWithGradientsThatAreNotFinite) {
  const auto errors =
      run([](std::uint32_t, Engine& engine, tiers::Stream& stream) { return whole_step(engine, stream, {}); },
          [](std::uint32_t rank, Rank::Options& options) {
            options.config.penstock.non_finite_gradients =
                rank == 0 ? NonFiniteGradients::skip : NonFiniteGradients::as_deepspeed;
          });

  expect_named(errors, {"penstock.non_finite_gradients", "ranks 0 and 1"});
}

TEST(RanksDisagree, OnTheNumberOfMicroBatches) {
  const auto errors = run([](std::uint32_t rank, Engine& engine, tiers::Stream& stream) {
    return whole_step(engine, stream, {.micro_batches = 1 + rank});
  });

  expect_named(errors, {"gradient norm of step 1"});
}

TEST(RanksDisagree, OnTheUnitsWithoutGradient) {
  const auto errors = run([](std::uint32_t rank, Engine& engine, tiers::Stream& stream) {
    return whole_step(engine, stream, {.units_without_gradient = {rank}});
  });

  expect_named(errors, {"of unit 1", "of unit 0"});
}

// Its only parameter is that of the first unit, so that both ranks reduce the same flats.
TEST(RanksDisagree, OnWhetherAUnitThatOwnsNoParameterHasAGradient) {
  const auto errors = run(
      [](std::uint32_t rank, Engine& engine, tiers::Stream& stream) {
        return whole_step(engine, stream, {.units_without_gradient = {2 + rank}});
      },
      [](std::uint32_t, Rank::Options& options) {
        for (const std::uint32_t unit : {2u, 3u})
          options.model.units[unit] = {.name = "", .shared = {{0, 0}}};
      });

  expect_named(errors, {"StepOptions::units_without_gradient"});
}

TEST(RanksDisagree, OnTheConfigurationAndOnTheGroups) {
  const Trainer trainer = [](std::uint32_t, Engine& engine, tiers::Stream& stream) {
    return whole_step(engine, stream, {});
  };

  expect_named(run(trainer,
                   [](std::uint32_t rank, Rank::Options& options) {
                     if (rank == 1) options.config.optimizer.betas[1] = 0.95f;
                   }),
               {"optimizer.params.betas[1]", "0.95"});
  expect_named(run(trainer,
                   [](std::uint32_t rank, Rank::Options& options) {
                     if (rank == 1) options.model.groups[0].weight_decay = 0;
                   }),
               {"optimizer groups"});
  expect_named(run(trainer,
                   [](std::uint32_t rank, Rank::Options& options) {
                     options.config.gradient_clipping = 0;
                     options.config.penstock.update_in_backward = rank == 1;
                   }),
               {"penstock.update_in_backward", "wanted 0, as rank 0", "got 1 on rank 1"});
}

TEST(RanksDisagree, OnTheDataTypeOfAccumulatedGradients) {
  const auto errors =
      run([](std::uint32_t, Engine& engine, tiers::Stream& stream) { return whole_step(engine, stream, {}); },
          [](std::uint32_t rank, Rank::Options& options) {
            options.config.dtype = DType::bf16;
            options.config.grad_accum_dtype = rank == 0 ? DType::bf16 : DType::fp32;
          });

  expect_named(errors, {"data_types.grad_accum_dtype"});
}

// Each of these leaves the sizes of all collectives as they are.
TEST(RanksDisagree, OnTheModelLayout) {
  using Change = void (*)(ModelLayout&);
  const std::vector<Change> changes = {
      [](ModelLayout& model) { std::swap(model.units[0].parameters[0], model.units[0].parameters[1]); },
      [](ModelLayout& model) { std::swap(model.units[2], model.units[3]); },
      [](ModelLayout& model) { model.units[3].parameters[0].name = "other"; },
      [](ModelLayout& model) { model.units[3].parameters[0].count = ElementCount(1023); },
      [](ModelLayout& model) {
        ParameterLayout& parameter = model.units[3].parameters[0];
        parameter.shape = {2, parameter.count.value() / 2};
      },
  };
  for (std::size_t change = 0; change < changes.size(); ++change) {
    SCOPED_TRACE(change);
    const auto errors = run(
        [](std::uint32_t, Engine& engine, tiers::Stream& stream) -> Result<void> {
          PENSTOCK_TRY(engine.begin_step({}));
          for (std::uint32_t unit = 4; unit-- > 0;) PENSTOCK_TRY(reduce_zeros(engine, stream, unit));
          PENSTOCK_TRY(engine.step());
          return ok();
        },
        [&](std::uint32_t rank, Rank::Options& options) {
          auto& units = options.model.units;
          units[0].parameters = {{"weight", ElementCount(1024), 0}, {"bias", ElementCount(3), 0}};
          units[3].parameters[0].name = "last";
          units[1].shared = {{0, 0}};
          if (rank == 1) changes[change](options.model);
        });

    expect_named(errors,
                 {"the model layout", "ranks 0 and 1",
                  "compare the ModelLayout of the ranks: order of units and parameters, names, counts, "
                  "shapes, groups and shared parameters"});
  }
}

TEST(RanksDisagree, OnTheSizesOrTheDataTypeOfCollectives) {
  const Trainer trainer = [](std::uint32_t, Engine& engine, tiers::Stream& stream) {
    return whole_step(engine, stream, {});
  };
  const std::string advice = "the same ModelLayout and data types";
  const auto is_of = [&](DType dtype) {
    return run(trainer, [=](std::uint32_t rank, Rank::Options& options) {
      options.config.dtype = options.config.grad_accum_dtype = rank == 0 ? DType::bf16 : dtype;
    });
  };

  expect_named(
      run(trainer,
          [](std::uint32_t rank, Rank::Options& options) {
            if (rank == 1) options.model.units[3].parameters[0].count = ElementCount(2048);
          }),
      {"all-gather of 4.0 KiB, parameters of unit 3", "all-gather of 8.0 KiB, parameters of unit 3", advice});
  expect_named(is_of(DType::fp32), {"all-gather of 2.0 KiB", "all-gather of 4.0 KiB", advice});
  expect_named(is_of(DType::fp16),
               {"reduce-scatter of 2.0 KiB of bf16", "reduce-scatter of 2.0 KiB of fp16", advice});
}

// A refused call starts no collective. With room, gradients wait until several can be reduced together.
TEST(RanksDisagree, NotWhenOneOfThemCallsStepTooEarly) {
  const auto errors = run(
      [](std::uint32_t rank, Engine& engine, tiers::Stream& stream) -> Result<void> {
        PENSTOCK_TRY(engine.begin_step({}));
        for (const std::uint32_t unit : {3u, 2u, 1u, 0u}) {
          PENSTOCK_TRY(reduce_zeros(engine, stream, unit));
          EXPECT_FALSE(rank == 0 && unit == 2 && engine.step());
        }
        {
          PENSTOCK_TRY_ASSIGN(const auto weights, engine.acquire(0, stream));
          EXPECT_FALSE(rank == 0 && engine.step());
        }
        PENSTOCK_TRY(engine.step());
        return ok();
      },
      [](std::uint32_t, Rank::Options& options) { options.config.penstock.device_budget = 1_MiB; });

  EXPECT_EQ(errors, std::vector<std::string>(ranks));
}

TEST(RanksDisagree, NotWhenTheyCallAlike) {
  const auto errors = run([](std::uint32_t, Engine& engine, tiers::Stream& stream) -> Result<void> {
    for (int i = 0; i < 3; ++i)
      PENSTOCK_TRY(whole_step(engine, stream, {.micro_batches = 2, .learning_rate = 0.5f}));
    return ok();
  });

  EXPECT_EQ(errors, std::vector<std::string>(ranks));
}

}  // namespace
}  // namespace penstock::zero
