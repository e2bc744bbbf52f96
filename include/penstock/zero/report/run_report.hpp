#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/time.hpp>
#include <penstock/base/units.hpp>
#include <penstock/swap/runtime.hpp>
#include <penstock/tiers/tier.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace penstock::zero {

/// What the tensors of one rank have taken and moved so far, beside what was planned. A value; it owns what it has.
///
///     const RunReport report = report_of(rank->runtime(), {.elapsed = now - began});
///     std::fputs(to_text(report).c_str(), stderr);
///     save_report(report, "penstock.prom", ReportFormat::prometheus).value();
struct RunReport {
  struct Memory {
    tiers::Tier tier{};
    tiers::Purpose purpose{};
    ByteCount predicted;  ///< the plan's prediction of `peak`; 0: none
    ByteCount peak;       ///< the most that was held at one time
    ByteCount held;       ///< now
    bool operator==(const Memory&) const = default;
  };
  /// What a step moves between host memory and all drives.
  struct StepTraffic {
    ByteCount read, written;
    bool operator==(const StepTraffic&) const = default;
  };
  struct Traffic {
    tiers::Purpose purpose{};
    ByteCount read;            ///< from the disk
    ByteCount predicted_read;  ///< an upper bound, of the whole run so far
    ByteCount written, predicted_written;
    StepTraffic step, predicted_step;  ///< its part of RunReport::step_traffic and predicted_step_traffic
    bool operator==(const Traffic&) const = default;
  };
  /// What a drive does in a step.
  struct DriveStep {
    ByteCount read, written;
    TimePoint busy{};  ///< how long at least one request is in flight
    bool operator==(const DriveStep&) const = default;
  };
  struct Drive {
    std::string directory, engine;
    ByteCount read, written;
    std::uint64_t requests = 0;
    /// Requests that were repeated, whole or in parts, after an error or a short transfer.
    std::uint64_t repeated = 0;
    TimePoint latency_99{};  ///< of 99 % of the requests at most
    TimePoint busy{};        ///< how long at least one request was in flight
    double limit = 0;        ///< this rank's share of the bytes a second that were measured; 0: not known
    ByteCount endurance;     ///< its share of the bytes that the maker lets be written (TBW); 0: not known
    DriveStep step;          ///< its part of RunReport::step_traffic; 0: not known
    /// And of predicted_step_traffic, as a replay divides it whose drives get what these have moved; 0: not known.
    DriveStep predicted_step;
    /// The bytes a second that were moved in a run of that time, as a part of `limit`; 0: not known.
    [[nodiscard]] double share_of_limit(TimePoint elapsed) const;
    bool operator==(const Drive&) const = default;
  };

  /// What callers have waited for.
  struct Stall {
    swap::StallCause cause{};
    TimePoint time{};
    bool operator==(const Stall&) const = default;
  };
  /// Another machine or setting, and the part of a step's time that it would save.
  struct Change {
    std::string what;
    double saves = 0;
    bool operator==(const Change&) const = default;
  };

  std::uint32_t rank = 0;
  std::uint64_t steps = 0;     ///< of the rank's first engine; 0: none, or not known
  TimePoint elapsed{};         ///< the time of the run; 0: not known, so that there are no rates
  TimePoint step{};            ///< the mean time of a step of that engine; 0: not known
  TimePoint predicted_step{};  ///< what a step takes as simulated; 0: not known; only of Rank::report()
  /// Mean of the steps after the first one, each from the end of the one before it, with all that the runtime has moved
  /// meanwhile, such as commits; 0: none has ended, or the rank has several engines.
  StepTraffic step_traffic;
  /// As simulated, the mean of later steps, without commits; 0: not known.
  StepTraffic predicted_step_traffic;
  TimePoint stalled{};      ///< that callers have waited, see swap::Runtime::stall_time(); a sum over threads
  ByteCount resident_peak;  ///< of this process, all its ranks together; 0: not known
  std::vector<Stall> stalls;     ///< by cause; without those that did not occur
  std::vector<Memory> memory;    ///< by tier, then purpose; without those that have no bytes
  std::vector<Traffic> traffic;  ///< by purpose; the same
  std::vector<Drive> drives;     ///< in the order of the paths that are used
  std::vector<Change> changes;   ///< the most helpful first; only of Rank::report()
  std::string changes_note;      ///< why there are none, or what they rest on
  bool operator==(const RunReport&) const = default;
};

/// What a runtime does not know. Ranks that share a drive divide its limit and its endurance; these replace those of
/// its PathOptions.
struct ReportFacts {
  struct Drive {
    std::filesystem::path directory;  ///< as the path names it
    double limit = 0;                 ///< these as in RunReport::Drive
    ByteCount endurance = {};
  };
  std::uint32_t rank = 0;
  TimePoint elapsed{};
  std::vector<Drive> drives = {};  ///< those that are known
};

/// Safe from any thread, also while the runtime is used: then a figure may be newer than another one. Does not wait for
/// transfers.
[[nodiscard]] RunReport report_of(swap::Runtime& runtime, const ReportFacts& facts = {});

/// Tables for people.
[[nodiscard]] std::string to_text(const RunReport& report);
/// One object; the keys are the names of the members, sizes are in bytes and times in seconds. A drive has its
/// share_of_limit too.
[[nodiscard]] std::string to_json(const RunReport& report);
/// Metrics in Prometheus' text format, version 0.0.4, for the textfile collector of its node exporter or a server.
[[nodiscard]] std::string to_prometheus(const RunReport& report);

enum class ReportFormat : std::uint8_t { text, json, prometheus };

/// By the extension of a file: JSON for .json, metrics for .prom, else tables.
[[nodiscard]] ReportFormat report_format_of(const std::filesystem::path& file);

/// Replaces `file`, or the file to which it is a link, so that another program reads one whole report; after a power
/// cut it may have none. What is written first is beside it, with a name of its own that ends in ".new". The file keeps
/// its permissions. Blocks. Safe from any thread.
///
/// Errors, after which the file is as before: already_exists, for a file that is no report; invalid_argument, for an
/// unknown format, an empty name, and what is there and no file, such as a device; in_use, for a file that another has
/// locked; not_found, permission, no_space and io, of the file.
[[nodiscard]] Result<void> save_report(const RunReport& report, const std::filesystem::path& file,
                                       ReportFormat format);

}  // namespace penstock::zero
