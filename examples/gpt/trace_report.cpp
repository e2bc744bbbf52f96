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

constexpr std::size_t number(Activity activity) {
  return static_cast<std::size_t>(activity);
}

/// How an activity is called.
struct Words {
  enum class Object : std::uint8_t { none, unit, bytes };
  const char* category;
  const char* event;
  Object object;                ///< what follows in the event's name
  const char* share = nullptr;  ///< of a track's time, in the summary
};
using enum Words::Object;

constexpr std::array<Words, activity_count> words = {{
    {"compute", "forward ", unit},
    {"compute", "backward ", unit},
    {"wait", "wait for parameters of ", unit},
    {"wait", "wait for room for gradients of ", unit},
    {"wait", "wait for checkpoint of ", unit},
    {"wait", "wait for step", none},
    {"copy", "copy to device ", bytes, "copies to the device"},
    {"copy", "copy to host ", bytes, "copies to the host"},
    {"copy", "copy on device ", bytes, "copies on the device"},
    {"kernel", "cast ", bytes, "casts"},
    {"kernel", "scale ", bytes, "scaling"},
    {"kernel", "accumulate ", bytes, "accumulation"},
    {"kernel", "mean ", bytes, "means"},
    {"kernel", "square sums ", bytes, "square sums"},
    {"kernel", "Adam ", bytes, "Adam"},
    {"disk", "read and write ", bytes, "reads and writes"},
}};

bool is_wait(Activity activity) {
  return activity == Activity::wait_for_parameters || activity == Activity::wait_for_gradients ||
         activity == Activity::wait_for_checkpoint || activity == Activity::wait_for_step;
}

}  // namespace

Result<std::unique_ptr<TraceReport>> TraceReport::create(const std::filesystem::path& file,
                                                         std::vector<std::string> units) {
  PENSTOCK_TRY_ASSIGN(auto opened, OutputFile::create(file));
  std::fputs("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [", opened.get());
  return std::unique_ptr<TraceReport>(new TraceReport(std::move(opened), std::move(units)));
}

std::string TraceReport::name_of(const Doing& did) const {
  const Words& of = words[number(did.activity)];
  switch (of.object) {
    case none: break;
    case unit: return of.event + units_.at(did.unit);
    case bytes: return of.event + to_string(did.bytes);
  }
  return of.event;
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
        separator(), name_of(span.did).c_str(), words[number(span.did.activity)].category,
        seconds(span.begin) * 1e6, length * 1e6, rank, span.track);
  }
}

Result<void> TraceReport::finish() {
  if (first_) return file_.flush();  // nothing was trained: an earlier file stays
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
  for (std::size_t i = 0; i < activity_count; ++i) {
    if (words[i].share == nullptr || track.bytes[i].is_zero()) continue;
    std::printf("  %s %.1f %%, %s", words[i].share, share(Activity(i)), to_string(track.bytes[i]).c_str());
  }
  const double parameters = share(Activity::wait_for_parameters),
               gradients = share(Activity::wait_for_gradients),
               checkpoints = share(Activity::wait_for_checkpoint), step = share(Activity::wait_for_step);
  if (parameters + gradients + checkpoints + step > 0) {
    std::printf("  idle %.1f %%: parameters %.1f %%", 100 - busy, parameters);
    const auto most = std::max_element(track.parameter_waits.begin(), track.parameter_waits.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    if (most != track.parameter_waits.end()) {
      std::printf(" (most for %s, %.1f %%)", units_.at(most->first).c_str(), 100 * most->second / elapsed);
    }
    std::printf(", room for gradients %.1f %%", gradients);
    if (checkpoints > 0) std::printf(", checkpoints %.1f %%", checkpoints);
    std::printf(", step %.1f %%, other %.1f %%", step,
                std::max(0.0, 100 - busy - parameters - gradients - checkpoints - step));
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
