#pragma once

#include "kit/scratch_directory.hpp"

#include <penstock/zero/rank.hpp>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace penstock::zero::test {

/// A rank whose states are on disk.
inline Rank::Options options(const penstock::test::ScratchDirectory& scratch) {
  Rank::Options options;
  for (const char* name : {"first", "second"})
    options.model.units.push_back({.name = name, .parameters = {{"weight", ElementCount(40'000), 0}}});
  std::filesystem::create_directory(scratch.path() / "swap");
  options.config.offload_optimizer = {.device = OffloadDevice::nvme, .nvme_paths = {scratch.path() / "swap"}};
  options.config.penstock.tile_elements = ElementCount(16'384);
  options.config.penstock.path_weights = {1};
  return options;
}

inline std::unique_ptr<Rank> initialized(Rank::Options options) {
  auto rank = Rank::create(std::move(options)).value();
  rank->engine().initialize([](ParameterId, std::uint64_t, std::span<float>) {}).value();
  return rank;
}

inline Result<StepOutcome> step(Rank& rank, std::uint32_t micro_batches = 1) {
  Engine& engine = rank.engine();
  PENSTOCK_TRY_ASSIGN(auto stream, rank.device().create_stream());
  PENSTOCK_TRY(engine.begin_step({.micro_batches = micro_batches}));
  const auto units = static_cast<std::uint32_t>(rank.model().units.size());
  for (std::uint32_t i = 0; i < micro_batches; ++i) {
    for (std::uint32_t unit = 0; unit < units; ++unit) engine.acquire(unit, *stream).value().end();
    for (std::uint32_t unit = units; unit-- > 0;) {
      PENSTOCK_TRY_ASSIGN(auto gradients, engine.gradients(unit, *stream));
      for (const GradientSlot& slot : gradients.slots())
        PENSTOCK_TRY(rank.device().fill_zero(stream->handle(), slot.tensor.bytes));
      PENSTOCK_TRY(engine.reduce(std::move(gradients), *stream));
    }
  }
  return engine.step();
}

inline std::string contents(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

}  // namespace penstock::zero::test
