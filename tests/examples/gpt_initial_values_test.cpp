#include "gpt/initial_values.hpp"

#include <gtest/gtest.h>
#include <vector>

namespace gpt {
namespace {

TEST(InitialValues, AreThoseOfTheModelForAnyRangeAndAnyNumberOfWorkers) {
  const ModelDescription model(ModelConfig{.layers = 1, .width = 64, .heads = 2, .context = 8});
  const ParameterId id{1, 2};  // a matrix
  const std::uint64_t all = model.parameter(id).count.value();
  for (const std::uint32_t threads : {1u, 2u}) {
    auto workers = penstock::parallel::Workers::create({.threads = threads}).value();
    for (const auto& [first, count] :
         {std::pair<std::uint64_t, std::uint64_t>{0, all}, {5, 10000}, {7, 1}, {3, 0}}) {
      std::vector<float> wanted(count), got(count);
      model.initial_values(id, first, wanted);

      initial_values(model, id, first, got, workers);

      EXPECT_EQ(got, wanted) << threads << " threads, " << count << " from " << first;
    }
  }
}

}  // namespace
}  // namespace gpt
