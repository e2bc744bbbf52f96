#pragma once

#include "gpt/output_file.hpp"
#include "gpt/timeline.hpp"

#include <array>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace gpt {

/// Writes the timelines of all ranks to a file that chrome://tracing and Perfetto read, one row a track (Trace Event
/// Format, complete events), and adds up what each track did. Used by one thread at a time.
class TraceReport {
 public:
  /// `units` are the names of the model's units. Errors: those of opening the file, such as permission and not_found.
  [[nodiscard]] static penstock::Result<std::unique_ptr<TraceReport>> create(
      const std::filesystem::path& file, std::vector<std::string> units);

  /// Takes the timeline's spans.
  void add(std::uint32_t rank, Timeline& timeline);
  /// Ends the file; without a span, one that was there before stays. Errors: io, if it could not be written.
  [[nodiscard]] penstock::Result<void> finish();
  /// Prints each track's busy share, and by cause how long the streams of computations were idle.
  void print() const;

 private:
  struct Track {
    std::string name;
    std::array<double, activity_count> seconds{};
    std::array<penstock::ByteCount, activity_count> bytes{};
    std::map<std::uint32_t, double> parameter_waits;  // by unit
  };
  struct Rank {
    penstock::TimePoint begin = penstock::forever, end{};
    std::map<std::uint32_t, Track> tracks;
  };

  TraceReport(OutputFile file, std::vector<std::string> units)
      : units_(std::move(units)), file_(std::move(file)) {}
  [[nodiscard]] std::string name_of(const Doing& did) const;
  void print(const Track& track, double elapsed) const;

  const std::vector<std::string> units_;
  OutputFile file_;
  bool first_ = true;
  std::map<std::uint32_t, Rank> ranks_;
};

}  // namespace gpt
