#include "figures.hpp"

#include "swap/simulate/replay.hpp"

#include <algorithm>

namespace penstock::bench {

using measure::median;

namespace {

std::vector<double> each(const std::vector<Sample>& samples, double Sample::*member) {
  std::vector<double> values;
  for (const Sample& sample : samples) values.push_back(sample.*member);
  return values;
}

std::vector<double> rates(const std::vector<Sample>& samples) {
  return each(samples, &Sample::gb_per_second);
}

Figure summarize(const Event& event, std::size_t who) {
  const Contestant& contestant = event.contestants[who];
  const std::vector<Sample>& samples = event.samples[who];
  std::uint64_t requests = 0;
  for (const Sample& sample : samples) requests += sample.requests;
  return {.operation = std::string(to_string(event.operation)),
          .contestant = contestant.name,
          .engine = contestant.engine,
          .request_size = contestant.request_size,
          .in_flight = contestant.in_flight,
          .is_fio = contestant.is_fio,
          .work = contestant.work,
          .gb_per_second = measure::center(rates(samples)),
          .cpu_s_per_gb = median(each(samples, &Sample::cpu_s_per_gb)),
          .driver_s_per_gb = median(each(samples, &Sample::driver_s_per_gb)),
          .p50_us = median(each(samples, &Sample::p50_us)),
          .p99_us = median(each(samples, &Sample::p99_us)),
          .p999_us = median(each(samples, &Sample::p999_us)),
          .requests = requests};
}

/// The samples of the first contestant for which is(contestant) holds.
template <typename Is>
const std::vector<Sample>* find(const Event& event, const Is& is) {
  for (std::size_t who = 0; who < event.contestants.size(); ++who) {
    if (is(event.contestants[who])) return &event.samples[who];
  }
  return nullptr;
}

const std::vector<Sample>* best_of_fio(const Event& event) {
  const std::vector<Sample>* best = nullptr;
  for (std::size_t who = 0; who < event.contestants.size(); ++who) {
    if (!event.contestants[who].is_fio) continue;
    const auto& samples = event.samples[who];
    if (best == nullptr || median(rates(samples)) > median(rates(*best))) best = &samples;
  }
  return best;
}

std::optional<measure::Center> ratio(const std::vector<Sample>& of, const std::vector<Sample>* to) {
  if (to == nullptr) return std::nullopt;
  return measure::center(measure::ratios(rates(of), rates(*to)));
}

/// GB/s of a swap load with `slots` tiles in memory, by the decisions of a runtime.
std::optional<double> simulate_swap(ByteCount tile, std::uint64_t slots, const swap::DiskRates& disk,
                                    double update_s) {
  swap::AccessTrace trace{.label = "swap"};
  const auto tiles = static_cast<std::uint32_t>(4 * slots + 32);
  for (std::uint32_t i = 0; i < tiles; ++i) {
    trace.tensors.push_back({.name = "tile " + std::to_string(i),
                             .size = tile,
                             .purpose = tiers::Purpose::optimizer_tile,
                             .write_behind = true,
                             .retain = false});
    trace.uses.push_back({i, swap::Access::modify});
  }
  swap::ReplayCosts costs{.disks = {{.rates = disk}}};
  costs.use[static_cast<std::size_t>(tiers::Purpose::optimizer_tile)] =
      static_cast<double>(tile.value()) / update_s;
  const auto replay = swap::Replay::create(
      trace,
      {.host_budget = tile * slots, .costs = costs, .dropped_ahead = static_cast<std::uint32_t>(slots)});
  if (!replay || !(*replay)->round()) return std::nullopt;
  const auto round = (*replay)->round();
  return round ? std::optional(static_cast<double>(round->total().value()) / round->seconds / 1e9)
               : std::nullopt;
}

std::optional<measure::Center> compare_simulated(const Contest& contest, const Event& event,
                                                 std::size_t who) {
  const std::uint64_t slots =
      ceil_divide(event.contestants[who].in_flight.value(), contest.tile_size().value()) +
      swap::DiskBenchmark::Options().spare;
  std::vector<double> simulated;
  for (const Sample& sample : event.samples[who]) {
    if (!sample.disk) return std::nullopt;
    const auto rate = simulate_swap(contest.tile_size(), slots, *sample.disk, sample.update_s);
    if (!rate) return std::nullopt;
    simulated.push_back(*rate / sample.gb_per_second);
  }
  return measure::center(simulated);
}

void compare_swap(const Contest& contest, const Event& event, std::size_t who, Figure& figure) {
  const Contestant& contestant = event.contestants[who];
  const double tile = static_cast<double>(contest.tile_size().value());
  const double elements = static_cast<double>(contest.options().swap.tile_elements.value());
  // The bytes of a parameter are read and written: twice the traffic.
  figure.parameters_g_per_second = figure.gb_per_second.median / 2 / tile * elements;
  for (const Event& other : contest.events()) {
    if (other.operation != swap::BenchmarkPattern::mixed) continue;
    figure.to_mixed = ratio(event.samples[who], find(other, [&](const Contestant& one) {
                              return !one.is_fio && one.setting == contestant.setting;
                            }));
  }
  if (contestant.work.compute) figure.simulated = compare_simulated(contest, event, who);
  if (!contestant.work.integrity) return;
  figure.to_unchecked =
      ratio(event.samples[who], find(event, [&](const Contestant& one) {
              return one.setting == contestant.setting && one.work.compute && !one.work.integrity;
            }));
}

}  // namespace

std::vector<Figure> figures(const Contest& contest) {
  std::vector<Figure> all;
  for (const Event& event : contest.events()) {
    const std::vector<Sample>* fio = best_of_fio(event);
    for (std::size_t who = 0; who < event.contestants.size(); ++who) {
      Figure& figure = all.emplace_back(summarize(event, who));
      figure.to_fio = ratio(event.samples[who], fio);
      if (event.operation == swap::BenchmarkPattern::swap) compare_swap(contest, event, who, figure);
    }
  }
  return all;
}

}  // namespace penstock::bench
