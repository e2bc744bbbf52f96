#pragma once

#include "disk_beside_update.hpp"
#include "measure/storage_device.hpp"
#include "options.hpp"
#include "sample.hpp"
#include "tile_update.hpp"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace penstock::bench {

/// One setting of Penstock or one variant of fio, measured at one operation.
struct Contestant {
  std::string name;  ///< "penstock io_uring 4 MiB x 4 + Adam", "fio libaio 1 MiB x 32"
  std::string engine;
  ByteCount request_size, in_flight;
  std::size_t setting = 0;  ///< index in Options::settings; not used for fio
  bool is_fio = false;
  TileWork work;
  std::function<Result<Sample>(double seconds)> run;
};

/// The contestants of one operation, and their samples of each round.
struct Event {
  swap::BenchmarkPattern operation;
  std::vector<Contestant> contestants;
  std::vector<std::vector<Sample>> samples;  ///< by contestant, then round
};

/// The disk benchmarks and the events that use them. Every Penstock contestant has its own files, kept as long as
/// the contest, because creating and removing files disturbs the disk. fio uses the files of the first contestant.
///
/// Owned by one thread. create() and measure() block.
class Contest {
 public:
  /// Errors: no_space; unsupported, when a directory does not bypass the page cache and --allow-page-cache is not
  /// given, and when no variant of fio runs; those of describe_storage, tile_bytes, Workers::create,
  /// TileUpdate::create and DiskBenchmark::create.
  [[nodiscard]] static Result<std::unique_ptr<Contest>> create(const Options& options);

  /// Runs every contestant of every event, round by round. The first one rotates, so that drift of the disk affects
  /// all alike. Progress goes to standard error.
  [[nodiscard]] Result<void> measure();

  [[nodiscard]] const Options& options() const { return options_; }
  [[nodiscard]] const std::vector<Event>& events() const { return events_; }
  [[nodiscard]] const std::vector<std::unique_ptr<swap::DiskBenchmark>>& loads() const { return loads_; }
  /// False when a directory does not bypass the page cache, so that the figures do not measure a disk.
  [[nodiscard]] bool direct() const;
  /// Of the directories, as they were at the start.
  [[nodiscard]] const std::vector<measure::StorageDevice>& devices() const { return devices_; }
  /// Reasons to read the figures with care, one a line.
  [[nodiscard]] std::vector<std::string> caveats() const;
  /// Bytes of a tile, padded for direct I/O.
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
  Result<void> add_calibration(Contestant& contestant, const TileUpdate& update,
                               const swap::DiskBenchmark& load);
  Result<void> add_fio(Event& event);

  Options options_;
  ByteCount tile_size_;
  std::vector<measure::StorageDevice> devices_;
  std::vector<std::string> notes_;
  std::unique_ptr<parallel::Workers> workers_;
  std::vector<std::unique_ptr<TileUpdate>> updates_;  // outlive the loads
  std::vector<std::unique_ptr<DiskBesideUpdate>> beside_;
  std::vector<std::unique_ptr<swap::DiskBenchmark>> loads_;
  std::vector<std::unique_ptr<SwapFileBenchmark>> files_;  // those of loads
  std::vector<Event> events_;
};

}  // namespace penstock::bench
