#include "search.hpp"

#include "measure/statistics.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <cstdio>

namespace penstock::tool {

using measure::median;
using swap::BenchmarkPattern;
using swap::DiskBenchmark;

namespace {

// Both sizes hold the longest queue twice. The larger is preferred: a drive's cache holds a smaller part of it.
constexpr ByteCount file_sizes[] = {256_MiB, 160_MiB};
constexpr std::size_t finalists = 5;
// The end of each phase as a fraction of the total time.
constexpr double files_written = 0.35, all_measured = 0.55, best_measured = 0.9, all_done = 1;
// Reads and writes are measured so often, and in runs of so many seconds, even when the time is over: a single short
// run after a disturbance has been 30 times too slow.
constexpr std::size_t direction_rounds_min = 3;
constexpr double direction_slice_min = 0.1;

/// Settings that suit most disks come first, because there may not be time for all.
std::vector<Candidate> candidates() {
  std::vector<Candidate> all;
  for (const ByteCount in_flight : {16_MiB, 32_MiB, 64_MiB, 8_MiB}) {
    for (const ByteCount request_size : {4_MiB, 1_MiB, 2_MiB, 8_MiB}) {
      if (request_size < in_flight) all.push_back({request_size, in_flight, {}});
    }
  }
  return all;
}

class Search {
 public:
  Search(const std::vector<std::filesystem::path>& directories, double seconds, TimePoint io_deadline)
      : directories_(directories),
        seconds_(seconds),
        io_deadline_(io_deadline),
        began_(Clock::steady().now()) {}

  Result<Tuned> run() {
    PENSTOCK_TRY(examine_directories());
    PENSTOCK_TRY(write_files());
    PENSTOCK_TRY(measure_all());
    PENSTOCK_TRY(measure_best());
    PENSTOCK_TRY(measure_directions());
    return std::move(tuned_);
  }

 private:
  /// One candidate, its files, and the rates of each path in each round.
  struct Entry {
    Candidate candidate;
    std::unique_ptr<DiskBenchmark> load;
    std::vector<std::vector<double>> path_rates{};
    double relative_rate = 0;  // relative rate in the first phase
  };

  [[nodiscard]] double elapsed() const {
    return std::chrono::duration<double>(Clock::steady().now() - began_).count();
  }
  [[nodiscard]] bool time_until(double share) const { return elapsed() < seconds_ * share; }
  /// The length of each of `count` runs that must end by `share` of the time. Many short runs are better than few long
  /// ones, because disturbances of a disk are short. Runs that are too short measure how the queue fills and empties.
  [[nodiscard]] double slice_of(double share, std::size_t count) const {
    return std::clamp((seconds_ * share - elapsed()) / static_cast<double>(count), 0.02, 0.15);
  }
  void progress(const std::string& doing) const {
    fmt::print(stderr, "{:3.0f} of {:.0f} s: {}\n", elapsed(), seconds_, doing);
  }

  Result<void> examine_directories() {
    for (const std::filesystem::path& directory : directories_) {
      PENSTOCK_TRY_ASSIGN(auto device, measure::describe_storage(directory, io_deadline_));
      if (device.cached_because) {
        return Error::unsupported("tune")
            .reason("the page cache is not bypassed here, so the result would not measure a disk: " +
                    *device.cached_because)
            .object(directory.string())
            .advice("name a directory on ext4 or xfs on the drive itself");
      }
      tuned_.devices.push_back(std::move(device));
    }
    return ok();
  }

  Result<ByteCount> file_size(std::size_t files) const {
    Result<void> room;
    for (const ByteCount size : file_sizes) {
      room = measure::check_free_space(directories_, size * files, io_deadline_);
      if (room) return size;
    }
    return Error(room.error()).advice("free space, or name directories on a drive that has some");
  }

  Result<void> write_files() {
    const std::vector<Candidate> all = candidates();
    PENSTOCK_TRY_ASSIGN(const auto size, file_size(all.size()));
    for (const Candidate& candidate : all) {
      if (!entries_.empty() && !time_until(files_written)) break;
      progress(
          fmt::format("writing files of {}, {} of {}", to_string(size), entries_.size() + 1, all.size()));
      DiskBenchmark::Options options;
      for (const std::filesystem::path& directory : directories_) {
        options.paths.push_back({.directory = directory,
                                 .capacity = size,
                                 .request_max = candidate.request_size,
                                 .in_flight_max = candidate.in_flight,
                                 .deadline = io_deadline_});
      }
      PENSTOCK_TRY_ASSIGN(auto load, DiskBenchmark::create(std::move(options)));
      entries_.push_back({.candidate = candidate, .load = std::move(load)});
    }
    tuned_.left_out = all.size() - entries_.size();
    const swap::PathReport path = entries_.front().load->paths().front();
    tuned_.engine = path.engine;
    tuned_.notes = path.notes;
    return ok();
  }

