// One step of an optimizer through the C interface.
#include "c_handles.hpp"
#include "c_tile_values.hpp"

#include <penstock/penstock.h>
#include <penstock/cpu_adam/adam.hpp>
#include <penstock/cpu_adam/square_sum.hpp>

#include <gtest/gtest.h>
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock {
namespace {

using test::expect;
using test::made;
using test::Owned;
using test::succeed;
using Workers = Owned<penstock_workers, penstock_workers_free>;

/// The same bits as the C++ function, for each format and optimizer.
TEST(CTile, IsUpdatedAsInCpp) {
  constexpr std::uint64_t count = 40'000;
  const std::vector<float> initial = test::tile_masters(count);
  const std::vector<std::uint16_t> gradient = test::tile_gradient(count);
  const auto workers = made<Workers>([](auto to) { return penstock_workers_create(2, to); });
  for (std::int32_t format = PENSTOCK_STATE_FP32; format <= PENSTOCK_STATE_MOMENTS_BF16; ++format) {
    SCOPED_TRACE(format);
    std::uint64_t bytes = 0;
    succeed(penstock_tile_state_bytes(format, PENSTOCK_ADAM, count, &bytes));
    std::vector<std::uint64_t> c_state(bytes / 8 + 1), cpp_state(bytes / 8 + 1);
    std::vector<std::uint16_t> c_parameter(count), cpp_parameter(count);
    const penstock_tile tile{.size = sizeof(tile),
                             .state = c_state.data(),
                             .gradient = gradient.data(),
                             .parameter = c_parameter.data(),
                             .elements = count,
                             .gradient_dtype = PENSTOCK_BF16,
                             .parameter_dtype = PENSTOCK_BF16,
                             .format = format,
                             .first_element = 5};
    const cpu_adam::AdamTile expected{
        .state = HostSpan(reinterpret_cast<std::byte*>(cpp_state.data()), ByteCount(bytes)),
        .gradient = ConstHostSpan(std::span(std::as_const(gradient))),
        .parameter = HostSpan(std::span(cpp_parameter)),
        .elements = ElementCount(count),
        .format = static_cast<cpu_adam::StateFormat>(format),
        .first_element = 5};
    succeed(penstock_tile_initialize(&tile, initial.data(), PENSTOCK_FP32, nullptr));
    cpu_adam::initialize_tile(ConstHostSpan(std::span(std::as_const(initial))), DType::fp32, expected)
        .value();
    for (std::uint64_t step = 1; step <= 3; ++step) {
      succeed(penstock_tile_step(&tile, &test::tile_hyperparameters, step, 0.5f, workers.get(), nullptr));
      (void)cpu_adam::adam_step(
          {.learning_rate = 0.01f, .beta1 = 0.8f, .beta2 = 0.99f, .epsilon = 1e-6f, .weight_decay = 0.1f},
          step, 0.5f, expected)
          .value();
    }
    EXPECT_TRUE(c_state == cpp_state);
    EXPECT_TRUE(c_parameter == cpp_parameter);

    std::array<std::vector<float>, 3> states;
    for (std::int32_t kind = PENSTOCK_MASTER; kind <= PENSTOCK_SECOND_MOMENT; ++kind) {
      states[static_cast<std::size_t>(kind)].resize(count);
      succeed(penstock_tile_read(&tile, kind, 0, count, states[static_cast<std::size_t>(kind)].data()));
    }
    std::fill(c_state.begin(), c_state.end(), 0);
    succeed(
        penstock_tile_restore(&tile, states[0].data(), states[1].data(), states[2].data(), workers.get()));
    EXPECT_TRUE(c_parameter == cpp_parameter);
    if (format != PENSTOCK_STATE_SPLIT_Q8) {
      EXPECT_TRUE(c_state == cpp_state);
    }
  }
}

TEST(CAdam, HasTheBitsOfTheCppLibraryOnArraysOfItsOwn) {
  constexpr std::size_t count = 20'000;
  std::array<std::vector<float>, 4> of_c, of_cpp;
  for (std::size_t i = 0; i < 4; ++i) {
    for (std::size_t j = 0; j < count; ++j)
      of_c[i].push_back(0.001f * static_cast<float>((j * (i + 3)) % 97));
    of_cpp[i] = of_c[i];
  }
  const penstock_adam_arrays arrays{.size = sizeof(arrays),
                                    .parameter = of_c[0].data(),
                                    .gradient = of_c[1].data(),
                                    .first_moment = of_c[2].data(),
                                    .second_moment = of_c[3].data(),
                                    .elements = count};
  const penstock_hyperparameters hyperparameters{.size = sizeof(hyperparameters),
                                                 .learning_rate = 0.01f,
                                                 .beta1 = 0.9f,
                                                 .beta2 = 0.99f,
                                                 .epsilon = 1e-8f,
                                                 .weight_decay = 0.1f,
                                                 .bias_correction = 1};
  penstock_update_outcome outcome{.size = sizeof(outcome)};
  succeed(penstock_adam_step(&arrays, &hyperparameters, 3, 0.5f, nullptr, &outcome));
  (void)cpu_adam::adam_step_in_arrays({.learning_rate = 0.01f,
                                       .beta1 = 0.9f,
                                       .beta2 = 0.99f,
                                       .weight_decay = 0.1f,
                                       .decay_mode = cpu_adam::AdamDecay::l2},
                                      3, 0.5f,
                                      {.parameter = HostSpan(std::span(of_cpp[0])),
                                       .gradient = HostSpan(std::span(of_cpp[1])),
                                       .first_moment = HostSpan(std::span(of_cpp[2])),
                                       .second_moment = HostSpan(std::span(of_cpp[3]))})
      .value();
  EXPECT_EQ(of_c, of_cpp);
  EXPECT_EQ(outcome.non_finite_element, -1);
  penstock_adam_arrays bad = arrays;
  bad.second_moment = nullptr;
  expect(penstock_adam_step(&bad, &hyperparameters, 3, 1, nullptr, nullptr), PENSTOCK_INVALID_ARGUMENT,
         "second_moment");
  bad = arrays;
  bad.moment_dtype = 7;
  expect(penstock_adam_step(&bad, &hyperparameters, 3, 1, nullptr, nullptr), PENSTOCK_INVALID_ARGUMENT,
         "moment_dtype");
}

TEST(CSquareSum, IsThatOfTheCppLibrary) {
  std::vector<float> gradient(20'000);
  for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = static_cast<float>(i % 97);
  const double expected = cpu_adam::square_sum(ConstHostSpan(std::span(gradient)), DType::fp32).value();
  double sum = 0;
  succeed(penstock_square_sum(gradient.data(), PENSTOCK_FP32, gradient.size(), nullptr, &sum));
  EXPECT_EQ(sum, expected);
  succeed(penstock_square_sum(nullptr, PENSTOCK_FP32, 0, nullptr, &sum));
  EXPECT_EQ(sum, 0);
  expect(penstock_square_sum(gradient.data(), 7, 1, nullptr, &sum), PENSTOCK_INVALID_ARGUMENT, "dtype");
}

TEST(CTile, NamesTheMemberThatIsWrong) {
  std::vector<std::uint64_t> state(1000);
  std::vector<float> parameter(100), gradient(100);
  const penstock_tile good{.size = sizeof(good),
                           .state = state.data(),
                           .gradient = gradient.data(),
                           .parameter = parameter.data(),
                           .elements = 100};
  const penstock_hyperparameters hyperparameters{
      .size = sizeof(hyperparameters), .learning_rate = 1, .beta1 = 0.9f};
  succeed(penstock_tile_step(&good, &hyperparameters, 1, 1, nullptr, nullptr));
  penstock_tile without_gradient = good;
  without_gradient.gradient = nullptr;
  expect(penstock_tile_step(&without_gradient, &hyperparameters, 1, 1, nullptr, nullptr),
         PENSTOCK_INVALID_ARGUMENT, "gradient");
  penstock_tile misaligned = good;
  misaligned.state = reinterpret_cast<std::byte*>(state.data()) + 1;
  expect(penstock_tile_step(&misaligned, &hyperparameters, 1, 1, nullptr, nullptr), PENSTOCK_INVALID_ARGUMENT,
         "state");
  penstock_tile huge = good;
  huge.elements = ~std::uint64_t{0};
  expect(penstock_tile_step(&huge, &hyperparameters, 1, 1, nullptr, nullptr), PENSTOCK_INVALID_ARGUMENT, "");
  expect(penstock_tile_step(&good, &hyperparameters, 0, 1, nullptr, nullptr), PENSTOCK_INVALID_ARGUMENT,
         "step");
  penstock_hyperparameters wrong = hyperparameters;
  wrong.beta1 = 1;
  expect(penstock_tile_step(&good, &wrong, 1, 1, nullptr, nullptr), PENSTOCK_INVALID_ARGUMENT, "beta1");
  std::vector<float> values(100);
  expect(penstock_tile_read(&good, PENSTOCK_MASTER, 1, 100, values.data()), PENSTOCK_INVALID_ARGUMENT, "");
  expect(penstock_tile_restore(&good, nullptr, values.data(), values.data(), nullptr),
         PENSTOCK_INVALID_ARGUMENT, "master");
  penstock_tile lion = good;
  lion.optimizer = PENSTOCK_LION;
  lion.format = PENSTOCK_STATE_SPLIT_Q8;
  expect(penstock_tile_step(&lion, &hyperparameters, 1, 1, nullptr, nullptr), PENSTOCK_UNSUPPORTED, "lion");
  penstock_workers* workers = nullptr;
  for (const std::uint32_t threads : {0u, 5000u})
    expect(penstock_workers_create(threads, &workers), PENSTOCK_INVALID_ARGUMENT, "threads");
}

}  // namespace
}  // namespace penstock
