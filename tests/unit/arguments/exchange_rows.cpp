#include "kit/safetensors_bytes.hpp"
#include "kit/scratch_directory.hpp"
#include "unit/arguments/bad_arguments.hpp"

#include <penstock/zero/exchange/safetensors_weights.hpp>
#include <penstock/zero/rank.hpp>

#include <vector>

namespace penstock::test {
namespace {

using namespace zero;

ModelLayout model_of_elements(std::uint64_t count) {
  return {.units = {{.name = "u", .parameters = {{"w", ElementCount(count)}}}}};
}

/// Weights of model_of_elements(8), which are 1.
struct WeightsBench {
  ScratchDirectory scratch;
  std::filesystem::path path = write_file(scratch.path() / "model.safetensors",
                                          safetensors_bytes({{"u.w", {8}, "F32"}}) + std::string(32, '\0'));
  [[nodiscard]] Result<SafetensorsWeights> open() const {
    return SafetensorsWeights::open(model_of_elements(8), {.path = path});
  }
};

}  // namespace

void add_exchange_rows(BadArguments& bad) {
  for (const char* path : {"", "/penstock-none", "/dev/null", "/"}) {
    bad("SafetensorsWeights::open", "options.path", path,
        [=] { return fails(SafetensorsWeights::open(model_of_elements(8), {.path = path})); });
  }
  for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{7}, std::uint64_t{9}, most}) {
    bad("SafetensorsWeights::open", "model", std::to_string(count) + " elements", [=] {
      const WeightsBench b;
      return refused(SafetensorsWeights::open(model_of_elements(count), {.path = b.path}), "w");
    });
  }
  bad("SafetensorsWeights::open", "model", "none", [] {
    const WeightsBench b;
    return refused(SafetensorsWeights::open({}, {.path = b.path}), "");
  });
  bad("SafetensorsWeights::open", "options.name", "another", [] {
    const WeightsBench b;
    const auto name = [](ParameterId) { return std::string("\x1b[31m"); };
    return refused(SafetensorsWeights::open(model_of_elements(8), {.path = b.path, .name = name}), "",
                   ErrorCode::not_found);
  });
  for (const auto& [unit, first, count] : std::vector<std::tuple<std::uint32_t, std::uint64_t, std::size_t>>{
           {0, 0, 9}, {0, 8, 1}, {0, most, 1}, {0, most, 0}, {1, 0, 1}, {~0u, 0, 1}}) {
    bad("SafetensorsWeights::read", "parameter, first and values",
        std::to_string(unit) + ", " + std::to_string(first) + " and " + std::to_string(count),
        [unit = unit, first = first, count = count] {
          const WeightsBench b;
          std::vector<float> values(count);
          return refused(b.open().value().read({unit, 0}, first, values), "");
        });
  }
  bad("SafetensorsWeights::initialize", "engine", "of another model", [] {
    const WeightsBench b;
    auto weights = b.open().value();
    const auto rank = Rank::create({.model = model_of_elements(16)}).value();
    return refused(weights.initialize(rank->engine()), "");
  });
}

}  // namespace penstock::test
