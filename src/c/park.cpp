#include "c/engine.hpp"

#include <penstock/c/park.h>

#include <filesystem>

namespace {

using namespace penstock;

static_assert(PENSTOCK_TIER_NVME == static_cast<int>(tiers::Tier::nvme));
static_assert(PENSTOCK_PARK_ALL == static_cast<int>(zero::ParkKinds::all));

Result<void> check(const char* function, const penstock_park_report* report) {
  return report == nullptr ? ok() : c::check_written_struct(function, "report", report);
}

void write(zero::ParkReport from, penstock_park_report* to, penstock_lines** notes) {
  if (to != nullptr) {
    penstock_park_report report{};
    for (std::size_t tier = 0; tier < from.tiers.size(); ++tier) {
      report.given_back[tier] = from.tiers[tier].given_back.value();
      report.taken[tier] = from.tiers[tier].taken.value();
    }
    c::write_struct(to, report);
  }
  if (notes == nullptr) return;
  penstock_lines lines{std::move(from.stays)};
  lines.lines.insert(lines.lines.end(), from.notes.begin(), from.notes.end());
  c::give(notes, std::move(lines));
}

}  // namespace

penstock_error* penstock_engine_park(penstock_engine* engine, penstock_tier to, std::uint32_t kinds,
                                     const char* const* directories, std::size_t directory_count,
                                     penstock_park_report* report, penstock_lines** notes) {
  const char* const function = __func__;
  return c::call(function, {{"engine", engine}}, [&]() -> Result<void> {
    PENSTOCK_TRY(check(function, report));
    PENSTOCK_TRY_ASSIGN(const auto tier,
                        c::enumerator<tiers::Tier>(function, "to", to, PENSTOCK_TIER_NVME + 1));
    if ((kinds & ~std::uint32_t{PENSTOCK_PARK_ALL}) != 0) {
      return Error::invalid_argument(function)
          .object("kinds")
          .wanted("the sum of some PENSTOCK_PARK_...")
          .got(kinds);
    }
    std::vector<std::filesystem::path> named;
    PENSTOCK_TRY(c::check_count(function, "directory_count", directory_count));
    if (directory_count > 0) PENSTOCK_TRY(c::check_not_null(function, {{"directories", directories}}));
    for (std::size_t i = 0; i < directory_count; ++i) {
      PENSTOCK_TRY(c::check_not_null(function, {{"directories", directories[i]}}));
      named.emplace_back(directories[i]);
    }
    PENSTOCK_TRY_ASSIGN(auto parked, engine->engine().park(tier, static_cast<zero::ParkKinds>(kinds), named));
    write(std::move(parked), report, notes);
    return ok();
  });
}

penstock_error* penstock_engine_unpark(penstock_engine* engine, penstock_park_report* report,
                                       penstock_lines** notes) {
  const char* const function = __func__;
  return c::call(function, {{"engine", engine}}, [&]() -> Result<void> {
    PENSTOCK_TRY(check(function, report));
    PENSTOCK_TRY_ASSIGN(auto unparked, engine->engine().unpark());
    write(std::move(unparked), report, notes);
    return ok();
  });
}

std::uint32_t penstock_engine_parked(const penstock_engine* engine) {
  return engine == nullptr ? 0 : static_cast<std::uint32_t>(engine->engine().parked());
}

penstock_error* penstock_engine_limit_memory(penstock_engine* engine, std::uint64_t most,
                                             std::uint64_t* used) {
  return c::call(__func__, {{"engine", engine}}, [&]() -> Result<void> {
    PENSTOCK_TRY_ASSIGN(const ByteCount bytes, engine->job->rank->runtime().limit_memory(ByteCount(most)));
    if (used != nullptr) *used = bytes.value();
    return ok();
  });
}

penstock_error* penstock_engine_memory_least(const penstock_engine* engine, std::uint64_t* bytes) {
  return c::call(__func__, {{"engine", engine}, {"bytes", bytes}}, [&]() -> Result<void> {
    *bytes = engine->job->rank->runtime().memory_least().value();
    return ok();
  });
}
