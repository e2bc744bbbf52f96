#include "gpt/trace_report.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace gpt {

using penstock::Result;
using penstock::TimePoint;

namespace {

double seconds(TimePoint time) {
  return std::chrono::duration<double>(time).count();
}

bool is_wait(Activity activity) {
  return activity == Activity::wait_for_parameters || activity == Activity::wait_for_gradients ||
         activity == Activity::wait_for_step;
}

const char* category(Activity activity) {
  if (is_wait(activity)) return "wait";
  switch (activity) {
    case Activity::copy_to_device:
    case Activity::copy_to_host:
    case Activity::copy_on_device: return "copy";
    case Activity::disk: return "disk";
    default: return "compute";
  }
}

constexpr std::size_t number(Activity activity) {
  return static_cast<std::size_t>(activity);
}

}  // namespace

Result<std::unique_ptr<TraceReport>> TraceReport::create(const std::filesystem::path& file,
                                                         std::vector<std::string> units) {
  PENSTOCK_TRY_ASSIGN(auto opened, OutputFile::create(file));
  std::fputs("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [", opened.get());
  return std::unique_ptr<TraceReport>(new TraceReport(std::move(opened), std::move(units)));
}

std::string TraceReport::name_of(const Doing& did) const {
  const std::string& unit = units_.at(did.unit);
  const std::string bytes = to_string(did.bytes);
  switch (did.activity) {
    case Activity::forward: return "forward " + unit;
    case Activity::backward: return "backward " + unit;
    case Activity::wait_for_parameters: return "wait for parameters of " + unit;
    case Activity::wait_for_gradients: return "wait for room for gradients of " + unit;
    case Activity::wait_for_step: return "wait for step";
    case Activity::copy_to_device: return "copy to device " + bytes;
    case Activity::copy_to_host: return "copy to host " + bytes;
    case Activity::copy_on_device: return "copy on device " + bytes;
    case Activity::disk: break;
  }
  return "read and write " + bytes;
}

void TraceReport::add(std::uint32_t rank, Timeline& timeline) {
  const std::vector<Span> spans = timeline.take();
  const std::vector<std::string> names = timeline.tracks();
  Rank& sums = ranks_[rank];
  const auto separator = [&] { return std::exchange(first_, false) ? "\n" : ",\n"; };
  for (const Span& span : spans) {
    const auto [found, added] = sums.tracks.try_emplace(span.track);
    Track& track = found->second;
    if (added) {
      track.name = names.at(span.track);
      std::fprintf(file_.get(),
                   "%s{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": %u, \"tid\": %u, "
                   "\"args\": {\"name\": \"%s\"}}",
                   separator(), rank, span.track, track.name.c_str());
    }
    const double length = seconds(span.end - span.begin);
    track.seconds[number(span.did.activity)] += length;
    track.bytes[number(span.did.activity)] += span.did.bytes;
    if (span.did.activity == Activity::wait_for_parameters) track.parameter_waits[span.did.unit] += length;
    sums.begin = std::min(sums.begin, span.begin);
    sums.end = std::max(sums.end, span.end);
    std::fprintf(
        file_.get(),
        "%s{\"name\": \"%s\", \"cat\": \"%s\", \"ph\": \"X\", \"ts\": %.3f, \"dur\": %.3f, \"pid\": %u, "
        "\"tid\": %u}",
        separator(), name_of(span.did).c_str(), category(span.did.activity), seconds(span.begin) * 1e6,
        length * 1e6, rank, span.track);
  }
}

Result<void> TraceReport::finish() {
  std::fputs("\n]}\n", file_.get());
  return file_.close();
}

void TraceReport::print(const Track& track, double elapsed) const {
  const auto share = [&](Activity activity) { return 100 * track.seconds[number(activity)] / elapsed; };
  double busy = 0;
  for (std::size_t i = 0; i < activity_count; ++i) {
    if (!is_wait(Activity(i))) busy += 100 * track.seconds[i] / elapsed;
  }
  std::printf("  %-12s busy %5.1f %%", track.name.c_str(), busy);
  for (const auto& [activity, what] : {std::pair(Activity::copy_to_device, "copies to the device"),
                                       std::pair(Activity::copy_to_host, "copies to the host"),
                                       std::pair(Activity::copy_on_device, "copies on the device"),
                                       std::pair(Activity::disk, "reads and writes")}) {
    if (const auto bytes = track.bytes[number(activity)]; !bytes.is_zero()) {
      std::printf("  %s %.1f %%, %s", what, share(activity), to_string(bytes).c_str());
    }
  }
  const double parameters = share(Activity::wait_for_parameters),
               gradients = share(Activity::wait_for_gradients), step = share(Activity::wait_for_step);
  if (parameters + gradients + step > 0) {
    std::printf("  idle %.1f %%: parameters %.1f %%", 100 - busy, parameters);
    const auto most = std::max_element(track.parameter_waits.begin(), track.parameter_waits.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    if (most != track.parameter_waits.end()) {
      std::printf(" (most for %s, %.1f %%)", units_.at(most->first).c_str(), 100 * most->second / elapsed);
    }
    std::printf(", room for gradients %.1f %%, step %.1f %%, other %.1f %%", gradients, step,
                std::max(0.0, 100 - busy - parameters - gradients - step));
  }
  std::printf("\n");
}

void TraceReport::print() const {
  for (const auto& [number, rank] : ranks_) {
    const double elapsed = seconds(rank.end - rank.begin);
    if (elapsed <= 0) continue;
    std::printf("\nrank %u, %.1f s\n", number, elapsed);
    for (const auto& [track_number, track] : rank.tracks) print(track, elapsed);
  }
  std::printf("trace  %s\n", file_.path().c_str());
}

}  // namespace gpt
