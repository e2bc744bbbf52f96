#include "contest.hpp"

#include "fio.hpp"

#include <fmt/format.h>
#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <cstdio>

namespace penstock::bench {

using swap::BenchmarkPattern;
using swap::DiskBenchmark;

namespace {

Sample to_sample(const swap::BenchmarkSample& load) {
  const auto seconds = [](TimePoint time) { return std::chrono::duration<double>(time).count(); };
  const auto percentile = [&](double fraction) {
    return seconds(load.moved.latency.percentile(fraction)) * 1e6;
  };
  const double gigabytes = static_cast<double>(load.total().value()) * 1e-9;
  return {.gb_per_second = load.bytes_per_second() * 1e-9,
          .cpu_s_per_gb = seconds(load.process_cpu) / gigabytes,
          .driver_s_per_gb = seconds(load.driver_cpu) / gigabytes,
          .p50_us = percentile(0.5),
          .p99_us = percentile(0.99),
          .p999_us = percentile(0.999),
          .requests = load.moved.requests};
}

Contestant ours(DiskBenchmark& load, const Setting& setting, std::size_t index, BenchmarkPattern pattern) {
  const std::string engine = load.paths().front().engine;
  return {.name = fmt::format("penstock {} {} x {}", engine, to_string(setting.request_size),
                              ceil_divide(setting.in_flight.value(), setting.request_size.value())),
          .engine = engine,
          .request_size = setting.request_size,
          .in_flight = setting.in_flight,
          .setting = index,
          .run = [&load, pattern](double seconds) -> Result<Sample> {
            const std::chrono::duration<double> duration(seconds);
            PENSTOCK_TRY_ASSIGN(const auto sample,
                                load.run(pattern, std::chrono::duration_cast<TimePoint>(duration)));
            return to_sample(sample);
          }};
}

/// Our files have no name; fio opens them through this process's /proc/PID/fd.
std::vector<std::string> file_names(const DiskBenchmark& load) {
  std::vector<std::string> names;
  for (const swap::PathReport& path : load.paths()) {
    names.push_back(fmt::format("/proc/{}/fd/{}", ::getpid(), static_cast<int>(path.file.handle)));
  }
  return names;
}

const char* fio_word(BenchmarkPattern pattern) {
  switch (pattern) {
    case BenchmarkPattern::read: return "read";
    case BenchmarkPattern::write: return "write";
    case BenchmarkPattern::mixed:
    case BenchmarkPattern::swap: break;
  }
  return "rw";
}

}  // namespace

Result<std::unique_ptr<Contest>> Contest::create(const Options& options) {
  std::unique_ptr<Contest> contest(new Contest(options));
  PENSTOCK_TRY(contest->look_at_directories());
  PENSTOCK_TRY(contest->prepare_swap());
  PENSTOCK_TRY(contest->check_room());
  PENSTOCK_TRY(contest->make_events());
  return contest;
}

Result<void> Contest::look_at_directories() {
  for (const std::filesystem::path& directory : options_.directories) {
    PENSTOCK_TRY_ASSIGN(auto device, measure::describe_storage(directory, options_.io_deadline));
    if (device.cached_because && !options_.allow_page_cache) {
      return Error::unsupported("nvme_swap")
          .reason("the page cache is not bypassed here, so no figure would measure a disk: " +
                  *device.cached_because)
          .object(directory.string())
          .advice(
              "name a directory on ext4 or xfs on the drive itself, or measure the page cache with "
              "--allow-page-cache");
    }
    devices_.push_back(std::move(device));
  }
  return ok();
}

bool Contest::direct() const {
  return std::none_of(devices_.begin(), devices_.end(),
                      [](const auto& device) { return device.cached_because.has_value(); });
}

bool Contest::wanted(BenchmarkPattern pattern) const {
  return std::find(options_.operations.begin(), options_.operations.end(), pattern) !=
         options_.operations.end();
}

Result<void> Contest::prepare_swap() {
  if (!wanted(BenchmarkPattern::swap)) return ok();
  PENSTOCK_TRY_ASSIGN(const auto tile,
                      cpu_adam::tile_bytes(options_.swap.format, options_.swap.tile_elements));
  tile_size_ = round_up(tile, Alignment(4096));
  PENSTOCK_TRY_ASSIGN(auto workers, parallel::Workers::create({.threads = options_.swap.threads}));
  workers_ = std::make_unique<parallel::Workers>(std::move(workers));
  return ok();
}

Result<void> Contest::check_room() const {
  // Read, write and mixed share one file.
  const std::size_t of_each = 1 + (wanted(BenchmarkPattern::swap) ? options_.swap.work.size() : 0);
  const std::size_t files = options_.settings.size() * of_each;
  const auto room =
      measure::check_free_space(options_.directories, options_.file_size * files, options_.io_deadline);
  if (room) return ok();
  return Error(room.error())
      .note(fmt::format("files of {}, {} in each directory: one for each Penstock contestant",
                        to_string(options_.file_size), files))
      .advice("shorten --file-size, or the lists of --engine, --request-size and --in-flight");
}

Result<void> Contest::make_events() {
  std::vector<DiskBenchmark*> plain;
  for (const Setting& setting : options_.settings) {
    PENSTOCK_TRY_ASSIGN(auto load, make_load(setting, ByteCount(), nullptr));
    plain.push_back(load);
  }
  for (const BenchmarkPattern operation : options_.operations) {
    Event& event = events_.emplace_back(Event{.operation = operation});
    for (std::size_t i = 0; i < options_.settings.size(); ++i) {
      if (operation == BenchmarkPattern::swap) {
        PENSTOCK_TRY(add_swap(event, i));
      } else {
        event.contestants.push_back(ours(*plain[i], options_.settings[i], i, operation));
      }
    }
    if (options_.fio && operation != BenchmarkPattern::swap) PENSTOCK_TRY(add_fio(event));
    event.samples.resize(event.contestants.size());
  }
  return ok();
}

Result<DiskBenchmark*> Contest::make_load(const Setting& setting, ByteCount transfer, TileUpdate* update) {
  std::fprintf(stderr, "writing file %zu of each directory\n", loads_.size() + 1);
  DiskBenchmark::Options options{.transfer = transfer};
  for (const std::filesystem::path& directory : options_.directories) {
    options.paths.push_back({.directory = directory,
                             .capacity = options_.file_size,
                             .request_max = setting.request_size,
                             .in_flight_max = setting.in_flight,
                             .deadline = options_.io_deadline,
                             .engine = setting.engine});
  }
  if (update != nullptr) {
    options.initial = [update](const DiskBenchmark::Piece& piece) { return update->initialize(piece); };
    options.between = [update](const DiskBenchmark::Piece& piece) { return update->update(piece); };
  }
  PENSTOCK_TRY_ASSIGN(auto load, DiskBenchmark::create(std::move(options)));
  return loads_.emplace_back(std::move(load)).get();
}

Result<void> Contest::add_swap(Event& event, std::size_t setting) {
  for (const TileWork& work : options_.swap.work) {
    TileUpdate* update = nullptr;
    if (work.compute) {
      PENSTOCK_TRY_ASSIGN(auto created, TileUpdate::create({.format = options_.swap.format,
                                                            .elements = options_.swap.tile_elements,
                                                            .integrity = work.integrity,
                                                            .workers = workers_.get()}));
      update = updates_.emplace_back(std::move(created)).get();
    }
    PENSTOCK_TRY_ASSIGN(auto load, make_load(options_.settings[setting], tile_size_, update));
    Contestant contestant = ours(*load, options_.settings[setting], setting, BenchmarkPattern::swap);
    contestant.work = work;
    contestant.name += work.compute ? " + Adam" : "";
    contestant.name += work.integrity ? " + checksums" : "";
    if (update != nullptr) PENSTOCK_TRY(add_calibration(contestant, *update, *load));
    event.contestants.push_back(std::move(contestant));
  }
  return ok();
}

/// Its samples get the time of an update and, where the swap is simulated, the rates of its file beside updates, which
/// are measured after each run.
Result<void> Contest::add_calibration(Contestant& contestant, const TileUpdate& update,
                                      const DiskBenchmark& load) {
  DiskBesideUpdate* beside = nullptr;
  SwapFileBenchmark* file = nullptr;
  const bool all = wanted(BenchmarkPattern::read) && wanted(BenchmarkPattern::write);
  if (all && devices_.size() == 1) {
    PENSTOCK_TRY_ASSIGN(auto created, DiskBesideUpdate::create({.format = options_.swap.format,
                                                                .elements = options_.swap.tile_elements,
                                                                .integrity = contestant.work.integrity,
                                                                .workers = workers_.get()},
                                                               tile_size_));
    beside = beside_.emplace_back(std::move(created)).get();
    PENSTOCK_TRY_ASSIGN(auto opened, SwapFileBenchmark::create(load.paths().front(), options_.io_deadline));
    file = files_.emplace_back(std::move(opened)).get();
  }
  contestant.run = [run = contestant.run, &update, beside, file](double seconds) -> Result<Sample> {
    const TileUpdate::Total before = update.total();
    PENSTOCK_TRY_ASSIGN(Sample sample, run(seconds));
    const TileUpdate::Total after = update.total();
    if (after.tiles == before.tiles) return sample;
    const double updated = after.seconds - before.seconds;
    sample.update_s = updated / static_cast<double>(after.tiles - before.tiles);
    if (beside == nullptr) return sample;
    const std::chrono::duration<double> duration(seconds / 2);
    PENSTOCK_TRY_ASSIGN(sample.disk, beside->measure(*file, std::min(1.0, updated / seconds),
                                                     std::chrono::duration_cast<TimePoint>(duration)));
    return sample;
  };
  return ok();
}

/// A variant that does not run here, such as io_uring in a container that filters it, is left out with a note.
Result<void> Contest::add_fio(Event& event) {
  PENSTOCK_TRY(fio_version());
  const DiskBenchmark& load = *loads_.front();
  const ByteCount size = load.paths().front().capacity;
  const char* operation = fio_word(event.operation);
  Result<void> outcome = Error::unsupported("nvme_swap").reason("none of fio's engines runs here");
  for (const FioVariant& variant : fio_variants()) {
    const auto run = [variant, operation, size, files = file_names(load), direct = direct()](double seconds) {
      return run_fio(variant, operation, files, size, direct, seconds);
    };
    if (auto tried = run(0.05); !tried) {
      notes_.push_back(
          fmt::format("{}, {}: left out because of: {}", variant.name(), operation, tried.error().message()));
      outcome = outcome ? outcome : Result<void>(tried.error());
      continue;
    }
    outcome = ok();
    event.contestants.push_back({.name = variant.name(),
                                 .engine = variant.engine,
                                 .request_size = variant.request_size,
                                 .in_flight = variant.request_size * variant.depth,
                                 .is_fio = true,
                                 .run = run});
  }
  return outcome;
}

Result<void> Contest::measure() {
  for (std::uint32_t round = 0; round < options_.rounds; ++round) {
    std::fprintf(stderr, "round %u/%u\n", round + 1, options_.rounds);
    for (Event& event : events_) {
      const std::size_t contestants = event.contestants.size();
      for (std::size_t i = 0; i < contestants; ++i) {
        const std::size_t who = (i + static_cast<std::size_t>(round)) % contestants;
        PENSTOCK_TRY_ASSIGN(const auto sample, event.contestants[who].run(options_.seconds));
        event.samples[who].push_back(sample);
      }
    }
  }
  return ok();
}

std::vector<std::string> Contest::caveats() const {
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    const std::string directory = options_.directories[i].string();
    const measure::StorageDevice& device = devices_[i];
    if (device.cached_because) {
      lines.push_back(fmt::format("the figures measure the page cache, not a disk: {}: {}", directory,
                                  *device.cached_because));
    }
    if (device.virtual_because) {
      lines.push_back(fmt::format("{}: {}; its host may cache and throttle, so trust ratios more than rates",
                                  directory, *device.virtual_because));
    }
  }
  lines.insert(lines.end(), notes_.begin(), notes_.end());
  return lines;
}

}  // namespace penstock::bench
