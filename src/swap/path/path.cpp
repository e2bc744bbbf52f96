#include "swap/path/path.hpp"

#include "base/notes.hpp"
#include "base/number_text.hpp"
#include "tiers/io/bounded_call.hpp"
#include "tiers/io/choose_engine.hpp"
#include "tiers/io/file_errors.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <string>

namespace penstock::swap {

namespace {

/// Enough requests for in_flight_max, and more where transfers are shorter than request_max.
std::uint32_t queue_depth(const PathOptions& options) {
  const std::uint64_t request = std::max<std::uint64_t>(options.request_max.value(), 1);
  return static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(ceil_divide(options.in_flight_max.value(), request), 64, 4096));
}

}  // namespace

Result<void> check_weight(const PathOptions& path) {
  if (path.weight > 0 && std::isfinite(path.weight)) return ok();
  return Error::invalid_argument("Path::create")
      .object("weight of " + path.directory.string())
      .wanted("a finite number above 0")
      .got(number_text(path.weight));
}

Result<void> check_options(const PathOptions& path) {
  const auto refused = [&](const char* name) {
    return Error::invalid_argument("Path::create").object(name + (" of " + path.directory.string()));
  };
  if (path.directory.empty()) {
    return Error::invalid_argument("Path::create")
        .object("directory")
        .wanted("the name of a directory")
        .got("\"\"");
  }
  if (path.clock == nullptr) return refused("clock").reason("it is null");
  if (path.file_system == nullptr) return refused("file_system").reason("it is null");
  if (path.deadline <= TimePoint::zero()) {
    return refused("deadline").wanted("a time above 0").got(std::to_string(path.deadline.count()) + " ns");
  }
  constexpr const char* enumerator = "an enumerator";
  if (path.direct_io > tiers::DirectIo::off)
    return refused("direct_io").wanted(enumerator).got(unsigned(path.direct_io));
  if (path.engine > tiers::EngineChoice::threads)
    return refused("engine").wanted(enumerator).got(unsigned(path.engine));
  const std::string& name = path.file_name;
  if (name.find('/') != std::string::npos || name == "." || name == "..")
    return refused("file_name").wanted("a name in the directory, without \"/\"").got("\"" + name + "\"");
  if (!(path.rate_limit >= 0) || !std::isfinite(path.rate_limit))
    return refused("rate_limit").wanted("bytes a second, 0 or more").got(number_text(path.rate_limit));
  return ok();
}

namespace {

Result<tiers::ChosenEngine> engine_for(const PathOptions& options, const tiers::File::Properties& file) {
  if (!options.make_engine) return tiers::choose_engine(options.engine, queue_depth(options), file);
  PENSTOCK_TRY_ASSIGN(auto made, options.make_engine(file));
  return tiers::ChosenEngine{std::move(made), {}};
}

/// Ranges of host memory are multiples of 4096. Transfers between them and such a file would be refused later.
Result<void> check_alignment(const tiers::File::Properties& file) {
  if (file.alignment <= Alignment(4096)) return ok();
  return Error::unsupported("Path::create")
      .reason("its file system takes no transfers of 4096 bytes")
      .object(file.name)
      .wanted("an alignment of at most 4096")
      .got(file.alignment.bytes())
      .advice("name a directory on another file system");
}

/// `maker` is what made or replaced the engine.
Result<void> check_made(const char* maker, const tiers::ChosenEngine& chosen) {
  Error refused = Error::invalid_argument("Path::create").object(maker);
  if (chosen.engine == nullptr) return std::move(refused).reason("it returned no engine");
  if (const std::string failure = chosen.engine->failure(); !failure.empty()) {
    return std::move(refused).reason("its engine has failed").got(failure);
  }
  const tiers::IoLimits limits = chosen.engine->limits();
  if (limits.depth > 0 && !limits.request_max.is_zero()) return ok();
  return std::move(refused).reason("its engine accepts no request: its limits are zero");
}

}  // namespace

Result<PathReport> probe_path(const PathOptions& options) {
  PENSTOCK_TRY_ASSIGN(const auto path, Path::create(options));
  return path->report();
}

PathReport Path::report() const {
  return {.directory = options_.directory,
          .file = file_,
          .capacity = options_.capacity,
          .reserved = options_.reserved.value_or(options_.capacity),
          .weight = options_.weight,
          .request_max = options_.request_max,
          .in_flight_max = options_.in_flight_max,
          .rate_limit = options_.rate_limit,
          .endurance = options_.endurance,
          .engine = driver_->engine().name(),
          .notes = notes(),
          .counters = counters(),
          .driver_cpu_time = driver_cpu_time(),
          .busy = driver_->busy()};
}

std::string Path::take_message() {
  const std::uint64_t count = counters().subdivided;
  if (count == 0 || count < 2 * subdivided_) return {};
  subdivided_ = count;
  return file_.name + ": " + std::to_string(count) + (count == 1 ? " request" : " requests") +
         " failed so far with an input/output error and were repeated in parts; " + tiers::advice_for(EIO);
}

/// What a path consists of.
struct Path::Opened {
  PathOptions options;
  tiers::File::Properties file;
  std::string choice, growth_note;
  std::shared_ptr<PathDriver> driver;
};

