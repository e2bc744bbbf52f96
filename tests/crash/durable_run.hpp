#pragma once

#include "kit/cluster.hpp"
#include "kit/scratch_directory.hpp"
#include "kit/trainer.hpp"

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace penstock::zero::test {

inline constexpr std::uint32_t ranks = 2, steps = 3;

struct Offload {
  const char* name;
  std::uint32_t stage;
  OffloadDevice optimizer, parameters;
  cpu_adam::StateFormat format;
  Commits commits = Commits::at_once;
  std::size_t directories = 1;  ///< in which the run commits, named in another order by each process
};

inline constexpr Offload offloads[] = {
    {"AllOnDisk", 3, OffloadDevice::nvme, OffloadDevice::nvme, cpu_adam::StateFormat::fp32},
    {"SplitStatesOnDisk", 3, OffloadDevice::nvme, OffloadDevice::cpu, cpu_adam::StateFormat::split,
     Commits::behind},
    {"CompressedStatesOnDisk", 2, OffloadDevice::nvme, OffloadDevice::none, cpu_adam::StateFormat::split_q8},
    {"AllInMemory", 3, OffloadDevice::cpu, OffloadDevice::cpu, cpu_adam::StateFormat::split_bf16,
     Commits::behind},
    {"TwoDrives", 3, OffloadDevice::nvme, OffloadDevice::cpu, cpu_adam::StateFormat::split, Commits::at_once,
     2},
};

/// Where a process is killed: at a call of the file system that its ranks share, or at a request of an I/O engine.
struct KillPoint {
  std::optional<std::uint32_t> rank;  ///< of a request; none: a call
  std::size_t engine = 0;             ///< a rank has one for each swap file, and for each file of copies
  std::uint64_t number = 0;
};

struct Harm {
  std::optional<KillPoint> kill = {};
  bool stops_after_commit = false;
};

/// What a process that has ended by itself says.
struct Report {
  std::string digest;
  std::uint64_t resumed_step = 0;  ///< 0: it began
  std::uint64_t calls = 0;
  std::array<std::vector<std::uint64_t>, ranks> requests = {};  ///< by engine
};

/// A directory of a run, and the processes that train there one after the other.
class DurableRun {
 public:
  /// `durable`: the directory in which it commits; empty: a temporary one.
  explicit DurableRun(const Offload& offload, std::filesystem::path durable = {});

  /// A process that trains to the end unless it is killed. Returns the signal that ended it, or 0.
  int start(const std::optional<KillPoint>& kill);
  /// What such a process does. Returns its exit status.
  int train_here(const Harm& harm) const;

  /// Of a process that has ended with status 1.
  [[nodiscard]] std::string error() const;
  [[nodiscard]] Report report() const;
  /// The last step whose commit() has returned on any rank.
  [[nodiscard]] std::uint64_t committed_step() const;
  /// Goes on to the end after what the processes before have come to, and expects the digest, and no commit lost.
  void expect_continued(const std::string& digest);

 private:
  /// In another order than the process before.
  [[nodiscard]] std::vector<std::filesystem::path> durable_directories() const;

  const Offload& offload_;
  penstock::test::ScratchDirectory directory_;
  const std::filesystem::path durable_;
  std::size_t processes_ = 0;
};

/// Of a run that is not durable, in a process of its own: this one starts no threads, so that it can fork.
[[nodiscard]] std::string digest_without_commits(const Offload& offload);

}  // namespace penstock::zero::test