  /// Runs `pattern` and records the result as another round of the entry.
  Result<void> measure(Entry& entry, BenchmarkPattern pattern, double duration) {
    PENSTOCK_TRY_ASSIGN(const auto sample,
                        entry.load->run(pattern, std::chrono::duration_cast<TimePoint>(
                                                     std::chrono::duration<double>(duration))));
    entry.candidate.rates.push_back(sample.bytes_per_second());
    const double seconds = std::chrono::duration<double>(sample.elapsed).count();
    std::vector<double>& rates = entry.path_rates.emplace_back();
    for (const ByteCount bytes : sample.bytes) rates.push_back(static_cast<double>(bytes.value()) / seconds);
    return ok();
  }

  /// Runs rounds over the first `count` entries, in rotating order, until `share` of the time is over. An incomplete
  /// round is dropped unless it is the first. Returns how many entries the first round measured.
  Result<std::size_t> rounds(std::size_t count, double share) {
    for (Entry& entry : entries_) entry.candidate.rates.clear(), entry.path_rates.clear();
    const double slice = slice_of(share, 5 * count);
    std::size_t finished = 0;
    for (; finished == 0 || time_until(share); ++finished) {
      std::size_t reached = 0;
      for (; reached < count && (reached == 0 || time_until(share)); ++reached) {
        PENSTOCK_TRY(measure(entries_[(reached + finished) % count], BenchmarkPattern::mixed, slice));
      }
      if (reached < count && finished == 0) return reached;
      if (reached < count) break;
    }
    for (std::size_t i = 0; i < count; ++i) {
      entries_[i].candidate.rates.resize(finished);
      entries_[i].path_rates.resize(finished);
    }
    return count;
  }

  Result<void> measure_all() {
    progress(fmt::format("measuring {} settings", entries_.size()));
    PENSTOCK_TRY_ASSIGN(const auto reached, rounds(entries_.size(), all_measured));
    tuned_.left_out += entries_.size() - reached;
    entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(reached), entries_.end());
    sort_by_standing();
    for (const Entry& entry : entries_) tuned_.tried.push_back({.at_first = entry.candidate, .at_last = {}});
    return ok();
  }

  void sort_by_standing() {
    std::vector<Candidate> measured;
    for (const Entry& entry : entries_) measured.push_back(entry.candidate);
    const std::vector<double> all = median_relative_rates(measured);
    for (std::size_t i = 0; i < entries_.size(); ++i) entries_[i].relative_rate = all[i];
    std::stable_sort(entries_.begin(), entries_.end(),
                     [](const Entry& a, const Entry& b) { return a.relative_rate > b.relative_rate; });
  }

  Result<void> measure_best() {
    const std::size_t count = std::min(finalists, entries_.size());
    progress(fmt::format("measuring the best {} again", count));
    PENSTOCK_TRY_ASSIGN(const auto reached, rounds(count, best_measured));
    std::vector<Candidate> measured;
    for (std::size_t i = 0; i < reached; ++i) {
      tuned_.tried[i].at_last = entries_[i].candidate;
      measured.push_back(entries_[i].candidate);
    }
    tuned_.choice = choose(measured);
    const Entry& chosen = entries_[tuned_.choice.index];
    for (std::size_t path = 0; path < directories_.size(); ++path) {
      std::vector<double> rates;
      for (const std::vector<double>& round : chosen.path_rates) rates.push_back(round[path]);
      tuned_.path_rates.push_back(median(rates));
    }
    return ok();
  }

  Result<void> measure_directions() {
    progress("measuring reads and writes of the chosen setting");
    Entry& chosen = entries_[tuned_.choice.index];
    const double slice = std::max(slice_of(all_done, 10), direction_slice_min);
    while (tuned_.read.size() < direction_rounds_min || time_until(all_done)) {
      PENSTOCK_TRY(measure(chosen, BenchmarkPattern::read, slice));
      tuned_.read.push_back(chosen.candidate.rates.back());
      PENSTOCK_TRY(measure(chosen, BenchmarkPattern::write, slice));
      tuned_.write.push_back(chosen.candidate.rates.back());
    }
    return ok();
  }

  const std::vector<std::filesystem::path>& directories_;
  double seconds_;
  TimePoint io_deadline_, began_;
  std::vector<Entry> entries_;
  Tuned tuned_;
};

}  // namespace

Result<Tuned> tune(const std::vector<std::filesystem::path>& directories, double seconds,
                   TimePoint io_deadline) {
  return Search(directories, seconds, io_deadline).run();
}

}  // namespace penstock::tool
