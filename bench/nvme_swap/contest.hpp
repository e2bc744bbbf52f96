#pragma once

#include "options.hpp"
#include "sample.hpp"
#include "tile_update.hpp"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace penstock::bench {

/// Who takes part in an operation, and how.
struct Contestant {
  std::string name;  ///< "penstock io_uring 4 MiB x 4 + Adam", "fio libaio 1 MiB x 32"
  std::string engine;
  ByteCount request_size, in_flight;
  std::size_t setting = 0;  ///< which of Options::settings
  bool is_fio = false;
  Hands hands;
  std::function<Result<Sample>(double seconds)> run;
};

/// The contestants of one operation, and what each did in each round.
struct Event {
  swap::BenchmarkPattern operation;
  std::vector<Contestant> contestants;
  std::vector<std::vector<Sample>> samples;  ///< by contestant, then round
};

/// The loads and the events over them. Every contestant of ours has files of its own, which live as long as
/// the contest, since making and removing them disturbs the disk; fio works on those of the first one.
///
/// Owned by one thread. create() and measure() block.
class Contest {
 public:
  /// Errors: no_space; unsupported, when a directory does not bypass the page cache and that is not allowed,
  /// for a state format that cannot be computed yet, and where no variant of fio runs; those of
  /// DiskBenchmark::create.
  [[nodiscard]] static Result<std::unique_ptr<Contest>> create(const Options& options);

  /// Every contestant of every event, round by round; who goes first rotates, so that drift of the disk
  /// favours nobody. Progress goes to standard error.
  [[nodiscard]] Result<void> measure();

  [[nodiscard]] const Options& options() const { return options_; }
  [[nodiscard]] const std::vector<Event>& events() const { return events_; }
  [[nodiscard]] const std::vector<std::unique_ptr<swap::DiskBenchmark>>& loads() const { return loads_; }
  /// False when a directory's page cache answers, so that no figure is a disk's.
  [[nodiscard]] bool direct() const { return cached_because_.empty(); }
  /// What is to be kept in mind of the figures: a line each.
  [[nodiscard]] std::vector<std::string> caveats() const;
  /// Bytes of a tile as it is moved.
  [[nodiscard]] ByteCount tile_size() const { return tile_size_; }

 private:
  explicit Contest(Options options) : options_(std::move(options)) {}
  Result<void> look_at_directories();
  [[nodiscard]] bool wanted(swap::BenchmarkPattern pattern) const;
  Result<void> prepare_swap();
  [[nodiscard]] Result<void> check_room() const;
  Result<void> make_events();
  Result<swap::DiskBenchmark*> make_load(const Setting& setting, ByteCount transfer, TileUpdate* update);
  Result<void> add_swap(Event& event, std::size_t setting);
  Result<void> add_fio(Event& event);

  Options options_;
  ByteCount tile_size_;
  std::vector<std::string> cached_because_, notes_;
  std::unique_ptr<parallel::Workers> workers_;
  std::vector<std::unique_ptr<TileUpdate>> updates_;  // outlive the loads
  std::vector<std::unique_ptr<swap::DiskBenchmark>> loads_;
  std::vector<Event> events_;
};

}  // namespace penstock::bench