Result<std::unique_ptr<Path>> Path::create(const PathOptions& wanted, ByteCount pinned_end) {
  PENSTOCK_TRY(check_weight(wanted));
  PENSTOCK_TRY(check_options(wanted));
  PathOptions options = wanted;
  constexpr ByteCount block(4096);
  if (options.capacity < block) {
    return Error::invalid_argument("Path::create")
        .object("capacity of " + options.directory.string())
        .wanted("the length of the swap file, at least one block of " + to_string(block))
        .got(options.capacity);
  }
  const ByteCount reserved = options.reserved.value_or(options.capacity);
  if (reserved > options.capacity) {
    return Error::invalid_argument("Path::create")
        .object("reserved of " + options.directory.string())
        .wanted("at most the capacity, " + to_string(options.capacity))
        .got(reserved);
  }
  // A file system may never answer, and file and engine are closed on the thread that the kernel does not return.
  PENSTOCK_TRY_ASSIGN(auto opened,
                      tiers::bounded_call<Opened>(
                          "Path::create", options.directory.string(), options.deadline,
                          [options, reserved, pinned_end] { return open(options, reserved, pinned_end); }));
  return std::unique_ptr<Path>(new Path(std::move(opened)));
}

namespace {
/// The name of one is durable, and the length of one that is made, so that what is written there later can be. An
/// earlier process may have been killed before it could sync the name.
Result<tiers::File> swap_file(const PathOptions& options, ByteCount reserved) {
  tiers::FileSystem& files = *options.file_system;
  if (options.file_name.empty()) return files.create_scratch(options.directory, reserved, options.direct_io);
  const std::filesystem::path name = options.directory / options.file_name;
  auto file = files.open(name, options.direct_io);
  if (!file && file.error().code() == ErrorCode::not_found) {
    file = files.create(name, reserved, options.direct_io);
    if (file) PENSTOCK_TRY(file->sync());
  }
  if (file) PENSTOCK_TRY(files.sync_directory(options.directory));
  return file;
}
}  // namespace

Result<Path::Opened> Path::open(PathOptions options, ByteCount reserved, ByteCount pinned_end) {
  PENSTOCK_TRY_ASSIGN(auto file, swap_file(options, reserved));
  PENSTOCK_TRY(check_alignment(file.properties()));
  ByteCount length = reserved;
  if (!options.file_name.empty()) {
    PENSTOCK_TRY_ASSIGN(length, file.size());
    // A process whose limit on file sizes is lower than that of the one that made the file may not write its end.
    PENSTOCK_TRY(file.extend(length));
    // Beyond the end of the file nothing is kept.
    options.capacity = std::max(options.capacity + std::min(pinned_end, length), length);
  }
  std::string growth_note;
  if (length < options.capacity) {
    if (auto extended = file.extend(options.capacity); !extended) {
      growth_note = "may not grow: " + extended.error().message();
      options.capacity = length;
    }
  }
  options.reserved = std::min(reserved, options.capacity);
  PENSTOCK_TRY_ASSIGN(auto chosen, engine_for(options, file.properties()));
  PENSTOCK_TRY(check_made(options.make_engine ? "PathOptions::make_engine" : "PathOptions::engine", chosen));
  if (options.decorate) chosen.engine = options.decorate(std::move(chosen.engine));
  PENSTOCK_TRY(check_made("PathOptions::decorate", chosen));
  tiers::File::Properties properties = file.properties();
  if (properties.allocated >= *options.reserved) {
    properties.reserve_note.clear();  // holes are beyond: bytes that were written there once, or may be
  } else if (!properties.allocated.is_zero() && properties.reserve_note.empty()) {
    properties.reserve_note = "the existing file has only " + to_string(properties.allocated);
  }
  PENSTOCK_TRY_ASSIGN(auto driver, PathDriver::create(options, std::move(file), std::move(chosen.engine)));
  return Opened{.options = std::move(options),
                .file = properties,
                .choice = std::move(chosen.reason),
                .growth_note = std::move(growth_note),
                .driver = std::move(driver)};
}

Path::Path(Opened opened)
    : options_(std::move(opened.options)),
      file_(std::move(opened.file)),
      choice_(std::move(opened.choice)),
      growth_note_(std::move(opened.growth_note)),
      engine_notes_(opened.driver->engine().notes()),
      driver_(std::move(opened.driver)) {}

Path::~Path() {
  (void)stop_driver();  // the owner of the buffers called it before and got its result
}

void Path::attach(HostSpan buffers) {
  driver_->engine().attach(tiers::FileHandle::none, buffers);
  engine_notes_ = driver_->engine().notes();
}

bool Path::buffers_detached() const {
  const auto buffers = driver_->buffers();
  return buffers && buffers->detached;
}

std::string Path::notes() const {
  std::string notes;
  const auto buffers = driver_->buffers();
  for (const std::string& line :
       {choice_, file_.direct_note.empty() ? "" : "buffered I/O: " + file_.direct_note,
        file_.reserve_note.empty() ? "" : "space not reserved: " + file_.reserve_note, growth_note_,
        buffers ? buffers->notes : engine_notes_}) {
    append_note(notes, line);
  }
  return notes;
}

}  // namespace penstock::swap
